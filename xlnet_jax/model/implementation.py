"""Which implementation of attention a command uses: `model.attention=auto` is decided here, at its start."""

from __future__ import annotations

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import fused, xla
from xlnet_jax.kernels.dropout import AttentionDropout

log = logging.getLogger("xlnet_jax")

UNITS = 16
"""The most that fused and XLA may differ by, in units of bfloat16's roundoff, relative to the largest element. XLA
rounds factors to bfloat16 on TPU even in float32, and both sides round; a wrong shift or mask differs by hundreds."""


def decided(config: Config, processes: Session, absent: Any = None) -> Config:
    """The configuration with `xla` or `fused` in `model.attention`, and a line in the log that says why: on a CPU there
    is no choice, and no line.

    Args:
      processes: they all run the same program, so XLA where one of them cannot use the kernel.
      absent: a description of a device that the program is compiled for; None: the program runs on the local devices.

    Raises BadInput if `model.attention=fused` is not possible.
    """
    # The largest by the alphabet.
    attention, why = max(processes.gather("\n".join(choose(config.model, absent)))).split("\n")
    if absent or jax.local_devices()[0].platform != "cpu":
        log.info("%s", why)
    return config.changed(model={"attention": attention})


def choose(config: ModelConfig, absent: Any = None) -> tuple[str, str]:
    """The implementation for this process's devices, `xla` or `fused`, and one line that says why.

    Where there is a kernel and the device is here, it is first compared with XLA on a small case, forward and gradient
    (some seconds). Raises BadInput if `model.attention=fused` is not possible.
    """
    if config.attention == "xla":
        return "xla", "attention: xla, as model.attention says"
    device = absent or jax.local_devices()[0]
    problem = fused.problem(device.device_kind, config.head_dim, jnp.dtype(config.compute_dtype))
    if config.position_scheme == "absolute":
        problem = "the kernels compute relative positions, and this model has model.position_scheme=absolute"
    if problem is None:
        kernel = f"attention: fused, the kernel for {device.device_kind}"
        if absent:
            return "fused", f"{kernel}; train compares it with xla first"
        difference = compare(config, device)
        if difference <= UNITS:
            return "fused", f"{kernel}; it agrees with xla on a small case"
        problem = f"the kernel for {device.device_kind} differs from xla by {difference:.3g} units, more than {UNITS}"
    if config.attention == "fused":
        raise BadInput(f"model.attention=fused: {problem}; use model.attention=xla")
    return "xla", f"attention: xla, because {problem}"


def compare(config: ModelConfig, device: Any) -> float:
    """The largest difference of fused and XLA on one device, in units of bfloat16's roundoff; infinite for NaN."""
    case = jax.device_put(_case(config), device)

    both = fused.KERNELS[fused.kind(device.device_kind)], xla.attend
    run = jax.jit(lambda attend, case: xla.differentiated(attend, case)[::2], static_argnums=0)
    ours, theirs = (jax.tree.leaves(jax.device_get(run(attend, case))) for attend in both)
    unit = float(jnp.finfo(jnp.bfloat16).eps)
    differences = [
        np.max(np.abs(np.float32(x) - np.float32(y))) / max(np.max(np.abs(np.float32(y))), 1)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return float(np.nan_to_num(np.max(differences) / unit, nan=np.inf))


def _case(config: ModelConfig) -> xla.Arguments:
    """Two directions, segments, padded lengths."""
    rng, dtype = np.random.default_rng(0), jnp.dtype(config.compute_dtype)
    B, T, K, Q, H, E = 2, 130, 150, 37, 2, config.head_dim
    integers = functools.partial(rng.integers, dtype=np.int32)
    rank_BK = integers(-1, T, (B, K))
    at_BQ = np.sort(integers(0, T, (B, Q)), axis=1)

    def normal(*shape: int, dtype: Any = dtype) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(dtype)

    wide = functools.partial(normal, dtype=np.float32)
    return xla.Arguments(
        q_BQHE=normal(B, Q, H, E), k_BKHE=normal(B, K, H, E), v_BKHE=normal(B, K, H, E),
        position=(wide(1, K + T - 1, H, E), wide(1, K + T - 1, H, E), np.array([1, -1], np.int32)),
        biases={f"{name}_bias": wide(H, E) for name in ("content", "position", "segment")},
        segment_2HE=wide(2, H, E), limit_BQ=np.take_along_axis(rank_BK, at_BQ, 1), rank_BK=rank_BK,
        segment_BQ=integers(0, 2, (B, Q)), segment_BK=integers(0, 2, (B, K)), query_position_BQ=at_BQ,
        rows_B=np.arange(B, dtype=np.int32),
        dropout=AttentionDropout(jnp.uint32(1), config.attention_dropout, 1) if config.attention_dropout else None,
    )  # fmt: skip
