"""Left to right with a memory as long as a segment (Transformer-XL): 64 tokens.

    xlnet-jax train --config=configs/compare/memory/clm_memory.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of two left-to-right configurations in this folder; docs/comparison.md has the commands.
Blocks have 2,048 tokens. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm_memory_64.py")
    config.data.update(objective="clm", reuse_len=64, num_predict=64, windows_per_block=32)
    config.train.steps = 1600
    return config
