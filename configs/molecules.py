"""An any-order model of molecules, written as SMILES, on a CPU in about forty minutes.

    xlnet-jax prepare --input=train.csv.gz --field=SMILES --vocabulary=pattern --pattern=REGEX \
      --output=CORPUS
    xlnet-jax train --config=configs/molecules.py --config.data.corpus=CORPUS --workdir=RUN
    xlnet-jax export --workdir=RUN --output=xlnet_jax/pretrained/molecules

REGEX is the expression of Schwaller et al. 2019 (docs/data.md). train.csv.gz is the training set of
MOSES (arXiv 1811.12823; MIT licence), 1,584,663 molecules, from the Python package molsets 0.3.1.
Hardware: two CPU cores, no accelerator. Nothing here is published: a small network, so that the
package can bring the trained model (`xlnet_jax.load("molecules")`).
Ours: 39 minutes on two shared cores. Expect 0.670 nats per held-out target; predicting each piece
by its frequency has 2.328.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.model.update(
        vocab_size=33,  # 9 special pieces, and 24 pieces of SMILES
        layers=4,
        d_model=128,
        heads=4,
        head_dim=32,
        d_ff=512,
        memory_len=0,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.08,
        compute_dtype="float32",
    )
    config.data.update(
        documents="whole",
        factorization_order="uniform",
        segment_len=128,
        reuse_len=128,
        num_predict=128,
        windows_per_block=1,
        pairs="none",
    )
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=200, schedule="cosine", weight_decay=0.01
    )
    config.train.update(steps=5000, batch_size=8, steps_per_dispatch=10)
    config.checkpoint.update(every=500, keep=2)
    return config
