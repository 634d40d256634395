"""Examples: layout, segments A and B, targets, ranks, both reading directions."""

import dataclasses

import numpy as np
import pytest
import tiny
from special_ids import CLS, SEP

from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.data.batches import examples
from xlnet_jax.data.batches.stream import ShuffledBlocks, Stream, extend_plan
from xlnet_jax.data.tokenizer import XLNET, SpecialIds
from xlnet_jax.errors import BadInput

DATA = DataConfig(segment_len=64, reuse_len=32, num_predict=11, windows_per_block=4)
SHAPE = examples.layout(DATA, memory_len=24)
FIRST = 1000
ROWS = np.arange(16)


class Counting(tiny.Words):
    """A text whose token at position i is FIRST + i: a token tells where it came from."""

    def __init__(self, tokens=6000, seed=0):
        self.tokens, self.text = tokens, FIRST + np.arange(tokens, dtype=np.int32)
        self.starts = np.random.default_rng(seed).random(tokens) < 1 / 9


TEXT = Counting()
WORD_START = np.random.default_rng(1).random(FIRST + TEXT.tokens) < 0.7
WORD_START[: len(XLNET)] = True


def build(steps, data=DATA, text=TEXT, special=XLNET):
    config = Config(data=data, model=ModelConfig(memory_len=24))
    stream = Stream(
        (ShuffledBlocks(text.tokens, data.reuse_len, data.windows_per_block, 1),),
        data.bidirectional,
    )
    plan = extend_plan((), 0, 16, data.windows_per_block)
    tokenizer = tiny.Vocabulary(WORD_START, special)
    for step in steps:
        where = stream.locate(step, ROWS, plan)
        yield (
            where,
            examples.build(
                examples.ExampleBuilder(text, tokenizer, config, where, "train", step, ROWS)
            ),
        )


def parts(tokens):
    """Positions in the text of reuse window, A and B of one row."""
    first, second = np.flatnonzero(tokens == SEP)
    at = tokens - FIRST
    return at[:32], at[32:first], at[first + 1 : second]


def test_an_example_is_reuse_a_sep_b_sep_cls():
    for _, batch in build(range(6)):
        for tokens, of_segment in zip(batch.tokens, batch.segments, strict=True):
            _, a, b = parts(tokens)
            assert len(a) + len(b) == SHAPE.budget and len(a) > 0 and len(b) > 0
            assert tokens[-2:].tolist() == [SEP, CLS]
            expected = [0] * (32 + len(a) + 1) + [1] * (len(b) + 1) + [2]
            assert of_segment.tolist() == expected
        assert (batch.summary_position == 63).all()


def test_b_follows_a_and_begins_a_sentence_at_the_rate_that_is_asked_for():
    """What a random B may not be: `test_data_properties`."""
    labels = []
    for where, batch in build(range(60)):
        labels.extend(batch.label)
        for row in np.flatnonzero(batch.label):
            _, a, b = parts(batch.tokens[row])
            direction = int(where.direction_B[row])
            begin = int(where.cursor_B[row]) + direction * 32
            ahead = (b - begin) * direction % TEXT.tokens
            assert len(a) <= ahead[0], "A runs into B"
            reading = begin + direction * ahead[0] + (direction < 0)
            assert TEXT.starts[reading % TEXT.tokens], "B begins inside a sentence"
            assert ahead[-1] < SHAPE.budget + SHAPE.budget // 2
    assert 0.42 < np.mean(labels) < 0.58
    data, text = dataclasses.replace(DATA, positive_pair_rate=1.0), Counting()
    text.starts = np.arange(text.tokens) % 5 == 0
    assert all(batch.label.all() for _, batch in build(range(3), data=data, text=text))


def test_targets_are_ascending_the_tokens_themselves_and_never_functional():
    for _, batch in build(range(6)):
        assert (batch.target_weights.sum(axis=1) == 11).all()
        assert (np.diff(batch.target_positions, axis=1) > 0).all()
        assert ((batch.target_positions < 32).sum(axis=1) == SHAPE.first_goal).all()
        picked = np.take_along_axis(batch.tokens, batch.target_positions, axis=1)
        np.testing.assert_array_equal(picked, batch.target_tokens)
        assert not np.isin(picked, [SEP, CLS]).any()


@pytest.mark.parametrize("objective", ["plm", "mlm"])
def test_special_ids_are_those_of_the_tokenizer(objective):
    """Of a vocabulary that has them elsewhere, as ALBERT's: the same examples with other ids."""
    albert = SpecialIds(unk=1, bos=2, eos=3, cls=2, sep=3, pad=0, mask=4, eod=3, eop=3)
    data = dataclasses.replace(DATA, objective=objective)
    ((_, ours),) = build([0], data=data)
    ((_, theirs),) = build([0], data=data, special=albert)
    for name in ("cls", "sep", "mask"):
        places = ours.tokens == getattr(XLNET, name)
        assert (places == (theirs.tokens == getattr(albert, name))).all()
        # A permutation model is fed no mask.
        assert places.any() == (objective == "mlm" or name != "mask")
    np.testing.assert_array_equal(theirs.rank, ours.rank)
    assert (theirs.target_tokens == ours.target_tokens)[ours.target_weights > 0].all()


def test_ranks_of_the_golden_example():
    """Whom they let see whom: tests/commands/test_inspect.py."""
    tokens = np.array([[10, 11, 12, 13, SEP, 20, 21, SEP, CLS]])
    target = np.zeros((1, 9), bool)
    target[0, [1, 2, 6]] = True
    order = np.array([[5, 2, 7, 0, 3, 8, 1, 6, 4]])
    rank = examples.ranks(tokens, target, 9, order / 9.0, XLNET)
    np.testing.assert_array_equal(rank, [[-1, 2, 7, -1, 3, -1, 1, 6, 4]])


def test_the_first_half_never_sees_the_second_and_the_second_sees_all_of_the_first():
    ranks = np.concatenate([batch.rank for _, batch in build(range(3))])
    assert (ranks[:, :32].max(axis=1) < ranks[:, 32:].min(axis=1)).all()
    assert len(np.unique(ranks, axis=0)) == len(ranks), "orders differ between rows and steps"


def test_a_text_too_short_for_a_random_segment_is_refused():
    config = Config(data=DATA, model=ModelConfig(memory_len=24))
    examples.check_length(Counting(300), config, "the heldout split")
    with pytest.raises(BadInput, match="the heldout split has 100 tokens"):
        examples.check_length(Counting(100), config, "the heldout split")
