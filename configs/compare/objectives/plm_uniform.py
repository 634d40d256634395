"""Permutation language modelling of all positions in a random order, with the network of `small.py`.

    xlnet-jax train --config=configs/compare/objectives/plm_uniform.py --config.data.corpus=CORPUS --workdir=RUN

One of five objectives with one network; docs/comparison.md has the command. Nothing here is published.
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
        factorization_order="uniform", reuse_len=128, num_predict=128, bidirectional=False, windows_per_block=4
    )
    return config
