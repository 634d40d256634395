"""SentencePiece with the original's fixed special ids, text normalisation and digit-comma rule.

The nine special pieces have fixed ids in every vocabulary, those of the released models, so that code may name them:

    0 <unk>  1 <s>  2 </s>  3 <cls>  4 <sep>  5 <pad>  6 <mask>  7 <eod>  8 <eop>

Control pieces are never produced from text; `<eop>` is, as in the original, where the text spells it out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from xlnet_jax import files
from xlnet_jax.errors import BadInput

UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = range(9)
SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")

_WORD = "▁"  # SentencePiece's mark for a space
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_LONGEST_TEXT = 1_000_000  # characters in one SentencePiece call; its working memory is a large multiple of this
_LONGEST_TRAINING_LINE = 4096  # characters: at most 16384 bytes, beyond which SentencePiece silently drops a line


@dataclasses.dataclass(frozen=True)
class Normalization:
    """What is done to text before SentencePiece; the original's `preprocess_text`.

    NFKD and the removal of combining marks harm most scripts other than Latin; `keep_accents` turns both off.
    """

    lower: bool = False
    """Lower-case; the released models are cased."""
    keep_accents: bool = False
    """Neither decompose (NFKD) nor drop accents."""
    remove_space: bool = True
    """Strip, and make every run of white space one space."""

    def __call__(self, text: str) -> str:
        """Returns the normalised text."""
        if self.remove_space:
            text = " ".join(text.split())
        text = text.replace("``", '"').replace("''", '"')
        # NFKD leaves ASCII as it is, and most lines are ASCII.
        if not self.keep_accents and not text.isascii():
            decomposed = unicodedata.normalize("NFKD", text)
            text = "".join(character for character in decomposed if not unicodedata.combining(character))
        return text.lower() if self.lower else text


class Tokenizer:
    """A SentencePiece model with XLNet's special ids. Safe to share between threads, cheap to pickle.

    Attributes:
      vocab_size: number of pieces V.
      pieces: the pieces by id.
      word_start: bool [V], whether a piece begins a word: the original's predicate for where a target span may begin.
      sha256: of the model file.
      normalization: what `encode` does to text first.
    """

    def __init__(self, path: str, normalization: Normalization = Normalization()):
        """Loads a model.

        Args:
          path: a SentencePiece model file; `gs://` works where `gcsfs` is installed.
          normalization: applied by `encode`.

        Raises:
          BadInput: the file is missing or no SentencePiece model, or its ids 0-8 are not the nine special pieces.
        """
        self.path = str(path)
        self.normalization = normalization
        try:
            model = epath.Path(path).read_bytes()
        except OSError as error:
            raise BadInput(f"tokenizer {path}: {error.strerror or error}; name a SentencePiece model file") from error
        self.sha256 = hashlib.sha256(model).hexdigest()
        processor = _load(model, self.path)
        self.vocab_size: int = processor.get_piece_size()
        self.pieces: list[str] = processor.id_to_piece(list(range(self.vocab_size)))
        for index, expected in enumerate(SPECIAL_PIECES):
            found = self.pieces[index] if index < self.vocab_size else "nothing"
            if found != expected:
                raise BadInput(
                    f"tokenizer {path}: id {index} holds {found!r}, XLNet needs {expected!r} there; train one with "
                    "`xlnet-jax prepare` (no --tokenizer), or use the spiece.model of a released XLNet"
                )
        self.word_start = np.array([piece[:1] in (_WORD, "<") or piece in _PUNCTUATION for piece in self.pieces])
        # The digit-comma rule depends on the piece alone, so it is a table, and costs nothing where no piece is in it.
        self._split = {
            index: _split_digit_comma(processor, piece)
            for index, piece in enumerate(self.pieces)
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
        }
        self._is_split = np.zeros(self.vocab_size, bool)
        self._is_split[list(self._split)] = True
        self._processor: sentencepiece.SentencePieceProcessor | None = processor

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_processor": None}

    @property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """The SentencePiece processor, loaded again on first use after unpickling."""
        if self._processor is None:
            self._processor = _load(epath.Path(self.path).read_bytes(), self.path)
        return self._processor

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Normalises and encodes; no special piece is added.

        Args:
          texts: any number of texts.

        Returns:
          One int32 array per text, empty where nothing is left of the text.
        """
        normal = [self.normalization(text) for text in texts]
        if any(len(text) > _LONGEST_TEXT for text in normal):
            return [self._encode_long(text) for text in normal]
        return self._encode(normal)

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        # num_threads defaults to all cores, which is wrong inside one of many worker processes.
        encoded = self.processor.encode_as_numpy(texts, num_threads=1)
        if not self._split:
            return encoded
        return [self._apply_split(ids) if self._is_split[ids].any() else ids for ids in encoded]

    def _encode_long(self, text: str) -> np.ndarray:
        return np.concatenate(self._encode(list(cut(text, _LONGEST_TEXT)))) if text else np.zeros(0, np.int32)

    def _apply_split(self, ids: np.ndarray) -> np.ndarray:
        return np.array([new for old in ids.tolist() for new in self._split.get(old, (old,))], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; control pieces vanish, unknown ones show as ⁇."""
        return self.processor.decode([int(index) for index in ids])


def _load(model: bytes, path: str) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise BadInput(f"tokenizer {path}: not a SentencePiece model") from error


def _split_digit_comma(processor: sentencepiece.SentencePieceProcessor, piece: str) -> list[int]:
    """Ids for a piece that ends in digit and comma: the number encoded again, then the comma on its own."""
    parts = processor.encode(piece[:-1].replace(_WORD, ""), out_type=str)
    if piece[0] != _WORD and parts[0][0] == _WORD:
        parts = parts[1:] if parts[0] == _WORD else [parts[0][1:], *parts[1:]]
    return [processor.piece_to_id(part) for part in [*parts, ","]]


def cut(text: str, length: int) -> Iterator[str]:
    """Cuts a text into parts of at most `length` characters, at a space where there is one."""
    start = 0
    while len(text) - start > length:
        space = text.rfind(" ", start + 1, start + length)
        end = space if space > 0 else start + length
        yield text[start:end]
        start = end + (end == space)
    if start < len(text):
        yield text[start:]


def train_tokenizer(texts: Iterable[str], path: str, vocab_size: int, seed: int, threads: int) -> None:
    """Trains a unigram model with the options of the released ones and writes it to `path`.

    Equal arguments give equal bytes. `threads` is one of them: it changes the order of floating-point sums.

    Args:
      texts: normalised sentences, at least one.
      path: file to write, a local one.
      vocab_size: number of pieces, the special ones included.
      seed: of SentencePiece's own sampling, which begins at ten million sentences.
      threads: used for training.

    Raises:
      BadInput: the vocabulary is too large or too small for the text.
    """
    sentencepiece.set_random_generator_seed(seed)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(part for text in texts for part in cut(text, _LONGEST_TRAINING_LINE)),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="unigram",
            character_coverage=0.99995,
            shuffle_input_sentence=True,
            input_sentence_size=10_000_000,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=-1,  # <pad> is a control symbol, or it would not get id 5
            control_symbols=list(SPECIAL_PIECES[CLS:EOP]),
            # The rest are the released models' own, ids 9-16.
            user_defined_symbols=[SPECIAL_PIECES[EOP], ".", "(", ")", '"', "-", "–", "£", "€"],
            max_sentence_length=4 * _LONGEST_TRAINING_LINE,
            num_threads=threads,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise BadInput(_training_error(str(error), vocab_size)) from error
    files.write(path, model.getvalue())


def _training_error(message: str, vocab_size: int) -> str:
    if found := re.search(r"too high.*<= (\d+)", message):
        return f"--vocab_size={vocab_size} is too large for this text; use at most {found[1]}, or more text"
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return f"--vocab_size={vocab_size} is too small for the characters of this text; use at least {found[1]}"
    return f"no tokenizer could be trained on this text: {' '.join(message.split())}"
