"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, segment recurrence.

As a library: `model = xlnet_jax.load(PATH)`; see `library.Model`.
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`load` and `Passage`, imported when they are used: the command line must answer before JAX is there."""
    if name in ("load", "Passage"):
        return getattr(importlib.import_module("xlnet_jax.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
