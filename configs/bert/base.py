"""BERT-Base: 12 layers, width 768, 110,106,428 parameters with the head of sentence pairs.

    xlnet-jax train --config=configs/bert/base.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 30,522 pieces: `prepare --vocabulary=wordpiece --uncased`, or the
released vocab.txt.
Published (Devlin et al. 2018, arXiv:1810.04805, appendix A.2): all settings except those marked as
ours; 4 days on 16 TPU chips. 90 % of its steps had sequences of 128 tokens (data.segment_len=128,
data.reuse_len=125, data.num_predict=20). Google's code clips gradients core by core, has no bias
correction and repeats ten copies of its masks; compat.switches=bert does the same. No complete run
yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        architecture="bert",
        vocab_size=30522,
        max_positions=512,
        layers=12,
        d_model=768,
        heads=12,
        head_dim=64,
        d_ff=3072,
        activation="gelu_erf",
        layer_norm_epsilon=1e-12,
        memory_len=0,
        init_truncated=True,
    )
    config.data.update(
        objective="mlm",
        segment_len=512,
        reuse_len=509,
        num_predict=77,
        bidirectional=False,
        windows_per_block=1,
        pairs="next",
        sentence_loss=True,
        short_rate=0.1,
        spans="random",
        random_pieces="all",
    )
    config.optimizer.update(
        learning_rate=1e-4, warmup_steps=10_000, weight_decay=0.01, adam_b2=0.999
    )
    config.train.update(steps=1_000_000, batch_size=256)
    config.evaluation.update(every=10_000, blocks=1024)  # ours
    return config
