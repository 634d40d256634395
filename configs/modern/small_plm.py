"""A small model with the layers of ModernBERT under XLNet's objective, on a laptop's CPU.

    xlnet-jax quickstart --config=configs/modern/small_plm.py --workdir=runs/modern

Hardware: two CPU cores, no accelerator. Nothing here is published: these are our sizes for a model
that learns from the quick start's text in about a minute.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_plm.py")
    config.model.update(
        vocab_size=2000,
        layers=3,
        d_model=128,
        heads=4,
        head_dim=32,
        d_ff=192,
        window=32,
        memory_len=64,
        init_std=0.08,
        compute_dtype="float32",
    )
    config.data.update(segment_len=128, reuse_len=64, num_predict=21, windows_per_block=8)
    config.optimizer.update(learning_rate=2e-3, warmup_steps=100, schedule="cosine", adam_b2=0.999)
    config.train.update(steps=400, batch_size=16, steps_per_dispatch=10)
    config.checkpoint.update(every=200, keep=2)
    config.evaluation.update(every=0, blocks=64)
    return config
