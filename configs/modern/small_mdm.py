"""A small masked diffusion with the layers of ModernBERT, on a laptop's CPU.

    xlnet-jax quickstart --config=configs/modern/small_mdm.py --workdir=runs/modern

Hardware: two CPU cores, no accelerator. Nothing here is published: the sizes of small_plm.py.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "small_mlm.py")
    config.data.objective = "mdm"
    config.data.num_predict = config.data.get_ref("segment_len") - 2
    return config
