"""The layers of ModernBERT-Large under XLNet's objective: 28 layers, width 1024,
395,883,712 parameters.

    xlnet-jax train --config=configs/modern/large_plm.py --config.data.corpus=CORPUS --workdir=RUN

The keys of base_plm.py, with the published sizes of the large model. On v5e:16x16 the step fits
with --config.mesh.fsdp=16, by `xlnet-jax compile`. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_plm.py")
    config.model.update(layers=28, d_model=1024, heads=16, d_ff=2624)
    return config
