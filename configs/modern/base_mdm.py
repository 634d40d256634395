"""Masked diffusion with the layers of ModernBERT-Base: 22 layers, width 768, 149,656,000
parameters.

    xlnet-jax train --config=configs/modern/base_mdm.py --config.data.corpus=CORPUS --workdir=RUN

The keys of base_mlm.py, with the examples of data.objective=mdm. What is published and what is ours
is said there. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_mlm.py")
    config.data.objective = "mdm"
    config.data.num_predict = config.data.get_ref("segment_len") - 2
    return config
