"""WNLI: whether a sentence follows from another, in which a pronoun was replaced. For XLNet-Large.

    tfds build glue/wnli --file_format=array_record
    xlnet-jax finetune --config=configs/finetune/wnli.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN --seeds=5

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own. In the dev set, sentences of the training set have the opposite label: most models stay below
the most frequent class.
Published: neither settings nor a dev score. Ours: not measured.
Assumed: the learning rate of RTE, and 10 epochs of the 635 examples.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="classification", train="tfds:glue/wnli:train", dev="tfds:glue/wnli:validation"
    )
    config.data.segment_len = 128
    config.train.update(batch_size=32, steps=200)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=20, weight_decay=0.0, adam_epsilon=1e-8
    )
    config.checkpoint.every = config.evaluation.every = 50
    return config
