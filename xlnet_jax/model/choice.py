"""Resolves `model.attention=auto` when a command starts, so that no part of the model asks for its
device later.

The value `cpu` selects all forms that are faster only on a CPU: unrolled layers, and other forms of
the position keys and of the gradients of kernels and of the shift.
"""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels.fused import UNITS, compare, why_no_kernel

log = logging.getLogger("xlnet_jax")


def resolve_attention(config: Config, processes: Session, absent: Any = None) -> Config:
    """Returns the configuration without `auto` in `model.attention`; logs the reason, except on a
    CPU.

    All processes run the same program: XLA if one of them cannot use the kernel. `absent` describes
    an absent device for which the program is compiled; None: the program runs on the local devices.
    Raises BadInput if `fused` is not possible.
    """
    chosen = processes.collect("\n".join(choose(config.model, absent)))
    # max() prefers xla to fused, so one process that cannot use the kernel decides for all.
    attention, why = processes.broadcast(max(chosen, default="")).split("\n")
    if attention != "cpu":
        log.info("%s", why)
    return config.changed(model={"attention": attention})


def choose(config: ModelConfig, absent: Any = None) -> tuple[str, str]:
    """Returns the value of `model.attention` for this process's devices, and one line with the
    reason.

    A kernel for a local device is first compared with XLA on a small case, forward and gradient
    (some seconds). Raises BadInput if `model.attention=fused` is not possible.
    """
    if config.attention in ("xla", "cpu"):
        return config.attention, f"attention: {config.attention}, as model.attention says"
    device = absent or jax.local_devices()[0]
    why_not = why_no_kernel(device.device_kind, config.head_dim, jnp.dtype(config.compute_dtype))
    if device.device_kind == "TPU v4" and config.window:
        # The sums of 8,192 keys need more than its vector memory.
        why_not = "the kernel for TPU v4 has no room for the long texts that windows are for"
    if why_not is None:
        kernel = f"attention: fused, the kernel for {device.device_kind}"
        if absent:
            return "fused", f"{kernel}; train compares it with xla first"
        difference = compare(config, device)
        if difference <= UNITS:
            return "fused", f"{kernel}; it agrees with xla on a small case"
        why_not = (
            f"the kernel for {device.device_kind} differs from xla by "
            f"{difference:.3g} units, more than {UNITS}"
        )
    if config.attention == "fused":
        raise BadInput(f"model.attention=fused: {why_not}; use model.attention=xla")
    plain = "cpu" if device.device_kind == "cpu" else "xla"
    return plain, f"attention: {plain}, because {why_not}"
