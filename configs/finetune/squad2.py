"""SQuAD 2.0: answers that are spans of a paragraph, or none. The settings of XLNet-Large.

    xlnet-jax finetune --config=configs/finetune/squad2.py --config.checkpoint.init_from=LARGE \
      --workdir=RUN

LARGE is a work directory that `xlnet-jax import` made of the released checkpoint, or one of your
own. Put train-v2.0.json and dev-v2.0.json here, or name tfds:squad/v2.0:train and
tfds:squad/v2.0:validation.
Published: every setting but the evaluations, on a TPU v3-8, in about two hours; on the dev set an
exact match of 86.12 in the paper, and an F1 of about 88.6 (median) with that command.
SQuAD 1.1, with the files of that version: exact match 88.95.
Ours: not measured.
Here the layer decay scales learning rates, also of the embeddings. The 2019 code scales gradients,
which changes updates only through Adam's epsilon, and adds the epsilon at another place:
--config.compat.switches=layer_decay_on_gradients,no_bias_correction
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(
        task="question_answering",
        train="train-v2.0.json",
        dev="dev-v2.0.json",
        stride=128,
        max_question=64,
        max_answer=64,
        beam=5,
    )
    config.data.segment_len = 512
    config.train.update(batch_size=48, steps=8000)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=1000, weight_decay=0.0, adam_epsilon=1e-6, layer_decay=0.75
    )
    config.checkpoint.every = config.evaluation.every = 1000
    return config
