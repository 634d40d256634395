"""All uses of Pallas on Triton by the fused attention on GPU; another backend would replace this
module.

JAX 0.11 deprecates Pallas on Triton. Mosaic GPU (JAX 0.12.0) can lower the relative shift only by
`inline_mgpu`, which interpret mode refuses. Outside this module the kernels use only operations
that every backend of Pallas has: references, slices, program numbers, loops and elementwise
operations.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend.core import Primitive
from jax.interpreters import mlir

from xlnet_jax.kernels import packing

take_p = Primitive("xlnet_take")
"""Gather x[q, index[q, m]]. In interpret mode it is `take_along_axis`; for Triton see
`_lower_take`.
"""
take_p.def_abstract_eval(lambda x, index: ShapedArray(index.shape, x.dtype))
mlir.register_lowering(
    take_p,
    mlir.lower_fun(lambda x, index: jnp.take_along_axis(x, index, axis=1), multiple_results=False),
)


@functools.cache
def _lower_take() -> None:
    """Lowers `take_p` to Triton's gather. Must run before the first compilation for a GPU.

    Uses private names (checked with JAX 0.10.2 and 0.12.0), because Pallas has no public name for a
    gather or for a lowering to Triton.
    """
    from jax._src.lib import triton
    from jax._src.pallas.triton import lowering

    lowering.register_lowering(take_p)(lambda _, x, index: triton.dialect.gather(x, index, axis=1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triton:
    """Call of a kernel, and the operations that the kernel uses."""

    interpret: bool
    """Whether the kernel runs as plain JAX, on any device."""

    def call(
        self,
        body: Any,
        name: str,
        grid: tuple[int, ...],
        results: list[Any],
        inputs: Any,
        stages: int,
    ) -> Any:
        """Runs body(self, *inputs, *results) for each program of the grid, and returns the results;
        `results` give their shapes and dtypes. An input or a result may be None.
        """
        if not self.interpret:
            _lower_take()
        return pl.pallas_call(
            functools.partial(body, self),
            grid=grid,
            name=name,
            interpret=self.interpret,
            out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), results),
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=stages),
        )(*inputs)

    def dot(self, a: jax.Array, b: jax.Array, contraction: Any) -> jax.Array:
        """Computes `packing.dot`; float32 products are three in TF32: a few more roundoffs."""
        if self.interpret:
            return packing.dot(a, b, contraction)
        return packing.dot(a, b, contraction, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3)

    def exp2(self, x: jax.Array) -> jax.Array:
        """Returns 2^x, and 0 for subnormal results, which would take three more instructions."""
        if self.interpret:
            return jnp.exp2(x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return triton.elementwise_inline_asm(
            "ex2.approx.ftz.f32 $0, $1;",
            args=[x],
            constraints="=f,f",
            pack=1,
            result_shape_dtypes=[shape],
        )[0]

    def turn(self, x_QS: jax.Array, by_Q1: jax.Array) -> jax.Array:
        """Rotates rows: column m of row q is column (m + by[q]) mod S of x; S is a power of 2.

        A warp has 32 lanes. With 64 columns both halves read the same lane, so each element crosses
        lanes once; Triton's gather of 64 would read two lanes for each element, and compute two
        indices.
        """
        Q, S = x_QS.shape
        if S < 64:
            return take_p.bind(x_QS, (jnp.arange(S)[None] + by_Q1) & S - 1)
        half = S // 2
        from_QC = (jnp.arange(half)[None] + by_Q1) & S - 1
        low_QC, high_QC = (
            take_p.bind(x, from_QC & half - 1) for x in jax.lax.split(x_QS, (half, half), axis=1)
        )
        is_low_QC = from_QC < half
        halves = jnp.where(is_low_QC, low_QC, high_QC), jnp.where(is_low_QC, high_QC, low_QC)
        return jnp.stack(halves, axis=2).swapaxes(1, 2).reshape(Q, S)

    def barrier(self) -> None:
        """Makes the writes of each thread of the program visible to all its threads."""
        if not self.interpret:
            triton.debug_barrier()
