"""The layers of ModernBERT-Base from left to right with a memory: 22 layers, width 768,
149,656,000 parameters.

    xlnet-jax train --config=configs/modern/base_clm.py --config.data.corpus=CORPUS --workdir=RUN

The keys of base_plm.py, with the examples of data.objective=clm. What is published and what is ours
is said there. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "base_plm.py")
    config.data.update(objective="clm", bidirectional=False)
    # + 0: the keys are not one key, so a change of one alone is refused.
    config.data.reuse_len = config.data.num_predict = config.data.get_ref("segment_len") + 0
    return config
