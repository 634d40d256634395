"""Questions to a model of any order: which positions of a text are known, and in which order the
others come.

What `score` and `fill` share. Raised errors name texts by their number, from 1.
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
"""`left`, `reversed`, `random`, or the unknown positions in the order in which they are
predicted.
"""

Text = tuple[np.ndarray, np.ndarray]
"""The ids of a text, int32 [N], and whether they are given, bool [N]; see `checked_texts`."""


class Segment(NamedTuple):
    """What is read of a text at a time, at most T tokens, and the U unknown ones that are predicted
    then.
    """

    token_N: np.ndarray
    rank_N: np.ndarray
    position_U: np.ndarray
    """int: in the segment, where they are predicted; ascending, in a decoder in their order."""
    target_U: np.ndarray
    """Their ids, where they are given."""
    text_U: np.ndarray
    """int: where they are in the text."""
    kind_N: np.ndarray | int = 0
    """The segments of `Batch`."""


@dataclasses.dataclass(frozen=True)
class TextModel:
    """A model of `any_order` that is asked about texts. Programs are shared by all with an equal
    model.
    """

    model: LanguageModel
    params: Any
    special: SpecialIds
    segment_len: int
    """T."""
    batch_size: int = 16
    """Texts (times orders) at a time; it changes neither draws nor, beyond rounding,
    likelihoods.
    """


def check(config: Config, path: str, asked: Options, bound: bool = False) -> None:
    """Raises BadInput for a question that the model of a configuration cannot answer; `bound`: for
    one by `elbo`.
    """
    objective, of = config.objective, f"data.objective={config.data.objective}"
    plain = isinstance(asked, Fill) and (asked.order, asked.tokens_per_step, asked.speculative) == (
        "left",
        1,
        0,
    )
    if objective.likelihood == "pseudo" and not plain:
        raise BadInput(
            f"{path} was trained with {of}, which predicts each unknown token by itself: it fills "
            "one [MASK] without further options, and scores by its pseudo-likelihood (in Python "
            "`pseudo_score`); for all else use a model of data.objective=plm or clm"
        )
    if objective.masks and isinstance(asked, Decoding) and asked.speculative:
        raise BadInput(
            f"speculative={asked.speculative}: {path} was trained with {of}, in which no call "
            "verifies several tokens; leave it out, or use tokens_per_step"
        )
    if isinstance(asked, Score):
        if bound != (objective.likelihood == "bound"):
            has = "no bound; use `score`" if bound else "a bound on the likelihood; use `elbo`"
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
    for name, only in (("order", "left"), ("tokens_per_step", 1), ("speculative", 0)):
        if objective.causal and (value := getattr(asked, name, only)) != only:
            raise BadInput(
                f"{name}={value}: a left-to-right model ({of}) has one token after the other; "
                "leave it out, or train a model with data.objective=plm"
            )
    if isinstance(asked, Decoding) and config.model.member.parts.positions == "per_layer":
        raise BadInput(
            f"{path} has model.architecture={config.model.architecture}, and no memory that could "
            "follow a text; train one with model.architecture=transformer_xl"
        )
    if isinstance(asked, Decoding):
        hooks.check_cache(config.compat, path)


def any_order(config: Config) -> LanguageModel:
    """The model of a configuration that answers questions."""
    model = make_recipe(config).model
    # Outside of training a segment has no part that is read twice: all of it enters the memory.
    return dataclasses.replace(model, transformer=model.transformer.clone(reuse_len=None))


def checked_texts(
    model: LanguageModel,
    segment_len: float,
    tokens: Sequence[Sequence[int]],
    known: Sequence[Sequence[bool]],
) -> list[Text]:
    """The ids of each text, and whether they are given, as arrays.

    Raises BadInput for a text without unknown positions, an id outside of the vocabulary, or a text
    that segment and memory cannot hold.
    """
    if len(tokens) != len(known):
        raise BadInput(f"{quantity(len(tokens), 'text')}, but `known` is for {len(known)}")
    config, texts = model.transformer.config, list[Text]()
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
                f"{text}: a left-to-right model knows only what is before; position {first} is "
                f"unknown, and position {first + int(np.argmax(known_N[first:]))} is known"
            )
        if len(ids_N) + 2 * frame(model) > segment_len and not config.memory_len:
            framed = ", CLS and SEP included" * frame(model)
            raise BadInput(
                f"{text} has {len(ids_N)} tokens, and a model with model.memory_len=0 reads only "
                f"data.segment_len={segment_len}{framed}; shorten it"
            )
        texts.append((ids_N.astype(np.int32), known_N))
    return texts


def _array(otherwise: str, values: Any, kinds: str) -> np.ndarray:
    """One dimension of numbers of these kinds. Raises BadInput with the reason `otherwise`."""
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
    """The place of every position in the order, int [N]; those of known ones mean nothing. A random
    order depends on the key alone. Raises BadInput for an order that is no permutation of the
    unknown positions.
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
    ids_N: np.ndarray,
    known_N: np.ndarray,
    place_N: np.ndarray,
    segment_len: int,
    special: SpecialIds,
) -> list[Segment]:
    """The parts of a text in which a model with two streams reads it.

    Known tokens have rank -1, unknown ones 1 and up by their place in the order. Known SEP and CLS
    have rank 0: only what is predicted sees them, because no context saw one in training.
    """
    parts = []
    for cut in (slice(start, start + segment_len) for start in range(0, len(ids_N), segment_len)):
        unknown_U = np.flatnonzero(~known_N[cut])
        rank_N = np.where(np.isin(ids_N[cut], (special.sep, special.cls)), 0, -1).astype(np.int32)
        rank_N[unknown_U] = 1 + np.argsort(np.argsort(place_N[cut][unknown_U]))
        parts.append(
            Segment(ids_N[cut], rank_N, unknown_U, ids_N[cut][unknown_U], cut.start + unknown_U)
        )
    return parts


def frame(model: LanguageModel) -> bool:
    """Whether a text stands between CLS and SEP."""
    return model.transformer.objective.framed[model.transformer.config.member.positions_at_input]


def with_masks(
    model: LanguageModel, ids_N: np.ndarray, known_N: np.ndarray, special: SpecialIds
) -> Segment:
    """A text as a masked model, or one of masked diffusion, reads it: MASK where it is unknown."""
    position_U, member = np.flatnonzero(~known_N), model.transformer.config.member
    read, first = (
        layouts.Sequence(
            np.where(known_N, ids_N, special.mask).astype(np.int32), np.zeros_like(ids_N)
        ),
        0,
    )
    if frame(model):
        layout = layouts.Layout(special, member)
        read, first = layouts.joined(layout, read.tokens), layout.first
    rank_N = np.zeros(len(read.tokens), np.int32)
    return Segment(
        read.tokens, rank_N, first + position_U, ids_N[position_U], position_U, read.segments
    )


def following(
    ids_N: np.ndarray, known_N: np.ndarray, special: SpecialIds
) -> tuple[np.ndarray, np.ndarray]:
    """What a left-to-right model, whose every token predicts the next one, reads and predicts of a
    text: if nothing of it is known it follows the end of a document.
    """
    return (
        (ids_N, known_N)
        if known_N[0]
        else (np.insert(ids_N, 0, special.eod), np.insert(known_N, 0, True))
    )


def warn_of_order(config: Config, known: Sequence[Sequence[bool]], order: Order = "left") -> None:
    """One line in the log, the first time that questions to a `plm` model go beyond what its order
    distribution (`data.factorization_order`) has taught, with the distribution that teaches them;
    see `OrderDistribution.beyond`.
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
"""The settings of the models that `warn_of_order` has warned of."""
