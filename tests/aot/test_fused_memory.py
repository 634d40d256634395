"""Memory of the fused attention by the TPU compiler, beside that of XLA's; `benchmarks/attention.py` prints figures."""

import pathlib

import pytest

from xlnet_jax.aot import compile
from xlnet_jax.aot.topology import describe
from xlnet_jax.config import load, override
from xlnet_jax.train.recipe import make_recipe

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.prove
@pytest.mark.parametrize(("attention", "fits"), [("fused", True), ("xla", False)])
def test_a_long_text_fits_only_with_the_kernel(attention, fits):
    """Catches an array of queries times keys. XLNet-Large: a row of T = 4096 and M = 3072 per device, full remat."""
    words = [
        "data.segment_len=4096", "data.reuse_len=2048", "data.num_predict=680", "model.memory_len=3072",
        "train.batch_size=16", "train.steps_per_dispatch=1", "mesh.data=1", "mesh.fsdp=16", "model.remat=full",
        f"model.attention={attention}",
    ]  # fmt: skip
    config = override(load(str(ROOT / "configs" / "xlnet_large_512.py")), [f"--config.{word}" for word in words])
    trial = compile.attempt(make_recipe(config), describe("v5e:4x4"))
    assert trial.fits == fits, trial.needed
