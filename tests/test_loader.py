"""Loading: readers, prefetch depth and worker processes never change a batch."""

import dataclasses

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import Batch
from xlnet_jax.data import loader
from xlnet_jax.data.corpus import Corpus
from xlnet_jax.data.stream import extend_plan, rows_of

START, STOP = 3, 12


@pytest.fixture(scope="module")
def corpus():
    return Corpus(data_fixtures.corpus_path())


def dispatches(corpus, start=START, stop=STOP, rows=None, **data):
    config = tiny.config(data=data)
    plan = extend_plan((), 0, 8, config.data.windows_per_block)
    return loader.TrainDispatches(corpus, config, plan, np.arange(8) if rows is None else rows, start, stop)


def assert_equal(a: Batch, b: Batch):
    for field in dataclasses.fields(Batch):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), field.name)


def test_dispatches_are_cut_at_multiples_of_k(corpus):
    found = dispatches(corpus)
    assert [list(found.steps(i)) for i in range(len(found))] == [[3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert [list(dispatches(corpus, 4, 5).steps(0))] == [[4]]
    assert len(dispatches(corpus, 4, 4)) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"read_threads": 1, "prefetch": 1},
        {"read_threads": 2, "prefetch": 3},
        {"read_threads": 4, "prefetch": 16},
        {"workers": 1},
        {"workers": 2, "prefetch": 2},
    ],
)
def test_the_batch_of_a_step_is_the_same_alone_and_by_any_readers(corpus, options):
    asked = dispatches(corpus, **options)
    built = list(loader.prefetched(asked, asked.config))
    assert len(built) == len(asked)
    alone = dispatches(Corpus(data_fixtures.corpus_path(), cache_bytes=1))
    for i, batch in enumerate(built):
        # Each step of the reference is built by itself, out of order.
        assert_equal(batch, loader.stack([alone.batch(step) for step in asked.steps(i)]))
    tokens = np.concatenate([batch.tokens for batch in built])
    assert len(np.unique(tokens.reshape(-1, tokens.shape[-1]), axis=0)) == 8 * (STOP - START)


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_together_build_what_one_host_builds(corpus, hosts):
    whole = dispatches(corpus).batch(7)
    shares = [dispatches(corpus, rows=rows_of(host, hosts, 8)).batch(7) for host in range(hosts)]
    for field in dataclasses.fields(Batch):
        together = np.concatenate([getattr(share, field.name) for share in shares])
        np.testing.assert_array_equal(getattr(whole, field.name), together, field.name)


def test_over_an_epoch_the_reuse_windows_read_the_corpus_once(corpus):
    asked = dispatches(corpus)
    stream = loader.train_stream(corpus, asked.config)
    steps = -(-stream.blocks // 8) * 4
    wanted = np.sort(corpus.read(np.zeros(1, np.int64), stream.blocks * 64)[0][0])
    windows = []
    for step in range(steps):
        batch = asked.batch(step)
        numbers = step // 4 * 8 + np.arange(8)
        windows.append(batch.tokens[numbers < stream.blocks, :16].ravel())
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), wanted)


def test_heldout_batches_do_not_depend_on_how_many_rows_are_read_together(corpus):
    heldout = Corpus(data_fixtures.corpus_path(), "heldout")
    config = tiny.config()
    blocks = loader.heldout_pass(heldout, config).blocks

    def rows(batch_size):
        asked = loader.HeldoutDispatches(heldout, config, blocks, batch_size, np.arange(batch_size))
        built = [asked(i) for i in range(len(asked))]
        return {
            field.name: np.concatenate([getattr(batch, field.name) for batch in built], axis=1)[:, :blocks]
            for field in dataclasses.fields(Batch)
        }

    three, eight = rows(3), rows(8)
    for name in three:
        np.testing.assert_array_equal(three[name], eight[name], name)
    assert (three["target_weights"].sum(axis=-1) > 0).sum() == loader.heldout_pass(heldout, config).windows
