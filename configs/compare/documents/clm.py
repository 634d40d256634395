"""Left to right on whole documents, with the network of
`documents_small.py`, which has the command.

    xlnet-jax train --config=configs/compare/documents/clm.py --config.data.corpus=CORPUS \
      --config.model.vocab_size=V --workdir=RUN

Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../documents_small.py")
    config.data.objective = "clm"
    # + 0: the keys are not one key, so a change of one alone is refused.
    config.data.num_predict = config.data.get_ref("segment_len") + 0
    return config
