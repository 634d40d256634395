"""ALBERT's network without its two savings: 4 layers that share nothing, word embeddings of full
width. 1,101,264 parameters.

    xlnet-jax train --config=configs/compare/sizes/unshared.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of four networks of about the same number of parameters; docs/comparison.md has the
command. B always follows A. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../objectives/mlm.py")
    config.model.update(
        architecture="albert", max_positions=128, layer_norm_epsilon=1e-12, layers=4
    )
    return config
