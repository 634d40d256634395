"""Shared values of the systems of a comparison: a small network that learns from the quick start's
text on a laptop's CPU.

    xlnet-jax quickstart --workdir=runs/quickstart        # makes the corpus of the commands below

Hardware: two CPU cores, no accelerator. Nothing here is published: all sizes are ours. Permutation
language modelling with spans; without memory, because masked models have none.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        vocab_size=2000,
        layers=2,
        d_model=128,
        heads=4,
        head_dim=32,
        d_ff=512,
        memory_len=0,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.08,
        compute_dtype="float32",
    )
    config.data.update(segment_len=128, reuse_len=64, num_predict=21, windows_per_block=8)
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=100, schedule="cosine", weight_decay=0.01
    )
    config.train.update(steps=1200, batch_size=16, steps_per_dispatch=10)
    config.checkpoint.update(every=400, keep=1)
    config.evaluation.update(final=False, batch_size=64)
    config.log.tensorboard = False
    return config
