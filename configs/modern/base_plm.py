"""The layers of ModernBERT-Base under XLNet's objective: 22 layers, width 768,
149,656,768 parameters.

    xlnet-jax train --config=configs/modern/base_plm.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 50,368 pieces: `prepare --family=modern --vocab_size=50368`.
Published (Warner et al. 2024, arXiv 2412.13663, and the released checkpoint's configuration): all
keys of model but memory_len, and beta 2 and epsilon of Adam. XLNet's: the examples (512 tokens, 256
of them fresh, 85 targets). Ours: every other setting. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="modern",
        vocab_size=50368,
        layers=22,
        d_model=768,
        heads=12,
        head_dim=64,
        d_ff=1152,
        activation="gelu_erf",
        norm="pre",
        window=128,
        global_every=3,
        theta=160_000.0,
        theta_local=10_000.0,
        layer_norm_epsilon=1e-5,
        dropout=0.0,
        attention_dropout=0.0,
        init_truncated=True,
        memory_len=384,
    )
    config.optimizer.update(
        learning_rate=4e-4, warmup_steps=10_000, weight_decay=0.01, adam_b2=0.98, adam_epsilon=1e-6
    )
    config.train.update(steps=500_000, batch_size=2048)
    config.evaluation.update(every=10_000, blocks=2048)
    return config
