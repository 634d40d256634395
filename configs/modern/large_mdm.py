"""Masked diffusion with the layers of ModernBERT-Large: 28 layers, width 1024, 395,882,688
parameters.

    xlnet-jax train --config=configs/modern/large_mdm.py --config.data.corpus=CORPUS --workdir=RUN

The keys of base_mdm.py, with the published sizes of the large model. Ours: parameters and update
divided over 32 chips, and layers one by one in place of a loop (unroll): the fastest on v5e:16x16
by the cost model of `compile`. On v6e use --config.mesh.fsdp=16, on fewer devices 1. No
complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_mdm.py")
    config.model.update(layers=28, d_model=1024, heads=16, d_ff=2624, unroll="on")
    config.mesh.update(data=-1, fsdp=32)
    return config
