"""Versions, git commit, devices, cores and flags of a start of a run, for its line in `runs.jsonl`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from typing import Any

import jax

import xlnet_jax

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")


def manifest() -> dict[str, Any]:
    """The versions and hardware of this start."""
    device = jax.devices()[0]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "xlnet_jax": xlnet_jax.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cores": os.cpu_count(),
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def _git_commit() -> str | None:
    """The commit of the checkout this package runs from, with + if it was changed; None outside a checkout."""
    folder = os.path.dirname(os.path.abspath(xlnet_jax.__file__))
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
