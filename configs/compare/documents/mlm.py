"""Masked language modelling (15 % of single pieces) on whole documents, with the network of
`documents_small.py`, which has the command.

    xlnet-jax train --config=configs/compare/documents/mlm.py --config.data.corpus=CORPUS \
      --config.model.vocab_size=V --workdir=RUN

Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../documents_small.py")
    config.data.update(objective="mlm", spans="random")
    config.data.num_predict = config.data.get_ref("segment_len") * 3 // 20
    return config
