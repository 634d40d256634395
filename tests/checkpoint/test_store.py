"""Checkpoints: exact round trip, parts, retention, refusals, readers that leave the folder
alone.
"""

import concurrent.futures
import dataclasses
import json
import os
import re
import shutil
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from xlnet_jax.batch import Memory
from xlnet_jax.checkpoint import checksums, chunks, restore
from xlnet_jax.checkpoint.store import Checkpoints, Damaged
from xlnet_jax.config import CheckpointConfig, MeshConfig
from xlnet_jax.distributed.mesh import make_mesh, spread
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput, Diverged
from xlnet_jax.train.state import MUST_BE_FINITE, State


def make_state(scale=1.0) -> State:
    return State(
        params={
            "a": jnp.arange(6.0).reshape(2, 3) * scale,
            "b": {"c": jnp.array([0.1, -0.0, 1e-40], jnp.float32)},
        },
        opt_state=({"mu": jnp.ones(3) * scale}, jnp.array(7, jnp.int32)),
        memory=Memory(jnp.full((2, 1, 2, 2), 0.3, jnp.bfloat16), jnp.array([2], jnp.int32)),
        step=jnp.array(5, jnp.int32),
        skipped=jnp.array(1, jnp.int32),
        consecutive_bad=jnp.array(0, jnp.int32),
        loss_mean=jnp.array(4.5, jnp.float32),
        loss_variance=jnp.array(0.1, jnp.float32),
    )


def abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def test_everything_comes_back_bit_for_bit(tmp_path, monkeypatch):
    state = make_state()
    monkeypatch.chdir(tmp_path.parent)
    with Checkpoints(tmp_path.name, CheckpointConfig(keep=2)) as writer:
        assert writer.steps() == [] and writer.seconds == 0
        writer.save(5, state.split(), {"plan": [[0, 0, 8]]})
    assert 0 < writer.seconds < 100
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.steps()[0] == 5
        record = reader.record(5)
        assert (record["format_version"], record["plan"]) == (3, [[0, 0, 8]])
        assert {name.split("/")[0] for name in record["checksums"]} == {
            "params",
            "optimizer",
            "memory",
            "counters",
        }
        back = State.join(tiny.restored(reader, 5, abstract(state).split()))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


OTHERS = (
    (
        {
            "opt_state": (
                {"mu": jnp.ones(3), "nu": jnp.ones(3), "zu": jnp.ones(3)},
                jnp.array(7, jnp.int32),
            )
        },
        (
            "optimizer/0/nu is not in the checkpoint (and 1 more); the run used another "
            "optimizer; resume with the versions"
        ),
    ),
    (
        {"params": {"a": jnp.ones((3, 3)), "b": {"c": jnp.ones(3)}}},
        (
            "params/a is float32[2,3] in the checkpoint, not float32[3,3]; "
            "config.json or the version of xlnet_jax has changed since"
        ),
    ),
    ({"params": {"a": jnp.ones((2, 3))}}, "params/b/c is only in the checkpoint; config.json or"),
)


def test_other_arrays_than_those_of_the_run_are_no_damage(tmp_path):
    """Of an optimizer or a model that has changed: one line, and no checkpoint is set aside."""
    state = make_state()
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        for step in (3, 5):
            writer.save(step, state.split(), {"plan": [[0, 0, 1]]})
        writer.wait()
        for changed, message in OTHERS:
            wanted = abstract(dataclasses.replace(state, **changed)).split()
            with pytest.raises(BadInput, match=f"/checkpoints/5: {re.escape(message)}") as raised:
                restore.resume(writer, lambda *_, wanted=wanted: wanted, Session())
            assert not isinstance(raised.value, Damaged)
            assert writer.steps() == [5, 3] and os.listdir(tmp_path) == ["checkpoints"]
        assert restore.resume(writer, lambda *_: abstract(state).split(), Session()).step == 5
    with pytest.raises(
        BadInput, match="/checkpoints/5: params/b/c is only in the checkpoint; config.json"
    ):
        restore.parameters(str(tmp_path), wanted["params"], Session())


def test_a_memory_comes_back_without_the_rows_of_weight_0_of_other_devices(tmp_path):
    """Eight rows: nine on three devices, the last of weight 0. Catches a checksum of all, and a
    memory that is lost.
    """

    def placed(rows, devices):
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        hidden = np.random.default_rng(0).normal(size=(2, 8, 4, 2)).astype(jnp.bfloat16)
        hidden = np.concatenate([hidden, np.full((2, rows - 8, 4, 2), 7, jnp.bfloat16)], axis=1)
        valid = np.arange(rows, dtype=np.int32)
        axes = {"hidden": PartitionSpec(None, "data"), "valid": PartitionSpec("data")}
        return {
            name: jax.device_put(array, NamedSharding(mesh, axes[name]))
            for name, array in {"hidden": hidden, "valid": valid}.items()
        }

    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        writer.save(3, {"memory": placed(9, 3)}, {"plan": [[0, 0, 8]]})
        writer.save(4, {"memory": placed(8, 4)}, {"plan": [[0, 0, 8]]})
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.record(3)["checksums"] == reader.record(4)["checksums"]
        for step, rows, devices in ((3, 8, 4), (4, 9, 3), (3, 9, 3)):
            back = tiny.restored(reader, step, {"memory": abstract(placed(rows, devices))})[
                "memory"
            ]
            for name, array in placed(8, 4).items():
                found = np.asarray(back[name])[tuple(map(slice, array.shape))]
                assert back[name].shape == placed(rows, devices)[name].shape
                assert found.tobytes() == np.asarray(array).tobytes()
        # What is added must be finite: 0 times its loss is 0.
        added = tiny.restored(reader, 4, {"memory": abstract(placed(9, 3))})["memory"]
        assert not np.asarray(added["hidden"])[:, 8].any() and np.asarray(added["valid"])[8] == 0
        damaged = {"memory": {"valid": abstract(placed(8, 4))["valid"]}}
        record = reader.record(3) | {"plan": [[0, 0, 7]]}
        with pytest.raises(Damaged, match="memory/valid is not what was saved"):
            reader.gather(3, reader.read(3, damaged), damaged, record)


def test_a_state_donated_right_after_the_save_is_saved_as_it_was(tmp_path):
    """The CPU copies a donated buffer that is still being read; where it does not, the save must
    have its own.
    """
    trees = {"params": {"a": jnp.arange(6.0)}}
    overwrite = jax.jit(lambda trees: jax.tree.map(lambda x: x * 0 + 9, trees), donate_argnums=0)
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=1)) as writer:
        writer.save(1, trees, {})
        overwritten = overwrite(trees)
    with Checkpoints(str(tmp_path)) as reader:
        params = tiny.restored(reader, 1, abstract(overwritten))["params"]
    np.testing.assert_array_equal(params["a"], np.arange(6.0))


def test_each_device_reads_a_part_of_a_replicated_array_and_gets_the_whole(tmp_path):
    """Fails if an array is stored whole, also one that a single device writes, or if each device
    reads all of it.
    """
    whole, halves = on_mesh((4, 2), ()), on_mesh((4, 2), (None, "fsdp"))
    values = np.arange(2**21, dtype=np.float32).reshape(8, 512, 512)
    places = {"kernel": whole, "split": halves, "alone": jax.devices()[0]}
    trees = {"params": {name: jax.device_put(values, place) for name, place in places.items()}}
    wanted = abstract(trees)
    wanted["params"]["alone"] = wanted["params"]["kernel"]
    with jax.set_mesh(whole.mesh):
        with Checkpoints(str(tmp_path), CheckpointConfig(keep=1)) as writer:
            writer.save(1, trees, {})
        with Checkpoints(str(tmp_path)) as reader:
            read = reader.read(1, wanted)
            back = reader.gather(1, read, wanted, reader.record(1))
    for name, array in wanted["params"].items():
        parts = read["params"][name].addressable_shards
        assert len({str(part.index) for part in parts}) == 8
        assert back["params"][name].sharding == array.sharding
        np.testing.assert_array_equal(back["params"][name], values)


def test_an_array_that_the_metadata_do_not_name_is_missing(tmp_path):
    """One flipped bit in a name: Orbax then returns what was asked for, abstract, in place of the
    array.
    """
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=1)) as writer:
        trees = {"params": {"query": jax.numpy.ones(3), "key": jax.numpy.ones(2)}}
        writer.save(1, trees, {})
    path = tmp_path / "checkpoints" / "1" / "params" / "_METADATA"
    path.write_text(path.read_text().replace("query", "puery"))
    with (
        Checkpoints(str(tmp_path)) as reader,
        pytest.raises(Damaged, match="params/query is missing"),
    ):
        reader.read(1, abstract(trees))


def test_a_reader_leaves_unfinished_writing_alone_and_a_writer_clears_it(tmp_path):
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        writer.save(2, make_state().split(), {})
    unfinished = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
    unfinished.mkdir()
    # And names that are no steps.
    others = ["-4", "00000008", "8 (copy)", "\N{SUPERSCRIPT TWO}"]
    for name in others:
        (tmp_path / "checkpoints" / name).mkdir()
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.steps() == [2]
    assert unfinished.exists()
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        assert writer.steps() == [2]
        writer.save(4, make_state().split(), {})
    assert sorted(os.listdir(tmp_path / "checkpoints")) == sorted(["2", "4", *others])


def test_a_process_whose_save_failed_waits_for_no_other(monkeypatch):
    """Orbax does, for 20 minutes, before it raises the error: the others wait for what this process
    cannot write.
    """
    waited = []
    monkeypatch.setattr(
        chunks.multihost, "get_barrier_sync_fn", lambda: lambda **barrier: waited.append(barrier)
    )
    barrier = chunks.context().async_options.v0().barrier_sync_fn

    def finalize(error):
        try:
            if error:
                raise error
        finally:
            barrier(key="saved", timeout_ms=7)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with pytest.raises(OSError, match="no room"):
            threads.submit(finalize, OSError("no room")).result()
        assert waited == []
        threads.submit(finalize, None).result()
    with pytest.raises(OSError, match="a stop"):  # what the loop handles is no error of the save
        finalize(OSError("a stop"))
    assert waited == [{"key": "saved", "timeout_ms": 7}] * 2


def test_late_callbacks_of_a_failed_read_print_nothing_and_other_errors_all(tmp_path, monkeypatch):
    """Otherwise a damaged checkpoint or a full disk prints a traceback for each array that it has
    not reached.
    """
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: printed.append(str(found.exc_value)))
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=1)):
        for text in ("Event loop is closed", "another one"):
            sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))
    sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
    assert printed == ["another one", "Event loop is closed"]


def test_missing_and_foreign_checkpoints_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such folder; give the --workdir of a run"):
        Checkpoints(str(tmp_path))
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        assert restore.resume(writer, wanted, Session()) is None
        writer.save(2, make_state().split(), {"format_version": 99})
        writer.wait()
        with pytest.raises(
            BadInput, match="checkpoint format 99, this version reads 3; use the xlnet_jax"
        ) as e:
            restore.resume(writer, wanted, Session())
        assert not isinstance(e.value, Damaged)
    with (
        Checkpoints(str(tmp_path)) as reader,
        pytest.raises(BadInput, match="no checkpoint of step 3; there are 2"),
    ):
        restore.newest(reader, wanted, Session(), 3)
    shutil.rmtree(tmp_path / "checkpoints" / "2")
    with Checkpoints(str(tmp_path)) as reader, pytest.raises(BadInput, match="no checkpoint; give"):
        restore.newest(reader, wanted, Session())
    assert sorted(os.listdir(tmp_path)) == ["checkpoints"]


def wanted(step, record):
    return abstract(make_state()).split()


def test_a_record_that_lost_its_hashes_is_damaged(tmp_path):
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        writer.save(2, make_state().split(), {})
    path = tmp_path / "checkpoints" / "2" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    del metadata["custom_metadata"]["checksums"], metadata["custom_metadata"]["record_sha256"]
    path.write_text(json.dumps(metadata))
    with (
        Checkpoints(str(tmp_path)) as reader,
        pytest.raises(BadInput, match="its record is not what was saved"),
    ):
        restore.newest(reader, wanted, Session())


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"params": {"a": jnp.array([1, jnp.inf])}}, "params/a"),
        ({"opt_state": ({"mu": jnp.array([1, jnp.nan])},)}, "optimizer/0/mu"),
    ],
    ids=["params", "optimizer"],
)
def test_a_state_that_is_not_finite_is_not_saved(tmp_path, changes, name):
    state = make_state()
    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as writer:
        with pytest.raises(Diverged, match=f"step 6: {name} is not finite") as raised:
            writer.save(6, dataclasses.replace(state, **changes).split(), {}, MUST_BE_FINITE)
        assert raised.value.exit_code == 3 and writer.steps() == []
        # A running mean of losses heals: the rest is worth a checkpoint.
        writer.save(
            6, dataclasses.replace(state, loss_mean=jnp.array(jnp.nan)).split(), {}, MUST_BE_FINITE
        )
    assert os.listdir(tmp_path / "checkpoints") == ["6"]


@pytest.mark.parametrize(
    ("rules", "stay"),
    [
        ({"keep": 2}, [10, 12]),
        ({"keep": 1, "keep_best": 2}, [4, 6, 12]),
        ({"keep": 2, "keep_every": 8, "keep_best": 1}, [6, 8, 10, 12]),
    ],
)
def test_which_checkpoints_stay(tmp_path, rules, stay):
    losses = {}
    with Checkpoints(str(tmp_path), CheckpointConfig(**rules), lambda: losses) as writer:
        for step, loss in zip((2, 4, 6, 8, 10, 12), (5.0, 4.0, 3.5, 4.5, 4.25, 3.0), strict=True):
            writer.save(step, make_state().split(), {})
            # An evaluation comes after the save of its step, and step 2 has none.
            losses |= {step: loss} if step > 2 else {}
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.steps() == stay[::-1]


def test_checksums_are_of_the_whole_array_and_stay_what_they_are():
    values = np.arange(-12, 12, dtype=np.float32).reshape(4, 6)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    spread = jax.device_put(values, NamedSharding(mesh, PartitionSpec("x", "y")))
    assert len({str(shard.index) for shard in spread.addressable_shards}) == 8
    # Written into checkpoints: another number here is another format.
    expected = "float32[4,6] 1919706401984804620454dad664657f"
    for same in (values, spread):
        assert checksums.of_trees({"a": same}) == ({"a": expected}, [])
    flipped, swapped = values.copy(), values.copy()
    flipped.view(np.uint32)[2, 3] ^= 1 << 7
    swapped[0, :2] = values[0, 1], values[0, 0]
    reshaped = values.reshape(6, 4)
    for other in (flipped, swapped, values[::-1].copy(), reshaped, values.astype(np.int32)):
        assert checksums.of_trees({"a": other})[0]["a"] != expected
    assert checksums.of_trees({"a": reshaped})[0]["a"].split()[1] == expected.split()[1]
    kinds = {
        "half": jnp.ones(3, jnp.bfloat16),
        "flag": jnp.array(True),
        "byte": jnp.ones((2, 0), jnp.int8),
    }
    assert [text.split()[0] for text in checksums.of_trees(kinds)[0].values()] == [
        "int8[2,0]",
        "bool[]",
        "bfloat16[3]",
    ]


def test_checksums_in_parts_are_those_of_the_whole(monkeypatch):
    """Arrays in host memory are summed in parts, others by their devices."""
    monkeypatch.setattr(checksums, "_PART", 7)
    generator = np.random.default_rng(0)
    for array in (
        generator.normal(size=(3, 5, 2)),
        generator.random(9) < 0.5,
        np.int32(7).reshape(()),
        np.zeros(0),
    ):
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        sums, finite = checksums.sums_in_memory(array)
        np.testing.assert_array_equal(sums, jax.jit(checksums.sums_of)(array))
        assert finite
    for place in (3, 15):  # in the first part, and in the last one
        half = jnp.asarray(generator.normal(size=20), jnp.bfloat16).at[place].set(jnp.nan)
        sums, finite = checksums.sums_in_memory(np.asarray(half))
        np.testing.assert_array_equal(sums, jax.jit(checksums.sums_of)(half))
        assert not finite


SHAPE = (4, 64, 96)


def on_mesh(sizes, spec):
    mesh = jax.make_mesh(sizes, ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.parametrize(
    ("sizes", "spec", "chunk", "parts"),
    [
        ((8, 1), (), (1, 64, 96), (4, 1, 1)),  # as many as there are chunks
        ((8, 1), (), (4, 64, 32), (1, 1, 1)),  # 3 chunks do not divide over 8 devices
        ((8, 1), (), (4, 8, 32), (1, 8, 1)),
        ((4, 2), (None, "fsdp"), (4, 8, 96), (1, 8, 1)),  # each half in 4 parts
        # The chunk is larger than the half: as without.
        ((4, 2), (None, "fsdp"), (4, 64, 96), (1, 2, 1)),
        ((4, 2), (None, ("data", "fsdp")), (1, 8, 96), (1, 8, 1)),  # no copies
    ],
)
def test_the_parts_are_whole_chunks_and_cover_the_array(sizes, spec, chunk, parts):
    """Fails if a part cuts a chunk (two devices read it), overlaps another, or needs another order
    of the devices.
    """
    asked = on_mesh(sizes, spec)
    got = spread(asked, SHAPE, chunk)
    assert tuple(np.array(SHAPE) // got.shard_shape(SHAPE)) == parts
    assert list(got.mesh.devices.flat) == list(asked.mesh.devices.flat)
    covered = np.zeros(SHAPE, int)
    for device, index in got.devices_indices_map(SHAPE).items():
        covered[index] += 1
        mine = np.zeros(SHAPE, bool)
        mine[asked.devices_indices_map(SHAPE)[device]] = True
        assert mine[index].all(), "a device reads only what it will hold"
    assert (covered == 8 // np.prod(parts)).all()


def test_what_cannot_be_split_stays():
    one, asked = SingleDeviceSharding(jax.devices()[0]), on_mesh((8, 1), ())
    for sharding, shape in ((one, SHAPE), (asked, ()), (asked, SHAPE)):
        assert spread(sharding, shape, shape) is sharding
