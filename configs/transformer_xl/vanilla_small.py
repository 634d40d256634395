"""A small Vanilla Transformer on characters, on a laptop's CPU: 3 layers, width 128, 694,756
parameters.

    xlnet-jax prepare --input=BOOKS --vocabulary=characters --output=CORPUS
    xlnet-jax train --config=configs/transformer_xl/vanilla_small.py --config.data.corpus=CORPUS \
      --workdir=RUN
    xlnet-jax evaluate --workdir=RUN --sliding --blocks=4

Hardware: two CPU cores, no accelerator. Nothing here is published: these are our sizes, with all
parts of the model of Al-Rfou et al. 2018 (vanilla_t64.py). `train` names the vocabulary size of the
corpus if it differs. `benchmarks/recurrence.py` compares such a model with one that has a memory.
No expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="vanilla",
        vocab_size=100,
        layers=3,
        d_model=128,
        heads=4,
        head_dim=32,
        d_ff=512,
        memory_len=0,
        activation="relu",
        layer_losses=True,
        dropout=0.0,
        attention_dropout=0.0,
        compute_dtype="float32",
    )
    config.data.update(
        objective="clm",
        multi_token_prediction=2,
        segment_len=64,
        reuse_len=64,
        num_predict=64,
        windows_per_block=1,
        bidirectional=False,
    )
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=100, schedule="cosine", weight_decay=0.01
    )
    config.train.update(steps=1200, batch_size=32, steps_per_dispatch=10)
    config.checkpoint.update(every=200, keep=2)
    return config
