"""A decay branch: the bits of a run that was configured so from the start, a parent untouched, what
is refused.
"""

import dataclasses
import json
import logging
import os
import re
import shutil

import pytest
import shared
import tiny

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.train import train
from xlnet_jax.errors import BadInput
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.branch import Origin, origin_of, rate_left

FALLS = 6
"""The step at which the branch leaves its parent, and at which its rate begins to fall."""


def settings(pytestconfig, steps=100, phases=(), **changes):
    """Constant until `FALLS` if there are ten steps, and for long if there are a hundred."""
    optimizer = {"schedule": "wsd", "decay_fraction": 0.4, "learning_rate": 1e-2} | changes.pop(
        "optimizer", {}
    )
    checkpoint = {"every": 2, "keep": 9} | changes.pop("checkpoint", {})
    config = shared.settings(
        pytestconfig, train={"steps": steps}, optimizer=optimizer, checkpoint=checkpoint, **changes
    )
    config = dataclasses.replace(config, phases=phases)
    configs.check(config)
    return config


def record(workdir, step):
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.record(step)


def saved_steps(workdir):
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.steps()


def contents(folder):
    """Of every file its bytes and the time of its last change."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)
            with open(file, "rb") as stream:
                found[file] = (stream.read(), os.stat(file).st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def parent(tmp_path_factory, pytestconfig):
    """A run of a hundred steps, stopped at the eighth."""
    workdir = tmp_path_factory.mktemp("parent")
    train(settings(pytestconfig), str(workdir), stop_at=8)
    return workdir


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pytestconfig):
    """The run of ten steps with a decay from the sixth on, from its start."""
    workdir = tmp_path_factory.mktemp("whole")
    train(settings(pytestconfig, 10), str(workdir))
    return workdir


def assert_same_end(branch, whole):
    """The same lines after the branch, plan, and bits of the whole state."""
    lines = shared.steps(branch)
    assert lines == shared.steps(whole)[FALLS:] and len(lines) == 4
    mine, theirs = record(branch, 10), record(whole, 10)
    assert mine["plan"] == theirs["plan"] and len(mine["checksums"]) > 40
    assert mine["checksums"] == theirs["checksums"]


def test_a_branch_has_the_bits_of_a_run_that_was_configured_so_from_its_start(
    parent, whole, tmp_path, pytestconfig
):
    """Would fail if it lost memory, moments, counters or its place in the text, wrote to its
    parent, or needed it.
    """
    before, config, branch = contents(parent), settings(pytestconfig, 10), tmp_path / "decayed"
    moved, origin = tmp_path / "moved", f"{parent}@{FALLS}"
    train(config, str(branch), branch=origin, stop_at=8)
    assert contents(parent) == before and len(before) > 10
    assert saved_steps(branch) == [8, FALLS]
    assert record(branch, FALLS)["checksums"] == record(parent, FALLS)["checksums"]
    shutil.rmtree(branch / "checkpoints" / "8")
    os.rename(parent, moved)
    try:
        train(config, str(branch), branch=origin)
    finally:
        os.rename(moved, parent)
    assert_same_end(branch, whole)
    starts = [(line["step"], line.get("branch")) for line in read_jsonl(str(branch / "runs.jsonl"))]
    assert starts == [(FALLS, origin), (FALLS, None)]
    assert json.loads((branch / "config.json").read_text())["branch"] == origin


def test_a_branch_that_was_killed_before_it_saved_starts_there_again(
    parent, tmp_path, pytestconfig
):
    """Without the option, with the same one, or with its folder; not from another checkpoint, and
    not at step 0.
    """
    config, workdir, origin = settings(pytestconfig), str(tmp_path), Origin(str(parent), FALLS)
    written = json.loads((parent / "config.json").read_text())
    for given in (None, str(origin), str(parent)):
        (tmp_path / "config.json").write_text(json.dumps(written | {"branch": str(origin)}))
        assert origin_of(config, workdir, given) == origin
    for other in (f"{parent}@4", workdir):
        with pytest.raises(BadInput, match=f"--branch={other}: .* is a branch of {origin}; leave"):
            origin_of(config, workdir, other)
    (tmp_path / "config.json").write_text(json.dumps(written | {"branch": 6}))
    with pytest.raises(BadInput, match="config.json: branch is 6 and must be a string"):
        origin_of(config, workdir, None)
    with pytest.raises(BadInput, match="is no branch; leave it out, or give another --workdir"):
        origin_of(config, str(parent), str(origin))


@pytest.mark.slow
def test_a_branch_with_a_phase_of_another_batch_has_one_more_entry_in_its_plan(
    parent, tmp_path, pytestconfig
):
    """The same bits as phases from the start."""
    phases = ({"steps": FALLS}, {"steps": 4, "train": {"batch_size": 16}})
    config, branch, whole = (
        settings(pytestconfig, 10, phases),
        tmp_path / "decayed",
        tmp_path / "whole",
    )
    train(config, str(branch), branch=f"{parent}@{FALLS}")
    train(config, str(whole))
    assert_same_end(branch, whole)
    assert len(record(branch, 10)["plan"]) == 1 + len(record(parent, 8)["plan"])


@pytest.mark.parametrize(
    ("origin", "changes", "line"),
    [
        ("{whole}", {}, r"{whole}@10: .* from 0.01 to 0.0025 \(optimizer.schedule=wsd\)"),
        ("{parent}@5", {}, "no checkpoint of step 5; there are 2, 4, 6, 8"),
        ("/nowhere@6", {}, "/nowhere has no config.json"),
        ("{parent}@6", {"seeds": {"data": 7}}, "other frozen keys: seeds.data: 1 -> 7"),
        ("{parent}@6", {"checkpoint": {"init_from": "run"}}, "init_from=run must be empty"),
        ("{parent}@6", {"steps": 6}, "{parent}@6: train.steps=6 leaves no step to train"),
    ],
)
def test_what_cannot_be_branched_is_one_line_and_leaves_no_run(
    parent, whole, tmp_path, pytestconfig, origin, changes, line
):
    folders, workdir = {"parent": parent, "whole": whole}, tmp_path / "new"
    config = settings(pytestconfig, **{"steps": 20} | changes)
    with pytest.raises(BadInput, match=line.format(**folders)) as raised:
        train(config, str(workdir), branch=origin.format(**folders))
    assert "\n" not in str(raised.value) and not (workdir / "config.json").exists()


def test_a_dry_run_of_a_branch_says_where_it_would_start_and_writes_nothing(
    parent, tmp_path, pytestconfig, caplog
):
    before = contents(parent)
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        found = train(
            settings(pytestconfig, 10),
            str(tmp_path / "new"),
            branch=f"{parent}@{FALLS}",
            dry_run=True,
        )
    assert found["step"] == FALLS and f"dry run: it would start at step {FALLS}" in caplog.text
    assert contents(parent) == before and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("steps", "rate", "warned"),
    [
        (20, 1e-2, True),
        pytest.param(20, 1e-3, False, marks=pytest.mark.slow),
        (10, 1e-2, False),
    ],
    ids=["rises", "falls", "ends"],
)
def test_a_finished_run_that_is_extended_is_warned_of_its_rate(
    whole, pytestconfig, caplog, steps, rate, warned
):
    """The warning compares the rates of the last update and of the next update, if any."""
    train(settings(pytestconfig, steps, optimizer={"learning_rate": rate}), str(whole), stop_at=10)
    assert ("the learning rate rises" in caplog.text) == warned
    if warned:
        said = f"from 0.0025, .* step 10 of train.steps=10, to 0.01 .* --branch={whole}@STEP"
        assert re.search(said, caplog.text)


@pytest.mark.parametrize(
    ("optimizer", "constant"),
    [
        # Warm-up to step 2; of forty steps the last sixteen fall. The update at their first step
        # has the whole rate.
        ({"schedule": "wsd", "decay_fraction": 0.4}, range(41)[:26]),
        ({"schedule": "polynomial"}, range(41)[:4]),
        ({"schedule": "cosine", "min_lr_ratio": 1.0}, range(41)),
        ({"schedule": "inverse_sqrt"}, range(41)),
    ],
)
def test_a_rate_has_decayed_from_the_first_update_that_was_lower_because_the_end_comes_nearer(
    optimizer, constant
):
    config = tiny.config(optimizer=optimizer)
    assert [n for n in range(41) if rate_left(config, n) is None] == [*constant]
