"""Parts of every layer: parameters with logical axes, LayerNorm, dropout, dense layers and the
feed-forward part.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from xlnet_jax.batch import Array
from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.kernels.dropout import draw_key, drop
from xlnet_jax.members.parts import Parts

Initializer = nn.initializers.Initializer
Axes = tuple[str | None, ...]
"""Logical axes of an array."""


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype of softmax, LayerNorm, positions, logits and loss: float32, or float64 if
    the computation is float64.
    """
    return jnp.promote_types(dtype, jnp.float32)


def normal(config: ModelConfig, factor: float = 1.0) -> Initializer:
    """Returns an initialiser: normal(0, factor init_std), truncated with `init_truncated`."""
    # Truncated as in TensorFlow: the remaining values have a smaller deviation.
    initializer = (
        nn.initializers.truncated_normal if config.init_truncated else nn.initializers.normal
    )
    return initializer(factor * config.init_std)


def residual_init(config: ModelConfig, parts: Parts) -> Initializer:
    """Returns the initialiser of a weight whose product is added to the residual stream."""
    return normal(config, (2 * config.layers) ** -0.5 if parts.scaled_init else 1.0)


Kind = Literal["matrix", "kernel", "table", "vector"]
"""Use of a parameter. A matrix enters only a `product` with vectors in the compute dtype: devices
gather it in that dtype, and Muon makes its update orthogonal. A kernel may also multiply float32
vectors, as in heads. Rows of a table are looked up in float32; a vector is added to activations or
scales them.
"""

Depth = float | tuple[int, ...]
"""Distance from the input: embeddings 0, layer l (from 0) l + 1, heads infinity. A tuple has the
distance of each layer of a parameter whose first axis is the layers.
"""

HEAD_DEPTH = math.inf
"""Depth of a head: with layer-wise decay a head learns at the full rate, as the top layer does."""


def layer_depths(config: ModelConfig) -> Depth:
    """Returns the depth of the layers' parameters; of shared ones, the depth of the top layer."""
    return config.layers if config.share_layers else tuple(range(1, config.layers + 1))


class Declared(nn.LogicallyPartitioned, kw_only=True, eq=False):
    """Box of a parameter: its logical axes, and all other facts for optimizer and gradient."""

    kind: Kind = struct.field(pytree_node=False)
    depth: Depth = struct.field(pytree_node=False)
    decays: bool = struct.field(pytree_node=False)
    """Whether weight decay acts. It does not act on LayerNorm and on the biases of products and of
    the softmax. The relative biases u, v, w and the embeddings are decayed, as in the original.
    """

    @property
    def stacked(self) -> bool:
        """Whether the first axis is the layers."""
        return isinstance(self.depth, tuple)


def declared(
    initializer: Initializer,
    axes: Axes,
    kind: Kind,
    depth: Depth,
    decays: bool = True,
) -> Callable[..., Declared]:
    """Returns an initialiser that puts the parameter in its box."""
    return lambda *args: Declared(initializer(*args), axes, kind=kind, depth=depth, decays=decays)


def parameter(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    axes: Axes,
    kind: Kind,
    depth: Depth,
    initializer: Initializer | None = None,
    decays: bool = True,
) -> jax.Array:
    """Declares a float32 parameter with logical `axes`, normal(0, init_std) by default; see
    `Declared`.
    """
    init = declared(initializer or normal(module.config), axes, kind, depth, decays)  # type: ignore[attr-defined]
    value: Any = module.get_variable("params", name)
    if isinstance(value, PrecastKernel):  # Flax would refuse the shape of a part
        return value.whole(shape)  # type: ignore[return-value]
    if isinstance(value, jax.Array) and value.ndim < len(shape):  # packed
        return meshes.reshaped(value, shape)
    value = module.param(name, init, shape, jnp.float32)
    return value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrecastKernel:
    """A kernel already rounded to the compute dtype, and zeros like the unrounded kernel, which
    receive its gradient.

    The zeros are needed because a gradient has the dtype of its array. Only their dtype is used,
    never a value, so they are not stored.
    """

    value: jax.Array
    zeros: jax.Array
    spec: PartitionSpec = dataclasses.field(default=PartitionSpec(), metadata={"static": True})
    """The mesh axes that split the array, if a device has a part of it."""

    def whole(self, shape: tuple[int, ...]) -> PrecastKernel:
        """Returns the gathered kernel in the logical shape. The backward pass sums the gradient of
        the zeros over the mesh axes of `spec`, and leaves each device its part.
        """
        split = meshes.row_split(self.spec)

        def gather(x: jax.Array) -> jax.Array:
            if split is None:
                return meshes.reshaped(x, shape)
            axis, names = split
            # With heads and their elements as one axis a TPU gathers in the layout of the product.
            rows = x.reshape(len(x), -1) if axis == 0 and x.ndim > 1 else x
            rows = jax.lax.all_gather(rows, names, axis=axis, tiled=True)
            if axis == 0 and x is self.zeros:
                # The gradient has its rows one after the other. Else the layout of the product can
                # make a TPU sum all rows on each device, twice the traffic, and then take its part.
                rows = with_layout_constraint(rows, Layout(tuple(range(rows.ndim))))
            return meshes.reshaped(rows.reshape(-1, *x.shape[1:]) if axis == 0 else rows, shape)

        return PrecastKernel(gather(self.value), gather(self.zeros))


def product(
    subscripts: str,
    x: jax.Array,
    kernel: jax.Array | PrecastKernel,
    dtype: jnp.dtype | None = None,
    cpu: bool = False,
) -> jax.Array:
    """Computes einsum(subscripts, x, kernel rounded to the dtype of x), in that dtype or in
    `dtype`.

    The gradient of a float32 kernel is accumulated and returned in float32. JAX's own transpose
    rounds it to the dtype of x, and the devices would then add bfloat16 numbers. The subscripts use
    the letters of the design, which determine all shardings. `cpu` selects the form of the kernel's
    gradient that is fast on a CPU.
    """
    terms = subscripts.replace("->", ",").split(",")
    # Heads and their elements become one axis m: else a TPU pads 64 elements to 128, and copies the
    # result into another layout.
    left, right, out = (term.replace("he", "m") for term in terms)

    def rounded(kernel: jax.Array) -> jax.Array:
        if x.dtype == jnp.bfloat16 != kernel.dtype:
            # The same rounding, as an operation in float32. If the TPU compiler sees only the
            # conversion, it converts the parameters of all layers before the scan over layers, and
            # keeps those copies for the whole step.
            kernel = jax.lax.reduce_precision(kernel, exponent_bits=8, mantissa_bits=7)
        return _placed(kernel.astype(x.dtype), right)

    def forward(
        x: jax.Array, kernel: jax.Array, _: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        x = _placed(x, left)
        y = jnp.einsum(f"{left},{right}->{out}", x, rounded(kernel), preferred_element_type=dtype)
        return _placed(y, out), (x, kernel)

    def backward(
        saved: tuple[jax.Array, jax.Array], dy: jax.Array
    ) -> tuple[jax.Array, None, jax.Array]:
        x, kernel = saved
        dy, high = _placed(dy.astype(x.dtype), out), accumulator(x.dtype)
        factors, letters = (x, dy), f"{left},{out}->{right}"
        if cpu and len(right) == 2:
            # All rows r as one axis: a CPU then sums over it in place, else over a transposed copy
            # of a factor.
            factors = [each.reshape(-1, each.shape[-1]) for each in factors]
            letters = f"r{left[-1]},r{out[-1]}->{right}"
        d_kernel = jnp.einsum(letters, *factors, preferred_element_type=high)
        return (
            jnp.einsum(f"{out},{right}->{left}", dy, rounded(kernel)),
            None,
            d_kernel.astype(receiver.dtype),
        )

    value, receiver = (
        (kernel.value, kernel.zeros) if isinstance(kernel, PrecastKernel) else (kernel, kernel)
    )
    run = jax.custom_vjp(lambda *arguments: forward(*arguments)[0])
    run.defvjp(forward, backward)
    y = run(
        _heads_joined(x, terms[0]),
        _heads_joined(value, terms[1]),
        _heads_joined(receiver, terms[1]),
    )
    return y.reshape(*y.shape[:-1], *value.shape[-2:]) if "he" in terms[2] else y


def _heads_joined(x: jax.Array, letters: str) -> jax.Array:
    """Joins the axes h and e of x."""
    at = letters.find("he")
    return x if at < 0 else x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])


def _placed(x: jax.Array, letters: str) -> jax.Array:
    """Constrains x to the sharding of its axes."""
    axes = {"b": "batch", "m": "heads", "h": "heads", "f": "ff", "v": "vocab"}
    return nn.with_logical_constraint(x, tuple(axes.get(letter) for letter in letters))


def layer_norm(name: str, config: ModelConfig, depth: Depth) -> nn.LayerNorm:
    """Returns LayerNorm in at least float32; every device holds its vectors whole."""
    return nn.LayerNorm(
        name=name,
        use_bias=config.member.parts.layer_biases,
        epsilon=config.layer_norm_epsilon,
        dtype=accumulator(jnp.dtype(config.compute_dtype)),
        use_fast_variance=False,
        scale_init=declared(nn.initializers.ones, ("norm",), "vector", depth, decays=False),
        bias_init=declared(nn.initializers.zeros, ("norm",), "vector", depth, decays=False),
    )


ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}


def gated(
    activation: Callable[[jax.Array], jax.Array], x_BSF: jax.Array, gate_BSF: jax.Array
) -> jax.Array:
    """Returns activation(x) * gate, which each pass computes once.

    Without barriers a TPU's compiler computes it again inside each of the five products that need
    it or its gradient: then GELU costs more than the products.
    """

    def multiplied(x_BSF: jax.Array, gate_BSF: jax.Array) -> jax.Array:
        return activation(x_BSF) * gate_BSF

    def forward(*factors: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return jax.lax.optimization_barrier(multiplied(*factors)), factors

    def backward(factors: tuple[jax.Array, ...], dy_BSF: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.optimization_barrier(jax.vjp(multiplied, *factors)[1](dy_BSF))

    run = jax.custom_vjp(multiplied)
    run.defvjp(forward, backward)
    return run(x_BSF, gate_BSF)


class Places(NamedTuple):
    """Where some vectors are: the indices of their dropout masks."""

    rows: jax.Array
    """Row numbers in the global batch, [B]. With documents their numbers, [B, Q]."""
    position_BQ: Array = None
    """Positions in the segment, or in the documents; None: 0, 1, .."""


class Dropout(nn.Module):
    """Dropout whose masks are functions of (key, row, position, feature), with a key of the rng
    `dropout` per call; off without this rng.
    """

    rate: float

    @nn.compact
    def __call__(
        self,
        x_BQF: jax.Array,
        rows: jax.Array,
        position_BQ: jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements of x; `rows` and `position_BQ` as in `Places`."""
        if not (self.rate and self.has_rng("dropout")):
            return x_BQF
        _, Q, F = x_BQF.shape
        position_BQ = jnp.arange(Q)[None] if position_BQ is None else position_BQ
        rows = jnp.expand_dims(rows, range(rows.ndim, 3))
        indices = rows, position_BQ[:, :, None], jnp.arange(F)[None, None]
        return drop(x_BQF, self.rate, draw_key(self.make_rng("dropout")), *indices)


class Dense(nn.Module):
    """x W + b with kernel [in, out]; without `bias` x W."""

    config: ModelConfig
    features: int
    axes: Axes
    kind: Kind
    depth: Depth
    initializer: Initializer | None = None
    bias: bool = True

    @nn.compact
    def __call__(self, x_BQD: jax.Array) -> jax.Array:
        """Maps [B, Q, in] to [B, Q, out]; the sum is rounded to the dtype of x."""
        shape, depth = (x_BQD.shape[-1], self.features), self.depth
        kernel_DF = parameter(self, "kernel", shape, self.axes, self.kind, depth, self.initializer)
        y_BQF = product("bqd,df->bqf", x_BQD, kernel_DF, cpu=self.config.on_cpu)
        if not self.bias:
            return y_BQF
        bias_F = parameter(
            self,
            "bias",
            shape[1:],
            self.axes[1:],
            "vector",
            depth,
            nn.initializers.zeros,
            decays=False,
        )
        return (y_BQF + bias_F[None, None]).astype(x_BQD.dtype)


class FeedForward(nn.Module):
    """LN( x + Drop( W2 Drop(act(W1 x + b1)) + b2 ) ), shared by both streams; with pre-norm LN is
    on the input of W1 instead. A gated one has act(W1 x + b1) * (W3 x + b3) (`parts.gated`).
    """

    config: ModelConfig
    parts: Parts

    @nn.compact
    def __call__(self, x_BSD: jax.Array, places: Places) -> jax.Array:
        """Returns the rows of both streams; see `transformer.Layer`."""
        config, depth = self.config, layer_depths(self.config)
        pre, norm = config.norm == "pre", layer_norm("norm", config, depth)
        dense = functools.partial(
            Dense, config, kind="matrix", depth=depth, bias=self.parts.layer_biases
        )
        inner = functools.partial(dense, features=config.d_ff, axes=("embed", "ff"))
        outer = dense(
            features=config.d_model,
            axes=("ff", "embed"),
            initializer=residual_init(config, self.parts),
            name="outer",
        )
        y_BSD = norm(x_BSD).astype(x_BSD.dtype) if pre else x_BSD
        y_BSF, activation = inner(name="inner")(y_BSD), ACTIVATIONS[config.activation]
        if self.parts.gated:
            y_BSF = gated(activation, y_BSF, inner(name="gate")(y_BSD))
        else:
            y_BSF = activation(y_BSF)
        y_BSF = Dropout(config.activation_dropout)(y_BSF, *places)
        y_BSD = outer(y_BSF)
        y_BSD = Dropout(config.dropout)(y_BSD, *places)
        return x_BSD + y_BSD if pre else norm(x_BSD + y_BSD).astype(x_BSD.dtype)
