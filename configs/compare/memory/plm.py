"""`plm_memory.py` without memory.

    xlnet-jax train --config=configs/compare/memory/plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four configurations; docs/comparison.md has the commands. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm_memory.py")
    config.model.memory_len = 0
    return config
