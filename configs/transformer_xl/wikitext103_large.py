"""Transformer-XL, WikiText-103 large: 18 layers, width 1024, 285,170,642 parameters.

    xlnet-jax prepare --dataset=wikitext103 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/wikitext103_large.py \
      --config.data.corpus=CORPUS --workdir=RUN

Published (the authors' PyTorch script): every setting under the comment "Published". Their
TensorFlow script has init_std 0.005, biases of each layer (`model.biases_per_layer`), min_lr_ratio
0.01.
Published result: perplexity 18.3, on 64 TPU v3 cores. The paper says 257 M parameters; its script
has 285 M. They evaluate with same_length, segments of 128, memory 1600, clamp_len 1000.
Recalled: the size of the vocabulary, here with nine special pieces; `train` names the size of the
corpus's vocabulary if it differs.
Ours: blocks of 32 windows (the authors read each row of the batch as one text); LayerNorm weights
start at 1, not at N(1, 0.02); layers one by one in place of a loop (unroll), which is faster by the
cost model of `compile`. On v5e:4x8 use --config.mesh.fsdp=32. No complete run yet: no expected
result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.architecture = "transformer_xl"
    # Published.
    config.model.update(
        layers=18,
        d_model=1024,
        heads=16,
        head_dim=64,
        d_ff=4096,
        activation="relu",
        biases_per_layer=False,
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=384,
    )
    config.model.update(dropout=0.2, attention_dropout=0.2, activation_dropout=0.2)
    config.model.update(cutoffs="20000,40000,200000", div_val=4, tie_projections="rest")
    config.data.update(
        objective="clm", segment_len=384, reuse_len=384, num_predict=384, bidirectional=False
    )
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=16_000,
        schedule="cosine",
        clip=0.25,
        weight_decay=0.0,
        adam_epsilon=1e-8,
    )
    config.train.update(steps=4_000_000, batch_size=128)
    # Recalled.
    config.model.vocab_size = 267_743
    # Ours.
    config.data.windows_per_block = 32
    config.model.unroll = "on"
    config.evaluation.every = 4000
    return config
