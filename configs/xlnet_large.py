"""XLNet-Large: 24 layers, width 1024, 360,300,800 parameters.

    xlnet-jax train --config=configs/xlnet_large.py --config.data.corpus=CORPUS --workdir=RUN

Published (the authors' README, their command for 512 TPU v3 chips, and the released checkpoint's
configuration): architecture, segment 512, reuse 256, memory 384, alpha 6, beta 1, 85 targets,
batch 2048.
Recalled (the paper's hyper-parameter table; check it before quoting): 500 K steps, learning rate
4e-4, linear decay, warm-up 40 K, Adam epsilon 1e-6, weight decay 0.01, dropout 0.1, attention
dropout 0.1, none after the activation; a batch of 8192 for the longer run, which took 5.5 days on
the same pod.
Ours: blocks of 8 windows, whole-word spans, bias correction in Adam, a clip of 1.0 on the global
gradient (the 2019 code clips the gradient of each core separately, so its 1.0 almost never acted).
No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    # Published.
    config.model.update(
        layers=24,
        d_model=1024,
        heads=16,
        head_dim=64,
        d_ff=4096,
        activation="gelu",
        biases_per_layer=True,
        memory_len=384,
        vocab_size=32000,
    )
    config.data.update(
        segment_len=512,
        reuse_len=256,
        num_predict=85,
        mask_group_size=6,
        masks_per_group=1,
        bidirectional=True,
    )
    config.train.batch_size = 2048
    # Recalled.
    config.model.update(dropout=0.1, attention_dropout=0.1, activation_dropout=0.0)
    config.optimizer.update(
        learning_rate=4e-4,
        warmup_steps=40_000,
        schedule="polynomial",
        adam_epsilon=1e-6,
        weight_decay=0.01,
    )
    config.train.steps = 500_000
    # Ours.
    config.data.update(windows_per_block=8, spans="words")
    config.optimizer.clip = 1.0
    config.evaluation.update(every=10_000, blocks=2048)
    return config
