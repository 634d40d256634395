"""Labelled texts of your own, with settings that suit most models and most tasks: three passes over
the examples.

    xlnet-jax finetune --config=configs/finetune/own.py --config.checkpoint.init_from=RUN \
      --workdir=TUNED \
        --config.finetune.train=mine.csv

RUN is a pretrained work directory. mine.csv has columns `text` and `label`; name others with
--config.finetune.columns=body,stars. Without --config.finetune.dev a tenth of the examples, drawn
at random, is the dev set, which is scored after each pass. Other tasks:
--config.finetune.task=token_classification and so on. Time: some minutes for a few thousand
sentences, with a Base model on one GPU or a small model on two CPU cores.
Published: nothing.
Ours: not measured, because there is no data set behind it. A small model that was pretrained for
minutes needs a higher rate, such as --config.optimizer.learning_rate=1e-3.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(task="classification", epochs=3.0, dev_share=0.1)
    config.data.segment_len = 256
    config.train.batch_size = 16
    config.optimizer.learning_rate = 3e-5
    return config
