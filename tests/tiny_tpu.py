"""Two small layers in sizes a TPU likes, as a config file: for tests that compile ahead of time."""

import dataclasses

from ml_collections import ConfigDict

from xlnet_jax import config as configs
from xlnet_jax.config import Config


def config():
    return Config(
        model=configs.ModelConfig(
            vocab_size=1024, layers=2, d_model=128, heads=4, head_dim=32, d_ff=256, memory_len=64
        ),
        data=configs.DataConfig(segment_len=128, reuse_len=64, num_predict=16),
        train=configs.TrainConfig(batch_size=8, steps_per_dispatch=10),
    )


def get_config():
    return ConfigDict(dataclasses.asdict(config())).lock()
