"""`modern_plm.py` with a memory of 32 tokens.

    xlnet-jax train --config=configs/compare/blocks/modern_plm_memory.py \
      --config.data.corpus=CORPUS --workdir=RUN

One of five configurations; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "modern_plm.py")
    config.model.memory_len = 32
    return config
