"""Shared values of the systems of a comparison on whole documents, such as molecules and proteins:
a small network that learns on a laptop's CPU.

    folder=configs/compare/documents
    xlnet-jax compare --corpus=CORPUS --workdir=RUN --config.model.vocab_size=V \
      --configs=$folder/clm.py,$folder/mlm.py,$folder/mdm.py,$folder/plm.py

V is the size of the vocabulary that `prepare` prints. `--config.data.segment_len=T` makes rows of T
tokens (128 for molecules, 256 for proteins); the keys that must be equal to it follow.
`xlnet-jax train --config=configs/compare/documents/plm.py ...` trains one system.

Hardware: two CPU cores, no accelerator. Nothing here is published: all sizes are ours.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "small.py")
    config.model.vocab_size = 64
    config.data.update(documents="whole", pairs="none", windows_per_block=1, bidirectional=False)
    # + 0: the keys are not one key, so a change of one alone is refused.
    config.data.reuse_len = config.data.get_ref("segment_len") + 0
    return config
