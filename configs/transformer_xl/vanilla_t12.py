"""Vanilla Transformer T12 (Al-Rfou et al. 2018, arXiv 1808.04444): 12 layers, width 512, 43,579,606
parameters.

    xlnet-jax prepare --dataset=enwik8 --input=FILES --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/vanilla_t12.py --config.data.corpus=CORPUS \
      --workdir=RUN
    xlnet-jax evaluate --workdir=RUN --sliding

Published result: 1.11 bits per character on enwik8 and 1.18 on text8, 44 M parameters, by sliding
one character at a time.
Recalled, not looked up: every setting under the comment "Recalled". Their vocabulary is 256 bytes:
with --config.model.vocab_size=256 this model has 44,095,744 parameters, and the model of
vanilla_t64.py has 235,176,192. Of these, 3,014,656 and 16,646,144 are softmaxes of lower layers and
of the second character, which only training uses.
Ours: AdamW and its rate (they have momentum 0.99 at a constant rate of 0.003, which is not among
our optimizers), the dropout of this smaller model, and the last layer's softmax of the next
character, which is tied to the embedding. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    # Published.
    config.model.update(architecture="vanilla", layers=12, memory_len=0, layer_losses=True)
    config.data.update(objective="clm", multi_token_prediction=2, bidirectional=False)
    # Recalled.
    config.model.update(d_model=512, heads=2, head_dim=256, d_ff=2048, activation="relu")
    config.data.update(segment_len=512, reuse_len=512, num_predict=512, windows_per_block=1)
    config.train.update(steps=4_000_000, batch_size=16)
    # The size for enwik8, as in enwik8_base.py; `train` names the corpus's size if it differs.
    config.model.vocab_size = 214
    # Ours.
    config.model.update(dropout=0.0, attention_dropout=0.1, activation_dropout=0.1)
    config.optimizer.update(
        learning_rate=2.5e-4, warmup_steps=4000, schedule="cosine", clip=0.25, weight_decay=0.0
    )
    config.evaluation.update(every=40_000, blocks=4096)
    return config
