"""The options of `prepare`, for the library and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of `prepare`.

    Attributes:
      tokenizer: a file or folder for `vocabulary.open_tokenizer`; None makes a tokenizer from the
        text.
      vocabulary: the kind to make: `sentencepiece`, `wordpiece` and `bytebpe` are trained on a
        sample of the text that is not held out; `words`, `characters`, `bytes` and the matches of a
        `pattern` are counted. None = the kind of the data set or of the tokenizer, or else of
        `family`.
      pattern: the regular expression of `vocabulary="pattern"`; see `data.patterns`.
      family: the model that will read the corpus; it decides the kind of vocabulary (None = xlnet).
      dataset: a published data set, `NAME` or `NAME:test` of `datasets`; the inputs are its files,
        read unchanged.
      vocab_size: number of pieces of the trained tokenizer (None = the largest of 32,000, 16,000,
        8,000, 4,000, 2,000 and 1,000 that the text gives), or the largest number of pieces of a
        counted vocabulary (None = a million words, all characters, bytes and matches).
      sample_bytes: largest size of the text that trains the tokenizer; exceeded by less than one
        document.
      seed: of the sample and of the tokenizer's training.
      document, sentences, unwrap, field, heldout, errors, page_tokens: see `text.Request`.
      uncased, strip_accents, nfkc: steps of `tokenizer.Normalization`, added to the steps of the
        given `tokenizer`, or the only steps of a vocabulary that is made here. A resumed folder
        that was begun with `strip_accents` keeps that step.
      shard_bytes: size of the source text of a work unit, which gives one shard per split; None =
        64 MB, or 1 GB if the text has at least 1 TB.
      data_dir: folder of TFDS; see `records.find_tfds`.
      workers: processes of the engine `local`; None = one per core. Neither `workers` nor `engine`
        changes the result.
      engine, beam_options: `local`, or `beam`, an Apache Beam pipeline with options such as
        `runner=DataflowRunner`.
    """

    tokenizer: str | None = None
    vocabulary: str | None = None
    pattern: str | None = None
    family: str | None = None
    dataset: str | None = None
    vocab_size: int | None = None
    sample_bytes: int = 100_000_000
    seed: int = 0
    document: str = "blank_line"
    sentences: str = "line"
    unwrap: bool = False
    field: str = "text"
    uncased: bool = False
    strip_accents: bool = False
    nfkc: bool = False
    heldout: float = 0.01
    errors: str = "strict"
    page_tokens: int = 4096
    shard_bytes: int | None = None
    data_dir: str | None = None
    workers: int | None = None
    engine: str = "local"
    beam_options: Sequence[str] = ()

    def steps(self) -> dict[str, bool]:
        """Returns the fields of `Normalization` that the options set."""
        asked = {"lower": self.uncased, "keep_accents": self.strip_accents, "nfkc": self.nfkc}
        return {name: name != "keep_accents" for name, is_on in asked.items() if is_on}


DEFAULTS = PrepareOptions()
