"""On what the model runs: `model.attention=auto` is decided when a command starts, and no part of
the model asks later.

The value `cpu` stands for all that is faster on a CPU alone: layers one by one, and other forms of
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
from xlnet_jax.kernels.fused import UNITS, compare, problem

log = logging.getLogger("xlnet_jax")


def resolve_attention(config: Config, processes: Session, absent: Any = None) -> Config:
    """The configuration without `auto` in `model.attention`, and a line in the log that says why;
    none on a CPU.

    All processes run the same program, so XLA where one of them cannot use the kernel. `absent`
    describes a device that the program is compiled for; None: it runs on the local devices. Raises
    BadInput if `fused` is not possible.
    """
    chosen = processes.collect("\n".join(choose(config.model, absent)))
    # max() prefers xla to fused, so one process that cannot use the kernel decides for all.
    attention, why = processes.broadcast(max(chosen, default="")).split("\n")
    if attention != "cpu":
        log.info("%s", why)
    return config.changed(model={"attention": attention})


def choose(config: ModelConfig, absent: Any = None) -> tuple[str, str]:
    """The implementation for this process's devices, a value of `model.attention`, and one line
    that says why.

    Where there is a kernel and the device is here, it is first compared with XLA on a small case,
    forward and gradient (some seconds). Raises BadInput if `model.attention=fused` is not possible.
    """
    if config.attention in ("xla", "cpu"):
        return config.attention, f"attention: {config.attention}, as model.attention says"
    device = absent or jax.local_devices()[0]
    why_not = problem(device.device_kind, config.head_dim, jnp.dtype(config.compute_dtype))
    if config.member.parts.positions != "relative":
        why_not = "the kernels compute relative positions, and this model has absolute ones"
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
