"""Transformer-XL, One Billion Word large: 24 layers, width 1280, 841,296,171 parameters.

    xlnet-jax prepare --vocabulary=words --sentences=line --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/lm1b_large.py --config.data.corpus=CORPUS \
      --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has learning rate 1e-4, init_std 0.005, biases of each layer
(`model.biases_per_layer`), no projection where the widths are equal.
Published result: perplexity 21.8 (0.8 B parameters), on 512 TPU v3 cores. They evaluate with
same_length, segments of 32, memory 128, no clamp_len.
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
        d_model=1280,
        heads=16,
        head_dim=80,
        d_ff=8192,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=32,
    )
    config.model.update(dropout=0.05, attention_dropout=0.05, activation_dropout=0.05)
    config.model.update(cutoffs="60000,100000,640000", div_val=4, tie_projections="none")
    config.data.update(
        objective="clm", segment_len=32, reuse_len=32, num_predict=32, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=30_000,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=1_200_000, batch_size=512)
    # Recalled.
    config.model.vocab_size = 793_480
    # Ours.
    config.data.windows_per_block = 32
    config.evaluation.every = 4000
    return config
