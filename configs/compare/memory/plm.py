"""XLNet without memory, as in `configs/compare/blocks/`.

    xlnet-jax train --config=configs/compare/memory/plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of three configurations of permutation language modelling; docs/comparison.md has the commands.
Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    return base.start_from(__file__, "../blocks/xlnet_plm.py")
