"""Masked diffusion of base size: BERT-Base's network, 109,219,386 parameters.

    xlnet-jax train --config=configs/mdm/base.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 30,522 pieces: `prepare --vocabulary=wordpiece --uncased`, or the
released vocab.txt.
Published (MDLM, Sahoo et al. 2024, arXiv:2406.07524, on the One Billion Words; numbers as in the
configuration files of its repository): 12 layers of width 768, dropout 0.1, 128 tokens, a batch of
512 for 1,000,000 steps, rate, warm-up and constant schedule, no weight decay, clip 1, an average of
the parameters that is evaluated.
Ours: the network (theirs has rotary positions and an untied softmax), text packed across sentences,
and the exact count of masks (LLaDA, Nie et al. 2025, arXiv:2502.09992); the bound is the same. No
complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="bert",
        vocab_size=30522,
        max_positions=128,
        layers=12,
        d_model=768,
        heads=12,
        head_dim=64,
        d_ff=3072,
        activation="gelu_erf",
        layer_norm_epsilon=1e-12,
        memory_len=0,
        init_truncated=True,
    )
    config.data.update(
        objective="mdm",
        segment_len=128,
        reuse_len=126,
        num_predict=126,
        bidirectional=False,
        windows_per_block=1,
        pairs="none",
    )
    config.optimizer.update(
        learning_rate=3e-4,
        warmup_steps=2_500,
        min_lr_ratio=1.0,
        weight_decay=0.0,
        adam_b2=0.999,
        adam_epsilon=1e-8,
        clip=1.0,
        average=0.9999,
    )
    config.train.update(steps=1_000_000, batch_size=512)
    config.evaluation.update(every=10_000, blocks=4096, averaged=True)  # ours
    return config
