"""Transformer-XL, One Billion Word base: 18 layers, width 1024, 357,812,235 parameters.

    xlnet-jax prepare --vocabulary=words --sentences=line --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/lm1b_base.py --config.data.corpus=CORPUS \
      --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has segment and memory 256, batch 256, dropout 0.1, 400 K steps.
Published result: none for this script: the paper's base model, perplexity 23.5, has 20 layers and
d_ff 6144 (issue 69 of the authors' repository, where this script reached 30.25). They evaluate with
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
        layers=18,
        d_model=1024,
        heads=8,
        head_dim=128,
        d_ff=4096,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=32,
    )
    config.model.update(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    config.model.update(cutoffs="60000,100000,640000", div_val=4, tie_projections="none")
    config.data.update(
        objective="clm", segment_len=32, reuse_len=32, num_predict=32, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=20_000,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=500_000, batch_size=224)
    # Recalled.
    config.model.vocab_size = 793_480
    # Ours.
    config.data.windows_per_block = 32
    config.evaluation.every = 4000
    return config
