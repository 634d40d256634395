"""`plm_memory_64.py` with blocks of 64 windows in place of 8: 2,048 tokens.

    xlnet-jax train --config=configs/compare/memory/plm_blocks.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four configurations; docs/comparison.md has the commands. One row in 64 begins with an empty
memory, in place of one in 8. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm_memory_64.py")
    config.data.windows_per_block = 64
    return config
