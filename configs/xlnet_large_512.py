"""XLNet-Large as published, on the published pod: 512 TPU v3 chips, which are 1024 cores and 1024
JAX devices.

    xlnet-jax compile --config=configs/xlnet_large_512.py --topology=v3:16x32
    xlnet-jax train --config=configs/xlnet_large_512.py --config.data.corpus=CORPUS --workdir=RUN

Published: the values of xlnet_large.py; batch 2048: two rows per core, four on the 512 cores of
v3:16x16.
Recalled: the longer run had a batch of 8192 (--config.train.batch_size=8192).
Ours: only data parallelism, and recomputation of whole layers in the backward pass (remat), which
changes memory and time but not the result. Two rows per core fit without recomputation and with
layers one by one, which is faster by the cost model of `compile`: --config.model.remat=none
--config.model.unroll=on. With parameters and update divided over 16 cores, --config.mesh.fsdp=16, a
core needs less memory. docs/compile.md lists the compiled topologies.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "xlnet_large.py")
    config.mesh.update(data=-1, fsdp=1, tensor=1)
    config.model.remat = "full"
    return config
