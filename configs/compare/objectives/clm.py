"""Left to right (Transformer-XL), with the network of `small.py`.

    xlnet-jax train --config=configs/compare/objectives/clm.py --config.data.corpus=CORPUS \
      --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. Nothing here is
published.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "../small.py")
    config.data.update(
        objective="clm", reuse_len=128, num_predict=128, bidirectional=False, windows_per_block=4
    )
    return config
