"""Continuations of texts by a left-to-right model, with a cache of keys and values.

The rule, which is that of training (segment recurrence; Transformer-XL, section 3.2): a text is cut from its first
token on into segments of T = `data.segment_len` tokens. A token sees the tokens before it in its own segment, and the
M = `model.memory_len` tokens before the segment, with the keys and values that they had when they were read. When a
segment is full, the last M slots of memory and segment become the memory, and the next token starts a new segment. So a
text may be of any length, prompt and continuation alike, and the result equals that of the model without a cache,
segment by segment. The first token of a segment sees M tokens and itself: with a short memory it knows less than the
one before it, as in training. Sliding by one token has no such edge, but it is not the model that was trained.

Two programs of fixed shapes. `_read` runs a segment of the prompts, with as many rows as they need, rounded up to a
power of two or T. Prompts are right-aligned by whole segments, so that all end in the last call. `_write` is a loop on
the device over the new tokens of a chunk, one row per layer each; every text is at its own position of its own segment.
An empty prompt is read as the end of a document (`<eod>`), after which the next one starts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, forward_text
from xlnet_jax.config import Config
from xlnet_jax.data.tokenizer import EOD, PAD
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.sampling import PLAIN, Sampling, sample
from xlnet_jax.model.cache import Cache, empty_cache
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import make_recipe

CHUNK = 16
"""Tokens between two calls of a listener: the device runs so many without the host."""

SHORTEST = 16
"""Rows of the shortest part of a prompt; the next has twice as many."""

Listener = Callable[[int, list[int], bool], None]
"""Called with the number of a prompt, its new tokens since the last call, and whether it has ended."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Texts:
    """B texts between two dispatches."""

    cache: Cache
    logits_BV: jax.Array
    """Of the next token."""
    place_B: jax.Array
    """Its position in the segment; T: the segment is full."""
    count_B: jax.Array
    """New tokens so far."""
    ended_B: jax.Array
    number_B: jax.Array
    """Of the prompts; they key the draws."""


@dataclasses.dataclass(frozen=True)
class Generator:
    """A left-to-right model that continues texts. Programs are shared by all generators of an equal model.

    Attributes:
      model: with `model.transformer.config.memory_len` slots of memory.
      params: on the devices that compute.
      segment_len: T.
      stop: the token that ends a text; None: none does. It is returned as the last one.
      batch_size: texts at a time; it does not change the draws.
    """

    model: LanguageModel
    params: Any
    segment_len: int
    stop: int | None = EOD
    batch_size: int = 16

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        sampling: Sampling = PLAIN,
        listener: Listener | None = None,
    ) -> list[list[int]]:
        """At most `tokens` new tokens for each prompt of ids.

        Equal arguments give equal bits with the same batch size. What a text becomes depends on its prompt, its number
        and the seed alone.

        Raises BadInput for no prompt, an id outside of the vocabulary, or an impossible number.
        """
        self._check(prompts)
        sampling.check(tokens)
        found: list[list[int]] = [[] for _ in prompts]
        B = rows_at_a_time(self.batch_size, len(prompts))
        write = functools.partial(_write, self.model, sampling.filtered, self.params)
        for first in range(0, len(prompts), B):
            texts = self._read([list(ids) or [EOD] for ids in prompts[first : first + B]], first, B)
            left, ended_B = tokens, np.arange(B) >= len(prompts) - first
            while left > 0 and not ended_B.all():
                going = np.flatnonzero(~ended_B).tolist()
                results, texts = write(texts, sampling.arrays(), np.int32(min(left, CHUNK)), self.stop)
                ended_B, tokens_BC = jax.device_get(results)
                left -= CHUNK
                for row in going:
                    new = tokens_BC[row][tokens_BC[row] >= 0].tolist()
                    found[first + row] += new
                    if listener is not None:
                        listener(first + row, new, bool(ended_B[row]) or left <= 0)
        return found

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        if self.batch_size < 1:
            raise BadInput(f"batch_size={self.batch_size} must be at least 1")
        if not len(prompts):
            raise BadInput("no prompt; give at least one")
        V = self.model.transformer.config.vocab_size
        for number, ids in enumerate(prompts, 1):
            if wrong := [id for id in ids if not 0 <= id < V]:
                raise BadInput(f"prompt {number}: id {wrong[0]} is outside of the vocabulary of {V}")

    def _read(self, prompts: list[list[int]], first: int, B: int) -> Texts:
        """The state after the prompts, of which the first has this number; B - len(prompts) rows are empty."""
        T = self.segment_len
        texts = _start(self.model, self.params, T, np.int32(first), np.arange(B) >= len(prompts))
        # The last part of every prompt has 1 to T tokens, those before it T.
        parts = [[ids[start : start + T] for start in range(0, len(ids), T)] for ids in prompts]
        rounds = max(map(len, parts))
        longest = max(len(each[-1]) for each in parts)
        for turn in range(rounds):
            Q = T if turn < rounds - 1 else min(T, max(SHORTEST, 1 << (longest - 1).bit_length()))
            tokens_BQ, rank_BQ = np.full((B, Q), PAD, np.int32), np.full((B, Q), NEVER, np.int32)
            for b, each in enumerate(parts):
                part = each[turn - (rounds - len(each))] if turn >= rounds - len(each) else []
                tokens_BQ[b, : len(part)], rank_BQ[b, : len(part)] = part, np.arange(len(part))
            texts = _read(self.model, self.params, texts, tokens_BQ, rank_BQ)
        return texts


def rows_at_a_time(batch_size: int, rows: int) -> int:
    """Rows of a batch: of a few sizes only, for few programs, and a multiple of the devices that share the rows."""
    devices = math.prod(dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1) for axis in meshes.RULES.batch)
    return -(-min(batch_size, 1 << (rows - 1).bit_length()) // devices) * devices


def program(**options: Any) -> Callable[..., Any]:
    """`jax.jit` with the rules of sharding, which the model's own constraints need."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def ruled(*arguments: Any) -> Any:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                return function(*arguments)

        return jax.jit(ruled, **options)

    return decorate


@program(static_argnums=(0, 2))
def _start(model: LanguageModel, params: Any, segment_len: int, first: jax.Array, empty_B: jax.Array) -> Texts:
    """Before the first token of B texts."""
    config, B = model.transformer.config, len(empty_B)
    zero_B = jnp.zeros(B, jnp.int32)
    cache = empty_cache(config, params, B, segment_len, config.memory_len)
    logits_BV = jax.eval_shape(lambda: _logits(model, params, jnp.zeros((B, 1, config.d_model), config.compute_dtype)))
    return Texts(cache, jnp.zeros(logits_BV.shape, logits_BV.dtype), zero_B, zero_B, empty_B, first + jnp.arange(B))


@program(static_argnums=0, donate_argnums=2)
def _read(model: LanguageModel, params: Any, texts: Texts, tokens_BQ: jax.Array, rank_BQ: jax.Array) -> Texts:
    """Starts a segment in all texts, with these tokens; the ranks of padding are NEVER."""
    length_B = jnp.sum(rank_BQ != NEVER, axis=1, dtype=jnp.int32)
    cache = texts.cache.next_segment(jnp.ones_like(length_B, bool))
    cache, vectors_B1D = _run(model, params, cache, tokens_BQ, rank_BQ, None, jnp.maximum(length_B - 1, 0))
    return dataclasses.replace(texts, cache=cache, logits_BV=_logits(model, params, vectors_B1D), place_B=length_B)


@program(static_argnums=(0, 1), donate_argnums=3)
def _write(
    model: LanguageModel, sort: bool, params: Any, texts: Texts, sampling: Sampling, tokens: jax.Array, stop: int | None
) -> tuple[tuple[jax.Array, jax.Array], Texts]:
    """At most `tokens` more tokens of every text: which have ended, [B]; the tokens, [B, CHUNK], -1 where none is."""
    T, B = texts.cache.segment_len, len(texts.place_B)

    def more(state: tuple[jax.Array, Texts, jax.Array]) -> jax.Array:
        at, texts, _ = state
        return (at < tokens) & ~texts.ended_B.all()

    def step(state: tuple[jax.Array, Texts, jax.Array]) -> tuple[jax.Array, Texts, jax.Array]:
        at, texts, tokens_BC = state
        token_B = sample(texts.logits_BV, sampling, texts.number_B, texts.count_B, sort)
        tokens_BC = tokens_BC.at[:, at].set(jnp.where(texts.ended_B, -1, token_B))
        ended_B = texts.ended_B if stop is None else texts.ended_B | (token_B == stop)
        full_B = texts.place_B == T
        cache = jax.lax.cond(full_B.any(), lambda cache: cache.next_segment(full_B), lambda cache: cache, texts.cache)
        place_B = jnp.where(full_B, 0, texts.place_B)
        # A text that has ended writes into one slot again and again.
        cache, vectors_B1D = _run(
            model, params, cache, token_B[:, None], place_B[:, None], place_B[:, None], jnp.zeros(B, jnp.int32)
        )
        texts = Texts(
            cache=cache,
            logits_BV=_logits(model, params, vectors_B1D),
            place_B=jnp.where(texts.ended_B, place_B, place_B + 1),
            count_B=texts.count_B + 1,
            ended_B=ended_B,
            number_B=texts.number_B,
        )
        return at + 1, texts, tokens_BC

    tokens_BC = jnp.full((B, CHUNK), -1, jnp.int32)
    _, texts, tokens_BC = jax.lax.while_loop(more, step, (jnp.zeros((), jnp.int32), texts, tokens_BC))
    # Every process reads them.
    return jax.tree.map(lambda x: nn.with_logical_constraint(x, (None,) * x.ndim), (texts.ended_B, tokens_BC)), texts


def _run(
    model: LanguageModel, params: Any, cache: Cache, tokens_BQ: jax.Array, rank_BQ: jax.Array,
    place_BQ: jax.Array | None, last_B: jax.Array,
) -> tuple[Cache, jax.Array]:  # fmt: skip
    """The cache with Q more tokens, and the vectors that predict the one after row `last_B`: [B, 1, D]."""
    batch = forward_text(tokens_BQ, rank_BQ, np.zeros(tokens_BQ.shape, np.int32), last_B[:, None])
    out: Any = model.transformer.apply({"params": params}, batch, cache, deterministic=True, place_BT=place_BQ)
    return out.memory, out.target_vectors_BPD


def _logits(model: LanguageModel, params: Any, vectors_B1D: jax.Array) -> jax.Array:
    """[B, V] with whole rows: the draw needs all of the vocabulary."""
    return nn.with_logical_constraint(model.logits(params, vectors_B1D)[:, 0], ("batch", None))


def left_to_right_only(order: Any, tokens_per_step: int, speculative: int) -> None:
    """Raises BadInput for what only a model of any order can do."""
    for name, value, only in (
        ("order", order, "left"),
        ("tokens_per_step", tokens_per_step, 1),
        ("speculative", speculative, 0),
    ):
        if value != only:
            raise BadInput(f"{name}={value}: a left-to-right model (data.objective=clm) writes one token after the "
                           "other; leave it out, or train a model with data.objective=plm")  # fmt: skip


def left_to_right(config: Config, path: str) -> LanguageModel:
    """The model of a configuration that predicts the next token. Raises BadInput if it does not."""
    model = make_recipe(config).model
    if config.model.position_scheme == "absolute":
        raise BadInput(
            f"{path} has model.position_scheme=absolute, and no memory that could follow a text; train one with "
            "model.position_scheme=relative"
        )
    if not model.transformer.left_to_right:
        raise BadInput(
            f"{path} was trained with data.objective={config.data.objective}, and only a left-to-right model (clm), or "
            "one of any order (plm) with `infer.fill`, continues a text; train one, or use "
            "`xlnet_jax.load(...).logits`, which gives those of every `[MASK]`"
        )
    if config.compat.on("zero_memory"):
        raise BadInput(
            f"{path}: no generation with zero_memory in compat.switches: the cache has no empty slots to see"
        )
    return model
