"""ZeRO-1 (`mesh.zero1`): the same run with parameters, moments and update split over `data`, and what crosses."""

import collections
import functools
import math
import re

import data_fixtures
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import PartitionSpec
from test_meshes import assert_same_gradient, batches, optax_moment

from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import gradients
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

KERNELS = 2 * (5 * 16 * 16 + 2 * 16 * 32)
"""Elements of all matrices that products round, in two layers."""
TABLE = tiny.VOCAB * 16


def config(mesh, zero1, accumulation=1, dtype="bfloat16"):
    """Sixteen rows, four heads, dropout on; one step a dispatch."""
    train = {"batch_size": 16, "steps_per_dispatch": 1, "gradient_accumulation_steps": accumulation}
    return tiny.config(
        model={"heads": 4, "head_dim": 4, "compute_dtype": dtype},
        train=train,
        mesh=mesh | {"zero1": zero1},
    )


def built(mesh, zero1, *others):
    """(recipe, mesh, step)."""
    recipe = make_recipe(config(mesh, zero1, *others))
    grid = meshes.make_mesh(recipe.config.mesh, jax.devices()[: math.prod(mesh.values())])
    with jax.set_mesh(grid):
        return recipe, grid, build_step(recipe, grid)


def run(*args):
    """(losses and norms of three steps, gradient of the first up to a factor, parameters after them)."""
    recipe, grid, step = built(*args)
    with jax.set_mesh(grid):
        state, seen, first = create_state(recipe, step), [], None
        for batch in batches(step.rows):
            state, metrics = step.jitted(state, meshes.place(batch, grid))
            seen.append((float(metrics["loss"][0]), float(metrics["grad_norm"][0])))
            first = first or jax.device_get(optax_moment(state.opt_state))
    return seen, first, jax.device_get(state.params)


def bytes_here(tree):
    """On one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def test_a_device_holds_its_share_of_parameters_and_moments():
    """Moments that stay whole, or an axis that another mesh axis has already split, would show."""
    for mesh in ({"data": 4}, {"data": 2, "fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}):
        ways = math.prod(mesh.values())
        state = built(mesh, True)[2].abstract_state
        elements = sum(x.size for x in jax.tree.leaves(state.params))
        small = elements - KERNELS - TABLE
        share = 4 * (KERNELS + TABLE) // ways
        assert share <= bytes_here(state.params) <= share + 4 * small, mesh
        assert 2 * share <= bytes_here(state.opt_state) <= 2 * (share + 4 * small) + 8, mesh
    assert state.params["layers"]["attention"]["query"].sharding.spec == PartitionSpec("data", "fsdp", "tensor", None)
    assert state.params["word_embedding"].sharding.spec == PartitionSpec(("tensor", "data"), "fsdp")
    # Nothing to split over.
    assert bytes_here(built({"data": 1}, True)[2].abstract_state.params) == 4 * elements


def crossing(text):
    """Elements by collective and dtype, of the program before the compiler."""
    found = collections.Counter()
    for kind, end in (
        ("all_gather", r"-> tensor<"),
        ("reduce_scatter", r": \(tensor<"),
        ("all_reduce", r": \(tensor<"),
    ):
        for operation in re.finditer(rf'"?stablehlo\.{kind}"?\(', text):
            shape, dtype = re.search(rf"{end}((?:\d+x)*)(\w+)>", text[operation.end() :]).groups()
            found[kind, dtype] += math.prod(int(size) for size in shape.split("x") if size)
    return found


def test_gradients_cross_once_in_float32_and_kernels_come_back_in_the_compute_dtype():
    """A gradient rounded to bfloat16, a second sum in each micro-batch, or kernels gathered in float32 would show."""
    _, grid, step = built({"data": 4}, True, 2)
    with jax.set_mesh(grid):
        found = crossing(step.jitted.lower(step.abstract_state, step.abstract_batch).as_text())
    elements = sum(x.size for x in jax.tree.leaves(step.abstract_state.params))
    assert found["reduce_scatter", "f32"] == KERNELS + TABLE + tiny.VOCAB
    # And the loss; all in one piece.
    assert found["all_reduce", "f32"] == elements - found["reduce_scatter", "f32"] + 1
    assert found["all_gather", "bf16"] == KERNELS
    assert found["all_gather", "f32"] == TABLE + tiny.VOCAB
    assert set(found) == {
        ("reduce_scatter", "f32"),
        ("all_reduce", "f32"),
        ("all_gather", "bf16"),
        ("all_gather", "f32"),
    }


def test_the_kernel_of_a_head_is_not_rounded():
    """It may meet float32 vectors, which its rounded values would not be good enough for."""
    split, whole = (
        {name: {"kernel": spec} for name in ("layers", "head")} for spec in (PartitionSpec("data"), PartitionSpec())
    )
    kernel = {"kernel": jax.ShapeDtypeStruct((8, 4), "float32")}
    with jax.set_mesh(built({"data": 2}, True)[1]):
        gather = functools.partial(gradients.gather, specs=split, whole=whole, dtype=jnp.dtype("bfloat16"))
        found = jax.eval_shape(gather, {"layers": kernel, "head": kernel})
    assert jax.tree.map(lambda x: x.dtype.name, found) == {
        "layers": {"kernel": "bfloat16"},
        "head": {"kernel": "float32"},
    }


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize(
    ("mesh", "parts", "dtype"),
    [
        ({"data": 4}, 2, "bfloat16"),
        ({"data": 2, "fsdp": 2}, 2, "float32"),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 1, "float32"),
        ({"slices": 2, "data": 2}, 1, "bfloat16"),
    ],
    ids=str,
)
def test_the_run_is_the_same_to_the_order_of_sums(mesh, parts, dtype):
    """A part of another device's sum, an update of the wrong part, or a rounded gradient would show."""
    one, split = (run(mesh, zero1, parts, dtype) for zero1 in (False, True))
    np.testing.assert_allclose(split[0], one[0], rtol=1e-5)
    assert len({round(loss, 5) for loss, _ in one[0]}) == 3, "the three steps do not differ"
    assert_same_gradient(one[1], split[1])
    for x, y in zip(jax.tree.leaves(one[2]), jax.tree.leaves(split[2]), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.slow
def test_a_run_resumes_with_the_key_switched_and_its_checks_work(tmp_path, pytestconfig):
    def settings(zero1):
        return tiny.config(
            data={"corpus": data_fixtures.corpus_path()}, mesh={"data": 4, "fsdp": 2, "zero1": zero1},
            log={"compilation_cache": str(pytestconfig.cache.mkdir("xla"))},
        )  # fmt: skip

    def losses(name):
        return [line["loss"] for line in read_jsonl(str(tmp_path / name / "metrics.jsonl"))]

    for name, first in (("on", True), ("off", False)):
        train(settings(first), str(tmp_path / name), stop_at=4)
        assert train(settings(not first), str(tmp_path / name), stop_at=8)["step"] == 8
    np.testing.assert_allclose(losses("on"), losses("off"), rtol=1e-5)
    scores = [evaluate(str(tmp_path / "on"), overrides=[f"--config.mesh.zero1={word}"]) for word in ("true", "false")]
    assert scores[0]["heldout_loss"] == pytest.approx(scores[1]["heldout_loss"], rel=1e-6)
