"""The options of `fill`, `generate` and `score`, each declared once.

A field is the option of the command line, the keyword of the library (`xlnet_jax.load`), the check of both, and the row
in docs/. Nothing here imports JAX, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

from xlnet_jax.config.keys import key, mistake
from xlnet_jax.errors import BadInput, check_whole

MOST_ORDERS = 10_000
"""Random orders of a text, or samples of one: far more are a typing error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of one function. Raises BadInput for a value of another type, or out of range."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                check_whole(**{field.name: value})
            elif isinstance(field.default, float):
                if not isinstance(value, numbers.Real):
                    raise BadInput(f"{field.name}={value!r} must be a number")
            elif not isinstance(value, str) or value == field.default:  # an order may be a list of positions
                continue
            if wrong := mistake(field, value):
                raise BadInput(f"{field.name}={value} {wrong}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Decoding(Options):
    order: Any = key("left", "order of the new tokens; confidence: the most certain first",
                     choices="left reversed random confidence")  # fmt: skip
    tokens_per_step: int = key(1, "tokens drawn per call, independently of each other: inexact above 1", ge=1)
    speculative: int = key(0, "speculative decoding: tokens drafted per call; exact")
    temperature: float = key(0.0, "sampling temperature; 0: the most probable token")
    top_k: int = key(0, "sample from the K most probable tokens; 0: from all")
    top_p: float = key(1.0, "sample from the fewest tokens with this probability together; 1: from all", gt=0, le=1)
    seed: int = key(0, "seed of everything that is drawn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill(_Decoding):
    """Of `fill`; in the library `infill`, where `order` may also be the list of the unknown positions."""

    samples: int = key(1, "samples per text", ge=1, le=MOST_ORDERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise BadInput("top_k and top_p change nothing with temperature=0, the default; give temperature=1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(_Decoding):
    """Of `generate`."""

    temperature: float = key(1.0, "sampling temperature; 0: the most probable token")
    tokens: int = key(100, "maximum new tokens", ge=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score(Options):
    """Of `score`; in the library also of `log_prob`, where `order` may also be the list of the unknown positions."""

    order: Any = key("", "order of prediction: by default left, or random for several",
                     choices="left reversed random")  # fmt: skip
    orders: int = key(1, "random orders to average over", ge=1, le=MOST_ORDERS)
    seed: int = key(0, "seed of random orders")


def described(field: dataclasses.Field[Any]) -> str:
    """The help of an option, with its default."""
    default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return field.metadata["doc"] + (f" (default {default})" if default else "")
