"""STS-B: how similar two sentences are, from 0 to 5. The settings of XLNet-Large.

    tfds build glue/stsb --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/stsb.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own.
Published: every setting but the evaluations, on 4 V100 with 8 rows each; Pearson's correlation on
the dev set of at least 91.6 with that command, and 91.8 in the paper (Base 89.5). Ours: not
measured.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="regression", train="tfds:glue/stsb:train", dev="tfds:glue/stsb:validation"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=32, steps=1200)
    config.optimizer.update(
        learning_rate=5e-5, warmup_steps=120, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 200
    return config
