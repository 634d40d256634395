"""ALBERT-Large: one layer applied 24 times, width 1024, 17,847,474 parameters with the head of
sentence pairs.

    xlnet-jax train --config=configs/albert/large.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 30,000 pieces: the released spiece.model, or
`prepare --vocabulary=wordpiece`.
Published (Lan et al. 2019, arXiv:1909.11942, section 4.1): the network without dropout, sentence
order, n-grams of up to 3 words, batch, steps, and LAMB at 0.00176, on 64 to 512 TPU v3 chips. No
complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="albert",
        vocab_size=30000,
        max_positions=512,
        layers=24,
        d_model=1024,
        heads=16,
        head_dim=64,
        d_ff=4096,
        d_embed=128,
        share_layers=True,
        activation="gelu",
        layer_norm_epsilon=1e-12,
        memory_len=0,
        dropout=0.0,
        attention_dropout=0.0,
        init_truncated=True,
    )
    config.data.update(
        objective="mlm",
        segment_len=512,
        reuse_len=509,
        num_predict=77,
        bidirectional=False,
        windows_per_block=1,
        pairs="order",
        sentence_loss=True,
        short_rate=0.1,
        spans="words",
        max_span=3,
    )
    config.optimizer.update(
        name="lamb", learning_rate=0.00176, warmup_steps=3125, weight_decay=0.01
    )
    config.train.update(steps=125_000, batch_size=4096)
    config.evaluation.update(every=5_000, blocks=4096)  # ours
    return config
