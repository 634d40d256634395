"""Permutation language modelling with XLNet's spans, with the network of `small.py`.

    xlnet-jax train --config=configs/compare/objectives/plm_spans.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. B always follows A.
Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.data.update(bidirectional=False, positive_pair_rate=1.0)
    return config
