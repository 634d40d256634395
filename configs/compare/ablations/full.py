"""XLNet with all its parts: memory, spans, both directions.

    xlnet-jax train --config=configs/compare/ablations/full.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of five configurations in this folder; docs/comparison.md has the command. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.model.memory_len = 64
    return config
