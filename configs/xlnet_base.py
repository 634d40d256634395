"""XLNet-Base: 12 layers, width 768, 116,750,336 parameters.

    xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=CORPUS --workdir=RUN

The architecture is that of the released checkpoint (its xlnet_config.json). No pretraining command
or hyper-parameter of the Base model was ever published; every training setting below is ours. No
complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.default()
    # Published: the released Base checkpoint's configuration.
    config.model.update(layers=12, d_model=768, heads=12, head_dim=64, d_ff=3072)
    # Ours: the Large run's batch shape and schedule with a smaller batch and the usual rate for
    # this size.
    config.optimizer.update(learning_rate=4e-4, warmup_steps=10_000)
    config.train.update(steps=500_000, batch_size=512)
    config.evaluation.update(every=10_000, blocks=512)
    return config
