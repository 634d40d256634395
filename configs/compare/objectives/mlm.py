"""Masked language modelling (BERT's objective), with XLNet's network of `small.py`.

    xlnet-jax train --config=configs/compare/objectives/mlm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. B always follows A.
Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.data.update(
        objective="mlm",
        reuse_len=125,
        num_predict=19,
        bidirectional=False,
        windows_per_block=4,
        positive_pair_rate=1.0,
    )
    return config
