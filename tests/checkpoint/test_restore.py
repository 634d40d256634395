"""The ladder of checkpoints: damage of every kind in every part, other meshes, parameters of
another run, no code.
"""

import errno
import itertools
import json
import os
import random
import re
import shutil
import sys

import data_fixtures
import fake_gcs
import jax
import numpy as np
import pytest
import shared
import tiny
from shared import settings as config

from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.store import Checkpoints, Damaged
from xlnet_jax.commands.train import train
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import PlanEntry
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.launch import restore_or_init
from xlnet_jax.train.loop import Job
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

STEPS = (4, 8, 12)
END = 16
PARTS = ("params", "optimizer", "memory", "metadata")


@pytest.fixture(scope="session")
def run(tmp_path_factory, pytestconfig):
    """A run on eight devices with three checkpoints; nobody changes it."""
    workdir = tmp_path_factory.mktemp("ladder") / "run"
    train(config(pytestconfig), str(workdir), stop_at=STEPS[-1])
    assert sorted(os.listdir(workdir / "checkpoints")) == ["12", "4", "8"]
    return workdir


@pytest.fixture(scope="session")
def abstract():
    """Of the whole state, on one device."""
    return shared.abstract()


@pytest.fixture(scope="session")
def saved(run, abstract):
    """The bytes of every array of every checkpoint."""
    with Checkpoints(str(run)) as checkpoints:
        return {step: contents(tiny.restored(checkpoints, step, abstract)) for step in STEPS}


def contents(trees):
    return {
        jax.tree_util.keystr(path): np.asarray(x).tobytes()
        for path, x in jax.tree.leaves_with_path(trees)
    }


def file_of(checkpoint, part):
    """The file of a part that is needed for every array in it: the root of Orbax's database."""
    if part == "metadata":
        return checkpoint / "_CHECKPOINT_METADATA"
    (path,) = (checkpoint / part / "d").iterdir()
    return path


def truncate(checkpoint, part):
    path = file_of(checkpoint, part)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(checkpoint, part):
    path = file_of(checkpoint, part)
    data = bytearray(path.read_bytes())
    at = data.index(b'"plan"') + 10 if part == "metadata" else len(data) // 2
    data[at] ^= 1
    path.write_bytes(data)


def miss(checkpoint, part):
    file_of(checkpoint, part).unlink()


def half_delete(checkpoint, part):
    """As a deletion that was killed leaves it."""
    folder = checkpoint if part == "metadata" else checkpoint / part
    there = sorted(
        path for path in folder.glob("_*" if part == "metadata" else "**/*") if path.is_file()
    )
    assert there
    for path in there[: (len(there) + 1) // 2]:
        path.unlink()


def leave_temporary(checkpoint, part):
    """The part has not got its name; and beside it a newer checkpoint that was never finished."""
    path = checkpoint / ("_CHECKPOINT_METADATA" if part == "metadata" else part)
    path.rename(f"{path}.orbax-checkpoint-tmp")
    shutil.copytree(checkpoint, checkpoint.parent / "16.orbax-checkpoint-tmp")


DAMAGES = (truncate, flip, miss, half_delete, leave_temporary)


def resume(workdir, abstract, processes=None):
    with Checkpoints(str(workdir), CheckpointConfig(keep=3)) as checkpoints:
        return restore.resume(checkpoints, lambda *_: abstract, processes or Session())


def copy(run, tmp_path):
    return shutil.copytree(
        run, tmp_path / "run", ignore=shutil.ignore_patterns("compilation_cache")
    )


ONE_OF_EACH = tuple(zip(DAMAGES, (*PARTS, "params"), strict=True))
"""Every kind of damage, and every part of a checkpoint; `make prove` has all pairs."""


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        pytest.param(*case, marks=() if case in ONE_OF_EACH else pytest.mark.prove)
        for case in itertools.product(DAMAGES, PARTS)
    ],
)
def test_a_damaged_newest_checkpoint_is_moved_and_the_one_before_taken(
    run, tmp_path, abstract, saved, caplog, damage, part
):
    workdir = copy(run, tmp_path)
    damage(workdir / "checkpoints" / "12", part)
    broken = data_fixtures.contents(workdir / "checkpoints" / "12")
    found = resume(workdir, abstract)
    assert found is not None and found.step == 8 and list(found.damaged) == [12]
    assert contents(found.trees) == saved[8] != saved[12]
    (line,) = [
        record
        for record in caplog.records
        if record.levelname == "ERROR" and record.name == "xlnet_jax"
    ]
    assert f"{workdir}/checkpoints/12 is damaged: " in line.message
    assert (
        f"moved to {workdir}/quarantine/12*, resuming from step 8" in line.message
        and "\n" not in line.message
    )
    assert not (workdir / "checkpoints" / "12").exists()
    assert data_fixtures.contents(workdir / "quarantine" / "12") == broken


def test_all_damaged_is_refused_and_nothing_is_changed(run, tmp_path, pytestconfig, abstract):
    workdir = copy(run, tmp_path)
    for step, damage, part in zip(STEPS, (truncate, flip, leave_temporary), PARTS[:3], strict=True):
        damage(workdir / "checkpoints" / str(step), part)
    before = data_fixtures.contents(workdir)
    with pytest.raises(
        BadInput, match="every checkpoint is damaged, and nothing was changed"
    ) as raised:
        train(config(pytestconfig), str(workdir))
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert all(f"checkpoints/{step} is damaged: " in str(raised.value) for step in STEPS)
    assert "Restore one from a copy, or start again in another --workdir" in str(raised.value)
    assert data_fixtures.contents(workdir) == before


@pytest.mark.parametrize(
    "flips",
    [pytest.param(16, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.prove)],
)
def test_whatever_bit_is_flipped_the_arrays_are_right(run, tmp_path, abstract, saved, flips):
    """In any file of the checkpoint. What no array depends on may be otherwise; nothing else may go
    through.
    """
    workdir, draw = copy(run, tmp_path), random.Random(flips)
    taken, why = [], []
    newest = workdir / "checkpoints" / "12"
    there = sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size)
    with Checkpoints(str(workdir)) as checkpoints:
        for _ in range(flips):
            (path,) = draw.choices(there, [path.stat().st_size for path in there])
            whole = path.read_bytes()
            data = bytearray(whole)
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
            found = restore.newest(checkpoints, lambda *_: abstract, Session())
            taken.append(found.step)
            why += found.damaged.values()
            assert contents(found.trees) == saved[found.step], path
            path.write_bytes(whole)
    assert taken.count(8) > flips / 4 and 12 in taken
    assert any("is not what was saved (and others: " in each for each in why), (
        "the checksums of arrays were never needed"
    )


def test_a_checkpoint_that_one_process_cannot_read_is_bad_for_all(run, tmp_path, abstract, caplog):
    class Session1(Session):
        """Of two processes; process 1 says no to the newest checkpoint."""

        said = False

        def collect(self, text, what="starting"):
            good = text == "" and not self.said
            self.said |= good
            return [text, ".../12 is damaged: no such file" if good else text]

    workdir = copy(run, tmp_path)
    # Its name in quarantine may be taken.
    (workdir / "quarantine" / "12").mkdir(parents=True)
    (workdir / "quarantine" / "12.2").write_text("a file")
    found = resume(workdir, abstract, Session1())
    assert found is not None and found.step == 8
    assert ".../12 is damaged: no such file (in process 1); moved to" in caplog.text
    assert sorted(os.listdir(workdir / "quarantine")) == ["12", "12.2", "12.3"]
    assert os.listdir(workdir / "quarantine" / "12.3")


def test_readers_warn_or_refuse_and_move_nothing(run, tmp_path, abstract, saved, caplog):
    workdir = copy(run, tmp_path)
    flip(workdir / "checkpoints" / "12", "params")
    before = data_fixtures.contents(workdir)
    params, step = restore.parameters(str(workdir), abstract["params"], Session())
    assert step == 8 and contents({"params": params}).items() <= saved[8].items()
    (line,) = [record for record in caplog.records if record.name == "xlnet_jax"]
    assert (
        line.levelname == "WARNING"
        and "12 is damaged: " in line.message
        and "taking step 8" in line.message
    )
    with pytest.raises(Damaged, match="12 is damaged: .*; choose another step"):
        restore.parameters(str(workdir), abstract["params"], Session(), 12)
    assert restore.parameters(str(workdir), abstract["params"], Session(), 4)[1] == 4
    # What is wrong with another part is of no concern to who reads the parameters.
    shutil.rmtree(workdir / "checkpoints" / "8" / "optimizer")
    assert restore.parameters(str(workdir), abstract["params"], Session())[1] == 8
    assert before.items() > data_fixtures.contents(workdir).items()


@pytest.mark.parametrize(
    ("lost", "place"),
    [
        ("_METADATA", "xlnet_jax.checkpoint.store.ocp.load_checkpointables"),
        ("params", "os.scandir"),
    ],
)
def test_lost_permission_is_no_damage(run, tmp_path, abstract, monkeypatch, lost, place):
    """Of a folder Orbax says that there is no _METADATA in it; the checkpoint would be moved to
    quarantine.
    """
    workdir = copy(run, tmp_path)
    folder, scandir = workdir / "checkpoints" / "12" / "params", os.scandir
    if lost == "params":
        (folder / "_METADATA").rename(tmp_path / "hidden")
    before = data_fixtures.contents(workdir)

    def refuse(path=".", *_):
        if lost == "_METADATA" or str(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", f"12/{lost}")
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        with pytest.raises(BadInput, match=f"12/{lost}: Permission denied; fix this") as raised:
            resume(workdir, abstract)
    assert not isinstance(raised.value, Damaged)
    assert data_fixtures.contents(workdir) == before


MESHES = {
    "1": {},
    "2": {"fsdp": 2},
    "4": {"data": 2, "fsdp": 2},
    "8": {"data": 2, "fsdp": 2, "tensor": 2},
}


@pytest.mark.parametrize("devices", MESHES)
def test_other_devices_have_the_same_arrays_and_the_same_next_batch(
    run, saved, pytestconfig, devices
):
    settings = config(pytestconfig, mesh={"data": 1} | MESHES[devices])
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[: int(devices)])
    built = build_step(make_recipe(settings), mesh)
    with Checkpoints(str(run)) as checkpoints:
        found = restore.newest(checkpoints, lambda *_: built.abstract_state.split(), Session())
    assert found.step == 12 and contents(found.trees) == saved[12]
    assert all(len(x.sharding.device_set) == int(devices) for x in jax.tree.leaves(found.trees))
    plan = tuple(PlanEntry(*entry) for entry in found.record["plan"])
    placed = []
    for place in (mesh, meshes.make_mesh(config(pytestconfig).mesh)):
        rows = meshes.rows_here(settings.train.batch_size, place)
        batch = loader.TrainDispatches(open_mixture(settings), settings, plan, rows, 12, END)(0)
        placed.append(meshes.place(batch, place, settings.train.batch_size))
    assert contents(placed[0]) == contents(placed[1])


def test_parameters_of_another_run(run, tmp_path, pytestconfig, abstract, saved):
    for path, step in ((run, 12), (run / "checkpoints" / "8", 8), (f"{run}/checkpoints/4/", 4)):
        params, origin = restore.foreign_parameters(str(path), abstract["params"], Session())
        assert (
            contents({"params": params}).items() <= saved[step].items() and origin["step"] == step
        )
    workdir = str(tmp_path / "new")
    train(config(pytestconfig, checkpoint={"init_from": str(run)}), workdir, stop_at=4)
    (line,) = read_jsonl(f"{workdir}/runs.jsonl")
    assert line["step"] == 0 and (line["init_from"]["path"], line["init_from"]["step"]) == (
        str(run),
        12,
    )
    first, *_ = read_jsonl(f"{workdir}/metrics.jsonl")
    fresh, *_ = read_jsonl(f"{run}/metrics.jsonl")
    assert (
        first["step"] == 1 and first["learning_rate"] == 0 and first["loss"] < fresh["loss"] - 0.1
    )


def test_parameters_of_another_run_that_do_not_fit(run, tmp_path, pytestconfig):
    other = tiny.config(model={"d_ff": 64}, mesh={"data": 1})
    built = build_step(make_recipe(other), meshes.make_mesh(other.mesh, jax.devices()[:1]))
    with pytest.raises(
        BadInput,
        match=r"\(step 12\): params/\S+ is float32\[[\d,]*32\S* in the checkpoint, not \S+64\S*",
    ):
        restore.foreign_parameters(str(run), built.abstract_state.params, Session())
    with pytest.raises(BadInput, match="checkpoint.init_from=/nowhere: .* no such folder"):
        train(config(pytestconfig, checkpoint={"init_from": "/nowhere"}), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def start(settings, folder):
    """The first state of a run, the parameters as they are drawn, the step, and the origin."""
    recipe, mesh = make_recipe(settings), meshes.make_mesh(settings.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpoints(folder, CheckpointConfig(keep=1)) as checkpoints:
        built = build_step(recipe, mesh)
        job = Job(settings, folder, open_mixture(settings), make_recipe, None, settings.train.steps)
        state, _, step, origin = restore_or_init(job, [built], checkpoints, Session())
        return state, create_state(built).params, step, origin


def test_parameters_that_the_other_run_lacks_begin_fresh_and_are_listed(
    run, tmp_path, pytestconfig, abstract, saved, caplog
):
    """Would fail if a fresh parameter were taken for a damaged one, or a loaded one stayed as it
    was drawn.
    """
    model = {"biases_per_layer": False, "activation": "relu", "dropout": 0.4}
    settings = config(
        pytestconfig, model=model, mesh={"data": 1}, checkpoint={"init_from": str(run)}
    )
    state, params, step, origin = start(settings, str(tmp_path))
    drawn = contents({"params": params})
    biases = ("content_bias", "position_bias", "segment_bias")
    assert step == 0 and origin["init_from"]["fresh"] == [
        f"params/biases/{name}" for name in biases
    ]
    assert origin["init_from"]["left_over"] == [
        f"params/layers/attention/{name}" for name in biases
    ]
    (line,) = [
        record for record in caplog.records if "starting with the parameters" in record.getMessage()
    ]
    new, unused = (
        ", ".join(f"params/{scope}/{name}" for name in biases)
        for scope in ("biases", "layers/attention")
    )
    assert line.levelname == "WARNING" and line.getMessage().endswith(
        f"{run}; new: {new}; not used: {unused}"
    )
    # Equal names and shapes may be another function.
    assert (
        f"init_from={run} has another architecture, so the same parameters give other outputs "
        "here: model.activation: 'gelu' -> 'relu'; model.biases_per_layer: True -> False\n"
    ) in caplog.text
    loaded = contents({"params": state.params})
    for name, value in loaded.items():
        assert value == (drawn if "['biases']" in name else saved[12])[name], name
    assert loaded != drawn and loaded.keys() == drawn.keys()
    nothing = {"tower": abstract["params"]["word_embedding"]}
    with pytest.raises(BadInput, match="has none of this model's parameters"):
        restore.foreign_parameters(str(run), nothing, Session())


def test_a_checkpoint_cannot_run_code(run, tmp_path, abstract, saved, monkeypatch):
    """Orbax writes names of classes into a checkpoint."""
    workdir = copy(run, tmp_path)
    (tmp_path / "planted.py").write_text("class Handler:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = workdir / "checkpoints" / "12" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    metadata["item_handlers"]["params"] = "planted.Handler"
    path.write_text(json.dumps(metadata))
    found = resume(workdir, abstract)
    assert contents(found.trees) == saved[found.step] and "planted" not in sys.modules
    for source in (tiny.ROOT / "xlnet_jax").rglob("*.py"):
        unpickles = re.search(
            "import pickle|allow_pickle|import dill|cloudpickle", source.read_text(encoding="utf-8")
        )
        assert not unpickles, source


def test_a_reader_takes_the_newest_of_a_run_that_saves_and_removes_meanwhile(
    run, tmp_path, abstract, saved, caplog
):
    workdir, later = copy(run, tmp_path), tmp_path / "later"
    shutil.move(workdir / "checkpoints" / "12", later)

    class Late(Checkpoints):
        def read(self, step, abstract):
            if step == 8:
                shutil.move(later, workdir / "checkpoints" / "12")
                shutil.rmtree(workdir / "checkpoints" / "8")
            return super().read(step, abstract)

    with Late(str(workdir)) as checkpoints:
        found = restore.newest(checkpoints, lambda *_: abstract, Session())
    assert (found.step, found.damaged) == (12, {}) and contents(found.trees) == saved[12]
    assert not caplog.records


def test_a_line_cut_off_by_a_kill_does_not_stop_the_next_start(run, tmp_path, pytestconfig, caplog):
    workdir = shutil.copytree(run, tmp_path / "run")
    for name, garbage in (
        ("metrics.jsonl", b'{"loss": 1}\n{"step": 13, "lo'),
        ("time.jsonl", b'{"step": 12}\n'),
        ("evaluations.jsonl", b'\0\0\xff\n{"step"'),
        ("runs.jsonl", b'{"step": 12, "ti'),
    ):
        with open(workdir / name, "ab") as file:
            file.write(garbage)
    train(config(pytestconfig), str(workdir), stop_at=END)
    before, after = (read_jsonl(f"{each}/metrics.jsonl") for each in (run, workdir))
    assert after[:12] == before and [line["step"] for line in after[12:]] == [13, 14, 15, 16]
    assert "evaluations.jsonl: line 1 is damaged and is ignored" in caplog.text
    assert [line["step"] for line in read_jsonl(str(workdir / "runs.jsonl"))] == [0, 12]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("missing", ["record", pytest.param("data", marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_in_a_bucket_is_moved_too(run, abstract, saved, missing):
    def below(folder):
        return {
            name.removeprefix(folder): data
            for name, data in server.objects.items()
            if name.startswith(folder)
        }

    with fake_gcs.serve() as server:
        for path in (run / "checkpoints").rglob("*"):
            if path.is_file():
                server.objects[f"bucket/{path.relative_to(run.parent)}"] = path.read_bytes()
        del server.objects["bucket/run/checkpoints/8/commit_success.txt"]  # was never complete
        at = "bucket/run/checkpoints/12/"
        (data,) = [name for name in server.objects if name.startswith(f"{at}params/d/")]
        del server.objects[data if missing == "data" else f"{at}_CHECKPOINT_METADATA"]
        broken = below(at)
        found = resume("gs://bucket/run", abstract)
        assert found.step == 4 and list(found.damaged) == [12] and contents(found.trees) == saved[4]
        assert below("bucket/run/quarantine/12/") == broken and not below(at)


def test_a_grown_vocabulary_takes_the_rows_of_known_pieces(run, tmp_path, pytestconfig, caplog):
    """Half of the pieces are known, in another order."""
    corpus = str(tmp_path / "corpus")
    lines = data_fixtures.synthetic_text(9, 60)
    (tmp_path / "text.txt").write_text(lines.replace("ba", "zu"))
    data_fixtures.make_corpus(
        corpus, [str(tmp_path / "text.txt")], tokenizer=None, vocab_size=tiny.VOCAB + 8
    )
    model = {"vocab_size": tiny.VOCAB + 8}
    settings = config(
        pytestconfig,
        model=model,
        mesh={"data": 1},
        data={"corpus": corpus},
        checkpoint={"init_from": str(run)},
    )
    state, drawn, *_ = start(settings, str(tmp_path / "new"))
    theirs = tiny.saved_parameters(str(run))[0]["word_embedding"]
    known = {piece: row for row, piece in enumerate(data_fixtures.tokenizer().pieces)}
    ours = open_mixture(settings).tokenizer.pieces
    table = np.asarray(state.params["word_embedding"])
    both = [piece in known for piece in ours]
    assert 20 < sum(both) < len(ours) - 8 and ours != data_fixtures.tokenizer().pieces[: len(ours)]
    for row, piece in enumerate(ours):
        np.testing.assert_array_equal(
            table[row],
            theirs[known[piece]] if piece in known else drawn["word_embedding"][row],
            str(piece),
        )
    assert (
        f"has another vocabulary: the rows of {sum(both)} pieces are taken from there, and those "
        f"of {len(ours) - sum(both)} other pieces are drawn"
    ) in caplog.text
