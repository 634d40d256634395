"""A rate that falls as half a cosine.

    xlnet-jax train --config=configs/compare/schedules/cosine.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four schedules; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    return base.start_from(__file__, "../small.py")
