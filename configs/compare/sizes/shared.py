"""`unshared.py` with one wider layer applied 4 times: 1,086,804 parameters.

    xlnet-jax train --config=configs/compare/sizes/shared.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four networks; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "unshared.py")
    config.model.update(share_layers=True, d_model=212, head_dim=53, d_ff=848)
    return config
