"""Permutation language modelling with spans in the first half of the steps, then left to right.

    xlnet-jax train --config=configs/compare/switches/plm_then_clm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four plans; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../objectives/clm.py")
    config.data.positive_pair_rate = 1.0
    config.phases = (
        dict(
            steps=600, data=dict(objective="plm", reuse_len=64, num_predict=21, windows_per_block=8)
        ),
        dict(steps=600),
    )
    return config
