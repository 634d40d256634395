"""A constant rate that falls linearly in the last fifth of the steps.

    xlnet-jax train --config=configs/compare/schedules/wsd.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four schedules; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.optimizer.update(schedule="wsd", decay_fraction=0.2)
    return config
