"""Transformer-XL, text8 large: 24 layers, width 1024, 277,059,620 parameters.

    xlnet-jax prepare --dataset=text8 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/text8_large.py --config.data.corpus=CORPUS \
      --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has warm-up 4000, min_lr_ratio 0.01.
Published result: 1.08 bits per character (24 layers, 277 M parameters), on 32 TPU v3 cores. They
evaluate with same_length, segments of 128, memory 3800, clamp_len 1000.
Recalled: the size of the vocabulary, here with nine special pieces; `train` names the size of the
corpus's vocabulary if it differs.
Ours: blocks of 32 windows (the authors read each row of the batch as one text); LayerNorm weights
start at 1, not at N(1, 0.02). No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.architecture = "transformer_xl"
    # Published.
    config.model.update(
        layers=24,
        d_model=1024,
        heads=8,
        head_dim=128,
        d_ff=3072,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=768,
    )
    config.model.update(dropout=0.15, attention_dropout=0.15, activation_dropout=0.15)
    config.data.update(
        objective="clm", segment_len=768, reuse_len=768, num_predict=768, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=0,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=400_000, batch_size=64)
    # Recalled.
    config.model.vocab_size = 36
    # Ours.
    config.data.windows_per_block = 32
    config.evaluation.every = 4000
    return config
