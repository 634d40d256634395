"""Loading: readers, prefetch depth and worker processes never change a batch."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import data_fixtures
import grain
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import combine
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.errors import BadInput, RestartMe

START, STOP = 3, 12
OBJECTIVES = [
    {"objective": "plm"},
    {"objective": "clm", "reuse_len": 32, "num_predict": 32, "multi_token_prediction": 2},
]


@pytest.fixture(scope="module")
def corpus():
    return Mixture((Corpus(data_fixtures.corpus_path()),))


def dispatches(corpus, start=START, stop=STOP, rows=None, **data):
    config = tiny.config(data=data)
    plan = extend_plan((), 0, 8, config.data.windows_per_block)
    return loader.TrainDispatches(
        corpus, config, plan, np.arange(8) if rows is None else rows, start, stop
    )


def test_dispatches_are_cut_at_multiples_of_k(corpus):
    found = dispatches(corpus)
    steps = [list(found.steps(i)) for i in range(len(found))]
    assert steps == [[3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert list(dispatches(corpus, 4, 5).steps(0)) == [4]
    assert len(dispatches(corpus, 4, 4)) == 0


@pytest.mark.parametrize("data", OBJECTIVES, ids=str)
def test_rows_from_the_batch_size_on_weigh_nothing_and_change_no_other(corpus, data):
    """They fill up a batch that does not divide over the devices."""
    eight, ten = (dispatches(corpus, rows=np.arange(rows), **data).batch(START) for rows in (8, 10))
    jax.tree.map(np.testing.assert_array_equal, eight, jax.tree.map(lambda x: x[:8], ten))
    weights = [ten.target_weights]
    if data["objective"] == "clm":
        weights.append(ten.auxiliary.weights)
    assert all(each[:8].any() and not each[8:].any() for each in weights)
    assert len(ten.tokens) == 10 and not ten.label_weight[8:].any()


@pytest.mark.parametrize(
    "options",
    [
        {"read_threads": 1, "prefetch": 1},
        {"read_threads": 4, "prefetch": 16},
        {"workers": 2, "prefetch": 2},
    ],
)
def test_the_batch_of_a_step_is_the_same_alone_and_by_any_readers(corpus, options):
    asked = dispatches(corpus, **options)
    built = list(loader.prefetched(asked, asked.config))
    assert len(built) == len(asked)
    # Each step of the reference is built by itself.
    alone = dispatches(Mixture((Corpus(data_fixtures.corpus_path(), cache_bytes=1),)))
    for i, batch in enumerate(built):
        expected = loader.stack(list(map(alone.batch, asked.steps(i))))
        jax.tree.map(np.testing.assert_array_equal, batch, expected)
    tokens = np.concatenate([batch.tokens for batch in built])
    assert len(np.unique(tokens.reshape(-1, tokens.shape[-1]), axis=0)) == 8 * (STOP - START)


def test_heldout_batches_do_not_depend_on_how_many_rows_are_read_together(corpus):
    heldout = Mixture((Corpus(data_fixtures.corpus_path(), "heldout"),))
    config = tiny.config()
    single = heldout.single_pass(config)
    blocks = len(single.rows_S3)

    def rows(batch_size):
        asked = loader.HeldoutDispatches(heldout, config, single, batch_size, np.arange(batch_size))
        built = [asked(i) for i in range(len(asked))]
        return combine(built, lambda arrays: np.concatenate(arrays, axis=1)[:, :blocks])

    three, eight = rows(3), rows(8)
    jax.tree.map(np.testing.assert_array_equal, three, eight)
    windows = (three.target_weights.sum(axis=-1) > 0).sum()
    assert windows == -(-heldout.corpora[0].tokens // 16)


def test_a_block_of_a_share_is_read_as_in_an_evaluation_of_all(corpus):
    """Tokens, targets and orders: a share of 3 blocks has the same losses as these 3 among all."""
    heldout, config = Mixture((Corpus(data_fixtures.corpus_path(), "heldout"),)), tiny.config()
    whole, some = (heldout.single_pass(config, limit=limit) for limit in (0, 3))
    places = [whole.rows_S3.tolist().index(row) for row in some.rows_S3.tolist()]
    assert len(places) == 3 and places[0] > 0, "not the first ones"
    batch = loader.HeldoutDispatches(heldout, config, some, 3, np.arange(3))(0)
    alone = loader.HeldoutDispatches(heldout, config, whole, 1, np.arange(1))
    blocks = combine(list(map(alone, places)), lambda arrays: np.concatenate(arrays, axis=1))
    jax.tree.map(np.testing.assert_array_equal, batch, blocks)


def with_workers(path, workers=2):
    config = tiny.config(data={"corpus": path, "workers": workers, "prefetch": 1})
    plan = extend_plan((), 0, 8, config.data.windows_per_block)
    return loader.prefetched(
        loader.TrainDispatches(open_mixture(config), config, plan, np.arange(8), 0, 10**6), config
    )


def test_a_killed_worker_ends_the_run_with_a_request_to_restart(corpus):
    others = multiprocessing.active_children()  # of tests before
    batches = with_workers(data_fixtures.corpus_path())
    for _ in range(4):  # by then every worker has started
        next(batches)
    worker = next(child.pid for child in multiprocessing.active_children() if child not in others)
    # A signal to the whole group is not for a worker: the trainer needs it until it has saved.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker, number)
    for _ in range(20):
        next(batches)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(
        RestartMe, match="a data worker was killed .* with fewer than data.workers=2"
    ):
        for _ in range(1000):
            next(batches)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError(
            "Worker process was terminated unexpectedly with exit code -7. Search the logs above"
        ),
    ],
)
def test_a_small_dev_shm_is_named_where_a_restart_cannot_help(corpus, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(grain.IterDataset, "mp_prefetch", fail)
    with pytest.raises(
        BadInput, match=r"/dev/shm, .* --shm-size; .* smaller data.prefetch=1, or data.workers=0"
    ):
        next(with_workers(data_fixtures.corpus_path()))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_shard_is_told_in_one_line_whoever_read_it(tmp_path, workers):
    path = shutil.copytree(data_fixtures.corpus_path(), tmp_path / "corpus")
    for shard in path.glob("corpus-train*"):
        content = shard.read_bytes()
        shard.write_bytes(content[:100] + bytes(len(content) - 100))
    with pytest.raises(BadInput, match="is damaged .*; copy the corpus again") as raised:
        next(with_workers(str(path), workers))
    assert "\n" not in str(raised.value)


def test_workers_end_with_the_process_that_started_them(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, signal, sys\n"
        f"sys.path[:0] = [{str(tiny.TESTS)!r}, {os.path.dirname(__file__)!r}]\n"
        "import test_loader\n"
        "if __name__ == '__main__':\n"
        "    batches = test_loader.with_workers(sys.argv[1])\n"
        "    next(batches)\n"
        "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Into a file: a pipe would be held open by the very workers that should be gone.
    with open(tmp_path / "out", "w+") as out:
        ended = subprocess.run(
            [sys.executable, str(script), data_fixtures.corpus_path()], stdout=out
        )
        assert ended.returncode == -signal.SIGKILL
        out.seek(0)
        workers = [int(word) for word in out.read().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(map(data_fixtures.runs, workers)):
        assert time.monotonic() < deadline, "the workers outlive their parent"
        time.sleep(0.1)
