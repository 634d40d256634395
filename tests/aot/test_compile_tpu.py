"""`xlnet-jax compile` with the TPU compiler itself, for two small layers."""

import functools
import importlib
import json
import os
import re
import subprocess
import sys

import jax
import pytest
import tiny
import tiny_tpu

from xlnet_jax.aot import compile, hlo
from xlnet_jax.aot import report as compiling
from xlnet_jax.aot.topology import describe
from xlnet_jax.cli import main
from xlnet_jax.config import MeshConfig, load, override
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.model import flops
from xlnet_jax.run.programs import OPTIONS, compiler_options, kept_for_absent_devices
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

KEYS = {
    "fits",
    "peak_hbm_bytes",
    "hbm_bytes",
    "arguments",
    "temp_bytes",
    "gradient_bytes",
    "collectives",
    "analytic_flops",
    "account",
    "projected_days",
    "projected_tokens_per_second",
    "compile_seconds",
    "advice",
    "devices",
    "topology",
    "attention",
    "zero1",
}
CONFIG = tiny_tpu.config()
TABLE, KERNELS = 1024 * 128, 2 * (5 * 128 * 128 + 2 * 128 * 256)
"""Elements that are split."""
FSDP = ("--config.mesh.fsdp=4", "--config.mesh.data=-1")


@functools.cache
def compiled(*words, slices=1, topology="v5e:2x2"):
    return compiling.compile_for(override(CONFIG, words), topology, slices)


def parameters():
    """By hand: V = 1024, D = 128, H E = 128, F = 256, two layers."""
    attention = 5 * 128 * 128 + 2 * 128 + 3 * 128 + 2 * 128
    feed_forward = 2 * 128 * 256 + 256 + 128 + 2 * 128
    return 1024 * 128 + 128 + 1024 + 2 * (attention + feed_forward)


def reductions(result):
    """The collectives that add up."""
    return [one for one in result["collectives"] if one["kind"] in ("all-reduce", "reduce-scatter")]


def test_one_json_object_with_the_promised_keys(capsys):
    assert main(["compile", f"--config={tiny_tpu.__file__}", "--topology=v5e:2x2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() >= KEYS and "max_batch_per_core" not in result
    assert (
        result["fits"]
        and result["advice"] == []
        and result["topology"] == "v5e:2x2"
        and result["devices"] == 4
    )
    assert result["analytic_flops"] == flops.step_flops(CONFIG)
    account = result["account"]
    assert result["attention"] == "fused" and account["data_dependent_loops"] == []
    # Both streams of the layers, forward and backward; the units of each that do the products.
    assert {name.partition(".")[0] for name in account["units"]} == {
        "xlnet_attention_forward",
        "xlnet_attention_backward",
    }
    assert len(account["units"]) == 4
    assert all(
        0 < use[unit] < 1
        for use in account["units"].values()
        for unit in ("MATMUL", "MATPUSH", "XLU", "VALU")
    )
    work = [account[name] for name in ("compute_ms", "memory_ms", "collectives_ms")]
    assert (
        min(work) > 0 == account["hidden_ms"]
        and max(work) < account["lower_ms"] < account["upper_ms"]
    )
    kinds = account["upper_by_kind_ms"]
    assert sum(kinds.values()) == pytest.approx(account["upper_ms"])
    assert kinds.keys() == {"kernels", "products", "collectives", "memory", "vector"}
    largest = {(one["kind"], one["operation"]) for one in account["operations"]}
    assert ("kernels", "xlnet_attention_backward") in largest and len(largest) == 10
    at_peak = flops.step_flops(CONFIG) / 4 / 197e12
    assert account["mfu"] == pytest.approx(at_peak / account["upper_ms"] * 1e3)
    assert result["projected_days"] == pytest.approx(
        account["upper_ms"] / 1e3 * CONFIG.train.steps / 86400
    )


def test_arguments_are_exact():
    """Two rows a device, ten steps a dispatch; memory bfloat16, everything else four bytes but the
    one bool.
    """
    result, size = compiled(), 4 * parameters()
    ints = 3 * 128 + 2 * 16 + 3
    rows = 10 * 2 * (4 * (ints + 16 + 1) + 1)
    # The optimizer also counts its updates, and so does its schedule.
    assert result["arguments"] == {
        "parameters": size,
        "optimizer": 2 * size + 8,
        "memory": 2 * 2 * 64 * 128 * 2 + 2 * 4,
        "batch": rows,
        "counters": 20,
    }
    assert result["gradient_bytes"] == size
    assert (
        sum(result["arguments"].values()) + result["temp_bytes"] <= result["peak_hbm_bytes"] * 1.01
    )
    assert result["peak_hbm_bytes"] < result["hbm_bytes"] == 16 * 2**30


def bytes_of(collectives, **wanted):
    """The bytes of those that are as wanted."""
    return sum(one["bytes"] for one in collectives if wanted.items() <= one.items())


@pytest.mark.parametrize("parts", [1, 2])
def test_pure_data_parallelism_adds_each_element_once_in_float32(parts):
    """However many micro-batches there are. A sum in every layer or micro-batch, or in bfloat16,
    would show.
    """
    words = ("--config.train.batch_size=32", f"--config.train.gradient_accumulation_steps={parts}")
    (reduced,) = compiled(*words, topology="v5e:4x4")["collectives"]
    kind = {"kind": "all-reduce", "axis": "data", "network": "ici", "dtype": "f32"}
    assert kind.items() <= reduced.items()
    # The loss and the weights are a few numbers more.
    assert 4 * parameters() <= reduced["bytes"] <= 4 * parameters() + 64
    assert reduced["count"] <= 4


def test_fsdp_gathers_in_bfloat16_and_adds_in_float32_once_over_each_axis():
    words = ("--config.train.batch_size=32", "--config.train.steps_per_dispatch=1", *FSDP)
    result, whole = compiled(*words, topology="v5e:4x4"), compiled()
    assert result["mesh"] == {"slices": 1, "data": 4, "fsdp": 4, "tensor": 1}
    for name in ("parameters", "optimizer"):
        share = result["arguments"][name] / whole["arguments"][name]
        assert 0.25 <= share < 0.27, name
    # Kernels in bfloat16, saved for the backward pass as remat is off; the table for the lookup in
    # float32.
    collectives, added = result["collectives"], reductions(result)
    assert bytes_of(collectives, kind="all-gather", dtype="bf16") == 2 * KERNELS
    assert bytes_of(collectives, kind="all-gather", dtype="f32") == 4 * TABLE
    assert {one["dtype"] for one in added if one["bytes"] > 10_000} == {"f32"}
    large, own = KERNELS + TABLE, parameters()
    assert large <= bytes_of(added, axis="fsdp") / 4 <= large + 16
    assert large / 4 <= bytes_of(collectives, axis="data") / 4 <= large / 4 + 16
    # Small arrays, with the loss, over both at once.
    assert own - large <= bytes_of(collectives, axis="data+fsdp") / 4 <= own - large + 64
    # Gathers of the layers in pieces, between which the layers compute; the reductions are not.
    assert 0 < result["account"]["hidden_ms"] < result["account"]["collectives_ms"] / 2


def test_a_mesh_that_would_split_a_side_of_the_torus_is_refused():
    devices = describe("v4:8x8x4").devices
    assert dict(make_mesh(MeshConfig(data=32, fsdp=8), devices).shape)["fsdp"] == 8
    with pytest.raises(
        BadInput, match="mesh.fsdp=16 x mesh.tensor=1 does not fit the 8 x 8 x 4 chips of a slice"
    ):
        make_mesh(MeshConfig(data=16, fsdp=16), devices)


def test_zero1_divides_the_update_and_gathers_kernels_in_bfloat16():
    """The compiler may sum whole gradients and take the part, but neither round them nor gather
    float32 kernels.
    """
    words = (
        "--config.train.batch_size=32",
        "--config.train.steps_per_dispatch=1",
        "--config.mesh.zero1=true",
    )
    result, whole = compiled(*words, topology="v5e:4x4"), compiled()
    assert result["zero1"]["split_share"] > 0.9 and whole["zero1"] is None
    for name in ("parameters", "optimizer"):
        assert 1 / 16 <= result["arguments"][name] / whole["arguments"][name] < 0.1, name
    assert whole["gradient_bytes"] == 4 * parameters()
    assert result["gradient_bytes"] == 4 * (parameters() - KERNELS + KERNELS // 16)
    # The compiler may gather as a sum with zeros.
    collectives = result["collectives"]
    assert bytes_of(collectives, dtype="bf16") == 2 * KERNELS
    assert bytes_of(collectives, kind="all-gather", dtype="f32") == 4 * TABLE
    sums = [one for one in collectives if one["kind"] != "all-gather" and one["dtype"] != "bf16"]
    assert {one["dtype"] for one in sums} == {"f32"}
    assert 4 * parameters() <= bytes_of(sums) <= 4 * parameters() + 64


def test_the_loss_in_chunks_adds_the_gradient_of_the_table_in_float32_once():
    """A sum over the devices in every chunk, or in bfloat16, would show. 16 rows a device: 2048
    targets, two chunks.
    """
    result = compiled(
        "--config.data.objective=clm",
        "--config.data.reuse_len=128",
        "--config.data.num_predict=128",
        "--config.train.batch_size=64",
        "--config.train.steps_per_dispatch=1",
        "--config.mesh.fsdp=2",
    )
    large, added = KERNELS + TABLE, reductions(result)
    assert {one["dtype"] for one in added if one["bytes"] > 10_000} == {"f32"}
    assert large <= bytes_of(added, axis="fsdp") / 4 <= large + 16
    assert large / 2 <= bytes_of(result["collectives"], axis="data") / 4 <= large / 2 + 16


def test_two_slices_reduce_once_across_the_network_in_few_pieces():
    result = compiled(slices=2)
    assert (result["devices"], result["chips"]) == (8, 8)
    assert result["mesh"] == {"slices": 2, "data": 4, "fsdp": 1, "tensor": 1}
    across = [one for one in result["collectives"] if one["network"] == "dcn"]
    assert {(one["kind"], one["axis"]) for one in across} == {("all-reduce", "slices")}
    assert {one["dtype"] for one in across} == {"f32"} and sum(one["count"] for one in across) <= 12
    # Each of the four devices of a slice may send its quarter of what was reduced and scattered
    # within.
    assert parameters() <= bytes_of(across) <= 1.1 * 4 * parameters()
    assert result["account"]["collectives_ms"] > compiled()["account"]["collectives_ms"]


def test_three_of_four_slices_take_the_batch_of_four():
    """2048 rows on 192 chips are 2112, of which the last 64 are no useful work."""
    words = ("--config.train.batch_size=2048", "--config.train.steps_per_dispatch=1")
    with pytest.raises(
        BadInput, match="batch_size=2048 does not divide over the 192 devices .*train.elastic=True"
    ):
        compiled(*words, slices=3, topology="v5e:8x8")
    result = compiled(*words, "--config.train.elastic=true", slices=3, topology="v5e:8x8")
    assert result["fits"] and (result["chips"], result["batch_size"], result["rows"]) == (
        192,
        2048,
        2112,
    )
    assert result["mesh"]["slices"] == 3
    whole = override(CONFIG, words)
    assert result["analytic_flops"] == flops.step_flops(whole)
    # Eleven rows a device, memory bfloat16.
    assert result["arguments"]["memory"] == 11 * (2 * 64 * 128 * 2 + 4)


def test_a_command_on_a_machine_without_a_tpu_prints_nothing_of_libtpu():
    """libtpu is loaded, and prints in a process that does not import this package."""
    ours = ("TPU_", "JAX_PLATFORMS", "LIBTPU_INIT_ARGS")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ours)
    } | {"PYTHONPATH": str(tiny.ROOT)}

    def said(*words):
        program = [sys.executable, *words]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        return done.stderr

    alone = said("-c", "import jax; jax.devices()")
    assert "Failed to find host bounds" in alone and "INVALID_ARGUMENT" in alone
    ours = said("-m", "xlnet_jax", "score", "--workdir=molecules", "CCO")
    assert re.fullmatch(r"(\d\d:\d\d:\d\d .*\n)+", ours), ours


def test_the_program_does_not_grow_with_the_layers():
    """The layers are one scan; else a large model would take hours to compile."""
    sizes = []
    for layers in (12, 48):
        config = override(CONFIG, [f"--config.model.layers={layers}", "--config.model.remat=full"])
        mesh = make_mesh(config.mesh, describe("v5e:2x2").devices)
        sizes.append(len(compile.lower(make_recipe(config), mesh)[1].as_text()))
    assert sizes[0] < sizes[1] < 1.05 * sizes[0]


def test_what_does_not_fit_is_told_and_the_advice_fits():
    rows = 40_000
    result = compiled(f"--config.train.batch_size={rows}")
    assert not result["fits"] and result["peak_hbm_bytes"] > result["hbm_bytes"]
    assert (
        result["temp_bytes"] is None
        and result["projected_days"] is None
        and result["collectives"] == []
    )
    (advice,) = result["advice"]
    again = compiled(f"--config.train.batch_size={rows}", *advice["set"].split())
    assert (
        again["fits"] and again["peak_hbm_bytes"] == advice["peak_hbm_bytes"] <= again["hbm_bytes"]
    )


@pytest.mark.parametrize(
    "mesh", [{"data": 4}, {"data": 2, "fsdp": 2}, {"data": 1, "fsdp": 2, "tensor": 2}]
)
def test_the_program_is_the_one_that_train_runs(mesh):
    """The same StableHLO for devices that exist, lowered for TPU as `train` would there, and for
    those that do not.

    With `xla`: the kernel is only lowered for a mesh of TPUs.
    """
    config = CONFIG.changed(mesh=mesh)
    here = make_mesh(config.mesh, jax.devices()[:4])
    there = make_mesh(config.mesh, describe("v5e:2x2").devices)
    assert here.devices.flat[0].platform == "cpu" and there.devices.flat[0].platform == "tpu"
    with jax.set_mesh(here):
        built = build_step(make_recipe(config), here)
        # Some operations, random bits among them, are lowered otherwise for a CPU.
        traced = built.jitted.trace(built.abstract_state, built.abstract_batch, built.dropout_seed)
        trained = traced.lower(lowering_platforms=("tpu",)).as_text()
    texts = [trained, compile.lower(make_recipe(config), there)[1].as_text()]
    assert len(texts[0]) > 100_000 and texts[0] == texts[1]
    other = config.changed(optimizer={"clip": 0.5})
    assert compile.lower(make_recipe(other), there)[1].as_text() != texts[1]


@pytest.mark.parametrize(
    ("name", "devices", "chips", "gib"),
    [
        ("v3:16x32", 1024, 512, 16),
        ("v4:2x2x1", 4, 4, 32),
        ("v5e:2x2", 4, 4, 16),
        ("v5p:2x2x1", 4, 4, 95),
        ("v6e:2x2", 4, 4, 32),
        ("tpu7x:2x2x1", 8, 4, 96),
    ],
)
def test_devices_of_every_kind(name, devices, chips, gib):
    topology = describe(name)
    assert (len(topology.devices), topology.chips, topology.hbm_bytes) == (
        devices,
        chips,
        gib * 2**30,
    )
    assert {device.device_kind for device in topology.devices} == {topology.chip.device_kind}


@pytest.mark.parametrize("name", ["v4:2x2x1", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_libtpu_knows_the_options_of_a_chip(name):
    mesh = make_mesh(CONFIG.mesh, describe(name).devices)
    assert compiler_options("chip", mesh).keys() == OPTIONS[describe(name).chip.device_kind].keys()


def test_an_option_that_libtpu_does_not_know_is_one_line(capsys):
    words = ["compile", f"--config={tiny_tpu.__file__}", "--topology=v5e:2x2"]
    assert main([*words, "--config.train.compiler_options=xla_tpu_no_such=true"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("xlnet-jax compile: train.compiler_options=xla_tpu_no_such=true: ")


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="jaxlib before 0.12 cannot read it, and compile refuses it",
)
def test_a_program_with_collectives_on_sparse_cores_is_read():
    result = compiling.compile_for(CONFIG, "tpu7x:2x2x1")
    assert result["fits"] and {one["kind"] for one in result["collectives"]} == {"all-reduce"}
    assert bytes_of(result["collectives"]) >= 2 * parameters()


def test_a_family_compiles_where_heads_are_split():
    """With fsdp and tensor the compiler once ended the process at a lookup in a table that is
    split.
    """
    sections = MEMBERS["roberta"].usual(128)
    config = CONFIG.changed(**sections, mesh={"data": 1, "fsdp": 2, "tensor": 2})
    trial = compile.attempt(make_recipe(config), describe("v5e:2x2"))
    assert trial.fits


def test_a_gated_layer_is_computed_once_in_each_pass():
    """GELU has an exponential, and so has its gradient. Without the barriers of `layers.gated` the
    program has six of them in place of two, inside the products.
    """
    words = [
        "model.layers=1",
        "model.d_model=256",
        "model.d_ff=1024",
        "model.heads=2",
        "model.vocab_size=512",
        "model.memory_len=0",
        "model.attention=xla",
        "data.segment_len=128",
        "data.reuse_len=64",
        "data.num_predict=16",
        "train.batch_size=64",
        "train.steps_per_dispatch=1",
    ]
    config = load(
        str(tiny.ROOT / "configs" / "modern" / "base_plm.py"), [f"--config.{x}" for x in words]
    )
    trial = compile.attempt(make_recipe(config), describe("v5e:2x2"))
    program = hlo.Program(trial.executable.as_text())
    exponentials = [
        one.type
        for name, runs in program.runs.items()
        for one in program.computations[name].values()
        for _ in range(runs * (one.opcode == "exponential"))
    ]
    # 16 rows of a device, the 128 tokens and the 16 targets.
    assert sum("[16,144,1024]" in kind for kind in exponentials) == 2


@pytest.mark.prove
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bert/large", ("--config.train.batch_size=256",)),
        ("albert/xxlarge", ("--config.train.batch_size=512", "--config.mesh.fsdp=4")),
    ],
)
def test_the_largest_published_models_fit_and_have_an_account(name, words):
    config = load(str(tiny.ROOT / "configs" / f"{name}.py"), [*words, "--config.model.remat=full"])
    result = compiling.compile_for(config, "v5e:4x4", 1)
    print(name, {key: result[key] for key in ("peak_hbm_bytes", "account")})
    assert result["fits"] and result["devices"] == 16 and 0.1 < result["account"]["mfu"] < 1


@pytest.mark.prove
def test_the_budget_is_the_largest_batch_that_fits():
    config = override(
        CONFIG, ["--config.train.batch_size=8192", "--config.train.steps_per_dispatch=1"]
    )
    topology = describe("v5e:2x2")
    best = compiling.largest_batch(config, topology, 4)
    assert best is not None and best.fits and best.needed <= topology.hbm_bytes
    rows = best.config.train.batch_size // 4
    more = override(config, [f"--config.train.batch_size={4 * (rows + max(rows // 16, 1) + 1)}"])
    assert not compile.attempt(make_recipe(more), topology).fits


OTHERS = [
    pytest.param(name, marks=pytest.mark.prove) for name in ("v4:2x2x1", "v5p:2x2x1", "v6e:2x2")
]


@pytest.mark.parametrize("topology", ["v5e:2x2", *OTHERS])
@pytest.mark.parametrize("unroll", ["on", pytest.param("off", marks=pytest.mark.prove)])
def test_fused_attention_compiles_in_the_step(topology, unroll):
    """Forward and backward, in `shard_map` over the rows. Catches what interpret mode accepts and a
    TPU does not.

    With layers one by one the probabilities are kept; in a loop, as in most tests here, they are
    not.
    """
    config = override(CONFIG, ["--config.model.attention=fused", f"--config.model.unroll={unroll}"])
    assert compile.attempt(make_recipe(config), describe(topology)).fits


@pytest.fixture
def kernel_schedule(monkeypatch):
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    return importlib.import_module("kernel_schedule")


LONG = {"B": 1, "T": 2048, "M": 0, "P": 341, "H": 2}
CHIPS = ["v5e", *(pytest.param(chip, marks=pytest.mark.prove) for chip in ("v4", "v5p", "v6e"))]


@pytest.mark.parametrize("chip", CHIPS)
def test_the_attention_of_documents_skips_the_keys_of_others(chip, kernel_schedule):
    """Bundles of four documents, and of five that straddle the blocks, in shares of one."""
    found = kernel_schedule.documents(chip, kernel_schedule.Sizes(**LONG))
    assert found["four_share"] <= 0.35 and found["five_share"] <= 0.45
    assert found["four_exact_share"] <= 0.45 and found["five_exact_share"] <= 0.6


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("options", [{}, {"near": True, "packed": True}], ids=["plain", "near"])
def test_attention_without_relative_positions_compiles(chip, options, kernel_schedule):
    """Both streams, forward and backward; windows also in rows of several documents."""
    sizes = kernel_schedule.Sizes(**LONG | {"T": 512, "P": 85})
    found, _ = kernel_schedule.schedules(chip, sizes, relative=False, **options)
    assert len(found) == 4 and all(each.products for each in found.values())


@pytest.mark.parametrize("chip", CHIPS)
def test_the_attention_of_a_window_skips_the_keys_outside(chip, kernel_schedule):
    """A local layer needs at most 0.6 of the bundles of a global layer; both are one program."""
    rows = {
        name: functools.partial(kernel_schedule.in_window, size=size)
        for name, size in kernel_schedule.WINDOWS.items()
    }
    sizes = kernel_schedule.Sizes(**LONG)
    _, exact = kernel_schedule.visiting(chip, sizes, rows, relative=False, near=True)
    assert exact["local"] <= 0.6 * exact["global"]


@pytest.mark.prove
@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1"])
def test_kept_probabilities_have_room_in_the_vector_memory(topology):
    """Two layers of XLNet-Large in float32. Catches too many heads in a program: the compiler then
    refuses it.
    """
    words = [
        "model.layers=2",
        "model.vocab_size=1024",
        "model.compute_dtype=float32",
        "model.attention=fused",
        "train.batch_size=8",
        "train.steps_per_dispatch=1",
        "mesh.fsdp=1",
    ]
    pods = load(
        str(tiny.ROOT / "configs" / "xlnet_large_pods.py"), [f"--config.{word}" for word in words]
    )
    assert (
        pods.model.saves_probabilities
        and compile.attempt(make_recipe(pods), describe(topology)).fits
    )


@pytest.mark.prove
def test_fused_attention_compiles_where_heads_are_split():
    words = ("--config.mesh.fsdp=2", "--config.mesh.tensor=2", "--config.mesh.data=1")
    assert compiled(*words)["fits"]


@pytest.mark.prove
@pytest.mark.parametrize(("attention", "fits"), [("fused", True), ("xla", False)])
def test_a_long_text_fits_only_with_the_kernel(attention, fits):
    """Catches an array of queries times keys. XLNet-Large: a row of T = 4096 and M = 3072 per
    device, full remat.
    """
    words = [
        "data.segment_len=4096",
        "data.reuse_len=2048",
        "data.num_predict=680",
        "model.memory_len=3072",
        "train.batch_size=16",
        "train.steps_per_dispatch=1",
        "mesh.data=1",
        "mesh.fsdp=16",
        "model.remat=full",
        f"model.attention={attention}",
    ]
    large = load(
        str(tiny.ROOT / "configs" / "xlnet_large_512.py"), [f"--config.{word}" for word in words]
    )
    trial = compile.attempt(make_recipe(large), describe("v5e:4x4"))
    assert trial.fits == fits, trial.needed


def test_where_no_kernel_is_auto_compiles_xla():
    result = compiled(topology="v3:2x2")
    assert result["fits"] and result["attention"] == "xla"


def test_a_program_is_kept_under_the_key_that_train_looks_for(tmp_path, monkeypatch):
    """Fails if the flags that write schedules are in it: no other process has them."""
    config = override(CONFIG, [f"--config.log.compilation_cache={tmp_path}"])
    compiling.compile_for(config, "v5e:2x2")
    kept = os.listdir(tmp_path)
    assert len(kept) == 1 and kept[0].startswith("jit_steps-")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    topology = describe("v5e:2x2")
    recipe = make_recipe(config.changed(model={"attention": "fused"}))
    with kept_for_absent_devices(config):
        compile.lower(recipe, make_mesh(config.mesh, topology.devices))[1].compile()
    assert os.listdir(tmp_path) == kept
