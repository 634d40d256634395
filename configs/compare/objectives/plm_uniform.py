"""Permutation language modelling of all positions in a random order, with the network of
`small.py`.

    xlnet-jax train --config=configs/compare/objectives/plm_uniform.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.data.update(
        factorization_order="uniform",
        reuse_len=128,
        num_predict=128,
        bidirectional=False,
        windows_per_block=4,
    )
    return config
