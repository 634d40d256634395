"""`full.py` that reads all text forward.

    xlnet-jax train --config=configs/compare/ablations/one_direction.py \
      --config.data.corpus=CORPUS --workdir=RUN

One of `full.py` and its ablations; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.model.memory_len = 64
    config.data.bidirectional = False
    return config
