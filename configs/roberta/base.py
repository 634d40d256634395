"""RoBERTa-Base: 12 layers, width 768, 124,697,433 parameters.

    xlnet-jax train --config=configs/roberta/base.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 50,265 pieces: `prepare --vocabulary=bytebpe`, or the released
vocab.json and merges.txt.
Published (Liu et al. 2019, arXiv:1907.11692, table 9; 160 GB of text): all settings except those
marked as ours, on 1,024 V100 GPUs, about a day for 100,000 steps of the large model. No complete
run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="roberta",
        vocab_size=50265,
        max_positions=512,
        layers=12,
        d_model=768,
        heads=12,
        head_dim=64,
        d_ff=3072,
        activation="gelu_erf",
        layer_norm_epsilon=1e-5,
        memory_len=0,
    )
    config.data.update(
        objective="mlm",
        segment_len=512,
        reuse_len=510,
        num_predict=77,
        bidirectional=False,
        windows_per_block=1,
        pairs="none",
        spans="random",
    )
    config.optimizer.update(
        learning_rate=6e-4,
        warmup_steps=24_000,
        weight_decay=0.01,
        adam_b2=0.98,
        adam_epsilon=1e-6,
        clip=0.0,
    )
    config.train.update(steps=500_000, batch_size=8192)
    config.evaluation.update(every=10_000, blocks=8192)  # ours
    return config
