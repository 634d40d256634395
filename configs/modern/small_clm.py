"""A small model with the layers of ModernBERT from left to right, on the characters of the quick
start's text, on a laptop's CPU.

    xlnet-jax quickstart --config=configs/modern/small_clm.py --workdir=runs/modern

Hardware: two CPU cores, no accelerator. Nothing here is published: the sizes of small_plm.py.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "small_plm.py")
    config.data.update(objective="clm", bidirectional=False)
    # + 0: the keys are not one key, so a change of one alone is refused.
    config.data.reuse_len = config.data.num_predict = config.data.get_ref("segment_len") + 0
    return config
