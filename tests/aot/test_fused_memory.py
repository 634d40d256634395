"""Memory of the fused attention by the TPU compiler, beside that of XLA's: what long texts need.

The compiler keeps some temporaries of a small program in the chip's vector memory (VMEM) and counts only those in HBM,
which hides half of them at T = 1024. So the growth is measured with all of them in HBM.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BIASES, differentiated
from jax.sharding import Mesh, NamedSharding

from xlnet_jax.aot import compile
from xlnet_jax.aot.topology import describe
from xlnet_jax.config import load, override
from xlnet_jax.kernels import tpu, xla
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.train.recipe import make_recipe

LARGE = str(pathlib.Path(__file__).parents[2] / "configs" / "xlnet_large_512.py")
IN_HBM = {"xla_vf_vmem_memory_space_assignment": "false"}


def temporaries(attend, T, H=16, E=64):
    """Bytes for both streams of one row, forward and backward, with memory and targets in the published shares of T."""
    K, P = T + 3 * T // 4, T * 85 // 512
    mesh = Mesh(np.array(describe("v5e:2x2").devices[:1]), ("data",))

    def array(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, jax.P()))

    ints, wide = functools.partial(array, dtype=jnp.int32), functools.partial(array, dtype=jnp.float32)

    def stream(Q, chosen):
        return dict(
            q_BQHE=array(1, Q, H, E), k_BKHE=array(1, K, H, E), v_BKHE=array(1, K, H, E),
            position=(wide(1, K + T - 1, H, E), wide(1, K + T - 1, H, E), ints(1)),
            biases={name: wide(H, E) for name in BIASES}, segment_2HE=wide(2, H, E), limit_BQ=ints(1, Q),
            rank_BK=ints(1, K), segment_BQ=ints(1, Q), segment_BK=ints(1, K), rows_B=ints(1),
            query_position_BQ=ints(1, Q) if chosen else None,
        )  # fmt: skip

    def both(streams, dos, key):
        results = []
        for number, (arguments, do_BQHE) in enumerate(zip(streams, dos, strict=True)):
            (o_BQHE, _), grads = differentiated(attend, arguments, do_BQHE, dropout=AttentionDropout(key, 0.1, number))
            results.append((o_BQHE, grads))
        return results

    streams = [stream(T, False), stream(P, True)]
    with jax.set_mesh(mesh):
        # A kernel is not for the compiler to split.
        alone = jax.shard_map(both, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
        lowered = jax.jit(alone).lower(streams, [x["q_BQHE"] for x in streams], array(dtype=jnp.uint32))
    try:
        return lowered.compile(compiler_options=IN_HBM).memory_analysis().temp_size_in_bytes
    except jax.errors.JaxRuntimeError as error:
        return compile.out_of_memory(str(error))[0]


@pytest.mark.prove
@pytest.mark.parametrize(("attend", "least", "most"), [(tpu.attend, 1.8, 2.1), (xla.attend, 3.5, 4.5)])
def test_temporaries_grow_with_T_and_not_with_its_square(attend, least, most):
    """Catches an array of queries times keys."""
    sizes = [temporaries(attend, T) for T in (1024, 2048, 4096, 8192)]
    print(f"{attend.__module__}: {sizes} bytes")
    growth = [after / before for before, after in zip(sizes, sizes[1:], strict=False)]
    assert least <= min(growth) and max(growth) <= most, sizes


@pytest.mark.prove
@pytest.mark.parametrize(("attention", "fits"), [("fused", True), ("xla", False)])
def test_a_long_text_fits_only_with_the_kernel(attention, fits):
    """XLNet-Large: a row of T = 4096 and M = 3072 per device of v5e:4x4, parameters sharded, full remat."""
    words = [
        "data.segment_len=4096", "data.reuse_len=2048", "data.num_predict=680", "model.memory_len=3072",
        "train.batch_size=16", "train.steps_per_dispatch=1", "mesh.data=1", "mesh.fsdp=16", "model.remat=full",
        f"model.attention={attention}",
    ]  # fmt: skip
    config = override(load(LARGE), [f"--config.{word}" for word in words])
    trial = compile.attempt(make_recipe(config), describe("v5e:4x4"))
    assert trial.fits == fits, trial.needed
