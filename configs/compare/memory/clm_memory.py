"""Left to right with a memory of a whole segment, 64 tokens (Transformer-XL).

    xlnet-jax train --config=configs/compare/memory/clm_memory.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of two left-to-right configurations in this folder; docs/comparison.md has the commands.
Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "clm.py")
    config.model.memory_len = 64
    return config
