"""Eight topics of Reuters news: a short fine-tuning of the small networks that `compare` trains.

    xlnet-jax finetune --config=configs/compare/tasks/r8.py --config.checkpoint.init_from=RUN \
      --workdir=TO

The second of two tasks, see `rotten_tomatoes.py`; docs/comparison.md has the command. Nothing here
is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "rotten_tomatoes.py")
    examples = "runs/finetune_benchmark/r8"
    config.finetune.update(train=f"{examples}_train.jsonl", dev=f"{examples}_dev.jsonl")
    config.data.segment_len = 128
    config.train.steps = 100
    return config
