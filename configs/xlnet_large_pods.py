"""XLNet-Large with the published batch size on current pods: 256 chips of v4, v5e or v6e, or 512 of v5p.

    xlnet-jax compile --config=configs/xlnet_large_pods.py --topology=v6e:16x16
    xlnet-jax train --config=configs/xlnet_large_pods.py --config.data.corpus=CORPUS --workdir=gs://BUCKET/RUN

Published: the values of xlnet_large.py. Ours: only data parallelism, 8 rows per device (4 on v5p), and matrix products
saved for the backward pass instead of recomputation of whole layers (remat). Parameters and update are not divided
(mesh.zero1): they fit, and by the account of `compile` the step is slower with it. docs/compile.md has the results of
the compilation for v4:8x8x4, v5e:16x16, v5p:8x8x8 and v6e:16x16. Never run: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "xlnet_large.py")
    config.mesh.update(data=-1, fsdp=1, tensor=1)
    config.model.remat = "dots"
    return config
