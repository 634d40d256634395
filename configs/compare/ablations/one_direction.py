"""`full.py` that reads all text forward.

    xlnet-jax train --config=configs/compare/ablations/one_direction.py --config.data.corpus=CORPUS --workdir=RUN

One of `full.py` and its ablations; docs/comparison.md has the command. Nothing here is published.
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
    config.model.memory_len = 64
    config.data.bidirectional = False
    return config
