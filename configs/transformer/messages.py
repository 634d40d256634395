"""Translation of program messages from English to Spanish: a Transformer of 3 layers and width 192,
in half an hour on two cores.

    python benchmarks/translation.py --output=MESSAGES
    xlnet-jax finetune --config=configs/transformer/messages.py \
      --config.finetune.train=MESSAGES/train.jsonl \
      --config.finetune.dev=MESSAGES/dev.jsonl \
      --config.finetune.tokenizer=MESSAGES/corpus/tokenizer.json --workdir=RUN

The first command also runs the second; docs/finetune.md has the result.
Published: nothing of this size.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="transformer",
        max_positions=128,
        layers=3,
        d_model=192,
        heads=4,
        head_dim=48,
        d_ff=768,
        activation="relu",
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=0,
        dropout=0.1,
        attention_dropout=0.0,
        init_std=192**-0.5,
        compute_dtype="float32",
    )
    config.data.segment_len = 128
    config.finetune.update(
        task="text_to_text",
        train="train.jsonl",
        dev="dev.jsonl",
        metric="chrf",
        max_answer=62,
        beam=1,
    )
    config.optimizer.update(
        schedule="inverse_sqrt",
        learning_rate=(192 * 400) ** -0.5,
        warmup_steps=400,
        weight_decay=0.0,
        clip=1.0,
        adam_b1=0.9,
        adam_b2=0.98,
        adam_epsilon=1e-9,
    )
    config.train.update(steps=3_000, batch_size=32, label_smoothing=0.1)
    config.checkpoint.every = 500
    config.evaluation.every = 1_500
    config.log.tensorboard = False
    return config
