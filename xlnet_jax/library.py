"""A trained model as a library: texts in, numpy arrays out.

    import xlnet_jax as xj
    model = xj.load("run")                                # work directory, or Hugging Face folder
    model.encode(["A text.", "Another."])                 # [2, D]
    model.hidden(["A text."])[0]                          # [pieces, D]
    model.logits(["The [MASK] of the union."])[0]         # [1, V]
    model.score(["The state of the union."])[0].joint_K   # [1]: log p of the text, in nats
    model.fill(["The [MASK] of the union"])[0].text       # filled with the most probable piece
    model.generate(["Once upon a time"], tokens=50, top_p=0.9)    # what follows each prompt

Vectors and logits are those of the pieces of a text, SEP, CLS; every position sees every other. For
similarity, classification and the like fine-tune the model first. `score`, `fill` and `generate`
read the pieces alone. A left-to-right model (`data.objective=clm`) only scores and continues texts;
a masked one (`mlm`) fills one gap of one piece, and has `pseudo_score` in place of `score`; one of
masked diffusion (`mdm`) has `elbo` there.
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
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill, masked
from xlnet_jax.infer.batching import batches, padded, program, read_by_host
from xlnet_jax.infer.decoder import Decoder, Filled, Listener
from xlnet_jax.infer.infill import Gapped, Infilled, Passage, TextListener
from xlnet_jax.infer.masked import Pseudo
from xlnet_jax.infer.opened import Opened, find, on_one_device, opened
from xlnet_jax.infer.options import Decoding, Fill, Generate, Score
from xlnet_jax.infer.orders import Segment, any_order, check, checked_texts, warn_of_order
from xlnet_jax.infer.score import Bound, Likelihood, Scorer
from xlnet_jax.messages import progress_bar
from xlnet_jax.model import choice
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import language_model

log = logging.getLogger("xlnet_jax")

_ROUND = 32  # lengths are rounded up to its multiples, so that few shapes are compiled


def load(
    path: str, *, step: int | None = None, batch_size: int = 16, compute_dtype: str = "float32"
) -> Model:
    """A model for inference on the default device.

    Args:
      path: a work directory of pretraining, of fine-tuning or of `xlnet-jax import`, or what that
        command reads, such as a Hugging Face folder.
      step: the checkpoint of a work directory; None = the newest good one, of a fine-tuned model
        the best one.
      batch_size: texts computed at a time.
      compute_dtype: of activations.

    Raises BadInput if there is no model at `path`, or if it cannot be read.
    """
    stored = find(path, step=step)
    config = stored.config.changed(model={"compute_dtype": compute_dtype, "unroll": "off"})
    params, _ = on_one_device(stored, step)
    return Model(choice.resolve_attention(config, Session()), stored.tokenizer, params, batch_size)


def on_all_devices(path: str, overrides: Sequence[str], step: int | None, batch_size: int) -> Model:
    """A model for one question of a command, which all processes ask; see `Model.opening`."""
    stored = find(path, overrides, step)
    return Model(
        stored.config,
        stored.tokenizer,
        None,
        batch_size,
        path,
        functools.partial(opened, stored, step),
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """Parameters with their configuration and tokenizer. Its functions may be called with any
    number of texts.
    """

    config: Config
    tokenizer: Tokenizer
    params: Any
    batch_size: int
    name: str = "this model"
    opening: Callable[[Mapping[str, Any]], AbstractContextManager[Opened]] | None = None
    """Where `params` is None: gives them on the devices, once a question was found to be a good
    one.
    """

    def hidden(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The content stream after the last layer: [n, D] of each text, for its n pieces with SEP
        and CLS.

        What is in a gap of a text (`infer.infill`) is seen by none of the others.
        """
        rows = [self.pieces(text, number) for number, text in enumerate(self._texts(texts), 1)]
        return self._run(rows, lambda number, hidden_ND, logits_PV: hidden_ND)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One vector for each text, [N, D]: the mean of its pieces with SEP and CLS, as of the task
        `embeddings`.

        Of a model that is only pretrained, near vectors do not mean near texts: fine-tune it with
        that task first. With `finetune.pooling=cls` in its configuration it is the vector of CLS.
        Raises BadInput for a gap.
        """
        for number, text in enumerate(self._texts(texts), 1):
            infill.refuse_gap(
                text, number, "a vector is that of a whole text; fill it first, with `fill`"
            )
        hidden, cls = self.hidden(texts), self.config.finetune.pooling == "cls"
        summary = 0 if self.config.model.member.cls == "first" else -1
        rows = [h_TD[summary] if cls else h_TD.mean(axis=0) for h_TD in hidden]
        return np.stack(rows) if rows else np.zeros((0, self.config.model.d_model), np.float32)

    def logits(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Logits over the vocabulary at every unknown piece of a text, given the text without any
        of them: [P, V] each.

        Raises BadInput for a text without a gap; see `infer.infill` for how it is written.
        """
        rows = [
            self.pieces(text, number, needed=True)
            for number, text in enumerate(self._texts(texts), 1)
        ]
        if self.config.objective.causal:
            raise BadInput(
                "this model is left-to-right (data.objective=clm), and no position sees both "
                "sides; use `generate`, or a model of plm or mlm"
            )
        return self._run(rows, lambda number, hidden_ND, logits_PV: logits_PV)

    def pieces(self, text: str, number: int = 1, needed: bool = False) -> list[int]:
        """The ids of a text, SEP and CLS; `<mask>` where it has gaps.

        Raises BadInput for a gap whose length is drawn, and if one is `needed` for a text without
        any.
        """
        found = infill.gapped(self.tokenizer, text, number, needed=needed)
        if found.drawn:
            raise BadInput(
                f"text {number}: no length of a gap is drawn here; write [MASK] or [MASK:5]"
            )
        return self._laid_out(found.ids)

    def _laid_out(self, ids: Sequence[int]) -> list[int]:
        """A text with the special pieces of its member."""
        layout = layouts.Layout(self.tokenizer.special, self.config.model.member)
        return layouts.joined(layout, np.array(ids, np.int32)).tokens.tolist()

    @property
    def longest(self) -> int:
        """T: tokens that are read at a time, and of a text if positions are learned."""
        model = self.config.model
        return (
            model.max_positions if model.member.positions_at_input else self.config.data.segment_len
        )

    def generate(
        self, prompts: Sequence[str], *, listener: TextListener | None = None, **options: Any
    ) -> list[str]:
        """What the model writes after each prompt: `tokens` tokens; from left to right the end of a
        document ends it.

        In another order nothing ends it: what is after an end would be known before it.

        Args:
          listener: called with the number of a prompt, its new text and whether it has ended, while
            texts are made; in an order other than `left` once for each text.
          options: see `infer.options.Generate`.

        Raises BadInput for a masked model, a number that cannot be, or what a left-to-right model
        cannot do.
        """
        asked = Generate(**options)
        left = asked.order == "left"
        check(self.config, self.name, asked)
        bounded = self.config.model.member.positions_at_input
        longest = self.longest - 2 * self.config.objective.framed[bounded] if bounded else None
        rows = [
            infill.prompt(self.tokenizer, text, number, asked.tokens, longest)
            for number, text in enumerate(self._texts(prompts), 1)
        ]
        heard = (
            infill.as_text(self.tokenizer, rows, listener, left) if listener is not None else None
        )
        filled = self._filled(rows, asked, self.tokenizer.special.eod if left else None, heard)
        return [
            infill.continuation(self.tokenizer, *pair) for pair in zip(rows, filled, strict=True)
        ]

    def fill(self, texts: Sequence[str], **options: Any) -> list[Infilled]:
        """Texts with their gaps filled, sample after sample; see `infer.infill` for how a gap is
        written.

        With `top=K` the K best pieces for the only gap of each text: all texts with their best one,
        then with the next. `options` are those of `infer.options.Fill`. Raises BadInput if the
        model is no permutation one, and as `infer.infill.gapped` and `infer.decoder.Decoder`.
        """
        asked, texts = Fill(**options), self._texts(texts)
        check(self.config, self.name, asked)
        # Text n has number n in every sample: what becomes of it does not depend on how many
        # samples there are.
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
            infill.check_one(
                rows,
                f"top={asked.top} ranks what may be one [MASK]; for several fillings of longer "
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
            infill.result(self.tokenizer, *pair, exact=asked.tokens_per_step == 1)
            for pair in ranked
        ]

    def filled(self, gapped: list[Gapped], asked: Fill) -> list[Filled]:
        """Texts as ids, filled; of a masked model the only unknown piece of each. See `fill`."""
        if self.config.objective.likelihood != "pseudo":
            return self._filled(gapped, asked)
        infill.check_one(
            gapped,
            "a masked model (data.objective=mlm) predicts each by itself, and fills one gap of "
            "one piece, [MASK]; use a model of data.objective=plm",
        )
        rows = [self._laid_out(text.ids) for text in gapped]
        logits = self._run(
            rows, lambda number, hidden_ND, logits_PV: logits_PV[0, : self.config.model.pieces]
        )
        return masked.filled(gapped, np.stack(logits), asked) if logits else []

    def _filled(
        self,
        gapped: list[Gapped],
        asked: Decoding,
        stop: int | None = None,
        listener: Listener | None = None,
    ) -> list[Filled]:
        """The texts of a question, filled."""
        if not gapped:
            return []
        model, T = any_order(self.config), self.longest
        known = [text.known for text in gapped]
        # Left to right a segment without a memory knows less, as in training, and nothing that was
        # given is unseen.
        endless = (
            model.transformer.objective.causal and not self.config.model.member.positions_at_input
        )
        longest = math.inf if endless else T
        rows = checked_texts(model, longest, [text.ids for text in gapped], known)
        warn_of_order(self.config, known, asked.order)
        with self._ready(gapped, 0 if listener else len(rows)) as (config, params, done):
            decode = Decoder(any_order(config), params, self.tokenizer.special, T, self.batch_size)
            return decode(rows, asked, stop, listener or (lambda number, pairs, ended: done(ended)))

    def log_prob(
        self, tokens: Sequence[Sequence[int]], known: Sequence[Sequence[bool]], **options: Any
    ) -> list[Likelihood]:
        """The exact log-likelihood of the unknown tokens of each text given the known ones; see
        `infer.score`.

        Args:
          tokens: ids, as of `tokenizer.encode`: without SEP and CLS, and without `<mask>`: what is
            unknown to the model is given here, too.
          known: of each text, whether its tokens are given.
          options: see `infer.options.Score`.

        Raises BadInput; see `orders.checked_texts` and `Scorer`.
        """
        return self._scored(tokens, known, Scorer.log_prob, Score(**options))

    def _scored(
        self,
        tokens: Sequence[Sequence[int]],
        known: Sequence[Sequence[bool]],
        how: Any,
        asked: Score,
    ) -> list[Any]:
        """What a method of `Scorer` says of the texts."""
        bound = how is Scorer.elbo
        check(self.config, self.name, asked, bound)
        rows, special = (
            checked_texts(any_order(self.config), self.longest, tokens, known),
            self.tokenizer.special,
        )
        for number, (ids_N, _) in enumerate(rows, 1):
            if (ids_N == special.mask).any():
                raise BadInput(
                    f"text {number}: id {special.mask} (<mask>) is a gap, and a likelihood is "
                    "that of words; give the ids whose likelihood is "
                    "wanted, or fill it with `fill`"
                )
        warn_of_order(self.config, known, asked.order)
        count = len(rows) * (asked.draws if bound else asked.orders)
        with self._ready((tokens, known), count) as (config, params, done):
            return how(
                Scorer(any_order(config), params, special, self.longest, self.batch_size),
                rows,
                asked,
                done,
            )

    def score(self, texts: Sequence[str | Passage], **options: Any) -> list[Likelihood]:
        """`log_prob` of texts of which nothing is given, or of passages, whose other parts are."""
        ids, known = self._pairs(texts)
        return self.log_prob(ids, known, **options) if ids else []

    def elbo(self, texts: Sequence[str | Passage], **options: Any) -> list[Bound]:
        """Of masked diffusion, in place of `score`: a lower bound on the log-likelihood of texts or
        passages.
        """
        return self._scored(*self._pairs(texts), Scorer.elbo, Score(**options))

    def _pairs(self, texts: Sequence[str | Passage]) -> tuple[list[list[int]], list[list[bool]]]:
        """Of texts and passages the ids, and which of them are given."""
        passages = [
            text if isinstance(text, Passage) else Passage(text) for text in self._texts(texts)
        ]
        pairs = [
            infill.pieces_of(self.tokenizer, passage, number)
            for number, passage in enumerate(passages, 1)
        ]
        ids, known = [each for each, _ in pairs], [given for _, given in pairs]
        unknown.warn_of_texts(
            self.tokenizer,
            "the texts",
            [*map(np.array, ids)],
            lambda number: " ".join(passages[number]),
        )
        return ids, known

    def pseudo_score(self, texts: Sequence[str | Passage]) -> list[Pseudo]:
        """Of a masked model log p of each piece of a text given all others; see `infer.masked`.

        Raises BadInput for another model.
        """
        if self.config.objective.likelihood != "pseudo":
            raise BadInput(
                f"{self.name} has data.objective={self.config.data.objective}, "
                "and a likelihood of texts; use `score`"
            )
        every, known = self._pairs(texts)
        places, mask = (
            [np.flatnonzero(~np.array(given)) for given in known],
            self.tokenizer.special.mask,
        )
        each = [(ids, at) for ids, place_U in zip(every, places, strict=True) for at in place_U]

        def chance(number: int, hidden_ND: np.ndarray, logits_PV: np.ndarray) -> float:
            ids, at = each[number]
            return float(logits_PV[0, ids[at]] - np.logaddexp.reduce(logits_PV[0]))

        left = iter(
            self._run(
                [self._laid_out([*ids[:at], mask, *ids[at + 1 :]]) for ids, at in each], chance
            )
        )
        return [Pseudo(place_U, np.array([next(left) for _ in place_U])) for place_U in places]

    @contextlib.contextmanager
    def _ready(
        self, question: object, count: int
    ) -> Iterator[tuple[Config, Any, Callable[[int], None]]]:
        """Configuration, parameters, and a function that counts texts that are done, up to `count`;
        with `opening` by a bar.

        All processes must ask the same question.
        """
        if self.opening is None:
            yield self.config, self.params, lambda more: None
            return
        digest = hashlib.sha256(repr(question).encode()).hexdigest()
        with self.opening({"the texts (sha256)": digest}) as model:
            log.info("computing with step %d, after compiling", model.step)
            with progress_bar("texts", count) as bar:
                yield (
                    model.recipe.config,
                    model.params,
                    functools.partial(bar.advance, bar.task_ids[0]),
                )

    def _texts(self, texts: Sequence[Any]) -> Sequence[Any]:
        return infill.strings(self.tokenizer, texts)

    def _run(
        self, rows: list[list[int]], keep: Callable[[int, np.ndarray, np.ndarray], Any]
    ) -> list[Any]:
        """What to `keep` of each row: of its number, hidden states [N, D] and logits [P, V]. Rows
        of similar length run together.
        """
        if not rows:
            return []
        member = self.config.model.member
        if self.config.objective.causal and not member.positions_at_input:
            raise BadInput(
                "this model is left-to-right (data.objective=clm), and no position sees both "
                "sides; use `generate`, or a model of plm or mlm"
            )
        if member.positions_at_input and (long := max(map(len, rows))) > self.longest:
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
                batch = padded(
                    segments, B, min(T, self.longest) if member.positions_at_input else T, P
                )
                found = zip(
                    *jax.device_get(_forward(language_model(config), params, batch)), strict=True
                )
                for number, segment, (hidden_TD, logits_PV) in zip(
                    numbers, segments, found, strict=False
                ):
                    real = hidden_TD[: len(segment.token_N)], logits_PV[: len(segment.position_U)]
                    computed[number] = keep(number, *real)
                done(len(numbers))
        return computed

    def _whole(self, ids_N: np.ndarray) -> Segment:
        """A text in which all see all, or what is before them, and MASK is asked for."""
        objective, is_mask_N = self.config.objective, ids_N == self.tokenizer.special.mask
        # Of two streams: the text is seen by all, a masked position by none but itself.
        rank_N = (
            is_mask_N if objective.stream == "query" else np.arange(len(ids_N)) * objective.causal
        )
        position_P, kind_N = np.flatnonzero(is_mask_N), np.zeros(len(ids_N), np.int32)
        if self.config.model.member.cls == "last":
            kind_N[-1] = layouts.CLASS
        return Segment(ids_N, rank_N, position_P, ids_N[position_P], position_P, kind_N)


@program(static_argnums=0)
def _forward(model: LanguageModel, params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Hidden states [B, T, D] and logits [B, P, V]."""
    out = model.run(params, batch)
    if out.target_vectors_BPD is None:
        logits_BPV = jnp.zeros((*batch.target_positions.shape, model.transformer.config.vocab_size))
    else:
        logits_BPV = model.logits(params, out.target_vectors_BPD)
    return read_by_host((out.hidden_BTD, logits_BPV))
