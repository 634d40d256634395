"""MRPC: whether two sentences mean the same. The settings of XLNet-Large.

    tfds build glue/mrpc --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/mrpc.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own.
Published: batch, learning rate, steps and warm-up by an author of XLNet; a dev score of accuracy
89.2 (Base 88.2), the median of 5 runs with the best checkpoint of each.
Ours: not measured. The hardware was not published.
Assumed: 128 tokens and an epsilon of 1e-8, the defaults of the public code, and how often the dev
set is scored.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="classification", train="tfds:glue/mrpc:train", dev="tfds:glue/mrpc:validation"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=32, steps=800)
    config.optimizer.update(
        learning_rate=5e-5, warmup_steps=200, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 200
    return config
