"""GPT-2 (small) with Muon: the values of small.py, except the optimizer.

    xlnet-jax train --config=configs/gpt2/small_muon.py --config.data.corpus=CORPUS --workdir=RUN

Published (Liu et al. 2025, arXiv:2502.16982, sections 2.2 and 3): momentum 0.95, five iterations,
updates of AdamW's size, so that AdamW's rate and weight decay of 0.1 need no change; for models of
other sizes on other text. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "small.py")
    config.optimizer.name = "muon"
    return config
