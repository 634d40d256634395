"""A small XLNet on real prose, on a laptop's CPU, in about three minutes.

    make quickstart

Hardware: two CPU cores, no accelerator. Expect a held-out loss at least 0.5 nat below the unigram
cross-entropy of the same targets. Nothing here is published: these are our sizes for a model that
learns something visible in three minutes. With a larger vocabulary, a third layer or the usual
initial standard deviation of 0.02 the loss stays at the unigram plateau for these three minutes.
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
        memory_len=64,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.08,
        compute_dtype="float32",
    )
    config.data.update(segment_len=128, reuse_len=64, num_predict=21, windows_per_block=8)
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=100, schedule="cosine", weight_decay=0.01
    )
    config.train.update(steps=800, batch_size=16, steps_per_dispatch=10)
    config.checkpoint.update(every=200, keep=2)
    return config
