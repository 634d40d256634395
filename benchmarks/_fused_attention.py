"""Compiles both streams of the fused attention, forward and backward, for a TPU that is not here. Unfinished.

    python benchmarks/_fused_attention.py v5e:2x2 T=512 M=384 P=85 B=2 queries=512 keys=896

To become kernel_schedule.py, which reads libtpu's static schedule. Until then, for the bundles of each kernel:

    LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true" python benchmarks/_fused_attention.py ..
    grep -h "total scheduled" DIR/*xlnet*schedule-analysis_final_bundles.txt

A program has a loop over its units, strips times heads: in DIR/*final_bundles.txt its body is marked by a second `>`,
and it turns (units - 1) // 2 times. So a program takes bundles of depth 1 + turns * bundles of depth 2.
"""

import functools
import pathlib
import sys
import time

from xlnet_jax.aot.topology import describe, prepare_environment

prepare_environment()
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from attention_cases import cast, differentiated, draw  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from xlnet_jax.kernels import tpu  # noqa: E402
from xlnet_jax.kernels.dropout import AttentionDropout  # noqa: E402

SIZES = {"T": 512, "M": 384, "P": 85, "B": 2, "H": 16, "E": 64}
"""B: rows per device."""


def main(topology: str, *words: str) -> None:
    given = {name: int(value) for name, value in (word.split("=") for word in words)}
    sizes = SIZES | {name: value for name, value in given.items() if name in SIZES}
    blocks = tpu.Blocks(**{name: value for name, value in given.items() if name not in SIZES})
    devices = describe(topology).devices
    mesh = Mesh(np.array(devices), ("data",))
    rows = {"B": sizes["B"] * len(devices), "H": sizes["H"], "E": sizes["E"], "T": sizes["T"], "M": sizes["M"]}
    # Numbers are drawn only for their shapes.
    streams = [cast(draw(**rows, chosen=chosen), jnp.bfloat16) for chosen in (None, sizes["P"])]
    for stream in streams:
        stream["position"] = tuple(x.astype(jnp.float32) for x in stream["position"][:2]) + stream["position"][2:]
    shared = {"biases": P(), "segment_2HE": P(), "position": (P(), P())}
    by_row = {name: P("data") for name in streams[0]}
    inputs = by_row | shared | {"position": (P(), P(), P("data"))}
    gradients = {name: P("data") for name in ("q_BQHE", "k_BKHE", "v_BKHE")} | shared

    def both(streams, key):
        results = []
        for number, stream in enumerate(streams):
            do_BQHE = jnp.ones_like(stream["q_BQHE"])
            attend = functools.partial(tpu.attend, blocks=blocks)
            (o_BQHE, _), grads = differentiated(attend, stream, do_BQHE, dropout=AttentionDropout(key, 0.1, number))
            results.append((o_BQHE, grads | {name: jax.lax.psum(grads[name], "data") for name in shared}))
        return results

    specs = [inputs | {"query_position_BQ": None}, inputs], P()
    sharded = jax.shard_map(both, mesh=mesh, in_specs=specs, out_specs=[(P("data"), gradients)] * 2, check_vma=False)

    def described(spec, x):
        if spec is None:
            return None
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), x)

    arguments = jax.tree.map(
        described, specs, (streams, jnp.uint32(0)), is_leaf=lambda x: isinstance(x, P) or x is None
    )
    began = time.monotonic()
    lowered = jax.jit(sharded).trace(*arguments).lower(lowering_platforms=("tpu",))
    memory = lowered.compile().memory_analysis()
    print(
        f"{topology} {sizes} {blocks}: temporaries {memory.temp_size_in_bytes / 1e6:.1f} MB, "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
