"""A trained model as a library: texts in, numpy arrays out.

    import xlnet_jax as xj
    model = xj.load("run")                                # a work directory, or a Hugging Face folder
    model.vectors(["A text.", "Another."])                # [2, D]
    model.hidden(["A text."])[0]                          # [pieces, D]
    model.logits(["The [MASK] of the union."])[0]         # [1, V]
    model.score(["The state of the union."])[0].joint_K   # [1]: log p of the text, in nats
    model.infill(["The [MASK] of the union"])[0].text     # filled with the most probable piece
    model.generate(["Once upon a time"], tokens=50, top_p=0.9)    # what follows each prompt

Vectors and logits are those of the pieces of a text, SEP, CLS; every position sees every other. For classification and
the like fine-tune the model first. `score`, `infill` and `generate` read the pieces alone. A left-to-right model
(`data.objective=clm`) only scores and continues texts; a masked one (`mlm`) does neither, nor fills gaps together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, Batch, forward_text
from xlnet_jax.config import Config
from xlnet_jax.data.tokenizer import SpecialIds, Tokenizer
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.decoder import Decoder, Listener, check, continuable, fillable
from xlnet_jax.infer.opened import Opened, find, on_one_device, opened
from xlnet_jax.infer.options import Fill, Generate, Score
from xlnet_jax.infer.orders import any_order, checked, listed, warn_of_law
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.infer.score import Likelihood, Scorer, order_of
from xlnet_jax.infer.texts import Passage, pieces_of, prompt_ids, refuse_gap
from xlnet_jax.model import implementation
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.recipe import language_model

log = logging.getLogger("xlnet_jax")

_ROUND = 32  # lengths are rounded up to its multiples, so that few shapes are compiled


def load(path: str, *, step: int | None = None, batch_size: int = 16, compute_dtype: str = "float32") -> Model:
    """A model for inference on the default device.

    Args:
      path: a work directory of pretraining, of fine-tuning or of `xlnet-jax import`, or what that command reads, such
        as a Hugging Face folder.
      step: the checkpoint of a work directory; None = the newest good one, of a fine-tuned model the best one.
      batch_size: texts computed at a time.
      compute_dtype: of activations.

    Raises:
      BadInput: there is no model at `path`, or it cannot be read.
    """
    stored = find(path)
    config = stored.config.changed(model={"compute_dtype": compute_dtype, "unroll": "off"})
    params, _ = on_one_device(stored, step)
    return Model(implementation.decided(config, Session()), stored.tokenizer, params, batch_size)


def on_all_devices(path: str, overrides: Sequence[str], step: int | None, batch_size: int) -> Model:
    """A model for one question of a command, which all processes ask; see `Model.opening`."""
    stored = find(path, overrides)
    return Model(stored.config, stored.tokenizer, None, batch_size, path, functools.partial(opened, stored, step))


@dataclasses.dataclass(frozen=True)
class Model:
    """Parameters with their configuration and tokenizer. Its functions may be called with any number of texts.

    Attributes:
      batch_size: texts computed at a time.
      name: of the model, for errors.
      opening: where `params` is None: gives them on the devices, once a question was found to be a good one.
      watch: with `opening`: a context around the computation, which gets its rows and yields a listener.
    """

    config: Config
    tokenizer: Tokenizer
    params: Any
    batch_size: int
    name: str = "this model"
    opening: Callable[[Mapping[str, Any]], AbstractContextManager[Opened]] | None = None
    watch: Callable[[Sequence[Any]], AbstractContextManager[Any]] | None = None

    def hidden(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The content stream after the last layer: [n, D] of each text, for its n pieces with SEP and CLS.

        What is in a gap of a text (`infer.infill`) is seen by none of the others.
        """
        computed = self._run([self.pieces(text, number) for number, text in enumerate(self._texts(texts), 1)])
        return [hidden_TD[:length] for hidden_TD, _, length in computed]

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """One vector for each text, [N, D]: the mean of its pieces with SEP and CLS, as of the task `embeddings`.

        With `finetune.pooling=cls` in the model's configuration it is the vector of CLS. Raises BadInput for a gap.
        """
        for number, text in enumerate(self._texts(texts), 1):
            refuse_gap(text, number, "a vector is that of a whole text; fill it first, with `infill`")
        hidden, cls = self.hidden(texts), self.config.finetune.pooling == "cls"
        rows = [h_TD[-1] if cls else h_TD.mean(axis=0) for h_TD in hidden]
        return np.stack(rows) if rows else np.zeros((0, self.config.model.d_model), np.float32)

    def logits(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Logits over the vocabulary at every unknown piece of a text, given the text without any of them: [P, V] each.

        Raises BadInput for a text without a gap; see `infer.infill` for how it is written.
        """
        rows = [self.pieces(text, number, infill.gapped) for number, text in enumerate(self._texts(texts), 1)]
        return [logits_PV for _, logits_PV, _ in self._run(rows)]

    def pieces(self, text: str, number: int = 1, parse: Callable[..., infill.Gapped] = infill.parsed) -> list[int]:
        """The ids of a text, SEP and CLS; `<mask>` where it has gaps, of a length that is given.

        Args:
          number: of the text, for errors.
          parse: `infill.gapped` for a text that must have a gap.
        """
        if infill.is_drawn(text, number):
            raise BadInput(f"text {number}: no length of a gap is drawn here; write [MASK] or [MASK:5]")
        return [*parse(self.tokenizer, text, number).ids, self.tokenizer.special.sep, self.tokenizer.special.cls]

    def generate(
        self, prompts: Sequence[str], *, listener: infill.TextListener | None = None, **options: Any
    ) -> list[str]:
        """What the model writes after each prompt: `tokens` tokens; from left to right the end of a document ends it.

        Args:
          listener: called with the number of a prompt, its new text and whether it has ended, while texts are made; in
            an order other than `left` once for each text.
          options: see `infer.options.Generate`.

        Raises BadInput for a masked model, a number that cannot be, or what a left-to-right model cannot do.
        """
        asked, prompts = Generate(**options), self._texts(prompts)
        decoding = listed(asked.order), asked.tokens_per_step, asked.speculative
        check(continuable(self.config, self.name), *decoding)
        pairs = zip(prompt_ids(self.tokenizer, prompts), prompts, strict=True)
        gapped = [infill.appended(self.tokenizer, ids, asked.tokens, text) for ids, text in pairs]
        if self.config.data.objective == "plm":
            warn_of_law(self.config, [text.known for text in gapped], asked.order)
        with self._ready(prompts, gapped) as (config, params, watcher):
            decoder = Decoder(
                continuable(config, self.name), params, self.tokenizer.special, config.data.segment_len, self.batch_size
            )
            return infill.continue_texts(decoder, self.tokenizer, prompts, asked.tokens, _sampling(asked), *decoding,
                                         listener, watcher)  # fmt: skip

    def infill(
        self, texts: Sequence[str], *, listener: Listener | None = None, **options: Any
    ) -> list[infill.Infilled]:
        """Texts with their gaps filled, sample after sample; see `infer.infill` for how a gap is written.

        Args:
          listener: hears of the filled positions and ids while texts are filled.
          options: see `infer.options.Fill`.

        Raises BadInput if the model is no permutation one, and as `infer.infill.gapped` and `infer.decoder.Decoder`.
        """
        asked, model, texts = Fill(**options), fillable(self.config, self.name), self._texts(texts)
        decoding = listed(asked.order), asked.tokens_per_step, asked.speculative
        drawn = [infill.is_drawn(text, number) for number, text in enumerate(texts, 1)]
        if asked.samples > 1 and asked.temperature == 0 and decoding[0] != "random" and not any(drawn):
            raise BadInput(f"samples={asked.samples} of the most probable pieces are alike; give temperature=1")
        # Text n has number n in every sample: what becomes of it does not depend on how many samples there are.
        gapped = [infill.gapped(self.tokenizer, text, number, asked.seed, sample)
                  for sample in range(asked.samples) for number, text in enumerate(texts, 1)]  # fmt: skip
        if not gapped:
            return []
        tokens, known, T = [text.ids for text in gapped], [text.known for text in gapped], self.config.data.segment_len
        check(model, *decoding)
        checked(model, T, tokens[: len(texts)], known[: len(texts)])
        warn_of_law(self.config, known, decoding[0])
        with self._ready(texts, gapped) as (config, params, watcher):
            decoder = Decoder(fillable(config, self.name), params, self.tokenizer.special, T, self.batch_size)
            filled = decoder(tokens, known, _sampling(asked), *decoding, listener=listener or watcher)
        exact = asked.tokens_per_step == 1
        return [infill.result(self.tokenizer, *pair, exact) for pair in zip(gapped, filled, strict=True)]

    def log_prob(
        self, tokens: Sequence[Sequence[int]], known: Sequence[Sequence[bool]], **options: Any
    ) -> list[Likelihood]:
        """The exact log-likelihood of the unknown tokens of each text given the known ones; see `infer.score`.

        Args:
          tokens: ids, as of `tokenizer.encode`: without SEP and CLS, and without `<mask>`: what is unknown to the model
            is given here, too.
          known: of each text, whether its tokens are given.
          options: see `infer.options.Score`.

        Raises BadInput; see `Scorer`.
        """
        asked = Score(**options)
        given = None if isinstance(asked.order, str) and not asked.order else asked.order
        order = order_of(any_order(self.config, self.name), given, asked.orders, asked.seed)
        warn_of_law(self.config, known, order)
        special = self.tokenizer.special
        for number, ids in enumerate(tokens, 1):
            if (np.asarray(ids, object) == special.mask).any():
                raise BadInput(f"text {number}: id {special.mask} (<mask>) is a gap, and a likelihood is that of "
                               "words; give the ids whose likelihood is wanted, or fill it with `infill`")  # fmt: skip
        with self._ready((tokens, known), range(len(tokens) * asked.orders)) as (config, params, watcher):
            model = any_order(config, self.name)
            scorer = Scorer(model, params, special, config.data.segment_len, self.batch_size)
            return scorer.log_prob(tokens, known, order, asked.orders, asked.seed, watcher)

    def score(self, texts: Sequence[str | Passage], **options: Any) -> list[Likelihood]:
        """`log_prob` of texts of which nothing is given, or of passages, whose other parts are."""
        passages = [text if isinstance(text, Passage) else Passage(text) for text in self._texts(texts)]
        pairs = [pieces_of(self.tokenizer, passage, number) for number, passage in enumerate(passages, 1)]
        return self.log_prob(*zip(*pairs, strict=True), **options) if pairs else []

    @contextlib.contextmanager
    def _ready(self, question: object, rows: Sequence[Any]) -> Iterator[tuple[Config, Any, Any]]:
        """Configuration, parameters and the listener of `watch`. All processes must ask the same question."""
        if self.opening is None:
            yield self.config, self.params, None
            return
        digest = hashlib.sha256(repr(question).encode()).hexdigest()
        with self.opening({"the texts (sha256)": digest}) as model:
            log.info("computing with step %d, after compiling", model.step)
            with self.watch(rows) if self.watch else contextlib.nullcontext() as listener:
                yield model.recipe.config, model.params, listener

    def _texts(self, texts: Sequence[Any]) -> Sequence[Any]:
        """The same, of strings and passages. Raises BadInput, also for one text in place of a list of texts."""
        if isinstance(texts, (str, bytes, Passage)):
            raise BadInput("one text where a list of texts is expected; put it into a list")
        # In a text for a vocabulary of bytes they are bytes that are not UTF-8.
        errors = "surrogateescape" if self.tokenizer.level == "bytes" else "strict"
        for number, text in enumerate(texts, 1):
            for part in text if isinstance(text, Passage) else (text,):
                if not isinstance(part, str):
                    raise BadInput(f"text {number}: {type(part).__name__} where a string is expected")
                try:
                    part.encode(errors=errors)
                except UnicodeEncodeError as error:
                    raise BadInput(
                        f"text {number}: a lone surrogate, which is no character; decode the text again"
                    ) from error
        return texts

    def _run(self, rows: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Hidden states [T, D], logits [P, V] and the length of each row; rows of similar length run together."""
        if language_model(self.config).transformer.left_to_right:
            raise BadInput("this model is left-to-right (data.objective=clm), and no position sees both sides; use "
                           "`generate`, or a model of plm or mlm")  # fmt: skip
        computed: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            two_streams = self.config.data.objective == "plm"
            batch = _batch([rows[index] for index in chosen], self.batch_size, two_streams, self.tokenizer.special)
            hidden_BTD, logits_BPV = jax.device_get(_forward(self.config, self.params, batch))
            for index, hidden_TD, logits_PV in zip(chosen, hidden_BTD, logits_BPV, strict=False):
                length, masks = len(rows[index]), rows[index].count(self.tokenizer.special.mask)
                computed[index] = hidden_TD, logits_PV[:masks], length
        return computed


def _sampling(options: Fill | Generate) -> Sampling:
    return Sampling(options.temperature, options.top_k, options.top_p, options.seed)


def _batch(rows: list[list[int]], batch_size: int, two_streams: bool, special: SpecialIds) -> Batch:
    """Texts of any length, padded at the end with positions that none sees, and with empty rows."""
    longest = max(map(len, rows))
    T = -(-longest // _ROUND) * _ROUND
    slots = max(row.count(special.mask) for row in rows)
    shape, P = (batch_size, T), -(-slots // 4) * 4
    tokens, rank = np.full(shape, special.pad, np.int32), np.full(shape, NEVER, np.int32)
    segments, positions = np.zeros(shape, np.int32), np.zeros((batch_size, P), np.int32)
    for b, row in enumerate(rows):
        tokens[b, : len(row)] = row
        segments[b, len(row) - 1] = 2
        # Of two streams: the text is seen by all, a masked position by none but itself.
        rank[b, : len(row)] = np.equal(row, special.mask) if two_streams else 0
        masks = np.flatnonzero(np.equal(row, special.mask))
        positions[b, : len(masks)] = masks
    return forward_text(tokens, rank, segments, positions)


@functools.partial(jax.jit, static_argnums=0)
def _forward(config: Config, params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Hidden states [B, T, D] and logits [B, P, V]."""
    model = language_model(config)
    memory = empty_memory(config.model, len(batch.direction), 0)
    out: Any = model.transformer.apply({"params": params}, batch, memory, deterministic=True)
    if out.target_vectors_BPD is None:
        return out.hidden_BTD, jnp.zeros((*batch.target_positions.shape, config.model.vocab_size))
    return out.hidden_BTD, model.logits(params, out.target_vectors_BPD)
