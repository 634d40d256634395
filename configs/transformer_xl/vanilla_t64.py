"""Vanilla Transformer T64 (Al-Rfou et al. 2018, arXiv 1808.04444): 64 layers, width 512,
232,423,638 parameters.

    xlnet-jax prepare --dataset=enwik8 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/vanilla_t64.py --config.data.corpus=CORPUS \
      --workdir=RUN
    xlnet-jax evaluate --workdir=RUN --sliding

Published result: 1.06 bits per character on enwik8 and 1.13 on text8, 235 M parameters, by sliding
one character at a time.
Recalled, not looked up: every setting under the comment "Recalled". See vanilla_t12.py for the
vocabulary, and for our settings other than the dropout. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    # Published.
    config.model.update(architecture="vanilla", layers=64, memory_len=0, layer_losses=True)
    config.data.update(objective="clm", multi_token_prediction=2, bidirectional=False)
    # Recalled.
    config.model.update(d_model=512, heads=2, head_dim=256, d_ff=2048, activation="relu")
    config.model.update(dropout=0.0, attention_dropout=0.55, activation_dropout=0.55)
    config.data.update(segment_len=512, reuse_len=512, num_predict=512, windows_per_block=1)
    config.train.update(steps=4_000_000, batch_size=16)
    # The size for enwik8, as in enwik8_base.py; `train` names the corpus's size if it differs.
    config.model.vocab_size = 214
    # Ours.
    config.optimizer.update(
        learning_rate=1e-4, warmup_steps=10_000, schedule="cosine", clip=0.25, weight_decay=0.0
    )
    config.evaluation.update(every=40_000, blocks=4096)
    return config
