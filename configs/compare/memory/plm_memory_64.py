"""`plm_memory.py` with a memory as long as a segment: 64 tokens.

    xlnet-jax train --config=configs/compare/memory/plm_memory_64.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four configurations; docs/comparison.md has the commands. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm_memory.py")
    config.model.memory_len = 64
    return config
