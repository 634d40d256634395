"""Yelp-5: how many stars a review gives. The settings of XLNet-Large.

    xlnet-jax finetune --config=configs/finetune/yelp5.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own. The data is not in TFDS: unpack yelp_review_full_csv.tgz here. The test split scores every
checkpoint.
Published: accuracy 72.20 (an error of 27.80). Ours: not measured.
Recalled, not checked against the paper: batch, length, learning rate, steps, warm-up and epsilon.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    folder = "yelp_review_full_csv"
    # Columns without a header: the stars, the text.
    config.finetune.update(
        task="classification", train=f"{folder}/train.csv", dev=f"{folder}/test.csv", columns="1,0"
    )
    config.data.segment_len = 512
    config.train.update(batch_size=128, steps=10_000)
    config.optimizer.update(
        learning_rate=1e-5, warmup_steps=1000, weight_decay=0.0, adam_epsilon=1e-6
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
