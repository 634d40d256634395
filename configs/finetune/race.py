"""RACE: reading comprehension with four options. The settings of XLNet-Large.

    xlnet-jax finetune --config=configs/finetune/race.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own. Unpack RACE.tar.gz here, or name tfds:race/high:train,tfds:race/middle:train. A row is four
sequences of 512 tokens.
Published: every setting but the evaluations, on a TPU v3-32; the paper's accuracy is 81.75 on the
test set (--config.finetune.dev=RACE/test). On a TPU v3-8: --config.train.batch_size=8 with accuracy
80.3. No Base score was published.
Ours: not measured.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="multiple_choice", train="RACE/train", dev="RACE/dev", max_question=128
    )
    config.data.segment_len = 512
    config.train.update(batch_size=32, steps=12_000)
    config.optimizer.update(
        learning_rate=2e-5, warmup_steps=1000, weight_decay=0.0, adam_epsilon=1e-6
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
