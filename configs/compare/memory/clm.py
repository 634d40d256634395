"""Left to right without memory, with the network and the segments of `plm.py`.

    xlnet-jax train --config=configs/compare/memory/clm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of two left-to-right configurations; docs/comparison.md has the commands. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "plm.py")
    config.data.update(objective="clm", reuse_len=64, num_predict=64, windows_per_block=32)
    config.train.steps = 840
    return config
