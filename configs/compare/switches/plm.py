"""Permutation language modelling with spans in all steps.

    xlnet-jax train --config=configs/compare/switches/plm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of four plans; docs/comparison.md has the command. Nothing here is published.
"""

from xlnet_jax import config as base


def get_config():
    return base.start_from(__file__, "../objectives/plm_spans.py")
