"""A rate that falls linearly from the end of the warm-up on.

    xlnet-jax train --config=configs/compare/schedules/linear.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four schedules; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.optimizer.schedule = "polynomial"
    return config
