"""GPT-2 (small): 12 layers, width 768, 124,439,808 parameters.

    xlnet-jax train --config=configs/gpt2/small.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 50,257 pieces: the released vocab.json and merges.txt, or
`prepare --vocabulary=bytebpe`.
Published (Radford et al. 2019): sizes, 1,024 positions and a batch of 512, but no schedule. The
learning rate (table 2.1), beta 2, weight decay and clip (appendix B) come from GPT-3's model of
this size (Brown et al. 2020, arXiv:2005.14165). No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="gpt2",
        vocab_size=50257,
        max_positions=1024,
        layers=12,
        d_model=768,
        heads=12,
        head_dim=64,
        d_ff=3072,
        norm="pre",
        activation="gelu",
        layer_norm_epsilon=1e-5,
        memory_len=0,
    )
    config.data.update(
        objective="clm",
        segment_len=1024,
        reuse_len=1024,
        num_predict=1024,
        bidirectional=False,
        windows_per_block=1,
    )
    config.optimizer.update(learning_rate=6e-4, warmup_steps=2_000, weight_decay=0.1, adam_b2=0.95)
    config.train.update(steps=600_000, batch_size=512)  # the steps and the warm-up are ours
    config.evaluation.update(every=10_000, blocks=512)
    return config
