"""Training runs in this process: work directory, resume rules, evaluation, divergence, the end."""

import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import sys

import data_fixtures
import documented
import jax
import numpy as np
import pytest
import shared
import tiny
from shared import settings as config

import xlnet_jax
from xlnet_jax.aot import compile
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import show, train
from xlnet_jax.data.batches import examples, loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput, Diverged
from xlnet_jax.model import choice
from xlnet_jax.run import progress
from xlnet_jax.run.metrics import SAMPLES, read_jsonl
from xlnet_jax.run.programs import kept_for_absent_devices
from xlnet_jax.run.watchdog import Watchdog
from xlnet_jax.storage import files
from xlnet_jax.train import evaluation
from xlnet_jax.train.recipe import make_recipe

KEYS = {"heldout_loss", "heldout_share", "unigram_cross_entropy", "picture"}
"""What only the end of a run has."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory, pytestconfig):
    """A run of eight steps with an evaluation every four."""
    workdir = str(tmp_path_factory.mktemp("run"))
    scored = {"every": 4, "blocks": 8, "final": True}
    settings = config(pytestconfig, evaluation=scored, log={"tensorboard": True})
    return workdir, settings, train(settings, workdir, stop_at=8)


def test_a_run_leaves_metrics_evaluations_manifest_and_events(finished):
    workdir, settings, result = finished
    lines = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, 9))
    for line in lines:
        assert line["targets"] == 8 * 6 and line["grad_norm"] > 0 and line["tokens_per_second"] > 0
        assert line["mfu"] is None, "no peak is published for this processor"
    of_part = {"step", "loss", "tokens_per_second", "workdir", "seconds", "goodput"}
    assert result.keys() == of_part | KEYS
    assert (result["step"], result["loss"], result["workdir"]) == (8, lines[-1]["loss"], workdir)
    assert {result[key] for key in KEYS} == {None}, "it has not ended"
    assert not os.path.exists(os.path.join(workdir, progress.PICTURE))
    rates = {line["tokens_per_second"] for line in lines}
    assert min(rates) <= result["tokens_per_second"] <= max(rates)
    evaluations = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    assert [line["step"] for line in evaluations] == [4, 8]
    for line in evaluations:
        # The text is nearly uniform over its pieces' own frequencies: a barely trained model lies
        # near the unigram.
        assert abs(line["heldout_loss"] - line["unigram_cross_entropy"]) < 1.5
    (start,) = read_jsonl(os.path.join(workdir, "runs.jsonl"))
    assert start["step"] == 0 and start["packages"]["jax"] == jax.__version__ and start["cores"]
    assert start["attention"] == "cpu", "there is no kernel for CPUs"
    with open(os.path.join(workdir, "config.json"), encoding="utf-8") as file:
        assert json.load(file)["config"]["train.batch_size"] == settings.train.batch_size
    assert any("events" in name for name in os.listdir(os.path.join(workdir, "tensorboard")))
    assert sorted(os.listdir(os.path.join(workdir, "checkpoints"))) == ["4", "8"]


def test_every_file_of_a_run_has_its_line_in_the_documentation(finished):
    workdir, *_ = finished
    files = [name + "/" * os.path.isdir(f"{workdir}/{name}") for name in os.listdir(workdir)]
    known = documented.names("Work directory")
    assert len(files) > 6 and [file for file in files if not re.fullmatch(known, file)] == []
    for line in read_jsonl(f"{workdir}/runs.jsonl"):
        keys = [key for key in line if not re.fullmatch(documented.names("runs.jsonl"), key)]
        assert not keys


def held_out(pytestconfig, **changes):
    return config(pytestconfig, evaluation={"every": 4, "blocks": 8}, **changes)


def test_samples_show_what_each_evaluation_fills_and_change_no_bit(
    finished, tmp_path, pytestconfig
):
    """Would fail if a sample drew from the keys of training, or were read from other text at
    another step.
    """
    untouched, *_ = finished
    sampled = held_out(pytestconfig, log={"samples": 3, "tensorboard": True})
    train(sampled, str(tmp_path), stop_at=4)
    train(sampled, str(tmp_path), stop_at=8)
    assert shared.steps(tmp_path) == shared.steps(untouched) and not os.path.exists(
        f"{untouched}/{SAMPLES}"
    )
    mine, theirs = (Checkpoints(each).record(8)["checksums"] for each in (str(tmp_path), untouched))
    assert mine == theirs and len(mine) > 20
    lines = read_jsonl(str(tmp_path / SAMPLES))
    assert [line["step"] for line in lines] == [4, 8] and {
        len(line["samples"]) for line in lines
    } == {3}
    for first, second in zip(*(line["samples"] for line in lines), strict=True):
        assert (first["parts"], first["truth"]) == (second["parts"], second["truth"])
        assert (
            len(first["parts"]) == len(first["filled"]) + 1 >= 2
            and first["filled"] != first["truth"]
        )
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert b"heldout/samples/text_summary" in events and b"truth: " in events
    log = {"samples": 1, "compilation_cache": "none"}
    changes = {"data": {"objective": "clm", "reuse_len": 32, "num_predict": 32}}
    with pytest.raises(
        BadInput, match="log.samples=1: this run is left-to-right .* cannot fill a gap"
    ):
        train(held_out(pytestconfig, log=log, **changes), str(tmp_path / "clm"))
    assert not (tmp_path / "clm").exists()
    with pytest.raises(BadInput, match=r"log.samples=1 needs evaluations; set evaluation.every"):
        config(pytestconfig, log={"samples": 1})
    with pytest.raises(
        BadInput, match=r"log.samples=1 is for pretraining; use 0 with finetune.task=classification"
    ):
        held_out(pytestconfig, log={"samples": 1}, finetune={"task": "classification"})


@pytest.mark.slow
def test_a_run_starts_from_a_program_that_was_compiled_ahead(
    finished, tmp_path, pytestconfig, caplog
):
    """As `compile` does it. Fails if the two lower different modules, or if the path of the folder
    is in the key.
    """
    caplog.set_level("INFO", "xlnet_jax")
    untouched, *_ = finished
    ahead, moved = (
        config(pytestconfig, log={"compilation_cache": str(tmp_path / "ahead")}),
        str(tmp_path / "moved"),
    )
    with kept_for_absent_devices(ahead):
        compile.lower(
            make_recipe(choice.resolve_attention(ahead, Session())), make_mesh(ahead.mesh)
        )[1].compile()
    os.rename(tmp_path / "ahead", moved)
    train(config(pytestconfig, log={"compilation_cache": moved}), str(tmp_path / "run"), stop_at=4)
    assert (
        "compilation cache: hit" in caplog.text
        and shared.steps(tmp_path / "run") == shared.steps(untouched)[:4]
    )


def test_other_frozen_keys_are_refused_and_nothing_is_overwritten(finished, pytestconfig):
    workdir, *_ = finished
    before = {name: os.path.getmtime(os.path.join(workdir, name)) for name in os.listdir(workdir)}
    with pytest.raises(
        BadInput, match=r"frozen keys: .*model.dropout: 0.1 -> 0.2; .*seeds.data: 1 -> 9.*; restore"
    ):
        train(config(pytestconfig, model={"dropout": 0.2}, seeds={"data": 9}), workdir)
    assert before == {
        name: os.path.getmtime(os.path.join(workdir, name)) for name in os.listdir(workdir)
    }


@pytest.mark.slow
def test_the_batch_size_may_change_the_memory_is_then_emptied_and_no_block_read_twice(
    tmp_path, pytestconfig, caplog
):
    workdir = str(tmp_path)
    train(config(pytestconfig), workdir, stop_at=4)
    with caplog.at_level("INFO", "xlnet_jax"):
        train(config(pytestconfig, train={"batch_size": 16}), workdir, stop_at=6)
    assert caplog.text.count("resuming with another elastic key: train.batch_size: 8 -> 16") == 1
    assert "batch size 8 -> 16 at step 4: memory emptied" in caplog.text
    with Checkpoints(workdir) as checkpoints:
        assert checkpoints.record(6)["plan"] == [[0, 0, 8], [4, 8, 16]]
    lines = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    assert [line["targets"] for line in lines] == [48] * 4 + [96] * 2


@pytest.mark.slow
def test_a_run_goes_on_with_three_of_four_slices_and_back_as_if_untouched(
    tmp_path, pytestconfig, monkeypatch
):
    """Eight rows on three devices are nine. Catches another order of the data, a lost memory, and a
    loss over nine.
    """

    def run(workdir, slices, stop):
        monkeypatch.setattr(
            "xlnet_jax.distributed.mesh.available_devices", lambda: jax.devices()[:slices]
        )
        settings = config(
            pytestconfig,
            mesh={"slices": slices},
            train={"elastic": True},
            checkpoint={"every": 2},
            evaluation={"every": 2, "blocks": 8},
        )
        return train(settings, workdir, stop_at=stop)

    untouched, changed = str(tmp_path / "untouched"), str(tmp_path / "changed")
    run(untouched, 4, 6)
    for slices, stop in ((4, 2), (3, 4), (4, 6)):
        run(changed, slices, stop)
    lines = shared.steps(changed)
    assert lines == [pytest.approx(line, rel=1e-5) for line in shared.steps(untouched)]
    assert [line["targets"] for line in lines] == [48] * 6
    one, other = (dict(shared.scores(workdir)) for workdir in (untouched, changed))
    assert other == pytest.approx(one, rel=1e-5) and [*other] == [2, 4, 6]
    with Checkpoints(changed) as checkpoints:
        record = checkpoints.record(6)
    assert record["plan"] == [[0, 0, 8]] and record["rebuilt"] == []


@pytest.mark.parametrize("stop_at", [10, 8], ids=["training goes on", "training was done"])
def test_an_evaluation_cut_off_by_a_stop_is_made_at_the_next_start(
    finished, tmp_path, stop_at, monkeypatch
):
    compilations, suspended = [], Watchdog.suspended
    monkeypatch.setattr(
        Watchdog, "suspended", lambda self: compilations.append(1) or suspended(self)
    )
    untouched, settings, result = finished
    workdir = shutil.copytree(untouched, str(tmp_path / "run"))
    path = os.path.join(workdir, "evaluations.jsonl")
    lines = read_jsonl(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(lines[0]) + "\n")
    again = train(settings, workdir, stop_at=stop_at)
    redone = read_jsonl(path)
    assert [line["step"] for line in redone] == [4, 8]
    assert redone[1]["heldout_loss"] == lines[1]["heldout_loss"]
    # Of the evaluation, which the watchdog must not end, and of the step.
    assert len(compilations) == 1 + (stop_at == 10)
    if stop_at == 8:
        assert (again["step"], again["loss"]) == (8, result["loss"])


@pytest.mark.parametrize(
    ("model", "where", "line"),
    [
        ({}, "/elsewhere", "checkpoint.init_from=.*/elsewhere.*"),
        ({}, "/checkpoints/9", "checkpoint.init_from=.*no checkpoint of step 9; there are 3"),
        ({"d_ff": 48}, "", r"step 3\): .* in the checkpoint, not .*; set the same `model` keys"),
    ],
)
def test_a_dry_run_looks_at_the_parameters_that_a_run_would_start_with(
    tmp_path, pytestconfig, model, where, line
):
    source, settings = str(tmp_path / "source"), config(pytestconfig)
    other = settings.changed(model=model)
    tiny.save_run(source, other, tiny.random_params(other))
    asked = settings.changed(checkpoint={"init_from": source + where})
    with pytest.raises(BadInput, match=line):
        train(asked, str(tmp_path / "new"), dry_run=True)


def test_a_dry_run_says_what_a_run_would_start_with_and_writes_nothing(
    tmp_path, pytestconfig, caplog
):
    source, settings = str(tmp_path / "source"), config(pytestconfig)
    tiny.save_run(source, settings, tiny.random_params(settings))
    asked, workdir = settings.changed(checkpoint={"init_from": source}), tmp_path / "new"
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        result = train(asked, str(workdir), dry_run=True)
    assert f"starting with the parameters of step 3 of {source}" in caplog.text
    assert result["parameters"] > 0 and not workdir.exists()


def test_a_checkpoint_has_the_theta_of_its_phase(tmp_path, pytestconfig, caplog):
    """Of the keys that belong to parameters only the bases of rotary angles may change between
    phases.
    """
    sections = tiny.MEMBERS["modernbert"].usual(32)
    settings = config(pytestconfig, model=sections["model"], data=sections["data"])
    phases = ({"steps": 3, "model": {"theta": 2.0}}, {"steps": settings.train.steps - 3})
    source = str(tmp_path / "source")
    tiny.save_run(source, settings, tiny.random_params(settings), phases)
    assert xlnet_jax.load(source).config.model.theta == 2.0
    asked = settings.changed(checkpoint={"init_from": source})
    train(asked, str(tmp_path / "new"), dry_run=True)
    assert "give other outputs here: model.theta: 2.0 -> 160000.0\n" in caplog.text


def test_lasting_non_finite_steps_end_the_run_and_say_since_when(
    tmp_path, pytestconfig, monkeypatch, caplog
):
    build = examples.build

    def poisoned(builder):
        batch = build(builder)
        weights = batch.target_weights * (np.nan if builder.step >= 5 else 1)
        return dataclasses.replace(batch, target_weights=weights.astype(np.float32))

    def refused(self):
        pending = self._pending
        wait(self)
        if pending:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # The disk refuses the save in flight: that must not hide that the run has diverged.
    wait = Checkpoints.wait
    monkeypatch.setattr(Checkpoints, "wait", refused)
    monkeypatch.setattr(examples, "build", poisoned)
    settings = config(pytestconfig, train={"max_bad_steps": 3})
    with pytest.raises(
        Diverged, match="step 8: 3 non-finite steps in a row, the first at step 6"
    ) as raised:
        train(settings, str(tmp_path))
    assert (
        raised.value.exit_code == 3 and "the checkpoint of step 4 is not complete: " in caplog.text
    )
    lines = read_jsonl(os.path.join(tmp_path, "metrics.jsonl"))
    assert [line["skipped"] for line in lines] == [0] * 5 + [1, 2, 3]
    assert lines[-1]["loss"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"vocab_size": 300}}, "tokenizer of .*; set --config.model.vocab_size=200"),
        ({"train": {"batch_size": 100_000}}, "too few for train.batch_size=100000"),
        ({"model": {"compute_dtype": "float64"}}, "needs 64-bit JAX; .* JAX_ENABLE_X64=1"),
    ],
)
def test_what_does_not_fit_is_said_before_a_device_is_used_or_anything_is_written(
    tmp_path, pytestconfig, changes, message, monkeypatch
):
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("a device is used"))
    workdir = os.path.join(tmp_path, "new")
    with pytest.raises(BadInput, match=message):
        train(config(pytestconfig, **changes), workdir)
    assert not os.path.exists(workdir)


def test_evaluation_does_not_depend_on_batch_size_or_devices(finished, monkeypatch):
    """A batch has at most the blocks, rounded up to the devices: empty rows would fill memory."""
    workdir, *_ = finished
    built = []

    def dispatches(mixture, config, reading, batch_size, rows, real=loader.HeldoutDispatches):
        built.append((batch_size, len(reading.rows_S3)))
        return real(mixture, config, reading, batch_size, rows)

    monkeypatch.setattr(loader, "HeldoutDispatches", dispatches)
    eight = evaluate(workdir, batch_size=8, overrides=["--config.mesh.data=8"])
    four = evaluate(
        workdir, batch_size=4096, overrides=["--config.mesh.data=4", "--config.mesh.fsdp=2"]
    )
    assert four == pytest.approx(eight, rel=1e-6) and eight["targets"] > 0 and eight["step"] == 8
    assert eight["heldout_loss"] != eight["loss_without_memory"], "the memory has no effect"
    assert built and all(rows < blocks + 8 for rows, blocks in built)
    other = evaluate(workdir, step=4, overrides=["--config.mesh.data=8"])
    assert other["step"] == 4 and other["heldout_loss"] != eight["heldout_loss"]


@pytest.fixture(scope="session")
def other_corpus(tmp_path_factory):
    """The same tokenizer, other splits."""
    path = str(tmp_path_factory.mktemp("other") / "corpus")
    data_fixtures.make_corpus(path, heldout=0.4)
    return path


def test_another_corpus_is_refused_on_resume_and_noted_in_evaluation(
    finished, pytestconfig, other_corpus, caplog
):
    workdir, *_ = finished
    with pytest.raises(BadInput, match="other frozen keys: corpus: [0-9a-f]{12} -> [0-9a-f]{12}"):
        train(config(pytestconfig, data={"corpus": other_corpus}), workdir)
    result = evaluate(workdir, overrides=[f"--config.data.corpus={other_corpus}"])
    assert result["targets"] > 0 and "is another corpus than the one that" in caplog.text
    with pytest.raises(BadInput, match="was trained with other frozen keys: seeds.data: 1 -> 7"):
        evaluate(workdir, overrides=["--config.seeds.data=7"])


def test_a_work_directory_holds_one_training_at_a_time(finished, pytestconfig):
    workdir, settings, _ = finished
    with (
        files.locked(workdir, "the test holds it"),
        pytest.raises(BadInput, match="another training runs here"),
    ):
        train(settings, workdir)


def test_evaluation_of_nothing_is_refused(tmp_path, finished):
    with pytest.raises(BadInput, match="no config.json; give the --workdir of a training run"):
        evaluate(str(tmp_path))
    with pytest.raises(BadInput, match="no checkpoint of step 7; there are 4, 8"):
        evaluate(finished[0], step=7, overrides=["--config.mesh.data=8"])
    for name in ("memory_len", "segment_len", "streams"):
        with pytest.raises(
            BadInput, match=f"--{name} is for models of data.objective=clm, .*=plm; leave it out"
        ):
            evaluate(finished[0], **{name: 4})


# The end of a run: the held-out loss, its unigram baseline and the picture, made once whatever
# happens.


@pytest.fixture
def settings(pytestconfig):
    """Two steps, a grace too short for a save, and at the end an evaluation of one batch."""
    return config(
        pytestconfig,
        train={"steps": 2},
        optimizer={"warmup_steps": 1},
        evaluation={"final": True, "blocks": 8},
        checkpoint={"grace_seconds": 1e-4},
    )


def test_the_end_of_a_run_is_made_once_and_what_is_missing_is_made_again(
    tmp_path, settings, caplog, capsys, monkeypatch
):
    pytest.importorskip("matplotlib")
    workdir = str(tmp_path)
    with caplog.at_level(logging.INFO, "xlnet_jax"), monkeypatch.context() as patch:
        patch.setattr(evaluation, "BUSY_SECONDS", 0.0)
        result = train(settings, workdir)
        scores = evaluate(workdir, blocks=8)
    assert caplog.text.count("take longer than checkpoint.grace_seconds=0.0001") == 1
    # A part of the split must not pass for all of it, and minutes must not pass in silence.
    shown = re.search(r"step 2: held-out loss \d.* over 8 of (\d+) blocks, evenly", caplog.text)
    assert "evaluating step 2 over 8 of" in caplog.text and "evaluated 0 of 1 batch" in caplog.text
    # The same keys and values, wherever the loss of a checkpoint is.
    (line,) = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    assert scores == {name: value for name, value in line.items() if name != "seconds"}
    assert scores["step"] == 2
    assert all(result[name] == scores[name] for name in KEYS - {"picture"})
    assert shown and scores["heldout_share"] == 8 / int(shown[1]) < 1 and scores["targets"] > 0
    show(result)
    share = f"{scores['heldout_share']:.3g}, evenly spread; `xlnet-jax evaluate`"
    assert share in capsys.readouterr().out
    assert result["picture"] == os.path.join(workdir, progress.PICTURE)
    with open(result["picture"], "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    written = {name: os.path.getmtime(os.path.join(workdir, name)) for name in os.listdir(workdir)}
    again = train(settings, workdir)
    assert all(again[key] == result[key] for key in KEYS | {"step", "loss"})
    assert written == {name: os.path.getmtime(os.path.join(workdir, name)) for name in written}

    os.remove(result["picture"])
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "xlnet_jax"):
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert progress.draw_losses(workdir, scores["heldout_loss"], None) is None
    assert caplog.text.count("--editable '.[quickstart]'") == 1
    assert os.path.exists(train(settings, workdir)["picture"])


@pytest.mark.slow
def test_text_without_held_out_documents_is_trained_on_with_one_line(tmp_path, settings, caplog):
    corpus = str(tmp_path / "corpus")
    data_fixtures.make_corpus(corpus, heldout=0.0)
    settings = settings.changed(data={"corpus": corpus})
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        result = train(settings, str(tmp_path / "run"))
    assert result["heldout_loss"] is result["unigram_cross_entropy"] is None
    assert result["picture"] or "matplotlib" in caplog.text
    assert sum("no held-out" in record.getMessage() for record in caplog.records) == 1
    # Nor is a split too short for an example.
    long = settings.changed(
        data={"corpus": data_fixtures.corpus_path(), "segment_len": 8192, "reuse_len": 4096}
    )
    assert evaluation.open_heldout(long, open_mixture(long)) is None
    assert "there will be no held-out loss: the heldout split" in caplog.text


@pytest.mark.parametrize(
    ("every", "final", "due", "blocks"),
    [(0, True, [2], 512), (0, False, [], 512), (1, True, [1, 2], 0), (1, False, [1, 2], 0)],
)
def test_when_an_evaluation_is_due_and_how_long_it_may_be(settings, every, final, due, blocks):
    settings = settings.changed(evaluation={"every": every, "final": final, "blocks": 0})
    assert [step for step in range(3) if evaluation.due(settings, step)] == due
    assert evaluation.blocks_of(settings) == blocks
    assert evaluation.blocks_of(settings.changed(evaluation={"blocks": 5})) == 5
