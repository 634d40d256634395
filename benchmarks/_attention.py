"""Both streams of one layer's attention, forward and backward, for the benchmarks of attention: shapes and function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.dropout import AttentionDropout

DIFFERENTIATED = ("q_BQHE", "k_BKHE", "v_BKHE", "tables", "biases", "segment_2HE")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of XLNet-Large at 512 tokens."""

    B: int = 2
    T: int = 512
    M: int = 384
    P: int = 85
    H: int = 16
    E: int = 64


def streams(sizes: Sizes, dtype: Any, sharding: Any = None) -> list[dict[str, Any]]:
    """Shapes of the arguments of content and query stream; directions and segments differ between rows."""
    B, T, H, E = sizes.B, sizes.T, sizes.H, sizes.E
    K = sizes.M + T

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def stream(Q: int, chosen: bool) -> dict[str, Any]:
        return {
            "q_BQHE": array(dtype, B, Q, H, E), "k_BKHE": array(dtype, B, K, H, E), "v_BKHE": array(dtype, B, K, H, E),
            "tables": (array(jnp.float32, 1, K + T - 1, H, E),) * 2,
            "biases": {f"{name}_bias": array(jnp.float32, H, E) for name in ("content", "position", "segment")},
            "segment_2HE": array(jnp.float32, 2, H, E), "direction_B": array(jnp.int32, B),
            "limit_BQ": array(jnp.int32, B, Q), "rank_BK": array(jnp.int32, B, K),
            "segment_BQ": array(jnp.int32, B, Q), "segment_BK": array(jnp.int32, B, K),
            "query_position_BQ": array(jnp.int32, B, Q) if chosen else None, "rows_B": array(jnp.int32, B),
        }  # fmt: skip

    return [stream(T, chosen=False), stream(sizes.P, chosen=True)]


def train(attend: Callable[..., Any], rate: float) -> Callable[[list[dict[str, Any]], jax.Array], Any]:
    """(streams, key) -> outputs and gradients, for a cotangent that is the output itself."""

    def run(both: list[dict[str, Any]], key: jax.Array) -> Any:
        results = []
        for number, stream in enumerate(both):
            dropout = AttentionDropout(key, rate, number) if rate else None
            fixed = {name: x for name, x in stream.items() if name not in (*DIFFERENTIATED, "direction_B")}

            def output(
                numbers: Any, stream: Any = stream, fixed: Any = fixed, dropout: AttentionDropout | None = dropout
            ) -> jax.Array:
                position = (*numbers["tables"], stream["direction_B"])
                rest = {name: x for name, x in numbers.items() if name != "tables"}
                return attend(**rest, **fixed, position=position, dropout=dropout)[0]

            o_BQHE, pull = jax.vjp(output, {name: stream[name] for name in DIFFERENTIATED})
            results.append((o_BQHE, pull(o_BQHE)[0]))
        return results

    return run
