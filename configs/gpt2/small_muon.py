"""GPT-2 (small) by Muon: the values of small.py, but for the optimizer.

    xlnet-jax train --config=configs/gpt2/small_muon.py --config.data.corpus=CORPUS --workdir=RUN

Published (Liu et al. 2025, arXiv:2502.16982, sections 2.2 and 3): momentum 0.95, five iterations, updates of AdamW's
size, so that its rate and its weight decay of 0.1 stay as they are; for models of other sizes and text. No complete run
yet: no expected result.
"""

import importlib.util
import pathlib


def get_config():
    # The files of this folder are not a package.
    path = pathlib.Path(__file__).with_name("small.py")
    spec = importlib.util.spec_from_file_location("small", path)
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)
    config = small.get_config()
    config.optimizer.name = "muon"
    return config
