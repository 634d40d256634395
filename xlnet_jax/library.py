"""A trained model as a library: texts in, numpy arrays out.

    import xlnet_jax as xj
    model = xj.load("run")                                # run, Hugging Face folder, "molecules"
    model.encode(["A text.", "Another."])                 # [2, D]
    model.hidden(["A text."])[0]                          # [pieces, D]
    model.logits(["The [MASK] of the union."])[0]         # [1, V]
    model.score(["The state of the union."])[0].joint_K   # [1]: log p of the text, in nats
    model.fill(["The [MASK] of the union"])[0].text       # filled with the most probable piece
    model.generate(["Once upon a time"], tokens=50, top_p=0.9)    # the text after each prompt

`encode`, `hidden` and `logits` read the pieces of a text with SEP and CLS, and every position sees
every other; in `gpt2` and `transformer` trained left to right a position sees those before it. For
similarity or classification fine-tune the model first. `score`, `fill` and
`generate` read the pieces without SEP and CLS, except for `mlm`, and for `mdm` with positions at
the input. A left-to-right model (`data.objective=clm`) only scores and continues texts. A masked
model (`mlm`) fills one gap of one piece and has `pseudo_score` instead of `score`. A model of
masked diffusion (`mdm`) has `elbo` instead of `score`. Both have `score` with `order="confidence"`.

A model of `data.documents=whole` reads each text as a document of its training, with the pieces of
`data.batches.frames` around it. Left to right, the text follows `<eod>`, and the `<eod>` after it
is scored like a piece of the text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import Batch
from xlnet_jax.config import Config
from xlnet_jax.data import layouts, unknown
from xlnet_jax.data.batches import frames
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.batching import batches, padded, power_of_two, program, read_by_host
from xlnet_jax.infer.decoder import Decoder, Filled, Listener
from xlnet_jax.infer.infill import Gapped, Infilled, Passage, TextListener
from xlnet_jax.infer.opened import Opened, find, on_one_device, opened
from xlnet_jax.infer.options import Decoding, Fill, Generate, Score
from xlnet_jax.infer.orders import Segment, any_order, check_question, checked_texts, warn_of_order
from xlnet_jax.infer.score import Bound, Effect, Likelihood, Pseudo, Scorer
from xlnet_jax.messages import progress_bar
from xlnet_jax.model import choice
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import language_model

log = logging.getLogger("xlnet_jax")

_ROUND = 32  # lengths are rounded up to a multiple of this, so that few shapes are compiled


def load(
    path: str, *, step: int | None = None, batch_size: int = 16, compute_dtype: str = "float32"
) -> Model:
    """Loads a model for inference on the default device.

    Args:
      path: a work directory of pretraining, fine-tuning or `xlnet-jax import`, or a folder that
        `import` reads, such as a Hugging Face folder; or the name of a model that the package
        brings, `molecules`.
      step: the step of a checkpoint in the work directory; None = the newest good checkpoint, or
        the best one of a fine-tuned model.
      batch_size: number of texts per batch.
      compute_dtype: dtype of activations.

    Raises BadInput for a path without a readable model.
    """
    stored = find(path, step=step)
    config = stored.config.changed(model={"compute_dtype": compute_dtype, "unroll": "off"})
    params, _ = on_one_device(stored, step)
    return Model(choice.resolve_attention(config, Session()), stored.tokenizer, params, batch_size)


def on_all_devices(path: str, overrides: Sequence[str], step: int | None, batch_size: int) -> Model:
    """Returns a model for one call by all processes of a command; see `Model.opening`."""
    stored = find(path, overrides, step)
    opening = functools.partial(opened, stored, step)
    return Model(stored.config, stored.tokenizer, None, batch_size, path, opening)


@dataclasses.dataclass(frozen=True)
class Model:
    """Parameters with their configuration and tokenizer. All methods take any number of texts."""

    config: Config
    tokenizer: Tokenizer
    params: Any
    batch_size: int
    name: str = "this model"
    opening: Callable[[Mapping[str, Any]], AbstractContextManager[Opened]] | None = None
    """Function that opens the parameters on the devices, if `params` is None. It is called after
    the arguments are checked.
    """

    def hidden(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the content stream after the last layer: [n, D] for the n pieces of each text
        with SEP and CLS.

        No other position sees the positions in a gap (`infer.infill`).
        """
        return self._run(
            self._rows(texts, needed=False), lambda number, hidden_ND, logits_PV: hidden_ND
        )

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns one vector per text, [N, D]: the mean over its pieces with SEP and CLS, as in the
        task `embeddings`, or with `finetune.pooling=cls` the vector of CLS.

        The vectors of a pretrained model do not measure similarity: fine-tune it with `embeddings`
        first. Raises BadInput for a gap.
        """
        for number, text in enumerate(self._texts(texts), 1):
            infill.refuse_gap(
                text, number, "only a whole text has a vector; fill it first, with `fill`"
            )
        hidden, cls = self.hidden(texts), self.config.finetune.pooling == "cls"
        summary = 0 if self.config.model.member.cls == "first" else -1
        rows = [h_TD[summary] if cls else h_TD.mean(axis=0) for h_TD in hidden]
        return np.stack(rows) if rows else np.zeros((0, self.config.model.d_model), np.float32)

    def logits(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns logits over the vocabulary at the P unknown pieces of each text, [P, V], given
        its known pieces.

        Raises BadInput for a text without a gap; `infer.infill` describes how to write gaps.
        """
        rows = self._rows(texts, needed=True)
        self._refuse_left_to_right()
        return self._run(rows, lambda number, hidden_ND, logits_PV: logits_PV)

    def _rows(self, texts: Sequence[str], needed: bool) -> list[list[int]]:
        """Returns `pieces` of each text."""
        return [
            self.pieces(text, number, needed) for number, text in enumerate(self._texts(texts), 1)
        ]

    def _refuse_left_to_right(self) -> None:
        if self.config.objective.causal:
            raise BadInput(
                "this model is left-to-right (data.objective=clm), and no position sees both "
                "sides; use `generate`, or a model of plm or mlm"
            )

    def pieces(self, text: str, number: int = 1, needed: bool = False) -> list[int]:
        """Returns the ids of a text with SEP and CLS, and `<mask>` in gaps.

        Raises BadInput for a gap whose length is drawn, and for a text without a gap if gaps are
        `needed`.
        """
        gapped = infill.gapped(self.tokenizer, text, number, needed=needed)
        if gapped.drawn:
            raise BadInput(
                f"text {number}: a gap of random length is not supported here; write [MASK] "
                "or [MASK:5]"
            )
        return self._laid_out(gapped.ids)

    def _laid_out(self, ids: Sequence[int]) -> list[int]:
        """Adds the special pieces of the member, or around a document, to the ids of a text."""
        if self._frame and ids:  # a document is never empty
            return [*self._frame[0], *ids, *self._frame[1]]
        layout = layouts.Layout(self.tokenizer.special, self.config.model.member)
        return layouts.framed(layout, np.array(ids, np.int32)).tokens.tolist()

    @property
    def _frame(self) -> tuple[list[int], list[int]] | None:
        return frames.ids(self.config, self.tokenizer.special)

    @property
    def longest(self) -> int:
        """The number T of tokens per segment; with `Member.bounded` the most tokens of a text."""
        model = self.config.model
        return model.max_positions if model.member.bounded else self.config.data.segment_len

    def generate(
        self, prompts: Sequence[str], *, listener: TextListener | None = None, **options: Any
    ) -> list[str]:
        """Continues each prompt by `tokens` tokens, or in the order `left` up to the end of a
        document.

        In other orders the end of a document does not end a text, because the tokens after it may
        already be drawn.

        Args:
          listener: called with the number of a prompt, its new text and whether it has ended; in
            the order `left` while the text grows, otherwise once for each text.
          options: see `infer.options.Generate`.

        Raises BadInput for options out of range or not supported by the model, and for a masked
        model.
        """
        asked = Generate(**options)
        left = asked.order == "left"
        check_question(self.config, self.name, asked)
        bounded = self.config.model.member.bounded or self.config.data.whole_documents
        longest, special = self.longest if bounded else None, frames.pieces_around(self.config)
        rows = [
            infill.prompt(self.tokenizer, text, number, asked.tokens, longest, special)
            for number, text in enumerate(self._texts(prompts), 1)
        ]
        heard = listener and infill.as_text(self.tokenizer, rows, listener, left)
        filled = self._filled(rows, asked, self.tokenizer.special.eod if left else None, heard)
        return [
            infill.continuation(self.tokenizer, row, text.token_N[row.gaps[0][0] :].tolist())
            for row, text in zip(rows, filled, strict=True)
        ]

    def fill(self, texts: Sequence[str], **options: Any) -> list[Infilled]:
        """Fills the gaps of all texts, sample after sample; `infer.infill` describes how to write
        gaps.

        With `top=K` the result has the K most probable pieces for the only gap of each text: first
        all texts with their best piece, then all with the second. `options` are the fields of
        `infer.options.Fill`. Raises BadInput for options that the model does not support, and as
        `infer.infill.gapped` and `infer.decoder.Decoder`.
        """
        asked, texts = Fill(**options), self._texts(texts)
        check_question(self.config, self.name, asked)
        # Text n has number n in every sample, so its first sample does not depend on `samples`.
        rows = [
            infill.gapped(self.tokenizer, text, number, asked.seed, sample)
            for sample in range(asked.samples)
            for number, text in enumerate(texts, 1)
        ]
        greedy = (
            asked.temperature == 0
            and asked.order != "random"
            and not any(text.drawn for text in rows)
        )
        if asked.samples > 1 and greedy:
            raise BadInput(
                f"samples={asked.samples} of the most probable pieces are alike; give temperature=1"
            )
        if asked.top > 1:
            infill.require_one_unknown(
                rows,
                f"top={asked.top} ranks the pieces for one [MASK]; for several fillings of longer "
                "gaps give samples and temperature=1",
            )
            if asked.top > self.tokenizer.vocab_size:
                raise BadInput(
                    f"top={asked.top}, and the vocabulary has "
                    f"{self.tokenizer.vocab_size} pieces; give less"
                )
        pairs = list(zip(rows, self.filled(rows, asked), strict=True))
        ranked = [
            (text, filled.best[rank] if filled.best else filled)
            for rank in range(asked.top)
            for text, filled in pairs
        ]
        return [
            infill.infilled(self.tokenizer, *pair, exact=asked.tokens_per_step == 1)
            for pair in ranked
        ]

    def filled(self, gapped: list[Gapped], asked: Fill) -> list[Filled]:
        """Fills texts that are given as ids; a masked model fills the only unknown piece of each.
        See `fill`.
        """
        if self.config.objective.likelihood == "pseudo":
            infill.require_one_unknown(
                gapped,
                "a masked model (data.objective=mlm) predicts each by itself, and fills one gap of "
                "one piece, [MASK]; use a model of data.objective=plm",
            )
        return self._filled(gapped, asked)

    def _filled(
        self,
        gapped: list[Gapped],
        asked: Decoding,
        stop: int | None = None,
        listener: Listener | None = None,
    ) -> list[Filled]:
        """Fills texts with the `Decoder`."""
        if not gapped:
            return []
        ids, known = [text.ids for text in gapped], [text.known for text in gapped]
        T, bounded = self.longest, self.config.model.member.bounded
        if self.config.objective.likelihood == "pseudo" and not bounded:
            T = power_of_two(2 + max(map(len, ids)), T)  # a text of any length, with CLS and SEP
        # A left-to-right model without a memory may continue past a segment: as in training, the
        # next segment does not see the previous segment.
        endless = self.config.objective.causal and not (bounded or self.config.data.whole_documents)
        special, longest = frames.pieces_around(self.config), math.inf if endless else T
        rows = checked_texts(any_order(self.config), longest, ids, known, special)
        warn_of_order(self.config, known, asked.order)
        with self._ready(gapped, 0 if listener else len(rows)) as (config, params, done):
            decode = Decoder(
                any_order(config), params, self.tokenizer.special, T, self.batch_size, self._frame
            )
            return decode(rows, asked, stop, listener or (lambda number, pairs, ended: done(ended)))

    def log_prob(
        self, tokens: Sequence[Sequence[int]], known: Sequence[Sequence[bool]], **options: Any
    ) -> list[Likelihood]:
        """Returns the exact log-likelihood of the unknown tokens of each text given the known ones;
        see `infer.score`.

        Args:
          tokens: ids from `tokenizer.encode` of known and unknown tokens, without SEP, CLS and
            `<mask>`.
          known: for each text, whether each token is known.
          options: see `infer.options.Score`.

        Raises BadInput as `orders.checked_texts` and `Scorer`.
        """
        return self._scored(tokens, known, Scorer.log_prob, Score(**options))

    def _scored(
        self,
        tokens: Sequence[Sequence[int]],
        known: Sequence[Sequence[bool]],
        how: Any,
        asked: Score,
    ) -> list[Any]:
        """Returns the results of `how`, a method of `Scorer`."""
        bound = how is Scorer.elbo
        check_question(self.config, self.name, asked, bound)
        special, around = self.tokenizer.special, frames.pieces_around(self.config)
        rows = checked_texts(any_order(self.config), self.longest, tokens, known, around)
        for number, (ids_N, _) in enumerate(rows, 1):
            if (ids_N == special.mask).any():
                raise BadInput(
                    f"text {number}: id {special.mask} (<mask>) is a gap, and only words have "
                    "a likelihood; give the ids whose likelihood is wanted, or fill it with `fill`"
                )
        warn_of_order(self.config, known, asked.order)
        count = len(rows) * (asked.draws if bound else asked.orders)
        with self._ready((tokens, known), count) as (config, params, done):
            scorer = Scorer(
                any_order(config), params, special, self.longest, self.batch_size, self._frame
            )
            return how(scorer, rows, asked, done)

    def score(self, texts: Sequence[str | Passage], **options: Any) -> list[Likelihood]:
        """Returns `log_prob` of texts, or of the `text` of passages given their other parts."""
        ids, known = self._pairs(texts)
        return self.log_prob(ids, known, **options) if ids else []

    def mutations(
        self, text: str, mutations: Sequence[str], *, orders: int = 8, seed: int = 0
    ) -> list[Effect]:
        """Compares mutants with a text, the wild type, by the likelihood of the mutated positions
        given all others. Each character of the text must be a piece of the vocabulary.

        Args:
          mutations: `A42G` puts G in the place of A, the 42nd character from 1; `A42G:K51R` changes
            both characters jointly.
          orders: random orders of the positions of each mutation.

        Raises BadInput for a mutation that does not fit the text, and as `log_prob`.
        """
        self._texts([text])
        self._texts(mutations)
        wild, rows = self._characters(text, "the text"), []
        known = np.ones((len(mutations), len(text)), bool)
        named = {f"{old}{place}": place - 1 for place, old in enumerate(text, 1)}
        for mutation, known_N in zip(mutations, known, strict=True):
            letters = list(text)
            for part in mutation.split(":"):
                at = named.get(part[:-1])
                if at is None or not known_N[at]:
                    raise BadInput(
                        f"mutation {mutation!r}: {part!r} is no change of a character of the text; "
                        "write A42G if its 42nd character is A"
                    )
                letters[at], known_N[at] = part[-1], False
            rows.append(self._characters("".join(letters), f"mutation {mutation!r}"))
        # The random orders of a text depend on its number: a pair has the same.
        options = {"order": "random", "orders": orders, "seed": seed}
        pair = rows, [wild] * len(rows)
        found = (self.log_prob(each, known.tolist(), **options) for each in pair)
        return list(map(Effect, *found))

    def _characters(self, text: str, name: str) -> list[int]:
        """Returns the ids of a text. Raises BadInput unless each is a character or a byte."""
        try:
            ids = self.tokenizer.encode(text).tolist()
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from error
        if [self.tokenizer.level == "bytes" or len(self.tokenizer.pieces[id]) for id in ids] != [
            1
        ] * len(text):
            raise BadInput(
                f"{name}: its characters are not the pieces of the vocabulary; take a model whose "
                "corpus was prepared with --vocabulary=characters, and a text without spaces "
                "at its ends"
            )
        return ids

    def elbo(self, texts: Sequence[str | Passage], **options: Any) -> list[Bound]:
        """Returns a lower bound on the log-likelihood of texts or passages: the `score` of masked
        diffusion.
        """
        return self._scored(*self._pairs(texts), Scorer.elbo, Score(**options))

    def _pairs(self, texts: Sequence[str | Passage]) -> tuple[list[list[int]], list[list[bool]]]:
        """Returns the ids of texts and passages, and whether each id is known."""
        ids, known, passages = [], [], []
        for number, text in enumerate(self._texts(texts), 1):
            passages.append(text if isinstance(text, Passage) else Passage(text))
            pair = infill.ids_of_passage(self.tokenizer, passages[-1], number)
            ids.append(pair[0])
            known.append(pair[1])
        arrays = [*map(np.array, ids)]
        unknown.warn_of_texts(
            self.tokenizer, "the texts", arrays, lambda number: " ".join(passages[number])
        )
        return ids, known

    def pseudo_score(self, texts: Sequence[str | Passage]) -> list[Pseudo]:
        """Returns log p of each piece of a text given all others, by a masked model.

        Raises BadInput for a model that is not masked.
        """
        if self.config.objective.likelihood != "pseudo":
            use = "elbo" if self.config.objective.likelihood == "bound" else "score"
            raise BadInput(
                f"{self.name} has data.objective={self.config.data.objective}, "
                f"and is not a masked model; use `{use}`"
            )
        every, known = self._pairs(texts)
        mask = self.tokenizer.special.mask
        places = [np.flatnonzero(~np.array(given)) for given in known]
        each = [(ids, at) for ids, place_U in zip(every, places, strict=True) for at in place_U]

        def log_prob(number: int, hidden_ND: np.ndarray, logits_PV: np.ndarray) -> float:
            ids, at = each[number]
            return float(logits_PV[0, ids[at]] - np.logaddexp.reduce(logits_PV[0]))

        rows = [self._laid_out([*ids[:at], mask, *ids[at + 1 :]]) for ids, at in each]
        left = iter(self._run(rows, log_prob))
        return [Pseudo(place_U, np.array([next(left) for _ in place_U])) for place_U in places]

    @contextlib.contextmanager
    def _ready(
        self, question: object, count: int
    ) -> Iterator[tuple[Config, Any, Callable[[int], None]]]:
        """Yields the configuration, the parameters, and a function that counts finished texts. With
        `opening` this function advances a progress bar of `count` texts.

        All processes must pass the same `question`.
        """
        if self.opening is None:
            yield self.config, self.params, lambda more: None
            return
        digest = hashlib.sha256(repr(question).encode()).hexdigest()
        with self.opening({"the texts (sha256)": digest}) as model:
            log.info("computing with step %d, after compiling", model.step)
            with progress_bar("texts", count) as bar:
                advance = functools.partial(bar.advance, bar.task_ids[0])
                yield model.recipe.config, model.params, advance

    def _texts(self, texts: Sequence[Any]) -> Sequence[Any]:
        return infill.check_texts(self.tokenizer, texts)

    def _run(
        self, rows: list[list[int]], keep: Callable[[int, np.ndarray, np.ndarray], Any]
    ) -> list[Any]:
        """Returns the result of `keep` for each row, from its number, hidden states [N, D] and
        logits [P, V]. Rows of similar length run together.
        """
        if not rows:
            return []
        bounded = self.config.model.member.bounded
        if not bounded:
            self._refuse_left_to_right()
        if bounded and (long := max(map(len, rows))) > self.longest:
            raise BadInput(
                f"a text has {long} tokens with its special pieces, and the model has positions "
                f"for {self.longest} (model.max_positions); shorten it"
            )
        computed: list[Any] = [None] * len(rows)
        B, groups = batches([len(row) for row in rows], self.batch_size)
        with self._ready(rows, len(rows)) as (config, params, done):
            for numbers in groups:
                segments = [self._whole(np.array(rows[number])) for number in numbers]
                T = -(-max(len(segment.token_N) for segment in segments) // _ROUND) * _ROUND
                P = -(-max(len(segment.position_U) for segment in segments) // 4) * 4
                batch = padded(segments, B, min(T, self.longest) if bounded else T, P)
                found = jax.device_get(_forward(language_model(config), params, batch))
                for number, segment, hidden_TD, logits_PV in zip(
                    numbers, segments, *found, strict=False
                ):
                    real = hidden_TD[: len(segment.token_N)], logits_PV[: len(segment.position_U)]
                    computed[number] = keep(number, *real)
                done(len(numbers))
        return computed

    def _whole(self, ids_N: np.ndarray) -> Segment:
        """Returns a whole text as one segment: every position sees all others, or with `clm` the
        earlier positions. MASK positions are predicted.
        """
        objective, is_mask_N = self.config.objective, ids_N == self.tokenizer.special.mask
        # With two streams all positions see the known pieces, and only a MASK sees itself.
        rank_N = (
            is_mask_N if objective.stream == "query" else np.arange(len(ids_N)) * objective.causal
        )
        position_P, kind_N = np.flatnonzero(is_mask_N), np.zeros(len(ids_N), np.int32)
        if self.config.model.member.cls == "last" and ids_N[-1] == self.tokenizer.special.cls:
            kind_N[-1] = layouts.CLASS
        return Segment(ids_N, rank_N, position_P, ids_N[position_P], position_P, kind_N)


@program(static_argnums=0)
def _forward(model: LanguageModel, params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns hidden states [B, T, D] and logits [B, P, V]."""
    out = model.run(params, batch)
    if out.target_vectors_BPD is None:
        logits_BPV = jnp.zeros((*batch.target_positions.shape, model.transformer.config.vocab_size))
    else:
        logits_BPV = model.logits(params, out.target_vectors_BPD)
    return read_by_host((out.hidden_BTD, logits_BPV))
