"""XLNet's layers under permutation language modelling with spans: 687,696 parameters.

    xlnet-jax train --config=configs/compare/blocks/xlnet_plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of five configurations in this folder; docs/comparison.md has the command. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../objectives/plm_spans.py")
    config.optimizer.warmup_steps = 50
    config.train.update(steps=480, batch_size=8)
    return config
