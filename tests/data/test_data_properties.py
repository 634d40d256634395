"""The promises of the data, for random corpora, layouts, batch sizes, host counts, plans and steps.

Every token's id says which corpus it is from and where it stands, so that what was read is read off
the batches.
"""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from special_ids import CLS, SEP

from xlnet_jax.batch import Batch, combine
from xlnet_jax.config import Config, DataConfig, ModelConfig, SeedsConfig
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.cycle import Cycle
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.stream import Plan, current, extend_plan

FIRST = 9
HOSTS = (1, 2, 3, 8)


class Places(tiny.Words):
    """A text whose token at place p is `first + p`."""

    split = path = "places"

    def __init__(self, tokens, first, vocabulary, seed):
        rng = np.random.default_rng(seed)
        self.tokens, self.first, self.tokenizer = tokens, first, vocabulary
        self.text = first + np.arange(tokens, dtype=np.int32)
        self.starts = rng.random(tokens) < rng.choice([0.02, 0.1, 0.4])


class Case(NamedTuple):
    config: Config
    mixture: Mixture
    plan: Plan


@st.composite
def cases(draw):
    R, W = draw(st.integers(4, 12)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**32 - 1))
    config = Config(
        data=DataConfig(
            segment_len=R + draw(st.integers(8, 14)),
            reuse_len=R,
            num_predict=draw(st.integers(2, 5)),
            windows_per_block=W,
            bidirectional=draw(st.booleans()),
            positive_pair_rate=draw(st.sampled_from([0.0, 0.5])),
        ),
        model=ModelConfig(memory_len=draw(st.sampled_from([0, 3, R, 2 * R + 1]))),
        seeds=SeedsConfig(data=seed),
    )
    sizes = draw(st.lists(st.integers(40 * R * W, 90 * R * W), min_size=1, max_size=3))
    counts = tuple(draw(st.integers(1, 5)) for _ in sizes)
    vocabulary = tiny.Vocabulary(np.random.default_rng(seed).random(FIRST + sum(sizes)) < 0.6)
    firsts = FIRST + np.cumsum([0, *sizes])
    texts = tuple(
        Places(size, int(firsts[i]), vocabulary, seed + i) for i, size in enumerate(sizes)
    )
    mixture = Mixture(texts, tuple("abc"[: len(texts)]), Cycle(counts))
    plan, step = (), 0
    for _ in range(draw(st.integers(1, 3))):
        plan = extend_plan(plan, step, draw(st.sampled_from([6, 8, 12, 24])), W)
        step += draw(st.integers(1, 2 * W + 1))
    return Case(config, mixture, plan)


def batch_of(case, step, rows=None) -> Batch:
    if rows is None:
        rows = np.arange(current(case.plan, step).batch_size)
    return loader.TrainDispatches(case.mixture, case.config, case.plan, rows, 0, 10**6).batch(step)


def place(case, tokens):
    """Corpus and place in it of token ids that are text."""
    firsts = np.array([text.first for text in case.mixture.corpora])
    corpus = np.searchsorted(firsts, tokens, side="right") - 1
    return corpus, tokens - firsts[corpus]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 40))
def test_the_union_over_hosts_is_the_batch(case, step):
    whole = batch_of(case, step)
    rows = np.arange(len(whole.direction))
    for hosts in HOSTS:
        if len(rows) % hosts == 0:
            shares = [batch_of(case, step, share) for share in np.split(rows, hosts)]
            joined = combine(shares, np.concatenate)
            jax.tree.map(np.testing.assert_array_equal, joined, whole)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cases())
def test_windows_tile_and_nothing_is_lost_but_what_a_change_of_the_batch_size_costs(case):
    R, W = case.config.data.reuse_len, case.config.data.windows_per_block
    last = case.plan[-1]
    stop = last.step + 2 * W
    read = []  # corpus and first place of each window
    for step in range(stop):
        batch = batch_of(case, step)
        corpus, places = place(case, batch.tokens[:, :R])
        assert (corpus == corpus[:, :1]).all()
        assert (np.diff(places, axis=1) == batch.direction[:, None]).all()
        read += zip(corpus[:, 0].tolist(), places.min(axis=1).tolist(), strict=True)
    stream = case.mixture.stream(case.config)
    begun = last.block + -(-(stop - last.step) // W) * last.batch_size
    corpus_N, number_N = case.mixture.cycle.deal(np.arange(begun))
    # The blocks that the plan says were begun, each once. Of a block begun before a change of the
    # batch size inside it, the rest is left: at most W - 1 windows of each of the old rows.
    for number, text in enumerate(case.mixture.corpora):
        mine = [first for corpus, first in read if corpus == number]
        epoch_B, _, first_B = stream.corpora[number].locate(number_N[corpus_N == number])
        assert set(mine) <= set((first_B[:, None] + R * np.arange(W)).ravel().tolist())
        if (epoch_B == 0).all():
            covered = np.zeros(text.tokens, int)
            for first in mine:
                covered[first : first + R] += 1
            assert covered.max(initial=0) <= 1, "windows overlap"
    lost = sum(
        -(new.step - old.step) % W * old.batch_size for old, new in itertools.pairwise(case.plan)
    )
    unfinished = -(stop - last.step) % W * last.batch_size
    assert len(read) == begun * W - lost - unfinished


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 60))
def test_a_random_b_shares_nothing_with_its_a_its_window_its_look_ahead_and_its_memory(case, step):
    R, M = case.config.data.reuse_len, case.config.model.memory_len
    budget = case.config.data.segment_len - R - 3
    batch = batch_of(case, step)
    for row, tokens in enumerate(batch.tokens):
        first_sep, second_sep = np.flatnonzero(tokens == SEP)
        assert second_sep == len(tokens) - 2 and tokens[-1] == CLS
        corpora, places = place(case, np.delete(tokens[:second_sep], first_sep))
        assert (corpora == corpora[0]).all()
        size = case.mixture.corpora[corpora[0]].tokens
        ahead = (batch.direction[row] * (places - places[0])) % size
        # The window and A are one run of text, and B is one.
        np.testing.assert_array_equal(ahead[:first_sep], np.arange(first_sep))
        b = ahead[first_sep:]
        np.testing.assert_array_equal(b, (b[0] + np.arange(len(b))) % size)
        if batch.label[row]:
            # Too long an A is cut at its end, so a gap may lie between.
            assert first_sep <= b[0] < R + budget
        else:
            # The memory reaches M tokens back, whatever of it is filled.
            assert (b >= R + budget).all() and (b < size - M).all(), (b, R, budget, M, size)
    assert not batch.label.all() or case.config.data.positive_pair_rate
