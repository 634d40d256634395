"""Counted vocabularies of words, characters or bytes, as in Transformer-XL, or of the matches of a
pattern: special pieces, then all other pieces by decreasing frequency.

    level        pieces                        "\\n" in a text      not in the vocabulary
    words        separated by white space      `<eos>`, id 9       `<unk>`, id 0
    characters   Unicode characters            itself              bad input
    bytes        of UTF-8, as `<0x41>`         itself              bad input; a line end is left out
    pattern      matches; see `patterns`       itself, mostly      bad input

The cut-offs of an adaptive softmax need the order by frequency. The nine special pieces have
XLNet's ids. The file is JSON: `vocabulary` (the level), `verbatim`, `pieces` and `counts`, both by
id, and the `pattern`. SentencePiece has models of words and characters too, but cannot distinguish
U+2581 from a space, and has no line ends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from xlnet_jax.config import Config
from xlnet_jax.data.patterns import Unseen, cutter
from xlnet_jax.data.subwords import AS_IS, FILES, Subwords
from xlnet_jax.data.tokenizer import (
    ALBERT,
    SPECIAL_PIECES,
    XLNET,
    Normalization,
    Tokenizer,
    byte_of,
    concatenated,
    starts_word,
)
from xlnet_jax.data.tokenizer_fields import Settings
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.members import MEMBERS
from xlnet_jax.storage import files

END_OF_LINE = "<eos>"
"""Piece for a line end in a vocabulary of words."""
PLAIN = Normalization()
_STRIPPING = Normalization(remove_space=False, nfkc=True)
LARGEST = 1_000_000
"""Largest number of pieces of a vocabulary."""
FOUND = (Tokenizer.file_name, "vocabulary.json", *FILES)
"""Names of tokenizer files; the first that a folder has is taken."""
RULES = {
    "lower": "do_lower_case",
    "keep_accents": "keep_accents",
    "remove_space": "remove_space",
    "nfkc": "nfkc",
}
"""Names of the switches of a normalisation in the `tokenizer_config.json` of other programs."""

_log = logging.getLogger("xlnet_jax")
_FIRST = len(SPECIAL_PIECES)  # id of the first piece that is not special
# The codec, error handler and type that turn a text into a number for each character or byte. Bytes
# that are not UTF-8 are lone surrogates in a text, as Python reads them.
_CODES: dict[str, tuple[str, str, Any]] = {
    "characters": ("utf-32-le", "surrogatepass", np.uint32),
    "bytes": ("utf-8", "surrogateescape", np.uint8),
}
_words = re.compile(r"\n|\S+").findall  # and line ends


class Vocabulary(Tokenizer):
    """A counted vocabulary, with the interface of a `Tokenizer` except for `processor` and
    `digit_comma`.

    Attributes:
      level: `words`, `characters`, `bytes` or `pattern`.
      verbatim: whether text is encoded unchanged; otherwise every line is normalised first.
      counts: int64 [V], how often each piece occurred in the counted text.
    """

    file_name = FOUND[1]

    def __init__(self, path: str, normalization: Normalization = PLAIN):
        """Loads a vocabulary file; raises BadInput if it is missing or damaged."""
        self.path, self.normalization = str(path), normalization
        try:
            self.content = files.read(self.path)
            content = json.loads(self.content)
            self.level, self.verbatim = content["vocabulary"], content["verbatim"]
            self.pieces = list(content["pieces"])
            self.counts = np.array(content["counts"], np.int64)
            if self.level == "pattern":
                self.pattern = content["pattern"]
                cutter(self.pattern)
            self._check()
        except (
            BadInput,
            OSError,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise BadInput(
                f"vocabulary {path}: {summary(error)}; name a vocabulary.json that "
                "`xlnet-jax prepare --vocabulary=...` wrote"
            ) from error
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self.vocab_size = len(self.pieces)
        plain = self.pieces[_FIRST:]
        self.word_start = np.ones(self.vocab_size, bool)
        if self.level in ("words", "pattern"):
            spelt = {END_OF_LINE: "\n"} if self.level == "words" else {}
            self._ids = {
                spelt.get(piece, piece): index for index, piece in enumerate(plain, _FIRST)
            }
            return
        is_bytes = self.level == "bytes"
        codes = [byte_of(piece)[0] if is_bytes else ord(piece) for piece in plain]
        self._table = np.full(256 if is_bytes else 0x110000, -1, np.int32)
        self._table[codes] = np.arange(_FIRST, self.vocab_size)
        for index, code in enumerate(codes, _FIRST):
            character = "" if is_bytes and code > 127 else chr(code)
            # A span starts at the space before its word, as the pieces of SentencePiece do.
            self.word_start[index] = character.isspace() or starts_word(character)

    def _check(self) -> None:
        one = {
            "words": r"\S+",
            "characters": r"(?s:.)",
            "bytes": "<0x[0-9A-F]{2}>",
            "pattern": r"(?s:.+)",
        }.get(self.level)
        if one is None or not isinstance(self.verbatim, bool):
            raise ValueError("it has an unknown level")
        special, plain = self.pieces[:_FIRST], self.pieces[_FIRST:]
        if (
            tuple(special) != SPECIAL_PIECES
            or not len(self.counts) == len(set(self.pieces)) == len(self.pieces) > _FIRST
            or not all(re.fullmatch(one, piece) for piece in plain)
        ):
            raise ValueError(
                f"its pieces must be the special pieces, then different {self.level}, with counts"
            )

    def normalized(self, text: str) -> str:
        """Normalises every line separately, unless the vocabulary is `verbatim`."""
        return text if self.verbatim else "\n".join(map(self.normalization, text.split("\n")))

    def encode_normalized(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes as `Tokenizer.encode_normalized`. Raises Unseen for a character, byte or match
        that the vocabulary lacks, and for text that the pattern does not match.
        """
        if self.level == "words":
            return concatenated(
                [[self._ids.get(word, self.special.unk) for word in _words(text)] for text in texts]
            )
        if self.level == "pattern":
            cut = cutter(self.pattern)
            try:
                return concatenated([[self._ids[piece] for piece in cut(text)] for text in texts])
            except KeyError as error:
                raise Unseen(f"piece {error} is not in the vocabulary {self.path}") from error
        codec, errors, dtype = _CODES[self.level]
        if self.level == "bytes" and self._table[ord("\n")] < 0:
            # The original's vocabulary of enwik8 lacks the line end; `prepare` always counts it.
            texts = [text.replace("\n", "") for text in texts]
        encoded = [text.encode(codec, errors) for text in texts]
        codes_N: Any = np.frombuffer(b"".join(encoded), dtype)
        tokens_N = self._table[codes_N]
        if (tokens_N < 0).any():
            code = int(codes_N[tokens_N < 0][0])
            what = (
                f"byte 0x{code:02X}"
                if self.level == "bytes"
                else f"character {chr(code)!a} (U+{code:04X})"
            )
            raise Unseen(f"{what} is not in the vocabulary {self.path}")
        width = np.dtype(dtype).itemsize
        return tokens_N, np.array([len(each) // width for each in encoded], np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, without special pieces except `<unk>` for an unknown word. Words
        are joined by a space. Bytes that are not UTF-8 become U+FFFD.
        """
        is_words = self.level == "words"
        kept = [index for index in ids if index >= _FIRST or (is_words and index == XLNET.unk)]
        text = b"".join(map(self._text, kept)).decode(errors="replace")
        return text.replace(" \n", "\n").removesuffix(" ") if is_words else text

    def _text(self, index: int) -> bytes:
        """Returns the bytes of a piece, with a space after a word."""
        piece = self.pieces[index]
        if self.level == "words":
            return b"\n" if piece == END_OF_LINE else f"{piece} ".encode()
        return byte_of(piece) if self.level == "bytes" else piece.encode()


def open_tokenizer(path: str, normalization: Normalization | None = None) -> Tokenizer:
    """Opens a SentencePiece model, one of `subwords.FILES`, a counted vocabulary (any other `.json`
    file), or a folder with one of `FOUND` (see `open_in`). Raises BadInput as the classes do.

    The default normalisation is the record of the corpus or run that holds the file. Without a
    record, a vocabulary that `prepare` made keeps accents if it has pieces that would lose them, or
    that NFKD would replace, such as full-width marks; any other has the original's steps.
    """
    path = str(path)
    is_folder = not path.endswith((".json", ".model", ".txt")) and (
        "://" in path or os.path.isdir(path)
    )
    in_folder = file_in(path) if is_folder else None
    file = in_folder or path
    normalization = normalization or _recorded(os.path.dirname(file))
    if in_folder and normalization is None:
        return open_in(path, in_folder)
    if file.endswith((*FILES, ".txt")):
        return Subwords(file, normalization or AS_IS)
    opened = (Vocabulary if file.endswith(".json") else Tokenizer)(file, normalization or PLAIN)
    # A model without a file name in it is from `prepare`: SentencePiece's program, which made the
    # released models, writes the name. `_second` reads it, because SentencePiece's own classes
    # cannot be imported beside the older protobuf that Beam needs.
    if (
        normalization is None
        and (isinstance(opened, Vocabulary) or not _second(_second(opened.content)))
        and any(_STRIPPING(piece) != piece for piece in opened.pieces)
    ):
        opened.normalization = dataclasses.replace(PLAIN, keep_accents=True)
    return opened


def _second(message: bytes) -> bytes:
    """Returns field 2 of a protobuf message: `trainer_spec` of a SentencePiece model,
    `model_prefix` of a `trainer_spec`.
    """
    fields = UnknownFieldSet(Empty.FromString(message))
    return next((field.data for field in fields if field.field_number == 2), b"")


def _recorded(folder: str) -> Normalization | None:
    """Returns the normalisation that is recorded in the folder of a corpus or of a run's copy; None
    for any other folder.
    """
    for path in (os.path.join(folder, name) for name in ("manifest.json", "normalization.json")):
        if data := files.read_if_there(path):
            record = files.json_object(data, path)
            rules = record.get("normalization", record)
            if isinstance(rules, dict) and rules.keys() <= RULES.keys():
                files.check_types(rules, dict.fromkeys(RULES, bool), path)
                return Normalization(**rules)
    return None


def file_in(folder: str) -> str | None:
    """Returns the path of the tokenizer's file in a folder, also if another program wrote it; None
    if the folder has no such file.
    """
    listed = files.listing(folder)
    return next((os.path.join(folder, name) for name in FOUND if name in listed), None)


def open_in(folder: str, path: str, steps: Normalization | None = None) -> Tokenizer:
    """Opens a tokenizer with the settings of its folder; see `tokenizer_fields`. By default BERT
    and ALBERT lower-case, as in other programs. `steps` are the steps of the folder's
    tokenizer.json for a SentencePiece model or a counted vocabulary. Raises BadInput for a field
    that cannot be used.
    """
    if path.endswith((*FILES, ".txt")):
        return Subwords(path, folder=folder)
    settings = Settings(folder)
    opened = (Vocabulary if path.endswith(".json") else Tokenizer)(path)
    settings.check(opened)
    rules = {
        ours: settings.said[theirs]
        for ours, theirs in RULES.items()
        if settings.said.get(theirs) is not None
    }
    usual = Normalization(lower=opened.special == ALBERT)
    opened.normalization = dataclasses.replace(steps or usual, **rules)
    if steps not in (None, opened.normalization):
        raise BadInput(
            f"{settings.where}: {', '.join(map(RULES.__getitem__, rules))} differ from the steps "
            "of tokenizer.json; correct one of the two files"
        )
    above = [
        f"{each['content']!r:.60} ({each['id']})"
        for each in settings.added
        if each["id"] >= opened.vocab_size
    ]
    if above:
        _log.warning(
            "%s: added tokens above the pieces have embedding rows but no pieces; a text that "
            "spells such a token is cut like any other text: %s",
            folder,
            ", ".join(above),
        )
    return opened


def check_pieces(tokenizer: Tokenizer, config: Config, where: str) -> None:
    """Raises BadInput if a vocabulary lacks a special piece that the member or the objective of a
    model needs.
    """
    member, objective, pretrains = config.model.member, config.objective, config.pretrains
    framed = not (objective.causal and pretrains)
    needs = {
        "mask": objective.masks and pretrains,
        "eod": objective.causal and pretrains,
        "cls": framed and member.cls != "none",
        "sep": framed and member.separators,
        "pad": member.cls == "first",
    }
    if lacks := [
        name
        for name, needed in needs.items()
        if needed and getattr(tokenizer.special, name) is None
    ]:
        raise BadInput(
            f"{where}: its vocabulary ({tokenizer.level}) has no piece for {' and '.join(lacks)}, "
            f"which model.architecture={member.name} with data.objective={objective.name} needs; "
            "take a corpus that was prepared with another --vocabulary or --tokenizer"
        )
    masks_words = needs["mask"] and not objective.whole and config.data.spans == "words"
    if masks_words and needs["pad"] and not tokenizer.word_start[_FIRST:].any():
        raise BadInput(
            f"{where}: no piece of its vocabulary starts a word, and data.spans=words masks whole "
            "words of a few pieces; use data.spans=random"
        )


def unexportable(tokenizer: Tokenizer, name: str) -> str | None:
    """Returns the reason why Hugging Face's class of a member cannot use a vocabulary, or None."""
    row, pad, xlnet_ids = MEMBERS[name].padding_row, tokenizer.special.pad, MEMBERS[name].xlnet_ids
    if tokenizer.level in ("words", "bytes") or (xlnet_ids and tokenizer.special != XLNET):
        kinds = (
            "SentencePiece pieces with the ids of XLNet, characters or a pattern"
            if xlnet_ids
            else "SentencePiece pieces, WordPiece, BPE, characters or a pattern"
        )
        return f"a vocabulary of {tokenizer.level}; Hugging Face needs {kinds}; use --format=orbax"
    # Hugging Face's class treats the embedding of the padding row differently.
    return None if row in (-1, pad) else f"its padding is piece {pad}, and {name} needs piece {row}"


def warn_of_export(tokenizer: Tokenizer, config: Config) -> None:
    """Logs a warning if the vocabulary keeps a model from being exported to Hugging Face."""
    name = config.model.architecture
    if why := not config.objective.causal and unexportable(tokenizer, name):
        _log.warning(
            "this model trains, but cannot be exported to Hugging Face: tokenizer %s: %s. `prepare "
            "--family=%s` makes a vocabulary for it",
            tokenizer.path,
            why,
            name,
        )


def count(texts: Iterable[str], level: str, pattern: str = "") -> Counter[str]:
    """Counts each piece in normalised texts; a line end is "\\n", also among words. Raises Unseen
    for text that the `pattern` does not match.
    """
    if level != "bytes":
        cut = {"words": _words, "characters": str}.get(level) or cutter(pattern)
        return Counter(itertools.chain.from_iterable(map(cut, texts)))
    codes = Counter("".join(texts).encode(*_CODES[level][:2]))
    return Counter({f"<0x{code:02X}>": count for code, count in codes.items()})


def write_counted(
    path: str,
    level: str,
    counts: Mapping[str, int],
    bound: int | None,
    verbatim: bool,
    pattern: str = "",
) -> None:
    """Writes the vocabulary of some counts; an existing file is kept. Equal counts give equal
    bytes.

    It has the most frequent pieces: at most `bound`, including the special pieces; None =
    `LARGEST`. Raises BadInput if characters, bytes or matches exceed the bound, because all of them
    are needed.
    """
    ends = {END_OF_LINE: counts.get("\n", 0)} if level == "words" else {}
    reserved = {*SPECIAL_PIECES, *([END_OF_LINE, "\n"] if level == "words" else [])}
    plain = sorted(counts.keys() - reserved, key=lambda piece: (-counts[piece], piece))
    room = (bound or LARGEST) - len(SPECIAL_PIECES) - len(ends)
    if level != "words" and len(plain) > room:
        raise BadInput(
            f"--vocab_size={bound} is too small: this text has {len(plain)} "
            f"{'pieces' if level == 'pattern' else level} and {_FIRST} special pieces; leave the "
            "option out"
        )
    kept = ends | {piece: counts[piece] for piece in plain[:room]}
    write_pieces(path, level, kept, verbatim, pattern)


def write_pieces(
    path: str, level: str, counts: Mapping[str, int], verbatim: bool, pattern: str = ""
) -> None:
    """Writes a vocabulary: the special pieces, then the pieces of `counts` in their order; an
    existing file is kept.
    """
    content = {
        "vocabulary": level,
        "verbatim": verbatim,
        "pieces": [*SPECIAL_PIECES, *counts],
        "counts": [0] * _FIRST + [*counts.values()],
    } | ({"pattern": pattern} if pattern else {})
    files.write_new(path, files.to_json(content))
