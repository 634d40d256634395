"""Questions about texts for `score` and `fill`: which positions are known, and in which order the
others are predicted.

Errors name texts by their number, from 1.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax.compat import hooks
from xlnet_jax.config import Config, DataConfig
from xlnet_jax.data import layouts
from xlnet_jax.data.batches.orders import DISTRIBUTIONS
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.options import Decoding, Fill, Options, Score
from xlnet_jax.messages import quantity
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import make_recipe

log = logging.getLogger("xlnet_jax")

Order = str | Sequence[int]
"""The order of prediction: `left`, `reversed`, `random`, or a list of the unknown positions."""

Text = tuple[np.ndarray, np.ndarray]
"""The ids of a text, int32 [N], and which of them are known, bool [N]; see `checked_texts`."""


class Segment(NamedTuple):
    """The N <= T tokens of a text that are read at a time, and the U unknown tokens that are
    predicted with them.
    """

    token_N: np.ndarray
    rank_N: np.ndarray
    position_U: np.ndarray
    """int: positions in the segment that predict the unknown tokens; ascending, or in a decoder in
    the order of prediction.
    """
    target_U: np.ndarray
    """Ids of the unknown tokens, where the caller knows them."""
    text_U: np.ndarray
    """int: positions of the unknown tokens in the text."""
    kind_N: np.ndarray | int = 0
    """Segment kinds, as in `Batch.segments`."""


@dataclasses.dataclass(frozen=True)
class TextModel:
    """A model from `any_order` that answers questions about texts. Equal models share compiled
    programs.
    """

    model: LanguageModel
    params: Any
    special: SpecialIds
    segment_len: int
    """T: tokens per segment."""
    batch_size: int = 16
    """Texts (times orders) per batch. It changes no draw, and likelihoods only by rounding."""
    frame: tuple[list[int], list[int]] | None = None
    """From `data.batches.frames.ids`: the ids before and behind each text."""


def check_question(config: Config, path: str, asked: Options, bound: bool = False) -> None:
    """Raises BadInput for options that the model at a path does not support. `bound`: whether
    `elbo` is called.
    """
    objective, of = config.objective, f"data.objective={config.data.objective}"
    by_confidence = isinstance(asked, Score) and asked.order == "confidence" and not bound
    chosen = {
        f"{name}={value}": value
        for name, usual in (("order", "left"), ("tokens_per_step", 1), ("speculative", 0))
        if (value := getattr(asked, name, usual)) != usual
    }
    if (
        objective.likelihood == "pseudo"
        and not by_confidence
        and (chosen or not isinstance(asked, Fill))
    ):
        raise BadInput(
            f"{path} was trained with {of}, which predicts each unknown token by itself: it fills "
            "one [MASK] without further options, and scores by its pseudo-likelihood (in Python "
            "`pseudo_score`) or with order=confidence; for all else use a model of "
            "data.objective=plm or clm"
        )
    if objective.masks and isinstance(asked, Decoding) and asked.speculative:
        raise BadInput(
            f"speculative={asked.speculative}: {path} was trained with {of}, in which no call "
            "verifies several tokens; leave it out, or use tokens_per_step"
        )
    if isinstance(asked, Score):
        if bound != (objective.likelihood == "bound") and not by_confidence:
            a_bound = "a bound on the likelihood; use `elbo`, or `score` with order=confidence"
            has = "no bound; use `score`" if bound else a_bound
            raise BadInput(f"{path} was trained with {of} and has {has}")
        for name in ("orders", "order") if bound else ("draws",):
            if (value := getattr(asked, name)) != getattr(Score(), name):
                whom = "has a bound, the mean over all orders" if bound else "has a likelihood"
                raise BadInput(f"{name}={value}: a model of {of} {whom}; leave it out")
    if objective.causal and isinstance(asked, Fill):
        raise BadInput(
            f"{path} is left-to-right ({of}) and cannot fill a gap: use `generate`, or train "
            "one with data.objective=plm"
        )
    if objective.causal and chosen:
        raise BadInput(
            f"{next(iter(chosen))}: a left-to-right model ({of}) predicts one token after the "
            "other; leave it out, or train a model with data.objective=plm"
        )
    if isinstance(asked, Decoding) or by_confidence:
        if config.model.member.parts.positions == "per_layer":
            raise BadInput(
                f"{path} has model.architecture={config.model.architecture} without a memory, "
                "so it cannot continue a text; train one with model.architecture=transformer_xl"
            )
        hooks.check_cache(config.compat, path)


def any_order(config: Config) -> LanguageModel:
    """Returns the language model of a configuration, for `TextModel`."""
    model = make_recipe(config).model
    # Only training reads part of a segment again (`reuse_len`); here all of it enters the memory.
    return dataclasses.replace(model, transformer=model.transformer.clone(reuse_len=None))


def checked_texts(
    model: LanguageModel,
    segment_len: float,
    tokens: Sequence[Sequence[int]],
    known: Sequence[Sequence[bool]],
    special: int = 0,
) -> list[Text]:
    """Checks the texts and returns them as arrays. `special` pieces are read around each text.

    Raises BadInput for a text without unknown positions, an id outside of the vocabulary, or a text
    that segment and memory cannot hold.
    """
    if len(tokens) != len(known):
        raise BadInput(f"{quantity(len(tokens), 'text')}, but `known` is for {len(known)}")
    config, texts = model.transformer.config, []
    for number, (ids, given) in enumerate(zip(tokens, known, strict=True), 1):
        text = f"text {number}"
        ids_N = _array(f"{text}: give ids as a list of whole numbers", ids, "iu")
        known_N = _array(f"{text}: give `known` as a list of booleans", given, "b")
        if ids_N.shape != known_N.shape:
            raise BadInput(
                f"{text}: {quantity(len(ids_N), 'token')}, but `known` has {len(known_N)}"
            )
        if known_N.all():
            raise BadInput(f"{text}: no position is unknown; nothing is left to predict")
        if (wrong_N := (ids_N < 0) | (ids_N >= config.pieces)).any():
            raise BadInput(
                f"{text}: id {ids_N[wrong_N][0]} is outside of the vocabulary of {config.pieces}"
            )
        first = int(np.argmin(known_N))
        if model.transformer.objective.causal and known_N[first:].any():
            raise BadInput(
                f"{text}: a left-to-right model sees only earlier tokens; position {first} is "
                f"unknown, and position {first + int(np.argmax(known_N[first:]))} is known"
            )
        if len(ids_N) + special > segment_len and not config.memory_len:
            framed = ", special pieces included" * (special > 0)
            limit = "model.max_positions" if config.member.bounded else "data.segment_len"
            raise BadInput(
                f"{text} has {len(ids_N)} tokens, and a model with model.memory_len=0 reads only "
                f"{limit}={segment_len}{framed}; shorten it"
            )
        texts.append((ids_N.astype(np.int32), known_N))
    return texts


def _array(otherwise: str, values: Any, kinds: str) -> np.ndarray:
    """Returns the values as an array [N]. Raises BadInput with the message `otherwise` if they are
    no vector of one of the dtype kinds.
    """
    try:
        values_N = np.asarray(values)
    except ValueError:  # lists of several lengths
        values_N = np.zeros(())
    if values_N.ndim != 1 or (len(values_N) and values_N.dtype.kind not in kinds):
        raise BadInput(otherwise)
    return values_N if len(values_N) else values_N.astype("bool" if kinds == "b" else "int")


def places(
    number: int, known_N: np.ndarray, order: Order, key: tuple[int, ...], segment_len: int
) -> np.ndarray:
    """The place of every position in the order, int [N]; places of known positions have no meaning.
    A random order depends on the key alone. Raises BadInput for a list that is no permutation of
    the unknown positions, or that returns to an earlier segment.
    """
    N, unknown_U = len(known_N), np.flatnonzero(~known_N)
    if order == "random":
        return np.random.default_rng(key).permutation(N)
    if isinstance(order, str):
        return np.arange(N) if order == "left" else np.arange(N)[::-1]
    if sorted(order) != unknown_U.tolist():
        raise BadInput(
            f"text {number}: the order is no permutation of the unknown "
            f"positions {unknown_U.tolist()}"
        )
    if (np.diff(np.asarray(order) // segment_len) < 0).any():
        raise BadInput(
            f"text {number}: the order returns to a segment of {segment_len} tokens that it has "
            "left; a text is read segment by segment"
        )
    place_N = np.zeros(N, int)
    place_N[np.asarray(order)] = np.arange(len(unknown_U))
    return place_N


def segments(
    model: TextModel, ids_N: np.ndarray, known_N: np.ndarray, place_N: np.ndarray
) -> list[Segment]:
    """Cuts a text into segments for a model with two streams.

    Known tokens have rank -1, unknown tokens rank 1 and up by their place in the order. Known SEP
    and CLS have rank 0: only predicted tokens see them, because no context saw them in training.
    """
    parts, segment_len, special = [], model.segment_len, model.special
    if model.frame is not None:  # pieces behind the text only
        ids_N = np.append(ids_N, np.array(model.frame[1], np.int32))
        known_N = np.pad(known_N, (0, len(model.frame[1])), constant_values=True)
    for cut in (slice(start, start + segment_len) for start in range(0, len(ids_N), segment_len)):
        unknown_U = np.flatnonzero(~known_N[cut])
        rank_N = np.where(np.isin(ids_N[cut], (special.sep, special.cls)), 0, -1).astype(np.int32)
        rank_N[unknown_U] = 1 + np.argsort(np.argsort(place_N[cut][unknown_U]))
        parts.append(
            Segment(ids_N[cut], rank_N, unknown_U, ids_N[cut][unknown_U], cut.start + unknown_U)
        )
    return parts


def with_masks(model: TextModel, ids_N: np.ndarray, known_N: np.ndarray) -> Segment:
    """Returns the segment that a masked model (`mlm`, `mdm`) reads: MASK at unknown positions."""
    position_U, first, kind_N = np.flatnonzero(~known_N), 0, 0
    token_N = np.where(known_N, ids_N, model.special.mask).astype(np.int32)
    transformer = model.model.transformer
    layout = layouts.Layout(model.special, transformer.config.member)
    if model.frame is not None:
        before, behind = model.frame
        token_N, first = np.array([*before, *token_N, *behind], np.int32), len(before)
    elif transformer.objective.framed[layout.member.bounded]:
        (token_N, kind_N), first = layouts.framed(layout, token_N), layout.first
    rank_N = np.zeros_like(token_N)
    return Segment(token_N, rank_N, first + position_U, ids_N[position_U], position_U, kind_N)


def with_leading_eod(
    model: TextModel, ids_N: np.ndarray, known_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Puts `<eod>` before a text whose first token is unknown, because a left-to-right model
    predicts each token from earlier tokens. A model of whole documents has read it before all.
    """
    if known_N[0] and model.frame is None:
        return ids_N, known_N
    return np.insert(ids_N, 0, model.special.eod), np.insert(known_N, 0, True)


def warn_of_order(config: Config, known: Sequence[Sequence[bool]], order: Order = "left") -> None:
    """Logs one warning for each model of `plm`, when a question goes beyond the order distribution
    of its training (`data.factorization_order`); see `OrderDistribution.beyond`.
    """
    data = config.data
    if config.objective.stream == "content" or data in _told:
        return
    T, distribution = data.segment_len, DISTRIBUTIONS[data.factorization_order]
    parts = [
        np.asarray(each[start : start + T], bool)
        for each in known
        for start in range(0, len(each), T)
    ]
    if beyond := distribution.beyond(data, parts, order):
        _told.add(data)
        whole = "" if distribution.whole else ", or left_within for whole texts from left to right"
        log.warning(
            "the model was trained with data.factorization_order=%s and may be poor here: %s; for "
            "such questions train one with data.factorization_order=uniform%s",
            data.factorization_order,
            "; ".join(beyond),
            whole,
        )


_told: set[DataConfig] = set()
"""Settings of the models that `warn_of_order` has warned about."""
