"""An any-order model of base size: 12 layers, width 768, 116,750,336 parameters.

    xlnet-jax train --config=configs/any_order.py --config.data.corpus=CORPUS --workdir=RUN
    xlnet-jax evaluate --workdir=RUN --target_share=0.5

Hardware: any TPU slice. `xlnet-jax compile --config=configs/any_order.py --topology=v5e:8x8` counts
5.3 of 16 GiB. A step reads as many fresh tokens as a step of configs/xlnet_base.py (131,072), in
half as many rows; each row has a query at every position.
Published: the architecture, that of the released Base checkpoint (its xlnet_config.json). The
factorisation in random orders is XLNet's (arXiv 1906.08237, equation 3); no published run has this
distribution of orders with this size and these settings.
Ours: every training setting below. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    # Published: the released Base checkpoint's configuration.
    config.model.update(layers=12, d_model=768, heads=12, head_dim=64, d_ff=3072)
    # Ours: every token of a row is fresh, may be unknown and enters the memory.
    config.data.update(
        factorization_order="uniform", segment_len=512, reuse_len=512, num_predict=512
    )
    # Off: random orders inside a segment are the same for a reversed row, and its memory is the
    # text on the right, while `score` and `fill` have the text on the left in the memory.
    config.data.bidirectional = False
    config.model.memory_len = 512
    config.optimizer.update(learning_rate=4e-4, warmup_steps=10_000)
    config.train.update(steps=500_000, batch_size=256)
    config.evaluation.update(every=10_000, blocks=256)
    return config
