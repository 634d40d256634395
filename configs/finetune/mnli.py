"""MNLI: whether a sentence follows from another, contradicts it, or neither. The settings of
XLNet-Large.

    tfds build glue/mnli --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/mnli.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own. --config.finetune.dev=tfds:glue/mnli:validation_mismatched names the mismatched dev set.
Published: batch, learning rate, steps and warm-up by an author of XLNet; a dev score of accuracy
89.8 on the matched dev set (Base 86.8), the median of 5 runs with the best checkpoint of each.
Ours: not measured. The hardware was not published.
Assumed: 128 tokens and an epsilon of 1e-8, the defaults of the public code, and how often the dev
set is scored.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="classification", train="tfds:glue/mnli:train", dev="tfds:glue/mnli:validation_matched"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=128, steps=10_000)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=1_000, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
