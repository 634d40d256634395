"""The options of `fill`, `generate` and `score`, each declared once.

Each field gives a command-line option, a keyword of the library (`xlnet_jax.load`), the check of
both, and a row in docs/. This module does not import JAX, so that `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

from xlnet_jax.errors import BadInput
from xlnet_jax.keys import key, mistake

MOST_ORDERS = 10_000
"""Maximum number of random orders, samples or sets of masks per text; it catches typing errors."""

LONGEST = 10_000
"""Maximum number of tokens of a gap."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The keywords of one function. Raises BadInput for a value of a wrong type or out of range, or
    for values that exclude each other.
    """

    order: Any
    """A name, or in the library a list of all unknown positions in the order of prediction."""

    def __post_init__(self) -> None:
        if not isinstance(self.order, str):
            object.__setattr__(self, "order", _positions(self.order))
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is int and not isinstance(value, numbers.Integral):
                raise BadInput(f"{field.name}={value!r} must be a whole number")
            if kind is float and not isinstance(value, numbers.Real):
                raise BadInput(f"{field.name}={value!r} must be a number")
            given = not isinstance(value, list) and value != field.default
            if given and (wrong := mistake(field, value)):
                raise BadInput(f"{field.name}={value} {wrong}")


def _positions(order: Any) -> list[int]:
    positions = order.tolist() if hasattr(order, "tolist") else order
    if not isinstance(positions, Sequence) or not all(
        isinstance(at, numbers.Integral) for at in positions
    ):
        raise BadInput(f"order={order!r}: give its name, or a list of the unknown positions")
    return list(positions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Options):
    """Options that choose unknown tokens; see `Decoder`."""

    order: Any = key(
        "left",
        "order of the new tokens; confidence: the most certain first",
        "left reversed random confidence",
    )
    tokens_per_step: int = key(
        1, "tokens drawn per call, independently of each other: inexact above 1", "[1, inf)"
    )
    speculative: int = key(
        0,
        "speculative decoding: tokens drafted per call; exact",
        "[2, inf)",
        special={0: "no drafts"},
    )
    temperature: float = key(0.0, "sampling temperature; 0: the most probable token")
    top_k: int = key(0, "sample from the K most probable tokens; 0: from all")
    top_p: float = key(
        1.0,
        "sample from the fewest tokens whose probabilities sum to at least P; 1: from all",
        "(0, 1]",
    )
    seed: int = key(0, "seed of all draws")

    @property
    def filtered(self) -> bool:
        """Whether top_k or top_p excludes tokens; only then the tokens are sorted."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_step > 1 and self.speculative:
            raise BadInput(
                f"tokens_per_step={self.tokens_per_step} with speculative={self.speculative}: "
                "tokens drawn together are not verified; use one of the two"
            )
        if self.speculative and self.order == "confidence":
            raise BadInput(
                "order=confidence with speculative: "
                "a draft needs its order beforehand; use another order"
            )
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise BadInput("top_k and top_p change nothing with temperature=0; give temperature=1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill(Decoding):
    """Options of `fill`."""

    samples: int = key(1, "samples per text", f"[1, {MOST_ORDERS}]")
    top: int = key(
        1,
        "number of most probable pieces to return for the only [MASK] of a text",
        f"[1, {MOST_ORDERS}]",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top > 1 and (self.temperature or self.samples > 1):
            raise BadInput(
                f"top={self.top} with {'samples' if self.samples > 1 else 'temperature'}: the "
                "most probable pieces are not drawn; leave out one of the two"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Decoding):
    """Options of `generate`."""

    temperature: float = key(1.0, "sampling temperature; 0: the most probable token")
    tokens: int = key(100, "maximum new tokens", f"[1, {LONGEST}]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score(Options):
    """Options of `score`, and in the library of `log_prob` and `elbo`."""

    order: Any = key(
        "",
        "order of prediction; by default left, or random if orders > 1; confidence: the most "
        "certain position first",
        "left reversed random confidence",
    )
    orders: int = key(1, "random orders to average over", f"[1, {MOST_ORDERS}]")
    draws: int = key(64, "mdm only: sets of masks to average the bound over", f"[1, {MOST_ORDERS}]")
    seed: int = key(0, "seed of random orders and masks")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.order:
            object.__setattr__(self, "order", "left" if self.orders == 1 else "random")
        if self.orders > 1 and self.order != "random":
            raise BadInput(
                f"orders={self.orders} with order={self.order}: "
                "several orders are random ones; leave out one of the two"
            )


def option_help(field: dataclasses.Field[Any]) -> str:
    """Returns the help text of an option with its default."""
    default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return field.metadata["doc"] + (f" (default {default})" if default else "")
