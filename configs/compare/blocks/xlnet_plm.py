"""XLNet's layers under permutation language modelling with spans: 238,352 parameters.

    xlnet-jax train --config=configs/compare/blocks/xlnet_plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

The first of five configurations in this folder; docs/comparison.md has the command. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../objectives/plm_spans.py")
    config.model.update(d_model=64, head_dim=16, d_ff=256)
    config.data.update(segment_len=64, reuse_len=32, num_predict=10)
    config.optimizer.warmup_steps = 80
    config.train.update(steps=800, batch_size=8)
    config.checkpoint.every = 1000
    return config
