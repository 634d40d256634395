"""The promises of the data, for random corpora, layouts, batch sizes, host counts, plans and steps.

Every token's id says which corpus it is from and where it stands, so that what was read is read off
the batches.
"""

import dataclasses
import functools
import itertools

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
from xlnet_jax.data.batches.stream import current, extend_plan

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


@dataclasses.dataclass
class Case:
    config: Config
    mixture: Mixture
    plan: tuple
    changes: list
    """(step, batch size) of every start."""


@st.composite
def cases(draw):
    R, W = draw(st.integers(4, 12)), draw(st.integers(1, 5))
    T = R + draw(st.integers(8, 14))
    M = draw(st.sampled_from([0, 3, R, 2 * R + 1]))
    seed = draw(st.integers(0, 2**32 - 1))
    config = Config(
        data=DataConfig(
            segment_len=T,
            reuse_len=R,
            num_predict=draw(st.integers(2, 5)),
            windows_per_block=W,
            bidirectional=draw(st.booleans()),
            positive_pair_rate=draw(st.sampled_from([0.0, 0.5])),
        ),
        model=ModelConfig(memory_len=M),
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
    changes = [(0, draw(st.sampled_from([6, 8, 12, 24])))]
    for _ in range(draw(st.integers(0, 2))):
        changes.append(
            (
                changes[-1][0] + draw(st.integers(1, 2 * W + 1)),
                draw(st.sampled_from([6, 8, 12, 24])),
            )
        )
    plan = ()
    for step, batch_size in changes:
        plan = extend_plan(plan, step, batch_size, W)
    return Case(config, mixture, plan, changes)


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
    B = len(whole.direction)
    for hosts in HOSTS:
        if B % hosts:
            continue
        shares = [batch_of(case, step, rows) for rows in np.split(np.arange(B), hosts)]
        joined = combine(shares, np.concatenate)
        jax.tree.map(
            functools.partial(np.testing.assert_array_equal, err_msg=f"{hosts} hosts"),
            joined,
            whole,
        )


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cases())
def test_windows_tile_and_nothing_is_lost_but_what_a_change_of_the_batch_size_costs(case):
    R, W = case.config.data.reuse_len, case.config.data.windows_per_block
    stop = case.changes[-1][0] + 2 * W
    read = []  # (corpus, first place, places), one per window
    for step in range(stop):
        batch = batch_of(case, step)
        corpus, places = place(case, batch.tokens[:, :R])
        assert (corpus == corpus[:, :1]).all()
        assert (np.diff(places, axis=1) == batch.direction[:, None]).all()
        read += [(int(c[0]), int(min(p))) for c, p in zip(corpus, places, strict=True)]
    stream = case.mixture.stream(case.config)
    begun = case.plan[-1].block + -(-(stop - case.plan[-1].step) // W) * case.plan[-1].batch_size
    # The blocks that the plan says were begun, each once. Of a block begun before a change of the
    # batch size inside it, the rest is left: at most W - 1 windows of each of the old rows.
    for number, text in enumerate(case.mixture.corpora):
        mine = sorted(first for corpus, first in read if corpus == number)
        dealt = case.mixture.cycle.deal(np.arange(begun))
        epochs = stream.corpora[number]
        epoch_B, _, first_B = epochs.locate(dealt[1][dealt[0] == number])
        expected = sorted((first_B[:, None] + R * np.arange(W)).ravel().tolist())
        assert set(mine) <= set(expected)
        if (epoch_B == 0).all():
            assert len(set(mine)) == len(mine), "a window was read twice in one epoch"
            covered = np.zeros(text.tokens, int)
            for first in mine:
                covered[first : first + R] += 1
            assert covered.max(initial=0) <= 1, "windows overlap"
    lost = sum(
        -(new.step - old.step) % W * old.batch_size for old, new in itertools.pairwise(case.plan)
    )
    unfinished = -(stop - case.plan[-1].step) % W * case.plan[-1].batch_size
    assert len(read) == begun * W - lost - unfinished


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cases())
def test_continues_says_whether_the_memory_holds_the_text_just_before(case):
    R = case.config.data.reuse_len
    before = None
    for step in range(case.changes[-1][0] + 2 * case.config.data.windows_per_block):
        batch = batch_of(case, step)
        window = batch.tokens[:, :R]
        entry = current(case.plan, step)
        if before is None or entry.step == step:
            assert not batch.continues.any(), "nothing in memory, or another batch size's rows"
        else:
            follows = (window[:, 0] == before[0][:, -1] + before[1]) & (
                batch.direction == before[1]
            )
            # Two blocks that happen to lie side by side follow each other too, without being one.
            assert (follows | ~batch.continues).all()
            new_block = (step - entry.step) % case.config.data.windows_per_block == 0
            assert (batch.continues == (not new_block)).all()
        before = window, batch.direction


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 60))
def test_a_random_b_shares_nothing_with_its_a_its_window_its_look_ahead_and_its_memory(case, step):
    R, M = case.config.data.reuse_len, case.config.model.memory_len
    batch = batch_of(case, step)
    some = 0
    for row, tokens in enumerate(batch.tokens):
        first_sep, second_sep = np.flatnonzero(tokens == SEP)
        assert second_sep == len(tokens) - 2 and tokens[-1] == CLS
        (corpus,), _ = place(case, tokens[:1])
        size = case.mixture.corpora[corpus].tokens
        text = np.concatenate([tokens[:first_sep], tokens[first_sep + 1 : second_sep]])
        corpora, places = place(case, text)
        assert (corpora == corpus).all()
        direction, start = int(batch.direction[row]), int(places[0])
        # The memory reaches M tokens back, whatever of it is filled.
        ahead = (direction * (places - start)) % size
        a_end = first_sep
        np.testing.assert_array_equal(
            ahead[:a_end], np.arange(a_end), "window and A are one run of text"
        )
        b = ahead[a_end:]
        np.testing.assert_array_equal(b, (b[:1] + np.arange(len(b))) % size, "B is one run of text")
        budget = case.config.data.segment_len - R - 3
        if batch.label[row]:
            # Too long an A is cut at its end, so a gap may lie between.
            assert a_end <= b[0] < R + budget
        else:
            some += 1
            assert (b >= R + budget).all() and (b < size - M).all(), (b, R, budget, M, size)
    assert some or case.config.data.positive_pair_rate
