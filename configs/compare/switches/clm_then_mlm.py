"""Left to right in the first half of the steps, then masked.

    xlnet-jax train --config=configs/compare/switches/clm_then_mlm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four plans; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../objectives/mlm.py")
    config.phases = (
        dict(steps=600, data=dict(objective="clm", reuse_len=128, num_predict=128)),
        dict(steps=600),
    )
    return config
