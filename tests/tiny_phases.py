"""The tiny configuration in three phases, as a config file."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import tiny_config

from xlnet_jax.config import TrainConfig

PHASES = (
    # Two streams with a memory; then left to right, with longer blocks and another batch; then
    # masks and a lower rate.
    {"steps": 4},
    {
        "steps": 4,
        "data": {"objective": "clm", "reuse_len": 32, "num_predict": 32},
        "train": {"batch_size": 16},
        "model": {"memory_len": 16},
    },
    {
        "steps": 6,
        "data": {"objective": "mlm", "reuse_len": 29, "windows_per_block": 2},
        "model": {"memory_len": 0},
        "optimizer": {"learning_rate": 1e-3},
    },
)


def get_config():
    config = tiny_config.get_config()
    config.update({"phases": PHASES, "train": {"steps": TrainConfig().steps}})
    config.optimizer.average = 0.9
    config.checkpoint.every, config.checkpoint.keep = 2, 9
    return config
