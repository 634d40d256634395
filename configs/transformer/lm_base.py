"""The base Transformer of 2017 as a left-to-right language model: 6 layers, width 512.

    xlnet-jax train --config=configs/transformer/lm_base.py --config.data.corpus=CORPUS \
      --workdir=RUN

The corpus needs a vocabulary of 37,000 pieces: `prepare --vocabulary=bytebpe --vocab_size=37000`.
Published (Vaswani et al. 2017, arXiv:1706.03762, sections 3 and 5, table 3): the sizes of one
stack, dropout, label smoothing, Adam and its rate, for translation: 100,000 steps of about 25,000
source and 25,000 target tokens, 12 hours on 8 P100. Ours: a language model, 48 segments of 512
tokens in a batch. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="transformer",
        vocab_size=37000,
        max_positions=512,
        layers=6,
        d_model=512,
        heads=8,
        head_dim=64,
        d_ff=2048,
        activation="relu",
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=0,
        dropout=0.1,
        attention_dropout=0.0,
        init_std=512**-0.5,
    )
    config.data.update(
        objective="clm",
        segment_len=512,
        reuse_len=512,
        num_predict=512,
        bidirectional=False,
        windows_per_block=1,
    )
    config.optimizer.update(
        schedule="inverse_sqrt",
        learning_rate=(512 * 4000) ** -0.5,
        warmup_steps=4000,
        weight_decay=0.0,
        clip=0.0,
        adam_b1=0.9,
        adam_b2=0.98,
        adam_epsilon=1e-9,
    )
    config.train.update(steps=100_000, batch_size=48, label_smoothing=0.1)
    config.evaluation.update(every=5_000, blocks=512)
    return config
