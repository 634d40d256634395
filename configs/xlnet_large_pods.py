"""XLNet-Large with the published batch size on current pods: 256 chips of v4, v5e or v6e, or 512 of
v5p.

    xlnet-jax compile --config=configs/xlnet_large_pods.py --topology=v6e:16x16
    xlnet-jax train --config=configs/xlnet_large_pods.py --config.data.corpus=CORPUS \
      --workdir=gs://BUCKET/RUN

A mesh axis is a product of sides of the torus, so a torus of three sides needs
--config.mesh.fsdp=32 (v4, TPU7x) or 64 (v5p). On v5e an axis may have a part of a side:
--config.mesh.fsdp=32 is the fastest by the cost model of `compile`.

Published: the values of xlnet_large.py.
Ours: 8 rows per device (4 on v5p), parameters and update divided over one side of a torus of 16 x
16 chips (mesh.fsdp), and layers one by one in place of a loop (unroll): compiling takes two to
three times as long, and a step is faster by the cost model. Activations for the backward pass are
all kept; if they do not fit, --config.model.remat=dots recomputes all but matrix products.
docs/performance.md has the bounds, docs/compile.md more topologies. Never run: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "xlnet_large.py")
    config.mesh.update(data=-1, fsdp=16, tensor=1)
    config.model.unroll = "on"
    return config
