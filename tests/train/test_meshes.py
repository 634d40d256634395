"""Any mesh and any number of micro-batches: the same losses, the same gradient, and one reduction
over the rows.
"""

import collections
import functools
import math
import re
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
import tiny
from jax.sharding import AbstractMesh, PartitionSpec

from xlnet_jax.aot import hlo
from xlnet_jax.checkpoint import checksums
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.config import Config, load
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.members import MEMBERS
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import gradients
from xlnet_jax.train import state as states
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

pytestmark = pytest.mark.production
ONE = {"data": 1}
EIGHT = [
    pytest.param({"data": 8}, marks=pytest.mark.prove),
    pytest.param({"data": 1, "fsdp": 8}, marks=pytest.mark.slow),
    {"data": 2, "fsdp": 2, "tensor": 2, "zero1": True},
    pytest.param({"data": 1, "fsdp": 2, "tensor": 4}, marks=pytest.mark.prove),
    pytest.param({"slices": 2, "data": 2, "fsdp": 2}, marks=pytest.mark.slow),
]
PARTS = [
    pytest.param({"data": 1}, 4, marks=pytest.mark.slow),
    # 16 rows on three devices, and two on one of them: 18 rows, in two parts.
    ({"data": 3}, 2),
    pytest.param({"slices": 3, "data": 2}, 2, marks=pytest.mark.prove),
    pytest.param({"slices": 2, "data": 1, "fsdp": 2}, 2, marks=pytest.mark.slow),
    pytest.param({"data": 2, "tensor": 2}, 4, marks=pytest.mark.prove),
]


def config(
    mesh: dict, accumulation: int = 1, dtype: str = "float32", member: str = "xlnet"
) -> Config:
    """Sixteen rows, four heads, dropout on, an average; one step a dispatch."""
    model: dict[str, Any] = {"heads": 4, "head_dim": 4, "compute_dtype": dtype}
    if member == "modern":
        usual = MEMBERS[member].usual(32)["model"]
        model = usual | model | {"memory_len": 24, "window": 9, "global_every": 2, "dropout": 0.1}
    train = {
        "batch_size": 16,
        "steps_per_dispatch": 1,
        "gradient_accumulation_steps": accumulation,
        "elastic": True,
    }
    return tiny.config(
        model=model,
        optimizer={"average": 0.9},
        train=train,
        mesh=mesh,
    )


def built(mesh: dict, *others):
    """(recipe, mesh, step)."""
    recipe = make_recipe(config(mesh, *others))
    grid = meshes.make_mesh(recipe.config.mesh, jax.devices()[: math.prod(mesh.values())])
    with jax.set_mesh(grid):
        return recipe, grid, build_step(recipe, grid)


@functools.cache
def batches(rows):
    """The same for each member."""
    settings = config({})
    plan = extend_plan((), 0, 16, settings.data.windows_per_block)
    dispatches = loader.TrainDispatches(tiny.mixture(), settings, plan, np.arange(rows), 0, 3)
    return [loader.stack([dispatches.batch(step)]) for step in range(3)]


class Trained(NamedTuple):
    losses: list
    gradient: Any
    """Of step 1, up to a factor."""
    params: Any
    """After three steps."""
    text: str
    """Of the compiled step."""
    axes: dict


def run(mesh: dict, *others) -> Trained:
    """Three steps, once for each mesh."""
    return cached_run(tuple(mesh.items()), *others)


@functools.cache
def cached_run(mesh: tuple, *others) -> Trained:
    recipe, grid, step = built(dict(mesh), *others)
    with jax.set_mesh(grid):
        state = create_state(step)
        execute = step.jitted.lower(
            step.abstract_state, step.abstract_batch, step.dropout_seed
        ).compile()
        losses, first = [], None
        for batch in batches(step.rows):
            state, metrics = execute(state, meshes.place(batch, grid), step.dropout_seed)
            losses.append(float(metrics["loss"][0]))
            # Adam's first moment after one step is the clipped gradient times 1 - b1.
            first = first or jax.device_get(
                optax_moment(meshes.like(state, step.logical).opt_state)
            )
        params = jax.device_get(meshes.like(state.params, step.logical.params))
    return Trained(losses, first, params, execute.as_text(), dict(grid.shape))


def optax_moment(opt_state):
    (found,) = [
        part.mu for part in jax.tree.leaves(opt_state, is_leaf=has_moment) if has_moment(part)
    ]
    return found


def has_moment(part) -> bool:
    return hasattr(part, "mu")


def assert_same_gradient(one, other, tolerance=1e-5):
    """By norm, array by array; the floor is for arrays whose gradient is next to nothing."""
    floor = 1e-3 * max(np.linalg.norm(x) for x in jax.tree.leaves(one))
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        error = np.linalg.norm(x - y) / max(np.linalg.norm(x), floor)
        assert error < tolerance, (jax.tree_util.keystr(path), error)


@pytest.mark.parametrize("mesh", EIGHT, ids=str)
def test_every_mesh_of_eight_devices_gives_the_losses_and_the_gradient_of_one(mesh):
    assert config({}).model.dropout > 0
    one, many = run(ONE), run(mesh)
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-5)
    assert len({round(loss, 5) for loss in one.losses}) == 3, "the three steps do not differ"
    assert_same_gradient(one.gradient, many.gradient)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param({"data": 1, "fsdp": 8}, marks=pytest.mark.prove),
        {"data": 2, "fsdp": 2, "tensor": 2, "zero1": True},
    ],
    ids=str,
)
def test_layers_that_differ_give_them_on_every_mesh_too(mesh):
    """Rotary positions, windows, gated layers, with two streams and a memory."""
    one, many = (run(each, 1, "float32", "modern") for each in (ONE, mesh))
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-5)
    assert_same_gradient(one.gradient, many.gradient)


@pytest.mark.parametrize(("mesh", "parts"), PARTS, ids=str)
def test_micro_batches_and_rows_of_weight_0_give_the_losses_and_the_gradient_of_the_whole(
    mesh, parts
):
    one, many = run(ONE), run(mesh, parts)
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-6)
    assert_same_gradient(one.gradient, many.gradient)


def test_the_gradient_crosses_once_however_many_micro_batches():
    parameters = 4 * sum(x.size for x in jax.tree.leaves(run(ONE).gradient))
    many = run({"data": 3}, 2)
    found = hlo.Program(many.text).collectives(many.axes)
    crossed = sum(one.bytes for one in found if one.kind == "all-reduce" and one.axis == "data")
    # The loss, the weights and the norm of the gradient are a few numbers more.
    assert parameters <= crossed <= 1.01 * parameters
    assert many.text.count(" while(") >= 2, "no loop over micro-batches"


@pytest.mark.parametrize("memory_len", [24, 0])
def test_micro_batches_add_up_in_the_precision_of_the_computation(x64, memory_len):
    """A loss that starts as float32 fails in float64, which the oracle needs; a memory may have no
    slots.
    """
    model = {"compute_dtype": "float64", "memory_len": memory_len}
    settings = tiny.config(model=model, train={"gradient_accumulation_steps": 2, "batch_size": 16})
    recipe, key = make_recipe(settings), jax.random.key(0)
    with jax.set_mesh(meshes.make_mesh(settings.mesh, jax.devices()[:1])):
        state = nn.meta.unbox(
            jax.eval_shape(lambda: states.init_state(recipe, recipe.init_params()))
        )
        batch = recipe.example_batch(16)
        (loss, _), grads = jax.eval_shape(
            lambda state, batch: gradients.of_step(recipe, state.params, batch, state.memory, key),
            state,
            batch,
        )
    assert loss.dtype == np.float64 and {x.dtype for x in jax.tree.leaves(grads)} == {
        np.dtype("float32")
    }


# Parameters, moments and update split over axes of rows, and what crosses.

KERNELS = 2 * (5 * 16 * 16 + 2 * 16 * 32)
"""Elements of all matrices that products round, in two layers."""
TABLE = tiny.VOCAB * 16


def bytes_here(tree):
    """On one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def test_a_device_holds_its_share_of_parameters_and_moments():
    """The average of the parameters is split as they are."""
    for mesh in ({"data": 4}, {"data": 2, "fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}):
        ways = math.prod(mesh.values())
        state = built(mesh | {"zero1": True})[2].abstract_state
        elements = sum(x.size for x in jax.tree.leaves(state.params))
        small = elements - KERNELS - TABLE
        share = 4 * (KERNELS + TABLE) // ways
        assert share <= bytes_here(state.params) <= share + 4 * small, mesh
        assert 3 * share <= bytes_here(state.opt_state) <= 3 * (share + 4 * small) + 12, mesh
    # Not along the stack of layers, nor where `tensor` splits.
    rows = ("fsdp", "data")
    assert state.params["layers"]["attention"]["query"].sharding.spec == PartitionSpec(
        None, rows, "tensor", None
    )
    outer = state.params["layers"]["feed_forward"]["outer"]["kernel"].sharding.spec
    assert outer == PartitionSpec(None, "tensor", rows)
    assert state.params["word_embedding"].sharding.spec == PartitionSpec("tensor", rows)
    # Nothing to split over.
    assert bytes_here(built({"data": 1, "zero1": True})[2].abstract_state.params) == 4 * elements


LARGE = str(tiny.ROOT / "configs" / "xlnet_large.py")


@functools.cache
def large():
    return make_recipe(load(LARGE, [])).abstract_params


SMALL, STACKS = 377_088, 24 * 7
"""Elements of XLNet-Large in small arrays, and its kernels: five of 2^20 elements in each layer,
two of 2^22.
"""


def placed(data, optimizer="adamw", tensor=1):
    """Its parameters under ZeRO-1, on devices that are descriptions only."""
    settings = tiny.config(mesh={"zero1": True}, optimizer={"name": optimizer})
    grid = AbstractMesh((1, data, 1, tensor), meshes.AXES)
    split = meshes.split_of(settings, large(), grid.shape)
    packed = meshes.pack(large(), grid.shape, split)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(packed),
        meshes.shardings(packed, grid, split),
    )


@pytest.mark.parametrize(
    ("data", "zeros"),
    [(6, 4), (192, STACKS * 128 + 64), (256, 0), (2048, 0)],
)
def test_large_arrays_are_split_evenly_over_any_number_of_devices(data, zeros):
    """By hand: with 6 devices only the table of 32,768,000 numbers lacks an axis that divides, with
    192 all arrays, with 2048 all but the feed-forward kernels.
    """
    split = 360_300_800 - SMALL
    assert (
        bytes_here(placed(data)) == 4 * (SMALL + (split + zeros) // data)
        and (split + zeros) % data == 0
    )
    assert zeros < 1e-3 * split
    share, rest = meshes.split_share(placed(data))
    assert rest == 4 * SMALL and share == pytest.approx(
        1 - SMALL / (SMALL + split + zeros), abs=1e-9
    )


def test_what_stays_whole_is_counted():
    """Muon keeps rows and columns; with `tensor` arrays that it splits keep their axes, here all
    large ones.
    """
    for found in (placed(192, "muon"), placed(192, tensor=2)):
        share, rest = meshes.split_share(found)
        assert share == 0 and rest == bytes_here(found) > 4 * 360_300_800 / 2.01


SPLIT = {"mesh": {"data": 6, "zero1": True}, "train": {"batch_size": 12}}
CLIPPED = {"compat": {"switches": "core_clip", "cores": 6}}


@pytest.mark.parametrize(
    ("settings", "packed"),
    [
        pytest.param(
            tiny.config(**SPLIT, model={"cutoffs": "40,100", "div_val": 2}),
            "word_embedding/table_0",
            marks=pytest.mark.slow,
        ),
        (tiny.family("albert", **SPLIT), "embedding_projection/kernel"),
        (tiny.config(**SPLIT, **CLIPPED), "layers/attention/query"),
        (
            tiny.config(**SPLIT, optimizer={"name": "lamb", "layer_decay": 0.9}),
            "layers/feed_forward/inner/kernel",
        ),
    ],
    ids=["adaptive", "albert", "core_clip", "lamb"],
)
def test_every_model_and_optimizer_takes_packed_arrays(settings, packed):
    """The step is traced with them, and gives a state of the same shapes."""
    recipe, grid = make_recipe(settings), meshes.make_mesh(settings.mesh, jax.devices()[:6])
    with jax.set_mesh(grid):
        step = build_step(recipe, grid)
        state, _ = jax.eval_shape(
            step.jitted, step.abstract_state, step.abstract_batch, step.dropout_seed
        )
    stored, logical = (
        checksums.by_path(tree.params) for tree in (step.abstract_state, step.logical)
    )
    assert stored[packed].ndim < logical[packed].ndim
    assert [x.shape for x in jax.tree.leaves(state)] == [
        x.shape for x in jax.tree.leaves(step.abstract_state)
    ]


@pytest.mark.slow
def test_a_packed_state_is_stored_as_any_other_and_read_by_any_number_of_devices(tmp_path):
    """Saved by six devices, read by six and by four: the same bits, and a checkpoint with the
    shapes of the model.
    """
    numbers = np.random.default_rng(0)

    def drawn(x):
        return jax.device_put(numbers.integers(1, 100, x.shape).astype(x.dtype), x.sharding)

    recipe, grid, six = built({"data": 6, "zero1": True})
    with jax.set_mesh(grid):
        values = jax.tree.map(drawn, six.logical.split(memory=False))
        packed = meshes.like(values, six.abstract_state.split(memory=False))
        assert packed["optimizer"][2].mu["word_embedding"].shape == (3204,)
        assert not np.asarray(packed["params"]["word_embedding"])[-4:].any()
        with Checkpoints(str(tmp_path), recipe.config.checkpoint) as checkpoints:
            checkpoints.save(1, meshes.like(packed, six.logical.split(memory=False)), {})
            checkpoints.wait()
            forms = {
                name: text.split()[0] for name, text in checkpoints.record(1)["checksums"].items()
            }
    assert forms["params/layers/attention/query"] == "float32[2,16,4,4]"
    for mesh in ({"data": 6, "zero1": True}, {"data": 2, "fsdp": 2}):
        _, grid, step = built(mesh)
        with jax.set_mesh(grid), Checkpoints(str(tmp_path)) as checkpoints:
            read = tiny.restored(checkpoints, 1, step.logical.split(memory=False))
            wanted = step.abstract_state.split(memory=False)
            again = meshes.like(read, wanted)
        for x, y, z, like in zip(*map(jax.tree.leaves, (values, read, again, wanted)), strict=True):
            assert np.asarray(y).tobytes() == np.asarray(x).tobytes()
            assert z.shape == like.shape and z.sharding == like.sharding


def crossing(text):
    """Elements by collective and dtype, of the program before the compiler."""
    found = collections.Counter()
    for kind, end in {"all_gather": "->", "reduce_scatter": r": \(", "all_reduce": r": \("}.items():
        for operation in re.finditer(rf'"?stablehlo\.{kind}"?\(', text):
            shape, dtype = re.search(
                rf"{end} ?tensor<((?:\d+x)*)(\w+)>", text[operation.end() :]
            ).groups()
            found[kind, dtype] += math.prod(int(size) for size in shape.split("x") if size)
    return found


def test_gradients_cross_once_in_float32_and_kernels_come_back_in_the_compute_dtype():
    _, grid, step = built({"data": 4, "zero1": True}, 2, "bfloat16")
    with jax.set_mesh(grid):
        found = crossing(
            step.jitted.lower(step.abstract_state, step.abstract_batch, step.dropout_seed).as_text()
        )
    elements = sum(x.size for x in jax.tree.leaves(step.abstract_state.params))
    scattered = KERNELS + TABLE + tiny.VOCAB
    # The rest is summed in one piece, with the loss.
    assert found == {
        ("reduce_scatter", "f32"): scattered,
        ("all_reduce", "f32"): elements - scattered + 1,
        ("all_gather", "bf16"): KERNELS,
        ("all_gather", "f32"): TABLE + tiny.VOCAB,
    }


@pytest.mark.parametrize(
    ("parts", "kernels", "ordered"), [(1, KERNELS // 2, KERNELS // 2), (2, KERNELS, 0)]
)
def test_a_layer_gathers_its_own_kernels_and_sums_their_gradients(parts, kernels, ordered):
    """In the loop over the two layers, each gradient with its rows one after the other; with
    micro-batches outside of it, so that everything crosses once.

    Without that order a TPU's compiler summed whole gradients of d_ff=2624 on 32 devices. Programs
    of one and two layers of this size, with two and 16 rows of a device, were scattered either way.
    """
    _, grid, step = built({"data": 2, "fsdp": 2}, parts, "bfloat16")
    with jax.set_mesh(grid):
        lowered = step.jitted.lower(step.abstract_state, step.abstract_batch, step.dropout_seed)
        text = lowered.as_text()
    found, order = crossing(text), r"dense<\[1, 0\]> : tensor<2xindex>\]"
    by_rows = re.findall(rf"@LayoutConstraint.* = \[{order}.*-> tensor<(\d+)x(\d+)xf32>", text)
    assert sum(int(rows) * int(columns) for rows, columns in by_rows) == ordered
    assert found["all_gather", "bf16"] == kernels
    assert found["reduce_scatter", "f32"] == kernels + TABLE + tiny.VOCAB


def test_the_kernel_of_a_head_is_not_rounded():
    """It may meet float32 vectors, which its rounded values would not be good enough for."""
    split, whole = (
        {name: {"kernel": spec} for name in ("layers", "head")}
        for spec in (PartitionSpec("data"), PartitionSpec())
    )
    kernel = {"kernel": jax.ShapeDtypeStruct((8, 4), "float32")}
    boxed = {"layers": {"kernel": tiny.box("matrix")}, "head": {"kernel": tiny.box("kernel")}}
    with jax.set_mesh(built({"data": 2, "zero1": True})[1]):
        gather = functools.partial(
            gradients.gather, boxed=boxed, specs=split, entry=whole, dtype=jnp.dtype("bfloat16")
        )
        found = jax.eval_shape(gather, {"layers": kernel, "head": kernel})
    dtypes = jax.tree.map(lambda x: x.dtype.name, found)
    assert dtypes == {"layers": {"kernel": "bfloat16"}, "head": {"kernel": "float32"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "parts", "dtype"),
    [
        ({"data": 4}, 2, "bfloat16"),
        pytest.param({"data": 2, "fsdp": 2}, 2, "float32", marks=pytest.mark.prove),
        pytest.param({"slices": 2, "data": 2}, 1, "bfloat16", marks=pytest.mark.prove),
        # Packed, gathered in a layer and before all of them.
        ({"data": 2, "fsdp": 3}, 1, "bfloat16"),
        pytest.param({"data": 6}, 2, "bfloat16", marks=pytest.mark.prove),
    ],
    ids=str,
)
def test_the_run_is_the_same_to_the_order_of_sums(mesh, parts, dtype):
    """A part of another device's sum, an update of the wrong part, or a rounded gradient would
    show.
    """
    one, split = (run(mesh | zero1, parts, dtype) for zero1 in ({}, {"zero1": True}))
    np.testing.assert_allclose(split.losses, one.losses, rtol=1e-5)
    assert len({round(loss, 5) for loss in one.losses}) == 3, "the three steps do not differ"
    assert_same_gradient(one.gradient, split.gradient)
    for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(split.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.slow
def test_a_run_resumes_with_the_key_switched_and_its_checks_work(tmp_path, pytestconfig):
    """The arrays are packed, with zeros at their end."""

    def settings(zero1):
        evaluation = {"every": 4, "blocks": 8}
        return shared.settings(
            pytestconfig,
            mesh={"data": 4, "fsdp": 2, "zero1": zero1},
            model={"d_model": 12, "head_dim": 6, "d_ff": 20},
            evaluation=evaluation,
            checkpoint={"memory": "rebuild"},
        )

    def losses(name):
        return [line["loss"] for line in read_jsonl(str(tmp_path / name / "metrics.jsonl"))]

    for name, first in (("on", True), ("off", False)):
        train(settings(first), str(tmp_path / name), stop_at=6)
        assert train(settings(not first), str(tmp_path / name), stop_at=8)["step"] == 8
    np.testing.assert_allclose(losses("on"), losses("off"), rtol=1e-5)
    scores = [
        evaluate(str(tmp_path / "on"), overrides=[f"--config.mesh.zero1={word}"])
        for word in ("true", "false")
    ]
    assert scores[0]["heldout_loss"] == pytest.approx(scores[1]["heldout_loss"], rel=1e-6)
