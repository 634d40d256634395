"""`full.py` without memory.

    xlnet-jax train --config=configs/compare/ablations/no_memory.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of `full.py` and its ablations; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    return base.start_from(__file__, "../small.py")
