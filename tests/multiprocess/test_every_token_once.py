"""An epoch of whole documents reads every token of every document once, in runs that are killed and
started again, on any number of hosts and with another batch size at every start.

Each character of the text is another one, so a token is one place of one document. What a step has
read is what lay on the devices when it began (`read` of `planted.py`).
"""

import itertools
import os
import pickle
import random
import signal
import sys
import time

import data_fixtures
import jax
import numpy as np
import pytest
import shared
from hosts import Hosts
from packed import text_read

from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.run.metrics import read_jsonl

DOCUMENTS, T, STEPS, EVERY = 110, 32, 60, 2
OPTIONS = {
    "model.memory_len": 0,
    "data.documents": "whole",
    "data.pairs": "none",
    "data.reuse_len": T,
    "data.num_predict": T,
    "data.windows_per_block": 1,
    "data.workers": 0,
    "train.steps": STEPS,
    "checkpoint.every": EVERY,
    # One killed before they have met leaves the others waiting.
    "distributed.rendezvous_seconds": 30,
}
OBJECTIVES = {
    "plm": {"data.factorization_order": "uniform"},
    "clm": {"data.objective": "clm"},
}


def corpus(folder):
    """Documents of 1 to 70 characters, of which a row holds 32."""
    characters = map(chr, itertools.count(ord("一")))
    lengths = np.minimum(np.random.default_rng(0).geometric(0.06, DOCUMENTS), 70)
    assert (lengths > T).any()
    lines = ["".join(itertools.islice(characters, n)) for n in lengths.tolist()]
    text = data_fixtures.write(folder, text="\n".join(lines))
    how = {"document": "line", "vocabulary": "characters", "heldout": 0, "tokenizer": None}
    data_fixtures.make_corpus(folder / "corpus", text, **how)
    return Corpus(str(folder / "corpus")), {*"".join(lines)}


def newest(workdir):
    """The step of the newest checkpoint that is complete; 0 without one."""
    folder = workdir / "checkpoints"
    names = os.listdir(folder) if folder.exists() else []
    return max([0, *(int(name) for name in names if name.isdecimal())])


def kill(hosts, workdir):
    """Kills a host at a random moment after it has saved."""
    after = newest(workdir) + random.randint(1, 4)
    shared.wait_until(lambda: newest(workdir) >= after, *hosts.processes.values())
    time.sleep(random.uniform(0, 0.3))
    victim = random.choice([*hosts.processes.values()])
    victim.send_signal(signal.SIGKILL)
    hosts.finish(42)
    assert victim.returncode == -signal.SIGKILL


def steps_read(folder):
    """{step: the Batch that it has read}. A killed start may have read further than the next one
    began; so the newest start that has read a step counts.
    """
    starts = {}
    for path in folder.glob("*/*.*"):
        if path.suffix != ".part":
            step, row = map(int, path.name.split("."))
            starts.setdefault(step, {}).setdefault(int(path.parent.name), {})[row] = path
    steps = {}
    for first in sorted(starts):
        rows = starts[first][max(starts[first])]
        parts = [pickle.loads(rows[row].read_bytes()) for row in sorted(rows)]
        ends = [*itertools.accumulate(part.tokens.shape[1] for part in parts)]
        assert sorted(rows) == [0, *ends[:-1]], "the rows of a host are missing"
        dispatch = jax.tree.map(lambda *hosts: np.concatenate(hosts, axis=1), *parts)
        for index in range(EVERY):
            steps[first + index] = jax.tree.map(lambda x, index=index: x[index], dispatch)
    return steps


def check_epochs(steps, every, pieces, causal):
    """Cuts the rows into epochs: a new one begins with the first character that was read before."""
    seen, ends = set(), []
    for step, batch in steps.items():
        for row in range(len(batch.tokens)):
            tokens = batch.target_tokens[row] if causal else text_read(batch, row)
            read = [pieces[token] for token in tokens if token >= 9]
            assert read and len({*read}) == len(read)
            if not seen.isdisjoint(read):
                assert seen == every, f"step {step} begins an epoch too early"
                seen = set()
                ends.append((step, row))
            seen.update(read)
    assert len(ends) > 1 and any(row for _, row in ends), "no epoch ends inside a step"


@pytest.mark.parametrize(
    ("hosts", "objective"),
    [
        pytest.param((3, 1), "plm", marks=pytest.mark.slow),
        *(
            pytest.param((count,) * 4, objective, marks=pytest.mark.prove)
            for count in (1, 2, 3)
            for objective in OBJECTIVES
        ),
    ],
    ids=lambda each: "".join(map(str, each)),
)
def test_every_token_is_read_once_in_an_epoch(tmp_path, pytestconfig, hosts, objective):
    text, every = corpus(tmp_path)
    workdir, cache, seed = tmp_path / "run", str(pytestconfig.cache.mkdir("xla")), time.time_ns()
    print(f"seed {seed}", file=sys.stderr)
    random.seed(seed)
    sizes = random.sample((6, 12, 18, 24), len(hosts))
    for start, (count, size) in enumerate(zip(hosts, sizes, strict=True)):
        (folder := tmp_path / "read" / str(start)).mkdir(parents=True)
        keys = OPTIONS | OBJECTIVES[objective] | {"train.batch_size": size}
        keys |= {"data.corpus": text.path, "model.vocab_size": len(text.tokenizer.pieces)}
        options = [f"--config.{name}={value}" for name, value in keys.items()]
        faults = f"read={folder},step_slow=0.1"
        started = Hosts("train", workdir, *options, count=count, cache=cache, faults=faults)
        if start + 1 == len(hosts):
            started.finish()
        else:
            kill(started, workdir)
    steps = steps_read(tmp_path / "read")
    lines = read_jsonl(str(workdir / "metrics.jsonl"))
    assert [*steps] == [line["step"] - 1 for line in lines] == [*range(STEPS)]
    # The steps that were trained on have read these batches.
    assert [line["targets"] for line in lines] == [x.target_weights.sum() for x in steps.values()]
    assert [size for size, _ in itertools.groupby(len(x.tokens) for x in steps.values())] == sizes
    runs = read_jsonl(str(workdir / "runs.jsonl"))
    assert tuple(run["processes"] for run in runs) == hosts
    check_epochs(steps, every, text.tokenizer.pieces, objective == "clm")
