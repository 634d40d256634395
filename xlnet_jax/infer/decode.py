"""The compiled programs of `Decoder`: they draw unknown tokens in any order, with a cache of keys
and values.

A known token does not attend to tokens that are drawn later, so its keys and values never change.
A new token costs two rows in each layer: the content row of the token before it in the order, and
its own query row. A left-to-right model predicts the next token from the content row alone. Its
texts may continue past the end of a segment, each text in a different call, so the loop itself
moves the cache into the memory. Three methods choose tokens in a loop of calls:

    chain        draws the next `tokens_per_step` tokens of a given order; tokens of one call are
                 independent of each other, and later tokens see all of them
    confidence   draws tokens at the unknown positions whose most probable token has the highest
                 probability, the leftmost of equals
    speculation  one call drafts `speculative` tokens independently, from distributions q_j; the
                 next call computes the chain's distributions p_j of these tokens. Draft x_j is
                 accepted with probability min(1, p_j(x_j) / q_j(x_j)). The first rejected draft is
                 replaced by a draw from max(p_j - q_j, 0), and all later drafts are dropped
                 (Leviathan et al. 2023, arXiv 2211.17192; for any order: arXiv 2504.20456). The
                 tokens have the chain's distribution. The first draft is always accepted, because
                 q_1 = p_1; so two calls fix at least two tokens.

In masked models (`mlm`, `mdm`) known tokens see the unknown ones as MASK, so every new token
changes the hidden states of all others. Each call then reads the whole text and keeps no cache. For
`mdm`, chain and confidence work as above, and speculation is refused; a text of `mlm` has one
unknown token.

Letters: B texts, U slots of unknown positions, P tokens predicted in one call, Q tokens read in one
call.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER, forward_text
from xlnet_jax.infer.batching import program, read_by_host
from xlnet_jax.infer.sampling import Sampling, keys, log_distribution, sample
from xlnet_jax.model.cache import empty_cache, put
from xlnet_jax.model.layers import accumulator
from xlnet_jax.train.loss import LanguageModel

CHUNK = 16
"""Rounds of calls in one dispatch; the host calls the listener after each dispatch. Also the number
of slots of a left-to-right model.
"""


EQUAL = 1e-5
"""Nats by which equally certain positions may differ. All positions of a text with one known token
have equal predictions, which rounding must not order: it depends on the shapes of a call.
"""


class Method(NamedTuple):
    """How unknown tokens are chosen. Each method is compiled separately."""

    tokens_per_step: int = 1
    speculative: int = 0
    by_confidence: bool = False
    sort: bool = False
    """Whether top_k or top_p apply; see `Decoding.filtered`."""


class Reread(NamedTuple):
    """The whole texts of a masked model, which take the place of a cache."""

    tokens_BT: jax.Array
    rank_BT: jax.Array
    kind_BT: jax.Array
    """Segment kinds, as in `Batch.segments`."""

    @property
    def segment_len(self) -> int:
        """The number T of positions."""
        return self.tokens_BT.shape[1]


class DecodingState(NamedTuple):
    """One part of each of B texts between two dispatches: a segment, or up to `CHUNK` tokens of a
    left-to-right model. Its U slots are the unknown tokens to draw.
    """

    cache: Any
    """A `Cache`, or the `Reread` of a masked model."""
    logits_BPV: jax.Array
    """Logits of the next P tokens; with `by_confidence`, of all slots."""
    position_BU: jax.Array
    """Positions of the slots in the segment: in the order of drawing, or ascending with
    `by_confidence`. Unused slots have position T, for which the cache keeps no row. In a
    left-to-right model position 0 begins the next segment.
    """
    size_B: jax.Array
    """Number of used slots; a drawn `stop` ends them."""
    token_BU: jax.Array
    log_prob_BU: jax.Array
    """Log-probability of each drawn token at temperature 1, given all tokens known before."""
    turn_BU: jax.Array
    """Number of slots that were filled before this slot was drawn; -1 while it is unknown."""
    count_B: jax.Array
    """Number of slots that are filled."""
    before_B: jax.Array
    """Number of tokens drawn in earlier parts; with `count_B` it keys the draws."""
    calls_B: jax.Array
    """Calls that predicted a token of the text."""
    number_B: jax.Array
    """Numbers of the texts, which key the draws."""
    given_BU: jax.Array | None = None
    """The tokens of the slots, if they are not drawn."""

    @property
    def unknown_BU(self) -> jax.Array:
        """bool: the used slots that are not filled."""
        return (self.turn_BU < 0) & (jnp.arange(self.turn_BU.shape[1])[None] < self.size_B[:, None])


class DecodingCall(NamedTuple):
    """The Q tokens of each text that one call reads, and the P slots that it predicts."""

    tokens_BQ: jax.Array
    rank_BQ: jax.Array
    position_BQ: jax.Array | None
    """Positions of the tokens in the segment, T for unused ones; None: the first Q positions."""
    slot_BP: jax.Array
    limit_BP: jax.Array | None = None
    """A slot sees the tokens of lower rank than its limit; None: all known tokens."""


@program(static_argnums=(0, 1, 3, 4, 5))
def start(
    model: LanguageModel,
    method: Method,
    params: Any,
    segment_len: int,
    memory_len: int,
    slots: int,
    number_B: jax.Array,
) -> DecodingState:
    """Returns the state before the first part of B texts."""
    B = len(number_B)
    P = slots if method.by_confidence else method.speculative or method.tokens_per_step
    zero_B, zero_BU = jnp.zeros(B, jnp.int32), jnp.zeros((B, slots), jnp.int32)
    config, none_BT = model.transformer.config, jnp.zeros((B, segment_len), jnp.int32)
    dtype = accumulator(jnp.dtype(config.compute_dtype))
    if model.transformer.objective.masks:
        cache = Reread(none_BT, none_BT, none_BT)
    else:
        cache = empty_cache(config, params, B, segment_len, memory_len)
    return DecodingState(
        cache,
        jnp.zeros((B, P, config.vocab_size), dtype),
        position_BU=zero_BU,
        size_B=zero_B,
        token_BU=zero_BU,
        log_prob_BU=jnp.zeros((B, slots), dtype),
        turn_BU=zero_BU,
        count_B=zero_B,
        before_B=zero_B,
        calls_B=zero_B,
        number_B=number_B,
    )


@program(static_argnums=0, donate_argnums=2)
def read_known(
    model: LanguageModel,
    params: Any,
    state: DecodingState,
    tokens_BQ: jax.Array,
    rank_BQ: jax.Array,
    kind_BQ: jax.Array,
    position_BU: jax.Array,
    continues: bool | jax.Array,
) -> DecodingState:
    """Starts the next part of all texts: reads its known tokens and predicts the first slots.

    Args:
      tokens_BQ: Q = 0 if the texts of a left-to-right model only continue: the last call has
        predicted their next token.
      rank_BQ: NEVER in padding and at unknown positions; unknown positions that are read as MASK
        have a rank.
      kind_BQ: segment kinds, which only a masked model reads; other models read texts of kind 0.
      position_BU: see `DecodingState`.
      continues: whether the cache holds the previous segment, which becomes the memory.
    """
    size_B = jnp.sum(position_BU < state.cache.segment_len, axis=1, dtype=jnp.int32)
    state = state._replace(
        position_BU=position_BU,
        size_B=size_B,
        turn_BU=jnp.full_like(state.turn_BU, -1),
        before_B=state.before_B + state.count_B,
        count_B=jnp.zeros_like(state.count_B),
    )
    if not tokens_BQ.shape[1]:
        return state._replace(calls_B=state.calls_B + (size_B > 0))
    if model.transformer.objective.masks:
        cache = Reread(tokens_BQ, rank_BQ, kind_BQ)
    else:
        cache = state.cache.next_segment(jnp.broadcast_to(jnp.asarray(continues), size_B.shape))
    state = state._replace(cache=cache)
    slot_1P = jnp.arange(state.logits_BPV.shape[1])[None]
    return _predict(model, params, state, DecodingCall(tokens_BQ, rank_BQ, None, slot_1P))


@program(static_argnums=(0, 1), donate_argnums=3)
def write_unknown(
    model: LanguageModel,
    method: Method,
    params: Any,
    state: DecodingState,
    sampling: Sampling,
    rounds: jax.Array,
    stop: jax.Array,
    last: jax.Array,
) -> tuple[tuple[jax.Array, ...], DecodingState]:
    """Fills slots in at most `rounds` rounds of calls.

    Args:
      stop: the token that ends a text, or -1.
      last: whether this is the last part, whose last token need not be read.

    Returns:
      `unknown_BU`, `token_BU`, `log_prob_BU`, `turn_BU` and `calls_B` of the new state, as arrays
      that every process can read; and the new state.
    """
    step = _speculate if method.speculative else _extend

    def more(carry: tuple[jax.Array, DecodingState]) -> jax.Array:
        return (carry[0] < rounds) & (carry[1].count_B < carry[1].size_B).any()

    def body(carry: tuple[jax.Array, DecodingState]) -> tuple[jax.Array, DecodingState]:
        state, call = step(model, method, params, carry[1], sampling, stop)
        needed = ~last | (state.count_B < state.size_B).any()
        predict = functools.partial(_predict, model, params)
        return carry[0] + 1, jax.lax.cond(needed, predict, lambda state, call: state, state, call)

    _, state = jax.lax.while_loop(more, body, (jnp.zeros((), jnp.int32), state))
    return read_by_host(
        (state.unknown_BU, state.token_BU, state.log_prob_BU, state.turn_BU, state.calls_B)
    ), state


def _extend(
    model: LanguageModel,
    method: Method,
    params: Any,
    state: DecodingState,
    sampling: Sampling,
    stop: jax.Array,
) -> tuple[DecodingState, DecodingCall]:
    """Fixes the next `tokens_per_step` tokens of every text. Returns also the call that reads them
    and predicts the tokens after them.
    """
    U, Q = state.position_BU.shape[1], method.tokens_per_step
    step_1Q = jnp.arange(Q)[None]
    if method.by_confidence:
        sure_BU = jax.nn.log_softmax(state.logits_BPV).max(axis=-1)
        sure_BU = jnp.where(state.unknown_BU, sure_BU, -jnp.inf)
        surest_BU = sure_BU > sure_BU.max(axis=1, keepdims=True) - EQUAL
        _, slot_BQ = jax.lax.top_k(jnp.where(surest_BU, 0, sure_BU), Q)  # the first of equals
        logits_BQV = jnp.take_along_axis(state.logits_BPV, slot_BQ[:, :, None], axis=1)
    else:
        slot_BQ, logits_BQV = state.count_B[:, None] + step_1Q, state.logits_BPV
    live_BQ = state.count_B[:, None] + step_1Q < state.size_B[:, None]
    if state.given_BU is None:
        token_BQ = _draw(logits_BQV, state, sampling, method.sort)
    else:
        token_BQ = jnp.take_along_axis(state.given_BU, slot_BQ, axis=1)
    # Tokens of one call do not see each other: they have the same rank.
    rank_BQ = jnp.broadcast_to(1 + state.count_B[:, None], live_BQ.shape)
    state, position_BQ = _fixed(state, slot_BQ, live_BQ, token_BQ, logits_BQV, stop)
    if model.transformer.objective.causal:
        # Before the first token of a segment, the previous segment becomes the memory.
        starts_B, rank_BQ = position_BQ[:, 0] == 0, position_BQ
        cache = jax.lax.cond(
            starts_B.any(), lambda x: x.next_segment(starts_B), lambda x: x, state.cache
        )
        state = state._replace(cache=cache)
    slot_BP = jnp.arange(U)[None] if method.by_confidence else state.count_B[:, None] + step_1Q
    return state, DecodingCall(token_BQ, rank_BQ, position_BQ, slot_BP)


def _speculate(
    model: LanguageModel,
    method: Method,
    params: Any,
    state: DecodingState,
    sampling: Sampling,
    stop: jax.Array,
) -> tuple[DecodingState, DecodingCall]:
    """Drafts the next tokens of every text, verifies them in one call, and fixes the accepted ones
    and a replacement. Returns also the call that reads the replacement and predicts the next draft.
    """
    Q = method.speculative
    step_1Q = jnp.arange(Q)[None]
    slot_BQ = state.count_B[:, None] + step_1Q
    token_BQ = _draw(state.logits_BPV, state, sampling, method.sort)
    live_BQ = _up_to(stop, token_BQ, slot_BQ < state.size_B[:, None])
    drafted_B = live_BQ.sum(axis=1)
    position_BQ, rank_BQ = _positions(state, slot_BQ, live_BQ), 1 + slot_BQ
    call = DecodingCall(token_BQ, rank_BQ, position_BQ, slot_BQ, limit_BP=rank_BQ)
    verified = _predict(model, params, state, call)
    chain_BQV = verified.logits_BPV
    p_BQV, q_BQV = (
        log_distribution(logits.reshape(-1, logits.shape[2]), sampling, method.sort).reshape(
            logits.shape
        )
        for logits in (chain_BQV, state.logits_BPV)
    )
    key_BQ = keys(sampling, *_numbers(state, Q)).reshape(slot_BQ.shape)
    accepted_B = _accepted(key_BQ, p_BQV, q_BQV, token_BQ, step_1Q, drafted_B)
    rejected_B = accepted_B < drafted_B
    at_B1 = jnp.minimum(accepted_B, Q - 1)[:, None]
    again_B = _replacement(key_BQ, p_BQV, q_BQV, at_B1)
    again_BQ = (step_1Q == accepted_B[:, None]) & rejected_B[:, None]
    token_BQ = jnp.where(again_BQ, again_B[:, None], token_BQ).astype(jnp.int32)
    fixed_BQ = (step_1Q < accepted_B[:, None]) | again_BQ
    # The verification of a single draft does not count: the draft is the chain's own token, and the
    # call was made for other texts.
    calls_B = state.calls_B + (drafted_B > 1)
    cache = verified.cache.hidden(
        _positions(state, slot_BQ, live_BQ & (step_1Q >= accepted_B[:, None]))
    )
    verified = verified._replace(cache=cache, calls_B=calls_B)
    state, position_BQ = _fixed(verified, slot_BQ, fixed_BQ, token_BQ, chain_BQV, stop)
    # Only the replacement has not been read yet.
    token_B1, rank_B1, position_B1 = (
        jnp.take_along_axis(x_BQ, at_B1, axis=1) for x_BQ in (token_BQ, rank_BQ, position_BQ)
    )
    position_B1 = jnp.where(rejected_B[:, None], position_B1, state.cache.segment_len)
    return state, DecodingCall(token_B1, rank_B1, position_B1, state.count_B[:, None] + step_1Q)


def _accepted(
    key_BQ: jax.Array,
    p_BQV: jax.Array,
    q_BQV: jax.Array,
    token_BQ: jax.Array,
    step_1Q: jax.Array,
    drafted_B: jax.Array,
) -> jax.Array:
    """Returns the number of accepted drafts of each text, [B], from the log-distributions p of the
    chain and q of the drafts.
    """
    u_BQ = jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 1))))(key_BQ)
    # For the first draft p and q differ by rounding only, so it is accepted.
    stays_BQ = accepts(_at_tokens(p_BQV, token_BQ), _at_tokens(q_BQV, token_BQ), u_BQ) | (
        step_1Q == 0
    )
    return jnp.minimum(jnp.cumprod(stays_BQ, axis=1).sum(axis=1), drafted_B)


def _replacement(
    key_BQ: jax.Array, p_BQV: jax.Array, q_BQV: jax.Array, at_B1: jax.Array
) -> jax.Array:
    """Draws from the `residual` at one draft of each text, [B]."""
    p_BV, q_BV = (
        jnp.take_along_axis(x_BQV, at_B1[:, :, None], axis=1)[:, 0] for x_BQV in (p_BQV, q_BQV)
    )
    key_B = jnp.take_along_axis(key_BQ, at_B1, axis=1)[:, 0]
    draw = jax.vmap(lambda key, x_V: jax.random.categorical(jax.random.fold_in(key, 2), x_V))
    return draw(key_B, residual(p_BV, q_BV))


def accepts(p_BQ: jax.Array, q_BQ: jax.Array, u_BQ: jax.Array) -> jax.Array:
    """Whether drafts are accepted, from their log-probabilities p in the chain and q in the draft,
    with u uniform in [0, 1).
    """
    return jnp.log(u_BQ) < p_BQ - q_BQ


def residual(p_BV: jax.Array, q_BV: jax.Array) -> jax.Array:
    """Returns the log of the unnormalised distribution max(p - q, 0), from which the replacement of
    a rejected draft is drawn; the arguments are the logs of p and q.
    """
    left_BV = jnp.maximum(jnp.exp(p_BV) - jnp.exp(q_BV), 0)
    # If p and q differ by rounding only, max(p - q, 0) may be 0 everywhere: then draw from p.
    return jnp.where(left_BV.sum(axis=1, keepdims=True) > 0, jnp.log(left_BV), p_BV)


def _positions(state: DecodingState, slot_BQ: jax.Array, live_BQ: jax.Array) -> jax.Array:
    """Returns the positions of slots in the segment; slots that are not `live` get T, for which the
    cache keeps no row.
    """
    position_BQ = jnp.take_along_axis(
        state.position_BU, jnp.minimum(slot_BQ, state.position_BU.shape[1] - 1), axis=1
    )
    return jnp.where(live_BQ, position_BQ, state.cache.segment_len)


def _up_to(stop: jax.Array, token_BQ: jax.Array, live_BQ: jax.Array) -> jax.Array:
    """Returns which tokens are live up to and including the first `stop`, bool."""
    stops_BQ = token_BQ == stop
    return live_BQ & (jnp.cumsum(stops_BQ, axis=1) - stops_BQ == 0)


def _fixed(
    state: DecodingState,
    slot_BQ: jax.Array,
    live_BQ: jax.Array,
    token_BQ: jax.Array,
    logits_BQV: jax.Array,
    stop: jax.Array,
) -> tuple[DecodingState, jax.Array]:
    """Puts tokens into their slots, up to a `stop`. Returns the new state and the positions of the
    tokens.
    """
    live_BQ = _up_to(stop, token_BQ, live_BQ)
    stops_B = (live_BQ & (token_BQ == stop)).any(axis=1)
    count_B = state.count_B + live_BQ.sum(axis=1, dtype=jnp.int32)
    log_prob_BQ = _at_tokens(jax.nn.log_softmax(logits_BQV), token_BQ)
    into_BQ = jnp.where(live_BQ, slot_BQ, state.token_BU.shape[1])
    turn_BQ = jnp.broadcast_to(state.count_B[:, None], slot_BQ.shape)

    position_BQ = _positions(state, slot_BQ, live_BQ)
    return state._replace(
        token_BU=put(state.token_BU, token_BQ, into_BQ),
        log_prob_BU=put(state.log_prob_BU, log_prob_BQ, into_BQ),
        turn_BU=put(state.turn_BU, turn_BQ, into_BQ),
        count_B=count_B,
        size_B=jnp.where(stops_B, count_B, state.size_B),
    ), position_BQ


def _predict(
    model: LanguageModel,
    params: Any,
    state: DecodingState,
    call: DecodingCall,
) -> DecodingState:
    """Predicts the tokens of a call. A left-to-right model predicts the token after the last token
    that it reads.
    """
    tokens_BQ, rank_BQ, position_BQ, slot_BP, limit_BP = call
    live_BP = (slot_BP < state.size_B[:, None]) & (state.count_B < state.size_B)[:, None]
    target_BP = jnp.where(live_BP, _positions(state, slot_BP, live_BP), 0)
    if model.transformer.objective.causal:
        length_B1 = jnp.sum(rank_BQ != NEVER, axis=1, keepdims=True, dtype=jnp.int32)
        target_BP = jnp.maximum(length_B1 - 1, 0)
    if limit_BP is None:
        limit_BP = jnp.full_like(target_BP, NEVER)
    cache, cached = state.cache, dict[str, Any](place_BT=position_BQ, limit_BP=limit_BP)
    if model.transformer.objective.masks:
        if position_BQ is not None:
            tokens_BQ, rank_BQ = put(cache.tokens_BT, tokens_BQ, position_BQ), cache.rank_BT
        cache, cached = None, {"kind_BQ": cache.kind_BT}
    logits_BPV, cache = forward(model, params, cache, tokens_BQ, rank_BQ, target_BP, **cached)
    if model.transformer.objective.masks:
        cache = state.cache._replace(tokens_BT=tokens_BQ)
    return state._replace(
        cache=cache, logits_BPV=logits_BPV, calls_B=state.calls_B + live_BP.any(axis=1)
    )


def forward(
    model: LanguageModel,
    params: Any,
    cache: Any,
    tokens_BQ: jax.Array,
    rank_BQ: jax.Array,
    target_BP: jax.Array,
    kind_BQ: jax.Array | None = None,
    **cached: Any,
) -> tuple[jax.Array, Any]:
    """Reads Q tokens of each text.

    Args:
      target_BP: the P tokens whose logits are returned.
      kind_BQ: segment kinds, as in `Batch.segments`; None: all 0.
      cached: further arguments of `XLNet` for a cache.

    Returns:
      The logits, -inf for ids without a piece (`model.spare_rows`), and the cache or memory after
      the tokens.
    """
    if kind_BQ is None:
        kind_BQ = jnp.zeros(tokens_BQ.shape, jnp.int32)
    batch = forward_text(tokens_BQ, rank_BQ.astype(jnp.int32), kind_BQ, target_BP)
    out = model.run(params, batch, cache, **cached)
    # The vocabulary is not split over devices: a draw needs all of it.
    logits_BPV = nn.with_logical_constraint(
        model.logits(params, out.target_vectors_BPD), ("batch", None, None)
    )
    config = model.transformer.config
    return logits_BPV.at[..., config.pieces :].set(
        -jnp.inf
    ) if config.spare_rows else logits_BPV, out.memory


def _draw(logits_BQV: jax.Array, state: DecodingState, sampling: Sampling, sort: bool) -> jax.Array:
    """Draws the next tokens of every text, [B, Q]."""
    B, Q, V = logits_BQV.shape
    return sample(logits_BQV.reshape(B * Q, V), sampling, *_numbers(state, Q), sort).reshape(B, Q)


def _numbers(state: DecodingState, Q: int) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers that key the draws of the next Q tokens: the text's number and the number
    of tokens drawn before, [B * Q] each.
    """
    count_BQ = (state.before_B + state.count_B)[:, None] + jnp.arange(Q)[None]
    return jnp.repeat(state.number_B, Q), count_BQ.ravel()


def _at_tokens(x_BQV: jax.Array, token_BQ: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_BQV, token_BQ[:, :, None], axis=2)[:, :, 0]
