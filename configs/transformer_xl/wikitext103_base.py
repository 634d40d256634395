"""Transformer-XL, WikiText-103 base: 16 layers, width 410, 151,110,826 parameters.

    xlnet-jax prepare --dataset=wikitext103 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/wikitext103_base.py \
      --config.data.corpus=CORPUS --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has 400 K steps, biases of each layer (`model.biases_per_layer`).
Published result: perplexity 24.0 (151 M parameters); a reproduction in issue 99 of the authors'
repository has 24.25, or 23.68 with the settings of evaluation. They evaluate with same_length,
segments of 64, memory 640, clamp_len 400.
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
        layers=16,
        d_model=410,
        heads=10,
        head_dim=41,
        d_ff=2100,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=150,
    )
    config.model.update(dropout=0.1, attention_dropout=0.0, activation_dropout=0.1)
    config.model.update(cutoffs="20000,40000,200000", div_val=1, tie_projections="all")
    config.data.update(
        objective="clm", segment_len=150, reuse_len=150, num_predict=150, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=0,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=200_000, batch_size=60)
    # Recalled.
    config.model.vocab_size = 267_743
    # Ours.
    config.data.windows_per_block = 32
    config.evaluation.every = 4000
    return config
