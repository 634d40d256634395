"""Phases: data that goes on, parameters of all phases, exact resume across borders, and what is
refused.
"""

import contextlib
import dataclasses
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import shared
from hosts import Hosts
from tiny import TESTS
from tiny_phases import PHASES

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.commands.inspect import example, inspect
from xlnet_jax.commands.train import train
from xlnet_jax.config.phases import keep_shuffle
from xlnet_jax.data.batches.cycle import Cycle
from xlnet_jax.data.batches.stream import (
    ShuffledBlocks,
    Stream,
    enter_phase,
    extend_plan,
    from_json,
)
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.run.signals import StopRequest
from xlnet_jax.train.phases import check_parameters, memory_since


def settings(pytestconfig, phases=PHASES):
    """A run of three phases, one of which has no query stream."""
    train, checkpoint = {"steps": sum(phase["steps"] for phase in phases)}, {"every": 2, "keep": 9}
    config = dataclasses.replace(
        shared.settings(
            pytestconfig,
            train=train,
            checkpoint=checkpoint,
            optimizer={"learning_rate": 1e-2, "average": 0.9},
        ),
        phases=tuple(phases),
    )
    configs.check(config)
    return config


def saved(workdir, step):
    """The record of a checkpoint."""
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.record(step)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pytestconfig):
    """The run of `PHASES`, never stopped."""
    workdir = tmp_path_factory.mktemp("phases")
    train(settings(pytestconfig), str(workdir))
    return workdir


def assert_same_end(workdir, whole, last=14):
    """The same steps, plan, and bits of the whole state."""
    assert shared.steps(workdir) == shared.steps(whole)
    mine, theirs = saved(workdir, last), saved(whole, last)
    assert mine["plan"] == theirs["plan"] and len(mine["plan"]) == 3
    assert mine["checksums"] == theirs["checksums"] and len(mine["checksums"]) > 40


@pytest.mark.slow
def test_a_run_that_was_stopped_or_killed_in_phases_and_at_borders_has_the_same_bits(
    whole, tmp_path, pytestconfig
):
    """Would fail if a border lost the memory, the place in the text, moments, or the rate's
    count.
    """
    for stop in (2, 4, 8, 10, 14):
        train(settings(pytestconfig), str(tmp_path), stop_at=stop)
        if stop in (4, 10):  # as killed before this save: the steps since the last one come again
            shutil.rmtree(tmp_path / "checkpoints" / str(stop))
    starts = [line["step"] for line in read_jsonl(str(tmp_path / "runs.jsonl"))]
    assert starts == [0, 2, 2, 8, 8]
    assert_same_end(tmp_path, whole)


@pytest.mark.slow
def test_a_signal_soon_after_a_start_at_a_border_saves_and_the_bits_are_the_same(
    whole, tmp_path, pytestconfig, monkeypatch
):
    """Would fail if the step that was compiled ahead were sent while a signal still ends the
    process.
    """

    def signalled(request):
        request.name = "SIGTERM"

    train(settings(pytestconfig), str(tmp_path), stop_at=4)
    with monkeypatch.context() as patch, contextlib.suppress(RestartMe):
        patch.setattr(StopRequest, "working", signalled)
        train(settings(pytestconfig), str(tmp_path))
    assert len(shared.steps(tmp_path)) == 6
    seconds = read_jsonl(str(tmp_path / "time.jsonl"))[-1]["seconds"]
    assert seconds["host"] > 0, "the time of these steps counts as training"
    train(settings(pytestconfig), str(tmp_path))
    assert_same_end(tmp_path, whole)
    starts = read_jsonl(str(tmp_path / "runs.jsonl"))
    assert [(line["before"], line["repeated"]) for line in starts] == [
        (None, 0),
        ("end", 0),
        ("signal", 0),
    ]


def test_the_memory_goes_back_to_where_a_border_has_emptied_it():
    """Would fail if a rebuilt memory began where only the rate changes."""

    def phase(*shape):
        return SimpleNamespace(abstract_state=SimpleNamespace(memory=np.zeros(shape)))

    config = dataclasses.replace(configs.Config(), phases=tuple({"steps": 5} for _ in range(4)))
    phases = [phase(2, 3), phase(2, 3), phase(2, 4), phase(2, 4)]
    assert [memory_since(config, phases, number) for number in range(4)] == [0, 0, 10, 10]


OPTIONS = (f"--config={TESTS}/tiny_phases.py", "--config.data.workers=0")


@pytest.mark.prove
def test_from_the_second_phase_on_with_two_processes(whole, tmp_path, pytestconfig):
    """The same losses as with one."""
    cache = pytestconfig.cache.mkdir("xla")
    Hosts("train", tmp_path, *OPTIONS, "--stop_at=5", count=1, cache=cache).finish()
    Hosts("train", tmp_path, *OPTIONS, count=2, cache=cache).finish()
    mine, theirs = (
        [line["loss"] for line in shared.steps(workdir)] for workdir in (tmp_path, whole)
    )
    assert mine == pytest.approx(theirs, abs=1e-5) and len(mine) == 14


@pytest.mark.slow
def test_parameters_that_a_phase_does_not_use_and_their_moments_stay_and_others_move(whole):
    """Would fail if they decayed, if their moments did, or if the next phase started from fresh
    ones.
    """
    first, second, last = (saved(whole, step)["checksums"] for step in (4, 8, 14))
    of_query = [
        name for name in first if name.endswith("/mask_embedding") and "/average/" not in name
    ]
    assert len(of_query) == 3, "the parameter and two moments"
    for name in of_query:
        assert first[name] == second[name] == last[name]
    # Text from left to right has no segments.
    still = [
        name for name in first if name.startswith("params/layers") and first[name] == second[name]
    ]
    assert still == [
        "params/layers/attention/segment_bias",
        "params/layers/attention/segment_embedding",
    ]
    assert not [
        name for name in first if name.startswith("params/layers") and second[name] == last[name]
    ]


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_as_what_its_phase_has_trained(whole):
    """The parameters of other phases are in it, and do not matter."""
    assert evaluate(str(whole), blocks=8, step=4)["heldout_loss"] < np.log(200)


def test_the_text_of_an_epoch_is_read_once_whatever_the_lengths():
    """Longer blocks, then shorter ones, of a mixture whose shares change: a row leaves out one
    block at most.
    """
    tokens, seen = (5000, 3000), [np.zeros(5000, int), np.zeros(3000, int)]
    shapes = [(8, 2, 4, (1, 1)), (16, 4, 3, (2, 1)), (8, 1, 6, (1, 3))]

    def stream(window, windows, counts):
        return Stream(
            tuple(ShuffledBlocks(n, window, windows, 3, shuffle_len=64) for n in tokens),
            True,
            Cycle(counts),
        )

    plan, end, before, left_out = extend_plan((), 0, 4, 2), 0, None, 0
    for window, windows, batch_size, counts in shapes:
        now = stream(window, windows, counts)
        plan = enter_phase(plan, end, batch_size, before or now, now)
        for step in range(end, end + 7):
            where = now.locate(step, np.arange(batch_size), plan)
            for corpus, start, direction in zip(
                where.corpus_B, where.cursor_B, where.direction_B, strict=True
            ):
                assert where.epoch_B.max() == 0
                seen[corpus][start + direction * np.arange(window)] += 1
        end, before = end + 7, now
        left_out += batch_size * window * windows
        assert now.read(end, plan) == tuple(
            pytest.approx(x, abs=64 * 8) for x in (s.sum() for s in seen)
        )
    assert max(s.max() for s in seen) == 1, "no token twice"
    # All that lies between what was read, in the order of the shuffle, is less than a block a row
    # at each border.
    assert sum(now.read(end, plan)) - sum(s.sum() for s in seen) <= left_out
    assert from_json([list(entry) for entry in plan]) == plan


def test_windows_of_other_lengths_in_equal_blocks_read_the_text_of_the_second_epoch_once():
    """Would fail if the part that an epoch leaves out depended on the window."""
    values, tokens, rows = configs.default(), 2000, np.arange(3)
    shapes = (
        {"segment_len": 32, "reuse_len": 16, "windows_per_block": 8},
        {"segment_len": 128, "reuse_len": 64, "windows_per_block": 2},
    )
    values.phases = tuple({"steps": 99_999, "data": shape | {"num_predict": 4}} for shape in shapes)
    config = configs.from_dict(values.to_dict())
    data = [config.parts[number].data for number in (0, 1)]
    before, after = (
        Stream(
            (ShuffledBlocks(tokens, each.reuse_len, each.windows_per_block, 3, first_window=16),),
            True,
        )
        for each in data
    )
    assert {each.shuffle_len for each in data} == {0}, "they are the blocks of a run without phases"
    seen, border = np.zeros((2, tokens), int), 8 * 7
    plan = enter_phase(extend_plan((), 0, 3, 8), border, 3, before, after)
    for stream, steps in ((before, range(border)), (after, range(border, border + 2 * 3))):
        for step in steps:
            where = stream.locate(step, rows, plan)
            for epoch, start, direction in zip(
                where.epoch_B, where.cursor_B, where.direction_B, strict=True
            ):
                seen[epoch, start + direction * np.arange(stream.corpora[0].window)] += 1
    assert seen.max() == 1 and seen.sum(axis=1).tolist() == [15 * 128, 15 * 128]


def test_the_shuffle_keeps_together_what_all_phases_read_in_whole_blocks_if_that_is_short():
    values = configs.default()
    values.phases = (
        {"steps": 90_000},
        {"steps": 4, "data": {"segment_len": 1024, "reuse_len": 512}},
    )
    assert configs.from_dict(values.to_dict()).parts[0].data.shuffle_len == 8 * 512
    values.phases[1]["data"] = {"segment_len": 1024, "reuse_len": 509}
    assert configs.from_dict(values.to_dict()).parts[0].data.shuffle_len == 0


@pytest.mark.slow
def test_a_border_is_where_the_rate_changes(whole):
    rates = [line["learning_rate"] for line in read_jsonl(os.path.join(whole, "metrics.jsonl"))]
    # Linear decay to step 14, ten times lower.
    assert rates[7] / rates[8] == pytest.approx(10 * 7 / 6, rel=1e-4)


WRONG = [
    (
        {"steps": 3, "model": {"d_model": 8}},
        "phases[0].model.d_model must be the same in all phases",
    ),
    ({"steps": 3, "data": {"segment_len": 12}}, "in phases[0]: data.segment_len=12 is too short"),
    ({"steps": 0}, "phases[0] must be a dict with `steps`"),
    (
        {"steps": 3, "data": {"segmentlen": 12}},
        "phases[0]: no config key 'data.segmentlen'. Did you mean",
    ),
    (
        {"steps": 3, "segment_len": 12},
        "phases[0]: no config key 'segment_len'. Did you mean 'data.segment_len'?",
    ),
    (
        {"steps": 3, "data": 12},
        "phases[0]: data=12 must be a section with its keys, such as data=dict(",
    ),
    ({"steps": 3, 3: {}}, "phases[0]: no config key '3'"),
    (
        {"steps": 3, "data": {"objective": ["plm"]}},
        "phases[0].data.objective=['plm'] must be of type str",
    ),
    ("x", "phases[0] must be a dict with `steps`"),
]


@pytest.mark.parametrize(("phase", "line"), WRONG)
def test_a_phase_that_cannot_be_is_one_line(phase, line):
    values = configs.default()
    values.update(
        {"phases": (phase,), "optimizer": {"warmup_steps": 0}, "train": {"spike_zscore": 6.0}}
    )
    with pytest.raises(BadInput) as raised:
        configs.from_dict(values.to_dict())
    assert line in str(raised.value)


@pytest.mark.parametrize("phases", [5, "x"])
def test_phases_that_are_no_tuple_are_one_line(phases):
    with pytest.raises(BadInput, match="^phases must be a tuple of dicts, .* type (int|str)$"):
        configs.from_dict({"phases": phases})


def test_what_several_phases_have_wrong_is_said_once():
    values = configs.default().to_dict() | {
        "phases": [{"steps": 90_000, "data": {"segment_len": 12}}] * 2
    }
    with pytest.raises(BadInput) as raised:
        configs.from_dict(values)
    assert str(raised.value).count("data.segment_len=12 is too short") == 1
    assert "in phases[0], phases[1]: data.segment_len=12 is too short" in str(raised.value)


def test_keys_that_no_phase_uses_need_not_fit_each_other():
    values = configs.default().to_dict()
    values["data"]["reuse_len"] = 510  # no room for B with the length of the whole run
    values["phases"] = ({"steps": 90_000, "data": {"segment_len": 600}},)
    assert configs.from_dict(values).parts[0].data.segment_len == 600


def test_steps_that_a_file_inherits_are_left_out_beside_phases_with_a_line(tmp_path, caplog):
    """A file cannot take back the value of another one that it starts from."""
    (tmp_path / "base.py").write_text(
        "from xlnet_jax.config import default\n\ndef get_config():\n    config = default()\n"
        "    config.train.steps = 1234\n    return config\n"
    )
    (tmp_path / "phased.py").write_text(
        "from xlnet_jax.config import start_from\n\n"
        "def get_config():\n"
        "    config = start_from(__file__, 'base.py')\n"
        "    with config.unlocked():\n"
        "        config.phases = (dict(steps=90_000), dict(steps=7))\n"
        "    return config\n"
    )
    assert configs.load(str(tmp_path / "phased.py")).train.steps == 90_007
    assert "train.steps=1234 is not used: the phases have 90007" in caplog.text


def test_an_override_names_a_phase_and_steps_are_their_sum():
    values = configs.default()
    values.phases = ({"steps": 50_000}, {"steps": 4, "data": {"segment_len": 600}})
    config = configs.from_dict(
        values.to_dict(), ["--config.phases[1].steps=7", "--config.phases[0].data.num_predict=9"]
    )
    assert config.train.steps == 50_007 and config.ends == [50_000, 50_007]
    assert [config.parts[n].data.num_predict for n in (0, 1)] == [9, 85]
    for word, line in (
        ("--config.train.steps=9", "train.steps=9 beside phases, which have 50004 steps together"),
        ("--config.phases[2].steps=9", "the configuration has 2 phases, counted from 0"),
        ("--config.phases[1].data.segmentlen=9", "no config key 'data.segmentlen'"),
        ("--config.phases[1]=9", "the configuration has 2 phases, counted from 0; write a key"),
        (f"--config.phases[{'9' * 5000}].steps=9", "the configuration has 2 phases"),
        ("--config.phases[0].steps=0", "phases[0] must be a dict with `steps`"),
    ):
        with pytest.raises(BadInput, match=line.replace("[", r"\[")):
            configs.from_dict(values.to_dict(), [word])


def test_an_override_leaves_a_dictionary_that_phases_share(tmp_path):
    (tmp_path / "twice.py").write_text(
        "from xlnet_jax import config as base\n\n"
        "def get_config():\n"
        "    config = base.default()\n"
        "    config.optimizer.warmup_steps = 0\n"
        "    config.phases = (dict(steps=50_000, data=dict(segment_len=600)),) * 2\n"
        "    return config\n"
    )
    words = ["--config.phases[0].steps=7", "--config.phases[0].data.num_predict=9"]
    config = configs.load(str(tmp_path / "twice.py"), words)
    assert config.ends == [7, 50_007] and [config.parts[n].data.num_predict for n in (0, 1)] == [
        9,
        85,
    ]


def started(config):
    """What a first start would write of it."""
    return workdirs.identity(keep_shuffle(config, None, "run"), "a", "b", config.phases)


def test_a_later_phase_leaves_the_shuffle_of_the_run_as_it_was():
    def phases(*lengths):
        every = tuple(
            {"steps": 90_000, "data": {"windows_per_block": windows}} for windows in lengths
        )
        return configs.from_dict({"phases": every})

    run = started(phases(2, 4))
    assert run["config"]["data.shuffle_len"] == 4 * 256
    for later in (phases(2, 4, 1), phases(2, 2), phases(2)):
        assert keep_shuffle(later, run, "run").parts[0].data.shuffle_len == 4 * 256
    with pytest.raises(BadInput, match="shuffle_len=1024, .* later need a multiple of 3072"):
        keep_shuffle(phases(2, 4, 3), run, "run")
    plain = started(configs.from_dict({}))
    # Blocks of as many tokens as in the run.
    fitting = {"segment_len": 256, "reuse_len": 128, "num_predict": 21, "windows_per_block": 16}
    config = configs.from_dict({"phases": ({"steps": 90_000}, {"steps": 4, "data": fitting})})
    assert keep_shuffle(config, plain, "run").parts[1].data.shuffle_len == 0
    with pytest.raises(BadInput, match="shuffle_len=0, .* new run with data.shuffle_len=4096"):
        keep_shuffle(phases(8, 16), plain, "run")


def test_phases_with_parameters_that_the_run_lacks_are_refused_by_name():
    built = SimpleNamespace(abstract_state=SimpleNamespace(params={"a": 1, "b": {"c": 2}}))
    check_parameters(
        built, {"checksums": {"params/a": "", "params/b/c": "", "memory/x": ""}}, "run/4"
    )
    for names, line in (
        ("a", "run/4: params/b/c is not in the checkpoint, but phases need it now"),
        ("a b/c d", "run/4: params/d is in the checkpoint, but no phase needs it now"),
    ):
        with pytest.raises(BadInput, match=line):
            check_parameters(
                built, {"checksums": {f"params/{name}": "" for name in names.split()}}, "run/4"
            )


@pytest.mark.slow
def test_phases_that_are_over_must_stay(whole, pytestconfig):
    other = ({"steps": 6}, *PHASES[1:])
    with pytest.raises(BadInput, match="a phase that is over must not change"):
        train(settings(pytestconfig, other), str(whole))


@pytest.mark.slow
def test_inspect_takes_the_phase_of_a_step_of_a_run(whole):
    """Would fail with the phase of the newest checkpoint, or its plan from step 0 on."""
    shown = [inspect(None, str(whole), step, 0, None, False, []) for step in (3, 4, 8)]
    assert shown == [example(workdirs.load_config(str(whole)), step, 0) for step in (3, 4, 8)]
    assert [each["objective"] for each in shown] == ["plm", "clm", "mlm"]
    count = [inspect(None, str(whole), step, 0, None, True, [])["tensors"] for step in (3, 4)]
    assert count[0] - count[1] == 3, "the mask, and two of segments"


@pytest.mark.slow
def test_an_export_for_orbax_is_the_phase_of_its_step_and_no_run(whole, tmp_path):
    export(str(whole), str(tmp_path / "out"), format="orbax", step=8)
    config = workdirs.load_config(str(tmp_path / "out"))
    assert config.data.objective == "clm" and config.model.memory_len == 16 and not config.phases
    assert import_(str(tmp_path / "out"), str(tmp_path / "again"))["arrays"] == 17
    assert workdirs.load_config(str(tmp_path / "again")).data.objective == "clm"
    for options, told in (
        ({"every": True}, "step 6: .* sees both sides.*; export other steps one by one"),
        ({"average": 5}, r"steps 6 to 14 have different objectives \(clm, mlm\)"),
    ):
        with pytest.raises(BadInput, match=told):
            export(str(whole), str(tmp_path / "none"), **options)
        assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_phases_that_have_not_begun_may_change_but_bring_no_parameters(
    whole, tmp_path, pytestconfig
):
    shutil.copytree(whole, tmp_path / "longer")
    for step in (8, 10, 12, 14):
        shutil.rmtree(tmp_path / "longer" / "checkpoints" / str(step))
    later = (*PHASES[:2], PHASES[2] | {"steps": 2}, {"steps": 2})
    train(settings(pytestconfig, later), str(tmp_path / "longer"))
    lines = shared.steps(tmp_path / "longer")
    assert lines[:6] == shared.steps(whole)[:6] and len(lines) == 12
    # Two streams after one, with blocks that divide the same shuffle.
    one, two = (
        settings(pytestconfig, (PHASES[1], PHASES[0])[:n]).changed(data={"shuffle_len": 128})
        for n in (1, 2)
    )
    train(one, str(tmp_path / "clm"))
    with pytest.raises(
        BadInput, match="segment_bias is not in the checkpoint, but phases need it now"
    ):
        train(two, str(tmp_path / "clm"))
