"""Builds the Batch from positions in the corpus, by `data.objective`.

    plm  [ reuse, R tokens ][ A ][SEP][ B ][SEP][CLS]  T tokens in all, some of them targets
           segment 0          0    0    1    1    2
         [ R = T tokens ]                              with other factorization orders; see `orders`
    clm  [ R = T tokens ]                              each token predicts the next one, or several
    mlm  [CLS][ A ][SEP][ B ][SEP]                     R = T - 3 tokens; the targets are corrupted
         [CLS][ A ][SEP][ B ][SEP][padding]            bert, albert: whole sentences; see
                                                       `whole_sentences`
         [CLS][ R = T - 2 tokens ][SEP]                data.pairs=none (roberta): may cross sentence
                                                       and document ends
    mdm  [ R = T tokens ]                              a random number of them is masked
         [CLS][ R = T - 2 tokens ][SEP]                bert, albert, roberta

In `plm` A starts right after the reuse window. The reuse window (first half) and the rest (second
half) have separate targets and factorisation orders, and the first half never sees the second. In
`mlm` with XLNet's network, A and a B that follows A fill the window. The objectives differ only in
the ranks of the positions and in the tokens fed at the targets: all use the same Batch type. All
rows of a batch are built together, in numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlnet_jax import compat
from xlnet_jax.batch import NEVER, Auxiliary, Batch
from xlnet_jax.config import Config, DataConfig
from xlnet_jax.data.batches import frames, orders, spans, whole_sentences
from xlnet_jax.data.batches.sentence_pairs import Pairs, SegmentLayout, choose_pairs, read_in_order
from xlnet_jax.data.batches.stream import Windows, uniforms
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.tokenizer import SpecialIds, Tokenizer
from xlnet_jax.errors import BadInput

FURTHER = 0.5
"""Loss weight of each token further ahead than the next one (Al-Rfou et al. 2018, "Multiple
Targets").
"""


def layout(data: DataConfig, memory_len: int) -> SegmentLayout:
    """Returns the lengths of an example of `plm`. Targets are divided between the two halves in
    proportion to their lengths.
    """
    second = data.num_predict * (data.segment_len - data.reuse_len) // data.segment_len
    return SegmentLayout(
        data.segment_len, data.reuse_len, memory_len, data.num_predict - second, second
    )


def check_length(text: Corpus, config: Config, name: str) -> None:
    """Raises BadInput if a text is too short for an example; see `Objective.shortest`."""
    pairs = config.model.member.bounded and config.objective.masks and config.data.pairs
    if pairs == "next" and text.documents < 2:
        raise BadInput(
            f"{name} is one document, but data.pairs=next needs another "
            "document for B; use order or none"
        )
    need, what = config.objective.shortest(config)
    if text.tokens < need:
        raise BadInput(
            f"{name} has {text.tokens:,} tokens, but {what} needs {need:,}; "
            "use more text or a shorter data.segment_len"
        )


class ExampleBuilder(NamedTuple):
    """The inputs of B examples. Name, step, rows and the data seed are the keys of their random
    draws (see `stream.uniforms`).
    """

    text: Corpus
    tokenizer: Tokenizer
    config: Config
    where: Windows
    name: str
    step: int | np.ndarray
    """Step of the batch; of whole documents, the epoch of each."""
    rows: np.ndarray
    """int [B]: numbers of rows; of whole documents, of the documents."""

    def draws(self, *needs: int, fresh: int = 0) -> list[np.ndarray]:
        """Returns uniform draws per row: an array for each of `needs`, and an array of `fresh`
        draws, the only draws that differ when an example is repeated (`compat`).
        """
        seed, fixed = self.config.seeds.data, sum(needs)
        draws = uniforms(seed, self.name, self.step, self.rows, fixed + fresh)
        if (again_B := compat.repeated(self.config.compat, self.where)) is not None:
            draws[:, :fixed] = uniforms(seed, "static", self.where.window, again_B, fixed)
        return np.split(draws, np.cumsum(needs, dtype=int), axis=1)

    def read(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and starts of sentences from the windows on; see `read_in_order`."""
        return read_in_order(self.text, self.where.cursor_B, self.where.direction_B, length)

    def draws_needed(self, length: int) -> int:
        """Returns the number of draws that `targets` takes for `length` positions."""
        if self.config.model.member.bounded:
            return 2 * length
        return spans.draws_needed(length, self.config.data)

    def targets(
        self,
        tokens_BN: np.ndarray,
        goal: int | np.ndarray,
        draws_BX: np.ndarray,
        text_BN: np.ndarray | None = None,
    ) -> np.ndarray:
        """Chooses up to `goal` targets in each row, bool [B, N]: words in random order for members
        whose texts end at `model.max_positions`, else spans.

        Args:
          goal: one number, or int [B, 1].
          text_BN: the positions of text, bool; None = all. No other position is a target. For spans
            each row has one text, without gaps.
        """
        if text_BN is None:
            text_BN = np.ones(tokens_BN.shape, bool)
        if self.config.model.member.bounded:
            return self._in_random_order(tokens_BN, goal, draws_BX, text_BN)
        first_B1, length_B1 = text_BN.argmax(axis=1)[:, None], text_BN.sum(axis=1, keepdims=True)
        # Words can be found only in forward text, so reversed rows are turned to choose spans and
        # then turned back. Texts are moved to the first column, and what is around them behind.
        place_BN = np.indices(tokens_BN.shape)[1]
        inside_BN = place_BN < length_B1
        turned_BN = inside_BN & (self.where.direction_B[:, None] < 0)
        from_BN = np.where(turned_BN, length_B1 - 1 - place_BN, place_BN) + first_B1
        from_BN %= tokens_BN.shape[1]
        natural = spans.at(tokens_BN, from_BN)
        text_only = is_text(natural, self.tokenizer.special) & inside_BN
        covered, kind = compat.spans(self.config.compat, text_only, self.config.data.spans)
        mask = spans.sample(
            self.tokenizer.word_start[natural] & inside_BN,
            covered,
            goal,
            draws_BX,
            self.config.data,
            kind,
            length_B1,
        )
        chosen_BN = np.zeros_like(mask)
        np.put_along_axis(chosen_BN, from_BN, mask & text_only, axis=1)
        return chosen_BN

    def _in_random_order(
        self,
        tokens_BT: np.ndarray,
        goal: int | np.ndarray,
        draws_BX: np.ndarray,
        text_BT: np.ndarray,
    ) -> np.ndarray:
        """Chooses targets by `spans.in_random_order`."""
        data, text_BT = self.config.data, text_BT & is_text(tokens_BT, self.tokenizer.special)
        # A word begins at the start of a text, even if the text was cut within a word.
        starts_BT = self.tokenizer.word_start[tokens_BT] | ~text_BT | ~np.roll(text_BT, 1, axis=1)
        max_span = data.max_span
        if data.spans == "random":
            starts_BT[:], max_span = True, 1
        return spans.in_random_order(starts_BT, text_BT, goal, draws_BX, max_span)


class Texts(NamedTuple):
    """Texts that are examples by themselves, one in each row; frames begin in the first column."""

    tokens_BT: np.ndarray
    """int: the text in reading order with its frame; any tokens behind it."""
    text_BT: np.ndarray
    """bool: positions of text."""
    length_B1: np.ndarray
    """int: tokens of text."""
    used_B1: np.ndarray
    """int: positions of the text and its frame."""
    ends_B1: np.ndarray | bool = False
    """bool: the text ends with the end of its document, in reading order."""


class Content(NamedTuple):
    """What the rows of a batch hold, [B, T] each, or what broadcasts to it."""

    fed_BT: np.ndarray
    """int: the tokens that the model reads."""
    goal_BT: np.ndarray
    """int: the tokens to predict at the targets."""
    target_BT: np.ndarray
    """bool."""
    rank_BT: np.ndarray | int = 0
    segments_BT: np.ndarray | int = 0


def read_texts(builder: ExampleBuilder, length_B: np.ndarray) -> Texts:
    """Reads texts of these lengths and puts the frame around each; see `frames`."""
    tokens_BN = builder.read(int(length_B.max()))[0]
    before, behind = frames.around(builder.config, builder.tokenizer.special)
    first, rest = len(before), builder.config.data.segment_len - tokens_BN.shape[1]
    tokens_BT = np.pad(tokens_BN, ((0, 0), (first, rest - first)))
    place_BT, length_B1 = np.indices(tokens_BT.shape)[1] - first, length_B[:, None]
    tokens_BT[:, :first] = before
    for place, token in enumerate(behind):
        tokens_BT[place_BT == length_B1 + place] = token
    text_BT = (place_BT >= 0) & (place_BT < length_B1)
    used_B1 = length_B1 + first + len(behind)
    return Texts(tokens_BT, text_BT, length_B1, used_B1)


def is_text(tokens: np.ndarray, special: SpecialIds) -> np.ndarray:
    """Whether each token is text, not SEP or CLS, and so may be a target: bool."""
    return (tokens != special.sep) & (tokens != special.cls)


def ranks(
    tokens_BT: np.ndarray,
    target_BT: np.ndarray,
    reuse_len: int,
    draws_BT: np.ndarray,
    special: SpecialIds,
) -> np.ndarray:
    """Returns the factorisation order, int32 [B, T]: -1 for context, and a random place in their
    half for targets, SEP and CLS.

    The ranks of the second half are R + 1 higher: it sees all of the first half, and the first half
    sees none of it (`_local_perm` of the original with perm_size = the length of a half).
    """
    order_BT = np.concatenate(
        [
            np.argsort(np.argsort(half, axis=1), axis=1)
            for half in np.split(draws_BT, [reuse_len], axis=1)
        ],
        axis=1,
    )
    rank_BT = np.where(target_BT | ~is_text(tokens_BT, special), order_BT, -1)
    rank_BT[:, reuse_len:] += reuse_len + 1
    return rank_BT.astype(np.int32)


def build(builder: ExampleBuilder) -> Batch:
    """Builds the Batch of the windows of a stream."""
    return BUILDERS[builder.config.objective.examples](builder)


def _permuted(builder: ExampleBuilder) -> Batch:
    config = builder.config
    if orders.DISTRIBUTIONS[config.data.factorization_order].whole:
        return _windows(builder, ordered)
    shape = layout(config.data, config.model.memory_len)
    T, R = shape.segment_len, shape.reuse_len
    # The factorisation order is new also when an example is repeated.
    pair_draws, first_draws, second_draws, order_draws = builder.draws(
        4, builder.draws_needed(R), builder.draws_needed(T - R), fresh=T
    )
    pairs, tokens_BT, segments_BT = _two_segments(builder, shape, shape.budget // 2, pair_draws)
    at_end = ((0, 0), (0, 1))
    tokens_BT = np.pad(tokens_BT, at_end, constant_values=builder.tokenizer.special.cls)
    segments_BT = np.pad(segments_BT, at_end, constant_values=2)
    target_BT = np.concatenate(
        [
            builder.targets(tokens_BT[:, :R], shape.first_goal, first_draws),
            builder.targets(tokens_BT[:, R:], shape.second_goal, second_draws),
        ],
        axis=1,
    )
    rank_BT = ranks(tokens_BT, target_BT, R, order_draws, builder.tokenizer.special)
    content = Content(tokens_BT, tokens_BT, target_BT, rank_BT, segments_BT)
    return batch_of(builder, content, T - 1, pairs)


def _windows(
    builder: ExampleBuilder, content_of: Callable[[ExampleBuilder, Texts], Content]
) -> Batch:
    """Builds examples of one text each, which fills the segment and which no other step reads."""
    text_len = builder.config.data.segment_len - frames.pieces_around(builder.config)
    length_B = np.full(len(builder.rows), text_len)
    return batch_of(builder, content_of(builder, read_texts(builder, length_B)))


def ordered(builder: ExampleBuilder, texts: Texts) -> Content:
    """Ranks each text as a whole, by `data.factorization_order`."""
    rank_BT = _ranks_of_all(builder, texts, builder.config.data.factorization_order)
    return Content(texts.tokens_BT, texts.tokens_BT, rank_BT >= 0, rank_BT)


def diffused(builder: ExampleBuilder, texts: Texts) -> Content:
    """Masks texts, with the unknown positions of the distribution `uniform` but no order: n of the
    R tokens of a text are MASK, with n uniform from 1 to R.
    """
    unknown_BT = _ranks_of_all(builder, texts, "uniform") >= 0
    # A text begins behind its CLS, if it has one.
    target_BT = np.roll(unknown_BT, int(texts.text_BT[0].argmax()), axis=1)
    fed_BT = np.where(target_BT, builder.tokenizer.special.mask, texts.tokens_BT)
    return Content(fed_BT, texts.tokens_BT, target_BT)


def _ranks_of_all(builder: ExampleBuilder, texts: Texts, order: str) -> np.ndarray:
    """Returns the ranks of texts without their frames, int32 [B, T]."""
    fresh = 1 + builder.config.data.segment_len
    (draws_BX,) = builder.draws(fresh=fresh)
    return orders.DISTRIBUTIONS[order].ranks(draws_BX, texts.length_B1)


def _diffused(builder: ExampleBuilder) -> Batch:
    return _windows(builder, diffused)


def _masked(builder: ExampleBuilder) -> Batch:
    config = builder.config
    if config.model.member.bounded:
        return _padded(builder)
    data, T = config.data, config.data.segment_len
    shape = SegmentLayout(T, 0, config.model.memory_len, 0, data.num_predict)
    pair_draws, target_draws, corrupt_draws, _ = builder.draws(4, builder.draws_needed(T), 2 * T)
    # Nothing past the window is read: a B that follows A is the rest of the window.
    pairs, tokens_BT, segments_BT = _two_segments(builder, shape, 0, pair_draws)
    at_start = ((0, 0), (1, 0))
    tokens_BT = np.pad(tokens_BT, at_start, constant_values=builder.tokenizer.special.cls)
    target_BT = builder.targets(tokens_BT, data.num_predict, target_draws)
    fed_BT = corrupted(builder, tokens_BT, target_BT, corrupt_draws)
    content = Content(fed_BT, tokens_BT, target_BT, 0, np.pad(segments_BT, at_start))
    return batch_of(builder, content, 0, pairs)


def _two_segments(
    builder: ExampleBuilder,
    shape: SegmentLayout,
    look_ahead: int,
    draws_B4: np.ndarray,
) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """Reads [ reuse ][ A ][SEP][ B ][SEP]. Returns A and B, all tokens, each token's segment."""
    R, budget = shape.reuse_len, shape.budget
    tokens_BX, starts_BX = builder.read(R + budget + look_ahead)
    pairs = choose_pairs(
        builder.text,
        builder.where,
        tokens_BX[:, R:],
        starts_BX[:, R:],
        shape,
        draws_B4,
        builder.config.data,
    )
    column, first_sep_B1 = np.arange(budget + 2)[None, :], pairs.a_len_B[:, None]
    of_b_BY = column > first_sep_B1
    text_BY = spans.at(pairs.tokens_BY, np.clip(column - of_b_BY, 0, budget - 1))
    is_sep_BY = (column == first_sep_B1) | (column == budget + 1)
    joined_BY = np.where(is_sep_BY, builder.tokenizer.special.sep, text_BY)
    return (
        pairs,
        np.concatenate([tokens_BX[:, :R], joined_BY], axis=1),
        np.pad(of_b_BY.astype(int), ((0, 0), (R, 0))),
    )


def _padded(builder: ExampleBuilder) -> Batch:
    """Builds [CLS] A [SEP] B [SEP] and padding, or [CLS] A [SEP] without a B. With data.pairs=none
    A is the whole window.
    """
    data, special, where = builder.config.data, builder.tokenizer.special, builder.where
    T, R = data.segment_len, data.reuse_len
    of_pair = 0 if data.pairs == "none" else whole_sentences.draws_needed(R)
    pair_draws, target_draws, corrupt_draws, _ = builder.draws(
        of_pair, builder.draws_needed(T), 2 * T
    )
    if data.pairs == "none":
        length_B, none_B = np.full(len(pair_draws), R), np.zeros(len(pair_draws), bool)
        pairs = Pairs(length_B, builder.text.read(where.cursor_B, R)[0], none_B, none_B)
    else:
        pairs, length_B = whole_sentences.choose(builder.text, where, R, pair_draws, data)
    column, first_sep_B1 = np.arange(T)[None, :], 1 + pairs.a_len_B[:, None]
    end_B1 = (length_B + 2 + (length_B > pairs.a_len_B))[:, None]
    of_b_BT, used_BT = (column > first_sep_B1) & (column < end_B1), column < end_B1
    text_BT = used_BT & (column > 0) & (column != first_sep_B1) & (column != end_B1 - 1)
    place_BT = np.clip(column - 1 - of_b_BT, 0, R - 1)
    tokens_BT = np.where(text_BT, spans.at(pairs.tokens_BY, place_BT), special.sep)
    tokens_BT = np.where(used_BT, tokens_BT, special.pad)
    tokens_BT[:, 0] = special.cls

    goal_B1 = np.clip(np.rint(data.target_rate * end_B1).astype(int), 1, data.num_predict)
    target_BT = builder.targets(tokens_BT, goal_B1, target_draws, text_BT)
    fed_BT = corrupted(builder, tokens_BT, target_BT, corrupt_draws)
    content = Content(fed_BT, tokens_BT, target_BT, np.where(used_BT, 0, NEVER), of_b_BT)
    return batch_of(builder, content, 0, pairs)


def _causal(builder: ExampleBuilder) -> Batch:
    T = builder.config.data.segment_len
    tokens_BN, _ = builder.read(T + builder.config.data.multi_token_prediction)
    read_BT, next_BT = tokens_BN[:, :T], tokens_BN[:, 1 : T + 1]
    content = Content(read_BT, next_BT, np.ones(read_BT.shape, bool), np.arange(T))
    batch = batch_of(builder, content)
    return dataclasses.replace(batch, auxiliary=_auxiliary(builder, tokens_BN))


def _auxiliary(builder: ExampleBuilder, tokens_BN: np.ndarray) -> Auxiliary | None:
    """Returns targets and weights of the training losses of lower layers and further tokens. Like
    all data they are functions of the step.

    Layer l of n has a loss in the first l / (2n) of the training steps: the lowest layer loses it
    first, and after half of the training only the last layer has a loss.
    """
    model, data, steps = builder.config.model, builder.config.data, builder.config.train.steps
    ahead, n = data.multi_token_prediction, model.layers
    if builder.name != "train" or not (model.layer_losses or ahead > 1):
        return None
    trains_L = model.layer_losses & (builder.step * 2 * n < steps * np.arange(1, n + 1))
    trains_L[-1] = True
    weights_LA = np.outer(trains_L, [1.0, *[FURTHER] * (ahead - 1)]).astype(np.float32)
    further_AT = np.arange(2, ahead + 1)[:, None] + np.arange(data.segment_len)
    return Auxiliary(
        tokens=tokens_BN[:, further_AT].astype(np.int32),
        weights=weights_LA * builder.where.exists_B.astype(np.float32)[:, None, None],
    )


def corrupted(
    builder: ExampleBuilder, tokens_BT: np.ndarray, target_BT: np.ndarray, draws_BX: np.ndarray
) -> np.ndarray:
    """Replaces most targets by MASK and some by a random piece; the others stay (BERT, section
    3.1).
    """
    data, tokenizer = builder.config.data, builder.tokenizer
    kind_BT, piece_BT = np.split(draws_BX, 2, axis=1)
    random_V = (
        tokenizer.text_ids if data.random_pieces == "text" else np.arange(len(tokenizer.word_start))
    )
    any_BT = random_V[(piece_BT * len(random_V)).astype(int)]
    changed = data.mask_share + data.random_share
    fed_BT = np.where(kind_BT < changed, any_BT, tokens_BT)
    fed_BT = np.where(kind_BT < data.mask_share, tokenizer.special.mask, fed_BT)
    return np.where(target_BT, fed_BT, tokens_BT)


def batch_of(
    builder: ExampleBuilder, content: Content, summary: int = 0, pairs: Pairs | None = None
) -> Batch:
    """Returns the Batch that predicts the tokens at the targets, at most `data.num_predict` in a
    row; without pairs no label has a weight. `summary` is the position of CLS, if there is one.
    """
    where, slots = builder.where, builder.config.data.num_predict
    target_BT, shape = content.target_BT, content.target_BT.shape
    # A stable sort of "is not a target" moves the positions of the targets to the front, ascending.
    position_BP = np.argsort(~target_BT, axis=1, kind="stable")[:, :slots]
    used_BP = np.arange(slots)[None, :] < target_BT.sum(axis=1, keepdims=True)
    position_BP = np.where(used_BP, position_BP, 0)
    none_B = np.zeros(len(target_BT), bool)
    return Batch(
        tokens=content.fed_BT.astype(np.int32),
        segments=np.broadcast_to(content.segments_BT, shape).astype(np.int32),
        rank=np.broadcast_to(content.rank_BT, shape).astype(np.int32),
        direction=where.direction_B,
        continues=where.continues_B,
        target_positions=position_BP.astype(np.int32),
        target_tokens=np.where(used_BP, spans.at(content.goal_BT, position_BP), 0).astype(np.int32),
        target_weights=(used_BP & where.exists_B[:, None]).astype(np.float32),
        summary_position=np.full(len(target_BT), summary, np.int32),
        label=(pairs.follows_B if pairs else none_B).astype(np.int32),
        label_weight=(pairs.labelled_B & where.exists_B if pairs else none_B).astype(np.float32),
    )


BUILDERS = {"permuted": _permuted, "causal": _causal, "masked": _masked, "diffused": _diffused}
"""Builders of a Batch, by `Objective.examples`."""
