"""QNLI: whether a sentence answers a question. For XLNet-Large.

    tfds build glue/qnli --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/qnli.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own.
Published: a dev score of accuracy 93.9, and no settings.
Ours: not measured. Assumed: the settings of MNLI, the set of the nearest size.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="classification", train="tfds:glue/qnli:train", dev="tfds:glue/qnli:validation"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=128, steps=10_000)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=1_000, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
