"""`full.py` with a second loss, whether B follows A.

    xlnet-jax train --config=configs/compare/ablations/next_sentence.py \
      --config.data.corpus=CORPUS --workdir=RUN

One of `full.py` and its ablations; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.model.memory_len = 64
    config.data.sentence_loss = True
    return config
