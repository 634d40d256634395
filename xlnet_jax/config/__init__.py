"""The configuration: a Python file for users, frozen dataclasses in the code.

A file under `configs/` defines `get_config()`, which returns an `ml_collections.ConfigDict`. The
command line may change single keys (`--config.train.steps=10`). `load` converts the result into
frozen dataclasses, one for each section, and checks every value, alone and against other values,
before any device is used. Every key has its documentation, its bounds and its rule on resume:

    frozen    must not change: another model, objective or seed is another run
    elastic   may change, to fit other devices (batch size, mesh); another batch size empties the
              memory
    free      may change at any resume (length of the run, logging, checkpoints, evaluation)
"""

from xlnet_jax.config.data import DataConfig, FinetuneConfig
from xlnet_jax.config.loading import (
    default,
    from_dict,
    load,
    nested,
    override,
    start_from,
    suggest_key,
)
from xlnet_jax.config.model import ARCHITECTURE, ModelConfig
from xlnet_jax.config.run import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    SeedsConfig,
    TrainConfig,
)
from xlnet_jax.config.whole import Config, changed_keys, check, fields, flat
from xlnet_jax.keys import ELASTIC, FREE, FROZEN, join_names
