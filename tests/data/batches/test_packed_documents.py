"""Rows of whole documents: every token once, and the same examples whatever shares their row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tiny
from packed import text_read

from xlnet_jax.batch import NEVER, Batch
from xlnet_jax.config import Config
from xlnet_jax.data.batches import documents, frames
from xlnet_jax.data.batches.examples import ExampleBuilder
from xlnet_jax.data.batches.loader import HeldoutDispatches, TrainDispatches
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.packing import RowPieces
from xlnet_jax.data.batches.stream import Windows, enter_phase, extend_plan
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS

T = 32
ORDERS = ("spans", "uniform", "left_within")
CASES = [
    *[("xlnet", "plm", order) for order in ORDERS],
    *[("xlnet", objective, "spans") for objective in ("clm", "mlm", "mdm")],
    ("transformer_xl", "clm", "spans"),
    ("bert", "mlm", "spans"),
    ("bert", "mdm", "spans"),
]


def config(
    member: str = "xlnet", objective: str = "plm", order: str = "uniform", **data: Any
) -> Config:
    every = objective in ("clm", "mdm") or order != "spans"
    usual = MEMBERS[member].usual(T, objective) if member != "xlnet" else {"model": {}, "data": {}}
    whole = {
        "documents": "whole",
        "objective": objective,
        "factorization_order": order,
        "reuse_len": T,
        "num_predict": T if every else 10,
        "windows_per_block": 1,
        "pairs": "none",
    }
    return tiny.config(
        model=usual["model"] | {"memory_len": 0, "architecture": member},
        data=usual["data"] | whole | data,
        train={"batch_size": 4},
    )


class Text(tiny.Words):
    """Documents whose tokens are all different: a document and a place name a token."""

    def __init__(self, lengths: list[int], first: int = 9) -> None:
        super().__init__(sum(lengths) + len(lengths))
        self.lengths = np.array(lengths, np.int32) + 1
        self.text = np.arange(first, first + self.tokens, dtype=np.int32)
        self.text[np.cumsum(self.lengths) - 1] = XLNET.eod
        self.starts = np.zeros(self.tokens, bool)
        self.starts[np.cumsum(self.lengths) - self.lengths] = True
        self.document_starts = self.starts
        self.tokenizer = tiny.Vocabulary(np.random.default_rng(0).random(2000) < 0.7)


LENGTHS = [5, 3, 70, 1, 12, 30, 8, 2, 2, 31, 32, 33, 6, 4, 9, 20, 7, 1, 1, 15]


def mixture(*texts: Text) -> Mixture:
    return tiny.mixture(*(texts or (Text(LENGTHS),)))


@pytest.mark.parametrize(("member", "objective", "order"), CASES)
@pytest.mark.parametrize("hosts", [1, 3])
def test_an_epoch_reads_every_token_once_with_any_hosts_and_batch_sizes(
    member: str, objective: str, order: str, hosts: int
) -> None:
    of_run = config(member, objective, order)
    corpora = mixture(Text(LENGTHS), Text(LENGTHS[:9], first=1000))
    stream = corpora.stream(of_run)
    rows = sum(each.blocks for each in stream.corpora)
    plan, read, seen = extend_plan((), 0, 3, 1), [0, 0], []
    for step in range(16):
        if step == 3:  # a resume with another batch size
            plan = extend_plan(plan, step, 6, 1)
        size = plan[-1].batch_size
        parts = np.array_split(np.arange(size), hosts)
        for rows_here in parts:
            where = stream.locate(step, rows_here, plan)
            batch = TrainDispatches(corpora, of_run, plan, rows_here, 0, 400).batch(step)
            for row in np.flatnonzero(where.epoch_B == 0):
                read[where.corpus_B[row]] += 1
                causal = objective == "clm"
                tokens = batch.target_tokens[row] if causal else text_read(batch, row)
                seen += [int(token) for token in tokens if token >= 9]
    assert read == [each.blocks for each in stream.corpora] and sum(read) == rows
    every = [token for corpus in corpora.corpora for token in corpus.text.tolist() if token >= 9]
    assert sorted(seen) == sorted(every)


class Alone:
    """A packing with one piece in each row."""

    pieces = 0

    def __init__(self, packed: Any) -> None:
        rows = [packed.row(index) for index in range(packed.rows)]
        self.every = RowPieces(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))

    def row(self, index: int) -> RowPieces:
        return RowPieces(*(part[index : index + 1] for part in self.every))


def windows(blocks: np.ndarray, direction: int) -> Windows:
    zeros_B = np.zeros_like(blocks)
    return Windows(
        zeros_B,
        np.full(len(blocks), direction, np.int32),
        zeros_B > 0,
        zeros_B == 0,
        zeros_B,
        blocks,
        zeros_B + 2,
        0,
    )


def built(of_run: Config, text: Text, rows: np.ndarray, direction: int, packed: Any) -> Batch:
    """Rows of a packing, as training builds them in its epoch 2."""
    where = windows(rows, direction)
    builder = ExampleBuilder(text, text.tokenizer, of_run, where, "train", 0, rows)
    return documents.build(builder, packed, 0)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("member", "objective", "order"), CASES)
def test_an_example_is_the_same_alone_and_in_company(
    member: str, objective: str, order: str, direction: int
) -> None:
    of_run, text = config(member, objective, order), Text(LENGTHS)
    packed = documents.pack_corpus(text, of_run)
    alone = Alone(packed)
    whole = built(of_run, text, np.arange(packed.rows), direction, packed)
    order = np.arange(len(alone.every.first_D))[::-1]  # another order
    each = built(of_run, text, order, direction, alone)
    frame = frames.pieces_around(of_run)
    number = len(alone.every.first_D) - 1
    for row in range(packed.rows):
        place = slot = 0
        for length in packed.row(row).length_D:
            n = int(length) + frame
            mine, own = slice(place, place + n), slice(0, n)
            for x, y in [
                (whole.tokens, each.tokens),
                (whole.documents.position, each.documents.position),
                (whole.documents.number, each.documents.number),
                (whole.rank - 2 * place, each.rank),
                (whole.documents.floor - 2 * place, each.documents.floor),
            ]:
                np.testing.assert_array_equal(x[row, mine], y[number, own])
            targets = int((each.target_weights[number] != 0).sum())
            mine, own = slice(slot, slot + targets), slice(0, targets)
            assert 1 <= targets <= documents.most_targets(of_run, length)
            for x, y in [
                (whole.target_positions - place, each.target_positions),
                (whole.target_tokens, each.target_tokens),
                (whole.target_weights, each.target_weights),
            ]:
                np.testing.assert_array_equal(x[row, mine], y[number, own])
            place, slot, number = place + n, slot + targets, number - 1
        assert (whole.rank[row, place:] == NEVER).all() and place <= T
        assert (whole.documents.floor[row, place:] == NEVER).all()
        assert not whole.target_weights[row, slot:].any()


def test_ranks_and_floors_let_no_document_see_another() -> None:
    of_run, text = config(), Text(LENGTHS)
    packed = documents.pack_corpus(text, of_run)
    batch = built(of_run, text, np.arange(packed.rows), 1, packed)
    rank_BT, of = batch.rank, batch.documents
    sees_BTT = (rank_BT[:, None] <= rank_BT[:, :, None]) & (
        rank_BT[:, None] >= of.floor[:, :, None]
    )
    used_BT = rank_BT != NEVER
    other_BTT = of.number[:, None] != of.number[:, :, None]
    assert not (sees_BTT & other_BTT & used_BT[:, None] & used_BT[:, :, None]).any()
    context_BT = used_BT & (rank_BT == of.floor)
    mine_BTT = ~other_BTT & used_BT[:, :, None]
    assert (sees_BTT | ~(mine_BTT & context_BT[:, None])).all()  # each sees all of its context


def test_a_left_to_right_document_reads_eod_first_and_its_last_piece_predicts_it() -> None:
    of_run, text = config(objective="clm", order="spans"), Text([40, 3])
    packed = documents.pack_corpus(text, of_run)
    rows = np.arange(packed.rows)
    ends: dict[int, list[list[int]]] = {1: [], -1: []}
    for direction, found in ends.items():
        batch = built(of_run, text, rows, direction, packed)
        starts = (batch.documents.position == 0) & (batch.rank != NEVER)
        assert (batch.tokens[starts] == XLNET.eod).all() and starts.sum() == 3
        used = batch.target_weights > 0
        found += [batch.target_tokens[row][used[row]].tolist() for row in rows]
    assert sum(row.count(XLNET.eod) for row in ends[1]) == 2
    first, end = list(range(9, 29)), list(range(29, 49))
    forward, backward = (sum(ends[direction], []) for direction in (1, -1))
    assert str([*end, XLNET.eod])[1:-1] in str(forward) and str(first)[1:-1] in str(forward)
    assert str([*first[::-1], XLNET.eod])[1:-1] in str(backward)
    assert sorted(forward) == sorted(backward)


def test_masked_tokens_of_a_document_weigh_its_length() -> None:
    of_run, text = config("bert", "mdm", "spans"), Text(LENGTHS)
    packed = documents.pack_corpus(text, of_run)
    batch = built(of_run, text, np.arange(packed.rows), 1, packed)
    for row in range(packed.rows):
        pieces = packed.row(row)
        assert batch.target_weights[row].sum() == pytest.approx(pieces.length_D.sum(), rel=1e-6)
        masked = batch.tokens[row] == XLNET.mask
        number = batch.documents.number[row]
        for index, n in zip(pieces.number_D, pieces.length_D, strict=True):
            of_piece = number[batch.target_positions[row]] == index
            weights = batch.target_weights[row][of_piece & (batch.target_weights[row] > 0)]
            count = int((masked & (number == index)).sum())
            np.testing.assert_allclose(weights, np.full(count, n / count), rtol=1e-6)


def test_a_phase_with_other_rows_starts_an_epoch_and_another_batch_size_does_not() -> None:
    corpora, before = mixture(), config()
    stream = corpora.stream(before)
    plan = extend_plan((), 0, 2, 1)
    same = enter_phase(plan, 2, 4, stream, stream)
    assert stream.deal(2, np.arange(4), same)[1].tolist() == [4, 5, 6, 7]
    other = corpora.stream(config(segment_len=16, reuse_len=16, num_predict=16))
    entered = enter_phase(plan, 2, 4, stream, other)
    assert other.deal(2, np.arange(2), entered)[1].tolist() == [
        other.corpora[0].blocks,
        other.corpora[0].blocks + 1,
    ]


def test_text_that_no_row_can_hold_or_that_fills_too_few_is_refused() -> None:
    corpora = mixture(Text([20]))
    with pytest.raises(BadInput, match="data.num_predict=1 cannot hold the 3 targets of a piece"):
        corpora.check(config("bert", "mlm", "spans", num_predict=1))
    with pytest.raises(BadInput, match="the text has 1 row of documents for training, too few"):
        corpora.stream(config()).check(2, ["the text"])


@pytest.mark.parametrize("objective", ["clm", "mdm"])
def test_an_evaluation_reads_every_document_once(objective: str) -> None:
    of_run, corpora = config(objective=objective, order="spans"), mixture()
    reading = corpora.single_pass(of_run)
    dispatches = HeldoutDispatches(corpora, of_run, reading, 4, np.arange(4))
    tokens = []
    for index in range(len(dispatches)):
        batch = dispatches(index)
        exists = dispatches.corpus_of(index) >= 0
        assert not batch.target_weights[:, ~exists].any()
        for row in np.flatnonzero(exists):
            one = dataclasses.replace(
                batch, **{name: getattr(batch, name)[0] for name in ("tokens", "rank")}
            )
            if objective == "clm":
                tokens += batch.target_tokens[0, row].tolist()
            else:
                one = dataclasses.replace(
                    one,
                    target_tokens=batch.target_tokens[0],
                    target_positions=batch.target_positions[0],
                    target_weights=batch.target_weights[0],
                )
                tokens += text_read(one, row)
    every = corpora.corpora[0].text
    assert sorted(token for token in tokens if token >= 9) == sorted(every[every >= 9].tolist())
    part = corpora.single_pass(of_run, limit=2)
    assert len(part.rows_S3) == 2


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"memory_len": 8}}, "model.memory_len=8 must be 0 with data.documents=whole"),
        ({"data": {"pairs": "next"}}, "data.pairs=next must be none"),
        ({"data": {"reuse_len": 8}}, "data.reuse_len=8 must be 32"),
        ({"data": {"num_predict": 8}}, "data.num_predict=8 must be 32"),
        ({"compat": {"switches": "static_targets"}}, "must leave out static_targets"),
        ({"compat": {"switches": "position_dropout_per_row"}}, "position_dropout_per_row"),
    ],
)
def test_what_does_not_go_together_is_refused(sections: Any, message: str) -> None:
    from xlnet_jax.config import check

    with pytest.raises(BadInput, match=message):
        check(config().changed(**sections))
