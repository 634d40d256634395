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

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, Batch, forward_text
from xlnet_jax.checkpoint import restore
from xlnet_jax.config import Config
from xlnet_jax.convert.source import open_source
from xlnet_jax.data.tokenizer import CLS, MASK, PAD, SEP, Tokenizer
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.decoder import Decoder, Listener, check, continuable, fillable
from xlnet_jax.infer.orders import Order, any_order, listed, warn_of_law
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.infer.score import Likelihood, Scorer, order_of
from xlnet_jax.infer.texts import Passage, pieces_of, prompt_ids, refuse_gap
from xlnet_jax.model import implementation
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import language_model

_ROUND = 32  # lengths are rounded up to its multiples, so that few shapes are compiled


def load(path: str, *, step: int | None = None, batch_size: int = 16, compute_dtype: str = "float32") -> Model:
    """A model for inference on the default device.

    Args:
      path: a work directory of pretraining or of `xlnet-jax import`, or what that command reads, such as a Hugging Face
        folder.
      step: the checkpoint of a work directory; None = the newest good one.
      batch_size: texts computed at a time.
      compute_dtype: of activations.

    Raises:
      BadInput: there is no model at `path`, or it cannot be read.
    """
    if "checkpoints/" not in files.listing(path):
        with open_source(path) as found:
            config, tokenizer, params = found.config, found.tokenizer, found.params()
    else:
        config, tokenizer = workdirs.load_config(path), workdirs.tokenizer(path)
        params, _ = restore.saved_parameters(path, step)
    model = dataclasses.replace(config.model, compute_dtype=compute_dtype, unroll="off")
    config = implementation.decided(dataclasses.replace(config, model=model), Session())
    return Model(config, tokenizer, jax.device_put(params), batch_size)


@dataclasses.dataclass(frozen=True)
class Model:
    """Parameters with their configuration and tokenizer. Its functions may be called with any number of texts."""

    config: Config
    tokenizer: Tokenizer
    params: Any
    batch_size: int

    def hidden(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The content stream after the last layer: [n, D] of each text, for its n pieces with SEP and CLS.

        What is in a gap of a text (`infer.infill`) is seen by none of the others.
        """
        found = self._run([self.pieces(text, number) for number, text in enumerate(self._texts(texts), 1)])
        return [hidden_TD[:length] for hidden_TD, _, length in found]

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
        found = self._run(
            [self.pieces(text, number, infill.gapped) for number, text in enumerate(self._texts(texts), 1)]
        )
        return [logits_PV for _, logits_PV, _ in found]

    def pieces(self, text: str, number: int = 1, parse: Callable[..., infill.Gapped] = infill.parsed) -> list[int]:
        """The ids of a text, SEP and CLS; `<mask>` where it has gaps, of a length that is given.

        Args:
          number: of the text, for errors.
          parse: `infill.gapped` for a text that must have a gap.
        """
        if infill.is_drawn(text, number):
            raise BadInput(f"text {number}: no length of a gap is drawn here; write [MASK] or [MASK:5]")
        return [*parse(self.tokenizer, text, number).ids, SEP, CLS]

    def generate(
        self, prompts: Sequence[str], *, tokens: int = 100, order: Order = "left", tokens_per_step: int = 1,
        speculative: int = 0, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
        listener: infill.TextListener | None = None,
    ) -> list[str]:  # fmt: skip
        """What the model writes after each prompt: `tokens` tokens; from left to right the end of a document ends it.

        Args:
          order, tokens_per_step, speculative: of a permutation model; see `infill`.
          temperature, top_k, top_p, seed: see `infer.sampling.Sampling`.
          listener: called with the number of a prompt, its new text and whether it has ended, while texts are made; in
            an order other than `left` once for each text.

        Raises BadInput for a masked model, a number that cannot be, or what a left-to-right model cannot do.
        """
        prompts, order = self._texts(prompts), listed(order)
        sampling = Sampling(temperature, top_k, top_p, seed)
        sampling.check(tokens)
        decoder = self._decoder(continuable)
        check(decoder.model, order, tokens_per_step, speculative)
        if self.config.data.objective == "plm":
            asked = [infill.appended(ids, tokens) for ids in prompt_ids(self.tokenizer, prompts)]
            warn_of_law(self.config, [text.known for text in asked], order)
        return infill.continue_texts(decoder, self.tokenizer, prompts, tokens, sampling, order, tokens_per_step,
                                     speculative, listener)  # fmt: skip

    def infill(
        self, texts: Sequence[str], *, order: Order = "left", tokens_per_step: int = 1, speculative: int = 0,
        temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
        listener: Listener | None = None,
    ) -> list[infill.Infilled]:  # fmt: skip
        """Texts with their gaps filled; see `infer.infill` for how a gap is written.

        Args:
          order: `left`, `reversed`, `random`, `confidence` (the surest piece first), or the unknown positions in the
            order in which they are filled.
          tokens_per_step: more than one do not know of each other: faster, and not the model's joint distribution.
          speculative: so many pieces at a time are drafted and verified: the same distribution with fewer calls.
          temperature, top_k, top_p, seed: see `infer.sampling.Sampling`; by default the most probable piece.
          listener: hears of the filled positions and ids while texts are filled.

        Raises BadInput if the model is no permutation one, and as `infer.infill.gapped` and `Decoder`.
        """
        decoder, texts, order = self._decoder(fillable), self._texts(texts), listed(order)
        sampling = Sampling(temperature, top_k, top_p, seed)
        sampling.check(1)
        asked = [infill.gapped(self.tokenizer, text, number, seed) for number, text in enumerate(texts, 1)]
        if not asked:
            return []
        tokens, known = [text.ids for text in asked], [text.known for text in asked]
        warn_of_law(self.config, known, order)
        found = decoder(tokens, known, sampling, order, tokens_per_step, speculative, listener=listener)
        return [infill.result(self.tokenizer, *pair, tokens_per_step == 1) for pair in zip(asked, found, strict=True)]

    def _decoder(self, model_of: Callable[[Config, str], LanguageModel]) -> Decoder:
        model = model_of(self.config, "this model")
        return Decoder(model, self.params, self.config.data.segment_len, self.batch_size)

    def log_prob(
        self, tokens: Sequence[Sequence[int]], known: Sequence[Sequence[bool]], *, order: Order | None = None,
        orders: int = 1, seed: int = 0,
    ) -> list[Likelihood]:  # fmt: skip
        """The exact log-likelihood of the unknown tokens of each text given the known ones; see `infer.score`.

        Args:
          tokens: ids, as of `tokenizer.encode`: without SEP and CLS, and without `<mask>`: what is unknown to the model
            is given here, too.
          known: of each text, whether its tokens are given.
          order: `left`, `reversed`, `random`, or the unknown positions in the order in which they are predicted; None:
            `left` for one order, `random` for several.

        Raises BadInput; see `Scorer`.
        """
        model = any_order(self.config, "this model")
        order = order_of(model, order, orders, seed)
        warn_of_law(self.config, known, order)
        for number, ids in enumerate(tokens, 1):
            if (np.asarray(ids, object) == MASK).any():
                raise BadInput(f"text {number}: id {MASK} (<mask>) is a gap, and a likelihood is that of words; give "
                               "the ids whose likelihood is wanted, or fill it with `infill`")  # fmt: skip
        scorer = Scorer(model, self.params, self.config.data.segment_len, self.batch_size)
        return scorer.log_prob(tokens, known, order, orders, seed)

    def score(
        self, texts: Sequence[str | Passage], *, order: Order | None = None, orders: int = 1, seed: int = 0
    ) -> list[Likelihood]:
        """`log_prob` of texts of which nothing is given, or of passages, whose other parts are."""
        passages = [text if isinstance(text, Passage) else Passage(text) for text in self._texts(texts)]
        pairs = [pieces_of(self.tokenizer, passage, number) for number, passage in enumerate(passages, 1)]
        return (
            self.log_prob(*map(list, zip(*pairs, strict=True)), order=order, orders=orders, seed=seed) if pairs else []
        )

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
        found: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            two_streams = self.config.data.objective == "plm"
            batch = _batch([rows[index] for index in chosen], self.batch_size, two_streams)
            hidden_BTD, logits_BPV = jax.device_get(_forward(self.config, self.params, batch))
            for index, hidden_TD, logits_PV in zip(chosen, hidden_BTD, logits_BPV, strict=False):
                length, masks = len(rows[index]), rows[index].count(MASK)
                found[index] = hidden_TD, logits_PV[:masks], length
        return found


def _batch(rows: list[list[int]], batch_size: int, two_streams: bool) -> Batch:
    """Texts of any length, padded at the end with positions that none sees, and with empty rows."""
    longest = max(map(len, rows))
    T = -(-longest // _ROUND) * _ROUND
    slots = max(row.count(MASK) for row in rows)
    shape, P = (batch_size, T), -(-slots // 4) * 4
    tokens, rank = np.full(shape, PAD, np.int32), np.full(shape, NEVER, np.int32)
    segments, positions = np.zeros(shape, np.int32), np.zeros((batch_size, P), np.int32)
    for b, row in enumerate(rows):
        tokens[b, : len(row)] = row
        segments[b, len(row) - 1] = 2
        # Of two streams: the text is seen by all, a masked position by none but itself.
        rank[b, : len(row)] = np.equal(row, MASK) if two_streams else 0
        masks = np.flatnonzero(np.equal(row, MASK))
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
