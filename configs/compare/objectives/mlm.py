"""Masked (BERT's objective on XLNet's network), with the network of `small.py`.

    xlnet-jax train --config=configs/compare/objectives/mlm.py --config.data.corpus=CORPUS --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. B always follows A.
Nothing here is published.
"""

import importlib.util
import pathlib


def get_config():
    # The files of this folder are not a package.
    path = pathlib.Path(__file__).parents[1] / "small.py"
    spec = importlib.util.spec_from_file_location("small", path)
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)
    config = small.get_config()
    config.data.update(
        objective="mlm", reuse_len=125, num_predict=19, bidirectional=False, windows_per_block=4, positive_pair_rate=1.0
    )
    return config
