"""A SentencePiece model as the `tokenizer.json` of the `tokenizers` library, without that library and without protobuf.

`tokenizer.json` holds the whole way from text to ids: normaliser, pre-tokeniser, Unigram pieces with their scores,
template of the special tokens. Written by us it agrees with the tokenizer of the training run; the conversions inside
`transformers` do not (they make every user-defined piece, such as `(`, a special token). What stays different:

- Text that spells out a special piece (`<sep>`) becomes that piece's id, and a space before it vanishes; in training
  only `<eop>` does, and the space stays.
- The digit-comma rule encodes a number again on its own, which a Unigram model cannot say. Instead the pieces it would
  cut ("2000,") are made unlikely; that differs where the rest of the word is then cut another way ("12,000,").
- Scores are added in float64, in SentencePiece in float32: ties and near-ties between two ways to cut a word.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
import unicodedata
from collections.abc import Iterator
from typing import Any

from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization
from xlnet_jax.errors import BadInput

UNIGRAM = 1
"""`TrainerSpec.ModelType` of the only kind of model XLNet has."""

UNUSED, BYTE = 5, 6
"""`ModelProto.SentencePiece.Type`; the others need no special care."""

_UNLIKELY = 100.0  # far below any sum of scores that could make up for it
_WORD = "▁"


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """What `tokenizer.json` needs of a SentencePiece model file."""

    pieces: list[tuple[str, float, int]]
    """(piece, score, type) by id."""
    kind: int
    """`TrainerSpec.ModelType`."""
    rule: str
    """Name of the normalisation rule, such as nmt_nfkc."""
    charsmap: bytes
    """The rule, compiled; empty for identity."""
    add_dummy_prefix: bool
    """Whether a text begins with a word boundary."""


def parse(model: bytes) -> SentencePieceModel:
    """Reads a SentencePiece model file that SentencePiece itself has already accepted.

    The file is a protocol buffer; field numbers and defaults are those of `sentencepiece_model.proto`.
    """
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    return SentencePieceModel(
        pieces=pieces,
        kind=trainer.get(3, UNIGRAM),
        rule=normalizer.get(1, b"").decode(),
        charsmap=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, True)),
    )


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protocol buffer: an int for varints, the raw bytes for all else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        wire_type = key & 7
        if wire_type == 0:
            yield key >> 3, varint()
            continue
        size = varint() if wire_type == 2 else {1: 8, 5: 4}[wire_type]
        yield key >> 3, message[at : at + size]
        at += size


def tokenizer_json(model: SentencePieceModel, normalization: Normalization, name: str) -> dict[str, Any]:
    """The content of `tokenizer.json`.

    Args:
      model: its ids 0-8 are XLNet's special pieces.
      normalization: what the training run did to text before SentencePiece.
      name: of the model file, for messages.

    Raises:
      BadInput: the model is of a kind the Unigram format has no room for.
    """
    if model.kind != UNIGRAM:
        raise BadInput(f"tokenizer {name}: not a unigram model; only those can be exported")
    if any(kind == BYTE for _, _, kind in model.pieces):
        raise BadInput(f"tokenizer {name}: has byte pieces, which XLNet tokenizers of other libraries do not know")
    metaspace = {
        "type": "Metaspace",
        "replacement": _WORD,
        "prepend_scheme": "always" if model.add_dummy_prefix else "never",
        "split": True,
    }
    # SentencePiece cuts at white space only after its own rule has run, and so does this pre-tokeniser.
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(index, piece) for index, piece in enumerate(SPECIAL_PIECES)],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model, normalization)},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": SPECIAL_PIECES.index("<unk>"),
            "vocab": [[piece, _score(piece, score, kind)] for piece, score, kind in model.pieces],
            "byte_fallback": False,
        },
    }


def tokenizer_config(normalization: Normalization) -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    named = ("unk", "bos", "eos", "cls", "sep", "pad", "mask")
    return {
        # Takes tokenizer.json as it is. `XLNetTokenizer` of transformers 5 puts a normaliser of its own in place of
        # ours: it always strips accents, and takes the vowel signs of Thai or Devanagari for accents.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": piece for name, piece in zip(named, SPECIAL_PIECES, strict=False)},
        "additional_special_tokens": ["<eop>", "<eod>"],
        "do_lower_case": normalization.lower,
        "keep_accents": normalization.keep_accents,
        "remove_space": normalization.remove_space,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        # Without this line no token_type_ids are returned, and fine-tuning silently loses segments A, B and CLS.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }


def _normalizers(model: SentencePieceModel, normalization: Normalization) -> list[dict[str, Any]]:
    """The steps of `data.tokenizer.Normalization`, then the model's own rule."""
    steps: list[dict[str, Any]] = []
    if normalization.remove_space:
        # Python counts the four separators as white space, Unicode does not.
        steps.append(_replace({"Regex": "[\\s\u001c-\u001f]+"}, " "))
    steps += [_replace({"String": "``"}, '"'), _replace({"String": "''"}, '"')]
    if not normalization.keep_accents:
        # The library's StripAccents drops all marks, also those that are letters; the original only combining ones.
        steps += [{"type": "NFKD"}, _replace({"Regex": f"[{_combining_characters()}]"}, "")]
    if normalization.nfkc:
        steps.append({"type": "NFKC"})
    if normalization.lower:
        # The library lowers character by character; the sigma at the end of a word has a form of its own.
        steps += [_replace({"Regex": "(?<=\\p{L})Σ(?!\\p{L})"}, "ς"), {"type": "Lowercase"}]
    if "nfkc" in model.rule:
        # The rule composes, but the library applies it to pieces of text too short to compose Hangul.
        steps.append({"type": "NFC"})
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    return steps


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _combining_characters() -> str:
    """All characters with a canonical combining class, as the inside of a regular expression's character class."""
    codes = [code for code in range(0x110000) if unicodedata.combining(chr(code))]
    first = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    last = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(first, last, strict=True))


def _score(piece: str, score: float, kind: int) -> float:
    ends_in_digit_comma = len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
    return score - _UNLIKELY if ends_in_digit_comma or kind == UNUSED else score


def _added_token(index: int, piece: str) -> dict[str, Any]:
    mask = piece == "<mask>"  # takes the space before it, so that "a <mask>" is two tokens
    return {
        "id": index,
        "content": piece,
        "single_word": False,
        "lstrip": mask,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _template() -> dict[str, Any]:
    """A SEP CLS and A SEP B SEP CLS; A has type 0, B type 1, CLS type 2, each SEP that of its segment."""

    def token(piece: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    def text(letter: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": letter, "type_id": segment}}

    first, end = [text("A", 0), token("<sep>", 0)], [token("<cls>", 2)]
    return {
        "type": "TemplateProcessing",
        "single": first + end,
        "pair": [*first, text("B", 1), token("<sep>", 1), *end],
        "special_tokens": {
            piece: {"id": piece, "ids": [SPECIAL_PIECES.index(piece)], "tokens": [piece]}
            for piece in ("<sep>", "<cls>")
        },
    }
