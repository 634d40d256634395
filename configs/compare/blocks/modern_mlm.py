"""The layers of ModernBERT under masked language modelling: 238,416 parameters.

    xlnet-jax train --config=configs/compare/blocks/modern_mlm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five configurations; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "modern_plm.py")
    config.data.update(objective="mlm", reuse_len=61, num_predict=9, windows_per_block=4)
    return config
