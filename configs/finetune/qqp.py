"""QQP: whether two questions ask the same. The settings of XLNet-Large.

    tfds build glue/qqp --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/qqp.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own.
Published: batch, learning rate, steps and warm-up by an author of XLNet; a dev score of accuracy
91.8 (Base 91.4), the median of 5 runs with the best checkpoint of each.
Ours: not measured. The hardware was not published.
Assumed: 128 tokens and an epsilon of 1e-8, the defaults of the public code, and how often the dev
set is scored.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="classification", train="tfds:glue/qqp:train", dev="tfds:glue/qqp:validation"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=128, steps=14_000)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=1_000, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
