"""The layers of ModernBERT under permutation language modelling with spans: 238,416 parameters.

    xlnet-jax train --config=configs/compare/blocks/modern_plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five configurations; docs/comparison.md has the command. The first layer is global, the
second is local. Nothing here is published, but theta and the activation are ModernBERT's.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "xlnet_plm.py")
    config.model.update(
        architecture="modern",
        d_ff=185,
        activation="gelu_erf",
        norm="pre",
        window=16,
        global_every=3,
        theta=160_000.0,
        theta_local=10_000.0,
        layer_norm_epsilon=1e-5,
        init_truncated=True,
    )
    return config
