"""`unshared.py` with word embeddings of width 32, and 4 wider layers: 1,082,496 parameters.

    xlnet-jax train --config=configs/compare/sizes/factorised.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four networks; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "unshared.py")
    config.model.update(d_embed=32, d_model=144, head_dim=36, d_ff=576)
    return config
