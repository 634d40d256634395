"""SentencePiece with the original's special ids, text normalisation and digit-comma rule.

XLNet's nine special pieces have the first ids, as in the released models:

    0 <unk>  1 <s>  2 </s>  3 <cls>  4 <sep>  5 <pad>  6 <mask>  7 <eod>  8 <eop>

Other code reads them from `Tokenizer.special`, because other families have other ids. ALBERT's
SentencePiece model has

    0 <pad>  1 <unk>  2 [CLS]  3 [SEP]  4 [MASK]

A text never encodes to a control piece, but "<eop>" in a text encodes to `<eop>`, as in the
original.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import itertools
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from xlnet_jax.errors import BadInput, summary
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")


class SpecialIds(NamedTuple):
    """The ids of the special pieces, each an int, or None if the vocabulary lacks the piece.

    `data.batches.mixture` refuses a vocabulary without a piece that the model needs.
    """

    unk: Any
    bos: Any
    eos: Any
    cls: Any
    sep: Any
    pad: Any
    mask: Any
    eod: Any
    """End of a document; without this piece, documents follow each other directly."""
    eop: Any
    """End of a paragraph; a text may spell this piece."""

    def ids(self) -> list[int]:
        """The ids of the pieces in the vocabulary, ascending."""
        return sorted({each for each in self if each is not None})


XLNET = SpecialIds(*range(9))
SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
ALBERT = SpecialIds(unk=1, bos=None, eos=None, cls=2, sep=3, pad=0, mask=4, eod=None, eop=None)
ALBERT_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


def special_of(pieces: Sequence[str]) -> tuple[SpecialIds, tuple[str, ...]]:
    """Returns the special ids of a SentencePiece model and their pieces from id 0 on: ALBERT's if
    the model has them, otherwise XLNet's.
    """
    is_albert = tuple(pieces[: len(ALBERT_PIECES)]) == ALBERT_PIECES
    return (ALBERT, ALBERT_PIECES) if is_albert else (XLNET, SPECIAL_PIECES)


_WORD = "▁"  # SentencePiece's mark for a space
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
# First words of the Unicode names of characters in scripts without spaces between words; Hangul has
# spaces.
_WITHOUT_SPACES = (
    "CJK ", "IDEOGRAPHIC ", "KANGXI ", "BOPOMOFO ", "HIRAGANA ", "KATAKANA ", "HALFWIDTH KATAKANA ",
    "YI ", "NUSHU ", "TANGUT ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ", "TAI ",
    "NEW TAI LUE ", "AHOM ", "JAVANESE ", "BALINESE ",
)  # fmt: skip
# Thai and Lao vowels after their consonant.
_FOLLOWING = frozenset("\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3")
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_CONTINUATION = bytes(range(0x80, 0xC0))  # in UTF-8 the bytes of a character after its first one
# Largest number of characters in one SentencePiece call, which needs a large multiple of their
# memory.
_LONGEST_TEXT = 1_000_000
# Largest number of characters of a training line: at most 16384 bytes, because SentencePiece
# silently drops a longer line.
_LONGEST_TRAINING_LINE = 4096
# The vocabulary must have characters for this share of the training text. The first is of the
# released models; if the vocabulary is too small for it, the next is tried.
_COVERAGES = (0.99995, 0.9995, 0.995, 0.98)
_LOOKED_AT = 1000  # texts that tell the script


@dataclasses.dataclass(frozen=True)
class Normalization:
    """The steps before SentencePiece; the defaults are the original's `preprocess_text`, with which
    its vocabularies were made.

    NFKD and the removal of combining marks change words; `keep_accents` turns both off, as
    `prepare` does for the vocabularies that it trains. `nfkc` recomposes characters that NFKD
    decomposed without a loss, such as Hangul.
    """

    lower: bool = False
    """Whether to lower-case; the released models are cased."""
    keep_accents: bool = False
    """Whether to skip decomposition (NFKD) and the removal of accents."""
    remove_space: bool = True
    """Whether to strip the text, and to make every run of white space a single space."""
    nfkc: bool = False
    """Whether to compose at the end (NFKC), which also replaces compatibility characters such as
    full-width letters.
    """

    def __call__(self, text: str) -> str:
        """Returns the normalised text."""
        if self.remove_space:
            text = " ".join(text.split())
        text = text.replace("``", '"').replace("''", '"')
        # Neither form changes ASCII, and most lines are ASCII.
        if not text.isascii():
            if not self.keep_accents:
                text = _NOT_ASCII.sub(_without_accents, text)
            if self.nfkc:
                text = unicodedata.normalize("NFKC", text)
        return text.lower() if self.lower else text


def _without_accents(run: re.Match[str]) -> str:
    return "".join(
        itertools.filterfalse(unicodedata.combining, unicodedata.normalize("NFKD", run[0]))
    )


class Tokenizer:
    """A SentencePiece model with the special ids of XLNet or ALBERT. Safe to share between threads,
    cheap to pickle.

    Attributes:
      vocab_size, pieces: the number of pieces V, and the pieces by id.
      word_start: bool [V], whether a piece starts a word: the original's predicate for the start of
        a target span.
      digit_comma: new ids for each id that the digit-comma rule replaces.
      content, sha256: bytes and hash of the file that a corpus and a work directory keep.
      level: `sentencepiece`; see `vocabulary` and `subwords` for other levels.
      space: prefix for a text that follows another text and is encoded separately.
      pattern: the regular expression of the level `pattern`.
    """

    special: SpecialIds = XLNET
    level: str = "sentencepiece"
    space: str = ""
    pattern: str = ""
    file_name = "spiece.model"
    """Name of the file in a corpus and in a work directory."""

    def __init__(self, path: str, normalization: Normalization = Normalization()):
        """Loads a model. Raises BadInput: no file, no SentencePiece model, or pieces other than the
        special pieces at their ids.
        """
        self.path = str(path)
        self.normalization = normalization
        try:
            self.content = files.read(self.path)
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.content)
        except (OSError, RuntimeError) as error:
            why = summary(error) if isinstance(error, OSError) else "not a SentencePiece model"
            raise BadInput(f"tokenizer {path}: {why}; name the file of a tokenizer") from error
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self.vocab_size: int = self.processor.get_piece_size()
        self.pieces: list[str] = self.processor.id_to_piece(list(range(self.vocab_size)))
        self.special, names = special_of(self.pieces)
        for index, (piece, expected) in enumerate(
            itertools.zip_longest(self.pieces[: len(names)], names)
        ):
            if piece != expected:
                raise BadInput(
                    f"tokenizer {path}: id {index} holds {piece!r}, XLNet needs "
                    f"{expected!r} there; train one with `xlnet-jax prepare`, or "
                    "use the tokenizer of a released XLNet"
                )
        self.word_start = np.array([starts_word(piece) for piece in self.pieces])
        self.word_start[self.special.ids()] = True
        # The digit-comma rule depends on the piece alone, so it is a table.
        self.digit_comma: dict[int, list[int]] = {
            index: _split_digit_comma(self.processor, piece)
            for index, piece in enumerate(self.pieces)
            if ends_in_digit_comma(piece)
        }

    @functools.cached_property
    def text_ids(self) -> np.ndarray:
        """The ids of all pieces but the special ones, ascending."""
        return np.setdiff1d(np.arange(self.vocab_size), self.special.ids())

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle lacks the contents: a worker process loads the file again, once.
        return _load, (type(self), self.path, self.normalization, self.sha256)

    def cleaned(self, text: str) -> str:
        """Returns the text after all steps that come before the cut into pieces."""
        return self.normalization(text)

    def normalized(self, text: str) -> str:
        """Returns the text as `encode_normalized` takes it."""
        return self.normalization(text)

    def encode(self, text: str) -> np.ndarray:
        """Normalises and encodes a text: ids int32 [N], without special pieces."""
        return self.encode_normalized([self.normalized(text)])[0]

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes N texts, padded at the right: ids int32 [N, T], and bool [N, T], False for
        padding.
        """
        tokens, length_N = self.encode_normalized([self.normalized(text) for text in texts])
        real_NT = np.arange(length_N.max(initial=0)) < length_N[:, None]
        ids_NT = np.full(real_NT.shape, self.special.pad or 0, np.int32)
        ids_NT[real_NT] = tokens
        return ids_NT, real_NT

    def encode_normalized(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes S texts that are normalised already, without special pieces.

        Returns the ids of all texts one after the other, int32 [N], and their number for each text,
        int64 [S].
        """
        if max(map(len, texts), default=0) > _LONGEST_TEXT:
            parts = [list(cut(text, _LONGEST_TEXT)) for text in texts]
            tokens_N, of_part = self.encode_normalized(list(itertools.chain.from_iterable(parts)))
            of_text = np.repeat(np.arange(len(texts)), [len(each) for each in parts])
            return tokens_N, np.bincount(of_text, of_part, len(texts)).astype(np.int64)
        # num_threads defaults to all cores, which is wrong in one of many worker processes. A
        # single array of all lists is faster than an array for each list.
        encoded = self.processor.encode(texts, num_threads=1)
        if split := self.digit_comma:
            encoded = [
                ids
                if split.keys().isdisjoint(ids)
                else [new for old in ids for new in split.get(old, (old,))]
                for ids in encoded
            ]
        return concatenated(encoded)

    def text_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the length of the text of each id, in characters (code points) and in UTF-8
        bytes, int64 [V] both.

        The text is normalised. SentencePiece's mark counts as a space, also at the start of a
        sentence; special pieces have length 0. A byte that continues a character adds no character.
        """
        texts = [b""] * self.vocab_size
        for index in self.text_ids.tolist():
            texts[index] = self._text(index)
        characters = [len(text.translate(None, _CONTINUATION)) for text in texts]
        return np.array(characters, np.int64), np.array(list(map(len, texts)), np.int64)

    def _text(self, index: int) -> bytes:
        piece = self.pieces[index]
        return (
            byte_of(piece) if self.processor.is_byte(index) else piece.replace(_WORD, " ").encode()
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids; control pieces are left out, unknown pieces become ⁇."""
        return self.processor.decode([int(index) for index in ids])


@functools.lru_cache(1)
def _load(kind: Any, path: str, normalization: Normalization, sha256: str, *more: str) -> Tokenizer:
    del sha256  # part of the cache's key: the file at this path may change
    return kind(path, normalization, *more)


def concatenated(ids: Sequence[Sequence[Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of S texts one after the other, int32 [N], and their number for each text,
    int64 [S].
    """
    length_S = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(length_S.sum())), length_S


def byte_of(piece: str) -> bytes:
    """Returns the byte of a piece such as `<0x41>`."""
    return bytes.fromhex(piece[3:5])


def starts_word(piece: str) -> bool:
    """Returns whether a piece starts a word: a target span may start there.

    As in the original, a piece after a space, a single punctuation mark and a special piece start a
    word. Letters and punctuation of scripts without spaces do too, except characters that belong to
    the character before.
    """
    first = piece[:1]
    if first in (_WORD, "<") or piece in _PUNCTUATION:
        return True
    if not first or first.isascii():
        return False
    category = unicodedata.category(first)
    # Marks such as most Thai vowels, and letters that repeat or lengthen the letter before.
    if category[0] == "M" or category == "Lm" or first in _FOLLOWING:
        return False
    # The blocks of CJK punctuation and of full-width forms; their letters and digits are Latin.
    if category[0] in "PS" and ("\u3000" <= first <= "\u303f" or "\uff00" <= first <= "\uffef"):
        return True
    return without_spaces(first)


def without_spaces(character: str) -> bool:
    """Returns whether a character belongs to a script without spaces between words."""
    return unicodedata.name(character, "").startswith(_WITHOUT_SPACES)


def ends_in_digit_comma(piece: str) -> bool:
    """Returns whether the digit-comma rule splits the piece."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _split_digit_comma(processor: sentencepiece.SentencePieceProcessor, piece: str) -> list[int]:
    """Returns the ids for a piece that ends in digit and comma: the ids of the number, encoded
    again, then the comma.
    """
    parts = processor.encode(piece[:-1].replace(_WORD, ""), out_type=str)
    if piece[0] != _WORD and parts[0][0] == _WORD:
        parts = parts[1:] if parts[0] == _WORD else [parts[0][1:], *parts[1:]]
    return [processor.piece_to_id(part) for part in [*parts, ","]]


def cut(text: str, length: int) -> Iterator[str]:
    """Cuts a text into parts of at most `length` characters, at spaces if possible."""
    start = 0
    while len(text) - start > length:
        space = text.rfind(" ", start + 1, start + length)
        end = space if space > 0 else start + length
        yield text[start:end]
        start = end + (end == space)
    if start < len(text):
        yield text[start:]


class TooLittleText(BadInput):
    """A text that gives fewer pieces than requested."""


def train_tokenizer(
    texts: Sequence[str], path: str, vocab_size: int, seed: int, threads: int
) -> None:
    """Trains a unigram model with the options of the released models on at least one normalised
    sentence, and writes it to `path`; an existing file is kept.

    `vocab_size` includes the special pieces; `seed` is for SentencePiece's own sampling, from ten
    million sentences on. Equal arguments, also equal `threads`, give equal bytes: `threads` changes
    the order of floating-point sums. Of characters that are too many for `vocab_size`, the rarest
    become unknown pieces, at most 2 % of the text. Raises TooLittleText, or BadInput for any other
    refusal of SentencePiece.
    """
    sentencepiece.set_random_generator_seed(seed)
    model, normalizer = io.BytesIO(), _normalizer(texts)
    for coverage in _COVERAGES:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(
                    part for text in texts for part in cut(text, _LONGEST_TRAINING_LINE)
                ),
                model_writer=model,
                vocab_size=vocab_size,
                model_type="unigram",
                normalizer=normalizer,
                character_coverage=coverage,
                shuffle_input_sentence=True,
                input_sentence_size=10_000_000,
                unk_id=XLNET.unk,
                bos_id=XLNET.bos,
                eos_id=XLNET.eos,
                pad_id=-1,
                # <pad> must be a control symbol to get id 5.
                control_symbols=list(SPECIAL_PIECES[XLNET.cls : XLNET.eop]),
                # After <eop> the symbols of the released models, ids 9-16.
                user_defined_symbols=[SPECIAL_PIECES[XLNET.eop], *'.()"-–£€'],
                max_sentence_length=4 * _LONGEST_TRAINING_LINE,
                num_threads=threads,
                minloglevel=2,
            )
            break
        except RuntimeError as error:
            # SentencePiece's message names a place in its source, then the error and the largest
            # or smallest size.
            reason = " ".join(str(error).rpartition("] ")[2].split()) or summary(error)
            if "required_chars" in reason and coverage > _COVERAGES[-1]:
                continue
            reason = reason.partition(" or decrease")[0]  # SentencePiece's own options
            kind = TooLittleText if "size too high" in reason else BadInput
            raise kind(f"no tokenizer of --vocab_size={vocab_size}: {reason}") from error
    # If two processes train for one folder in a bucket, the first wins.
    files.write_new(path, model.getvalue())


def _normalizer(texts: Sequence[str]) -> sentencepiece.SentencePieceNormalizer | None:
    """Returns SentencePiece's own rules for some training texts; None for those of the released
    models: NFKC, and a space before a text.

    NFKC replaces marks that Chinese, Japanese and Korean use: full-width marks, `…`, `①`, and
    Korean letters outside syllables. If a tenth of the letters is of such scripts or of Thai, Lao
    and so on, the rules are those of NFC. With a quarter of the letters in scripts without spaces,
    no space is put before a text, so that none appears between two sentences. (A Chinese character
    says about as much as three Latin letters.)
    """
    letters = list(filter(str.isalpha, "".join(texts[:: 1 + len(texts) // _LOOKED_AT])))
    bare = sum(map(without_spaces, letters))
    hangul = sum("\uac00" <= letter <= "\ud7a3" for letter in letters)
    if 10 * (bare + hangul) <= len(letters):
        return None
    prefix = 4 * bare < len(letters)
    log.info(
        "%.0f %% of the letters are of scripts without spaces, %.0f %% are Korean: SentencePiece "
        "changes no mark, and puts a space before %s",
        100 * bare / len(letters),
        100 * hangul / len(letters),
        "each sentence" if prefix else "no sentence",
    )
    sentencepiece.set_min_log_level(2)
    rules: Any = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").Decompile()
    # The rules also drop control characters, and turn all white space into spaces.
    composed = [
        (old, new if new in ("", " ") else unicodedata.normalize("NFC", old)) for old, new in rules
    ]
    return sentencepiece.SentencePieceNormalizer(
        norm_map=[(old, new) for old, new in composed if old != new],
        add_dummy_prefix=prefix,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )
