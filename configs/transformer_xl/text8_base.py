"""Transformer-XL, text8 base: 12 layers, width 512, 40,969,252 parameters.

    xlnet-jax prepare --dataset=text8 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/text8_base.py --config.data.corpus=CORPUS \
      --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has batch 24.
Published result: no result of this size; 1.08 bits per character with the large one. They evaluate
with same_length, segments of 80, memory 2100, clamp_len 820.
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
        layers=12,
        d_model=512,
        heads=8,
        head_dim=64,
        d_ff=2048,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=512,
    )
    config.model.update(dropout=0.1, attention_dropout=0.0, activation_dropout=0.1)
    config.data.update(
        objective="clm", segment_len=512, reuse_len=512, num_predict=512, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=0,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=400_000, batch_size=22)
    # Recalled.
    config.model.vocab_size = 36
    # Ours.
    config.data.windows_per_block = 32
    config.evaluation.every = 4000
    return config
