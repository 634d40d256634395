"""XLNet with a memory of a whole segment, 64 tokens, and blocks of 64 windows in place of 8.

    xlnet-jax train --config=configs/compare/memory/plm_long_memory.py \
      --config.data.corpus=CORPUS --workdir=RUN

One of three configurations of permutation language modelling; docs/comparison.md has the commands.
One example in 64 begins with an empty memory, in place of one in 8. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm.py")
    config.model.memory_len = 64
    config.data.windows_per_block = 64
    return config
