"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, segment
recurrence.

As a library: `model = xlnet_jax.load(PATH)`. `__all__` lists the public names, which
docs/library.md shows.
"""

import pkgutil as _pkgutil
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from xlnet_jax.commands.evaluate import evaluate
    from xlnet_jax.commands.export import export
    from xlnet_jax.commands.finetune import finetune as fine_tune
    from xlnet_jax.commands.predict import predict
    from xlnet_jax.commands.train import train as pretrain
    from xlnet_jax.config import Config
    from xlnet_jax.config import load as load_config
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare
    from xlnet_jax.errors import BadInput
    from xlnet_jax.library import Model, Passage, load
    from xlnet_jax.train.launch import batches

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "Config",
    "Model",
    "Passage",
    "PrepareOptions",
    "batches",
    "evaluate",
    "export",
    "fine_tune",
    "load",
    "load_config",
    "predict",
    "prepare",
    "pretrain",
]

_PLACES = {
    "BadInput": "errors:BadInput",
    "Config": "config:Config",
    "Model": "library:Model",
    "Passage": "library:Passage",
    "PrepareOptions": "data.prepare.options:PrepareOptions",
    "batches": "train.launch:batches",
    "evaluate": "commands.evaluate:evaluate",
    "export": "commands.export:export",
    "fine_tune": "commands.finetune:finetune",
    "load": "library:load",
    "load_config": "config:load",
    "predict": "commands.predict:predict",
    "prepare": "data.prepare.pipeline:prepare",
    "pretrain": "commands.train:train",
}
"""Module and attribute of each public name. The functions `train` and `finetune` have other public
names, because `xlnet_jax.train` and `xlnet_jax.finetune` are subpackages.
"""


def __getattr__(name: str) -> object:
    """Imports a name of `__all__` on first use, so that commands answer before JAX loads."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _pkgutil.resolve_name(f"{__name__}.{_PLACES[name]}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
