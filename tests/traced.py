"""What a model declares, drops and computes, from a trace: nothing is compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from xlnet_jax.kernels import dropout
from xlnet_jax.model import layers


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a program, also inside its loops and calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def drawn(initialise: Callable[[], Any]) -> dict[str, tuple[float, float]]:
    """By the path of each parameter that `initialise` declares, mean and deviation of what its
    initialiser draws, in [128, 128] whatever its shape; a parameter of all layers is one of a
    layer.
    """
    found: dict[str, tuple[float, float]] = {}
    declare = nn.Module.param

    def param(self: Any, name: str, init: Callable[..., Any], shape: Any, *args: Any) -> Any:
        with jax.ensure_compile_time_eval():
            x = np.asarray(nn.meta.unbox(init(jax.random.key(len(found)), (128, 128), *args)))
        found["/".join((*self.scope.path, name))] = (float(x.mean()), float(x.std()))
        return declare(self, name, init, shape, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "param", param)
        jax.eval_shape(initialise)
    return found


Drop = Callable[..., jax.Array]


@contextlib.contextmanager
def dropping(drop: Callable[[str, Drop], Drop]) -> Iterator[None]:
    """Every dropout goes through `drop(place, as it is)`, which returns what is called in its
    place. A place is the path of its module, and in attention the stream.
    """
    places = [""]

    def entered(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        places.append("/".join(context.module.scope.path) or places[-1])
        try:
            return call(*args, **kwargs)
        finally:
            places.pop()

    real, attention = dropout.drop, dropout.AttentionDropout.__call__

    def of_stream(self: Any, *args: Any) -> jax.Array:
        places.append(f"{places[-1]}/{('content', 'query')[self.stream]}")
        try:
            return attention(self, *args)
        finally:
            places.pop()

    def dropped(*args: Any) -> jax.Array:
        return drop(places[-1], real)(*args)

    with pytest.MonkeyPatch.context() as patch, nn.intercept_methods(entered):
        patch.setattr(dropout.AttentionDropout, "__call__", of_stream)
        patch.setattr(dropout, "drop", dropped)
        patch.setattr(layers, "drop", dropped)
        yield


def dropped(run: Callable[..., Any], *args: Any) -> dict[str, float]:
    """The rate of every dropout that `run(*args)` has on, by its place."""
    found: dict[str, float] = {}

    def drop(place: str, real: Drop) -> Drop:
        def record(x: jax.Array, rate: float, *args: Any) -> jax.Array:
            assert found.setdefault(place, rate) == rate
            return real(x, rate, *args)

        return record

    with dropping(drop):
        jax.eval_shape(functools.partial(run), *args)  # not what JAX has traced before
    return found
