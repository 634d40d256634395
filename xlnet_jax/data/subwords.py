"""WordPiece and byte-level BPE with the `tokenizers` library: the vocabularies of BERT, RoBERTa and
GPT-2.

    level      a piece                                special pieces
    wordpiece  `word`, or `##part` that continues     [PAD] [UNK] [CLS] [SEP] [MASK], with any ids
               a word
    bytebpe    bytes, a space as `Ġ` before its word  <s> <pad> </s> <unk> <mask>, or the pieces
                                                      of wordpiece, or <|endoftext|> alone

A `tokenizer.json` has the pieces and the steps that normalise and cut a text. Any program with that
library can read the file in a corpus or a work directory. The file lacks padding, truncation and
the special pieces around a text, which the model adds. A "[MASK]" in a text stays text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from xlnet_jax.data import tokenizer_fields
from xlnet_jax.data.tokenizer import (
    Normalization,
    SpecialIds,
    Tokenizer,
    TooLittleText,
    concatenated,
    starts_word,
)
from xlnet_jax.data.tokenizer_fields import Settings
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

LEVELS = ("wordpiece", "bytebpe")
FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
"""Endings of the names of files that `Subwords` opens. `vocab.json` needs its `merges.txt` beside
it.
"""

_END = "<|endoftext|>"
# Special pieces instead of ids.
_BERT = SpecialIds("[UNK]", None, None, "[CLS]", "[SEP]", "[PAD]", "[MASK]", None, None)
_ROBERTA = SpecialIds("<unk>", "<s>", "</s>", "<s>", "</s>", "<pad>", "<mask>", "</s>", None)
# Padding is never read, but must be a piece.
_GPT2 = SpecialIds(None, _END, _END, None, None, _END, None, _END, None)
_ROLES = {*_BERT, *_ROBERTA, *_GPT2}
_FIRST = {
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "bytebpe": ["<s>", "<pad>", "</s>", "<unk>"],
}
_MASK = "<mask>"  # the last piece, as RoBERTa has it
# At most one in this many pieces of a WordPiece vocabulary is a character; rarer characters are
# [UNK].
_ALPHABET = 4
_ATTACHED = frozenset(".,:;!?)]}%'")  # punctuation that mostly has no space before it
_GAPS = "its ids have gaps, or two pieces have one id"

# `prepare` runs many processes with one core each.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class _AsIs(Normalization):
    """Normalization for a tokenizer that normalises itself: removes only white space around a
    sentence.
    """

    def __call__(self, text: str) -> str:
        return text.strip()


AS_IS = _AsIs(keep_accents=True, remove_space=False)


class Subwords(Tokenizer):
    """A vocabulary of `LEVELS`, with the interface of a `Tokenizer` except for `processor` and
    `digit_comma`.

    Attributes:
      backend: the tokenizer of the library.
      folder: the folder whose settings apply, or "".
      content: the `tokenizer.json` that a corpus keeps.
    """

    file_name = "tokenizer.json"

    def __init__(self, path: str, normalization: Normalization = AS_IS, folder: str = ""):
        """Loads one of `FILES`. `normalization` (`lower` and `keep_accents`) is for a `vocab.txt`,
        which has none. With `folder`, the settings of that folder apply (see `tokenizer_fields`).

        Raises BadInput: the file is missing, damaged or of another kind, `normalization` is given
        for a file that fixes its own, or a field cannot be used.
        """
        self.path, self.normalization = str(path), AS_IS
        self._given, self.folder = normalization, folder
        try:
            settings = Settings(folder) if folder else None
            self.content = files.to_json(_read(self.path, normalization, settings), None)
            self.backend: Any = tokenizers.Tokenizer.from_buffer(self.content)
            self._find()
            if settings:
                settings.check(self)
        except BadInput:
            raise
        except Exception as error:  # the library has no class for its errors
            raise BadInput(
                f"tokenizer {path}: {summary(error)}; name a {', '.join(FILES)} of "
                "WordPiece or byte-level BPE"
            ) from error
        self.backend.encode_special_tokens = True
        self.sha256 = hashlib.sha256(self.content).hexdigest()

    def _find(self) -> None:
        """Finds level, pieces, special ids and word starts. Raises ValueError for another kind of
        vocabulary.
        """
        ids: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        self.pieces, self.vocab_size = sorted(ids, key=ids.__getitem__), len(ids)
        self._added = set(self.backend.get_added_tokens_decoder())
        plain = [piece for index, piece in enumerate(self.pieces) if index not in self._added]
        if isinstance(self.backend.model, models.WordPiece):
            self.level, names = "wordpiece", _BERT
        elif isinstance(self.backend.model, models.BPE) and set("".join(plain)) <= _BYTES.keys():
            self.level = "bytebpe"
            known = ((_ROBERTA, {"<s>", "</s>"}), (_BERT, {"[CLS]", "[SEP]"}), (_GPT2, set()))
            names = next(names for names, needed in known if needed <= ids.keys())
            self.space = " "
        else:
            raise ValueError("not WordPiece, nor BPE of bytes")
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(_GAPS)
        self.special = SpecialIds(*(ids.get(name) for name in names))
        is_wordpiece = self.level == "wordpiece"
        if is_wordpiece and self.special.unk is None:
            raise ValueError(f"it has no {names.unk}")
        starts = [piece.startswith("##" if is_wordpiece else "Ġ") for piece in self.pieces]
        self.word_start = np.array(starts) != is_wordpiece
        self.word_start[self.special.ids()] = True

    def __reduce__(self) -> tuple[Any, ...]:
        load, (kind, path, _, sha256) = super().__reduce__()
        return load, (kind, path, self._given, sha256, self.folder)

    def cleaned(self, text: str) -> str:
        """See `Tokenizer.cleaned`."""
        return self.backend.normalizer.normalize_str(text) if self.backend.normalizer else text

    def normalized(self, text: str) -> str:
        """Returns the text unchanged, because the tokenizer needs its spaces."""
        return text

    def encode_normalized(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes as `Tokenizer.encode_normalized`."""
        return concatenated(
            [each.ids for each in self.backend.encode_batch_fast(texts, add_special_tokens=False)]
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, without special pieces except the unknown piece. Bytes that are
        not UTF-8 become U+FFFD.

        A space precedes each WordPiece piece, except a part of a word and most punctuation.
        """
        left_out = set(self.special.ids()) - {self.special.unk}
        text = b"".join(
            self._text(index) for index in map(int, ids) if index not in left_out
        ).decode(errors="replace")
        return text.removeprefix(" ") if self.level == "wordpiece" else text

    def _text(self, index: int) -> bytes:
        """Returns the bytes of a piece, with the space that `decode` puts before a WordPiece
        word.
        """
        piece = self.pieces[index]
        if self.level == "bytebpe":
            return piece.encode() if index in self._added else bytes(map(_BYTES.__getitem__, piece))
        if piece.startswith("##"):
            return piece[2:].encode()
        attached = piece in _ATTACHED or (not piece.isascii() and starts_word(piece))
        return f"{'' if attached else ' '}{piece}".encode()


# The byte of each character in pieces of byte-level BPE: a visible character stands for its own
# code, and the characters from U+0100 on stand for the other bytes.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (code for code in range(256) if code not in _SEEN)
_BYTES = {chr(code): code for code in _SEEN} | {
    chr(place): code for place, code in enumerate(_OTHERS, 0x100)
}


def _read(path: str, normalization: Normalization, settings: Settings | None) -> Json:
    """Makes a `tokenizer.json` from one of `FILES` and the settings of its folder."""
    text, is_made = files.read(path).decode(), not path.endswith(FILES[0])
    if is_made:
        document = _made(path, text, normalization)
    else:
        _check_unnormalized(path, normalization)
        document = files.json_object(text, path)
        tokenizer_fields.check_file(document, path)
        document |= dict.fromkeys(("truncation", "padding", "post_processor"))
    if settings and isinstance(document["model"]["vocab"], dict):
        level = "bytebpe" if "merges" in document["model"] else "wordpiece"
        usual = (
            json.loads(_empty(level, AS_IS, path).to_str())
            if is_made or not settings.verbatim
            else None
        )
        settings.apply(document, usual, _ROLES)
    return document


def _made(path: str, text: str, normalization: Normalization) -> Json:
    """Makes a `tokenizer.json` from older files: a `vocab.txt`, or a `vocab.json` and its
    merges.
    """
    if path.endswith(".txt"):
        pieces = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        return _document(_empty("wordpiece", normalization, path), pieces)
    ids = files.json_object(text, path)
    pieces = sorted(ids, key=ids.__getitem__)
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(_GAPS)
    rows = files.read(f"{path.removesuffix(FILES[1])}merges.txt").decode().split("\n")
    merges = [row.split() for row in rows if row and not row.startswith("#version")]
    return _document(_empty("bytebpe", normalization, path), pieces, merges)


def _check_unnormalized(path: str, normalization: Normalization) -> None:
    """Raises BadInput if `normalization` has steps, because the file fixes its own."""
    if normalization.lower or normalization.nfkc:
        raise BadInput(
            f"tokenizer {path}: its normalisation is fixed; leave out --uncased, "
            "--strip_accents and --nfkc"
        )


def _empty(level: str, normalization: Normalization, path: str) -> Any:
    """Returns a tokenizer of the library without pieces. Raises BadInput for steps of normalisation
    that the level does not have.
    """
    if normalization.nfkc or level == "bytebpe":
        _check_unnormalized(path, normalization)
    if level == "bytebpe":
        made: Any = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    else:
        made = tokenizers.Tokenizer(models.WordPiece(unk_token=_BERT.unk))
        made.normalizer = normalizers.BertNormalizer(
            lowercase=normalization.lower, strip_accents=not normalization.keep_accents
        )
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return made


def _document(made: Any, pieces: Sequence[str], merges: Sequence[Sequence[str]] = ()) -> Json:
    """Returns a `tokenizer.json` with these pieces by id."""
    document = json.loads(made.to_str())
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] = [
        {"id": index, "content": piece, "lstrip": piece == _MASK} | flags
        for index, piece in enumerate(pieces)
        if piece in _ROLES
    ]
    document["model"]["vocab"] = {piece: index for index, piece in enumerate(pieces)}
    if "merges" in document["model"]:
        document["model"]["merges"] = [list(pair) for pair in merges]
    return document


def train(
    texts: Sequence[str], path: str, vocab_size: int, level: str, normalization: Normalization
) -> None:
    """Trains a vocabulary of a level on texts and writes its `tokenizer.json`; an existing file is
    kept.

    Equal arguments give equal bytes, in any process. Raises TooLittleText, or BadInput if the level
    does not have the steps of normalisation.
    """
    made, first = _empty(level, normalization, path), _FIRST[level]
    last = [_MASK] * (level == "bytebpe")
    special, alphabet = first, pre_tokenizers.ByteLevel.alphabet()
    if level == "wordpiece":
        counts = Counter[str]()
        for text in texts:
            counts.update(made.normalizer.normalize_str(text))
        visible = sorted(
            (each for each in counts if not each.isspace()), key=lambda each: (-counts[each], each)
        )
        alphabet = sorted(visible[: (vocab_size - len(first)) // _ALPHABET])
        # The trainer would number the continuing characters in the order of a hash table, which
        # differs between processes.
        special = [*first, *alphabet, *(f"##{each}" for each in alphabet)]
    trainer = made.model.get_trainer()
    trainer.vocab_size, trainer.special_tokens = vocab_size - len(last), special
    trainer.initial_alphabet, trainer.limit_alphabet = alphabet, len(alphabet)
    # A pair must occur at least twice to become a piece.
    trainer.min_frequency, trainer.show_progress = 2, False
    made.train_from_iterator(texts, trainer)
    model: Mapping[str, Any] = json.loads(made.to_str())["model"]
    pieces = [*sorted(model["vocab"], key=model["vocab"].__getitem__), *last]
    if len(pieces) != vocab_size:
        raise TooLittleText(
            f"no tokenizer of --vocab_size={vocab_size}: this text gives {len(pieces)} pieces of "
            f"{level}; give that number, or more text"
        )
    document = _document(_empty(level, normalization, path), pieces, model.get("merges", ()))
    files.write_new(path, files.to_json(document, None))
