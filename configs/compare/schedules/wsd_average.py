"""`wsd.py`, scored with the average of the parameters over about the last 100 steps.

    xlnet-jax train --config=configs/compare/schedules/wsd_average.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four schedules; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "wsd.py")
    config.optimizer.average = 0.99
    config.evaluation.averaged = True
    return config
