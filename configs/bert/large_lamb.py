"""BERT-Large with LAMB and a batch of 32,768: the values of large.py, except batch, steps, rate and
warm-up.

    xlnet-jax train --config=configs/bert/large_lamb.py --config.data.corpus=CORPUS --workdir=RUN

Published (You et al. 2019, arXiv:1904.00962, untuned LAMB): 15,625 steps at 0.005 with a fifth of
them as warm-up, nine tenths of the steps with sequences of 128 tokens, 101 minutes on 1,024 TPU v3
chips; F1 91.5 on SQuAD. On fewer chips: train.gradient_accumulation_steps. No complete run yet: no
expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "large.py")
    config.optimizer.update(name="lamb", learning_rate=0.005, warmup_steps=3_125)
    config.train.update(steps=15_625, batch_size=32_768)
    config.phases = (
        dict(steps=14_063, data=dict(segment_len=128, reuse_len=125, num_predict=20)),
        dict(steps=1_562),
    )
    config.checkpoint.every = 500
    config.evaluation.every = 500
    return config
