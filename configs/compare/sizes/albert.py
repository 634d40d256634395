"""ALBERT: word embeddings of width 32, and one wide layer applied 4 times: 1,088,112 parameters.

    xlnet-jax train --config=configs/compare/sizes/albert.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four networks; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "unshared.py")
    config.model.update(share_layers=True, d_embed=32, d_model=288, head_dim=72, d_ff=1152)
    return config
