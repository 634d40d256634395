"""`pretrain(batches=...)`: a run that crashes and resumes ends as one that never stopped; iterators
that could not be resumed are refused.
"""

import dataclasses
from types import SimpleNamespace

import grain
import jax
import numpy as np
import pytest
import shared
import tiny

from xlnet_jax.commands.train import train
from xlnet_jax.data.batches.loader import TrainDispatches
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.errors import BadInput
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import own_batches


class Squares:
    """Batch n is the corpus's batch of step n * n, so the text is not that of the run."""

    def __init__(self, config, crash=-1):
        plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
        rows = np.arange(config.train.batch_size)
        self.made = TrainDispatches(open_mixture(config), config, plan, rows, 0, 10**4)
        self.number, self.crash = 0, crash

    def __next__(self):
        if self.number == self.crash:
            raise RuntimeError("a crash")
        self.number += 1
        return self.made.batch(self.number**2)

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def test_a_run_that_crashes_within_a_dispatch_and_resumes_ends_as_if_it_had_not(
    tmp_path, pytestconfig
):
    """The first of the two batches of a dispatch was taken when the run ended, and the newest
    checkpoint is older by a dispatch.
    """
    config = shared.settings(pytestconfig, train={"steps": 10})
    whole, parts, corpus = (str(tmp_path / name) for name in ("whole", "parts", "corpus"))
    train(config, whole, batches=Squares(config))
    with pytest.raises(RuntimeError, match="a crash"):
        train(config, parts, batches=Squares(config, crash=7))
    assert len(shared.steps(parts)) < 7
    with pytest.raises(BadInput, match=r"4: it was saved with xlnet_jax.pretrain\(batches=...\)"):
        train(config, parts)
    batches = Squares(config)
    train(config, parts, batches=batches)
    assert batches.number == 10
    assert shared.steps(parts) == shared.steps(whole) and len(shared.steps(whole)) == 10
    assert "epoch" not in read_jsonl(whole, "metrics.jsonl")[-1]
    train(config, corpus)
    assert shared.steps(corpus)[1]["loss"] != shared.steps(whole)[1]["loss"]
    with pytest.raises(BadInput, match="10: it was saved without xlnet_jax.pretrain"):
        train(config.changed(train={"steps": 12}), corpus, batches=Squares(config))


class Position:
    """A position of this kind, which `set_state` reaches only if it `arrives`."""

    def __init__(self, state, arrives=True):
        self.state, self.arrives = state, arrives

    def __next__(self):
        raise StopIteration

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state if self.arrives else self.state


def test_iterators_that_could_not_be_resumed_are_refused():
    config = tiny.config()
    own_batches.check_resumable(Position([1, {"a": None}]), config)
    with pytest.raises(BadInput, match="batches=generator has no get_state and no set_state, so"):
        own_batches.check_resumable((each for each in ()), config)
    with pytest.raises(BadInput, match="checkpoint.memory=rebuild reads earlier batches again"):
        rebuilt = config.changed(checkpoint={"memory": "rebuild"})
        own_batches.check_resumable(Position(0), rebuilt)
    for state in (b"bytes", {1: 2}, (1, 2), np.int32(3)):
        with pytest.raises(BadInput, match=r"batches=Position: get_state\(\) returns a .* JSON"):
            own_batches.check_resumable(Position(state), config)
    own_batches.set_position(moved := Position(0), {"batches": 5}, "run")
    assert moved.state == 5
    with pytest.raises(BadInput, match="after set_state, get_state returns another position"):
        own_batches.set_position(Position(0, arrives=False), {"batches": 5}, "run")


def test_batches_are_stacked_with_the_position_after_them_and_checked():
    """Of Grain's own iterator, whose elements are batches."""
    config = tiny.config()
    made = [tiny.batch(config, step) for step in range(6)]
    form = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), made[0])
    wanted = TrainDispatches(tiny.mixture(), config, (), np.array([1, 4]), 0, 6)
    built = SimpleNamespace(abstract_batch=form)

    def dispatches(items):
        batches = iter(grain.MapDataset.source(items).to_iter_dataset())
        own_batches.check_resumable(batches, config)
        return own_batches.source(batches, wanted, built)[0]

    taken = list(dispatches(made))
    assert [batch.tokens.shape for batch, _ in taken] == [(2, 2, 32)] * 3
    np.testing.assert_array_equal(taken[1][0].tokens[1], made[3].tokens[[1, 4]])
    again = iter(grain.MapDataset.source(made).to_iter_dataset())
    own_batches.set_position(again, {"batches": taken[1][1]}, "run")
    np.testing.assert_array_equal(next(again).tokens, made[4].tokens)
    with pytest.raises(BadInput, match="step 4: there are no more batches; set a smaller"):
        list(dispatches(made[:4]))
    wrong = dataclasses.replace(made[1], tokens=made[1].tokens[:, :31])
    with pytest.raises(BadInput, match=r"step 1: .*tokens int32\[8, 3.\] is not as xlnet_jax.bat"):
        list(dispatches([made[0], wrong]))
