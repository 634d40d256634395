"""The big Transformer of 2017 for text to text, in one stack: 6 layers, width 1024.

    xlnet-jax finetune --config=configs/transformer/big.py --config.finetune.tokenizer=TOKENIZER \
      --workdir=RUN

train.jsonl and dev.jsonl have objects with `source` and `target`. TOKENIZER is the tokenizer.json
that `prepare --vocabulary=bytebpe --vocab_size=37000` makes of both sides together; sacrebleu is in
the extra `text`. Published (Vaswani et al. 2017, arXiv:1706.03762, sections 5 and 6, table 2):
300,000 steps of about 25,000 source and 25,000 target tokens, dropout, label smoothing, Adam and
its rate, beam 4, length penalty 0.6, for an encoder and a decoder; 3.5 days on 8 P100; BLEU 28.4
from English to German (WMT 2014). Ours: one stack (docs/finetune.md). No complete run yet: no
expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="transformer",
        max_positions=512,
        layers=6,
        d_model=1024,
        heads=16,
        head_dim=64,
        d_ff=4096,
        activation="relu",
        scale_embedding=True,
        layer_norm_epsilon=1e-5,
        memory_len=0,
        dropout=0.3,
        attention_dropout=0.0,
        init_std=1024**-0.5,
    )
    config.data.segment_len = 512
    config.finetune.update(
        task="text_to_text",
        train="train.jsonl",
        dev="dev.jsonl",
        metric="bleu",
        max_answer=200,
        beam=4,
        length_penalty=0.6,
    )
    config.optimizer.update(
        schedule="inverse_sqrt",
        learning_rate=(1024 * 4000) ** -0.5,
        warmup_steps=4000,
        weight_decay=0.0,
        clip=0.0,
        adam_b1=0.9,
        adam_b2=0.98,
        adam_epsilon=1e-9,
    )
    config.train.update(steps=300_000, batch_size=96, label_smoothing=0.1)  # about 50,000 tokens
    config.checkpoint.every = config.evaluation.every = 5_000
    return config
