"""XLNet with a memory of half a segment: 32 tokens.

    xlnet-jax train --config=configs/compare/memory/plm_memory.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of three configurations of permutation language modelling in this folder;
docs/comparison.md has the commands. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm.py")
    config.model.memory_len = 32
    return config
