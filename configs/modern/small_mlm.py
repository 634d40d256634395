"""A small ModernBERT, on a laptop's CPU.

    xlnet-jax quickstart --config=configs/modern/small_mlm.py --workdir=runs/modern

Hardware: two CPU cores, no accelerator. Nothing here is published: the examples come from
base_mlm.py, all other keys from small_plm.py.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_mlm.py", sizes="small_plm.py")
    config.model.max_positions = 512
    return config
