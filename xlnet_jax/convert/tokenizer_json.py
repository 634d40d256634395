"""Converts a SentencePiece model to the `tokenizer.json` of the `tokenizers` library and back,
without that library.

`tokenizer.json` describes every step from text to ids: normaliser, pre-tokeniser, Unigram pieces
with their scores. This conversion agrees with the tokenizer of the training run. The conversions of
`transformers` do not: they turn every user-defined piece, such as `(`, into a special token.
Remaining differences:

- Text that spells a special piece (`<sep>`) becomes the id of that piece, and a space before it is
  dropped; in training only `<eop>` is converted, and the space stays.
- The digit-comma rule encodes a number again on its own, which a Unigram model cannot express.
  Instead the pieces that the rule would split ("2000,") get a low score; the result differs where
  the rest of the word is then segmented in another way ("12,000,").
- Scores are summed in float64, in SentencePiece in float32, so the choice between two
  segmentations of a word with almost equal scores may differ.
"""

from __future__ import annotations

import base64
import functools
import unicodedata
from collections.abc import Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from xlnet_jax.data.tokenizer import XLNET, Normalization, ends_in_digit_comma, special_of
from xlnet_jax.errors import BadInput
from xlnet_jax.storage.files import Json

_PROTO: Any = sentencepiece_model_pb2  # its classes are made when it is imported
_UNLIKELY = 100.0  # subtracted from a score; no sum of other scores can make up for it


def tokenizer_json(model_file: bytes, normalization: Normalization, name: str) -> Json:
    """Returns the content of `tokenizer.json` for a SentencePiece model with the special pieces of
    XLNet or ALBERT. `tokenizer_files` adds the step that puts them around a text.

    `normalization` is applied to the text before SentencePiece. Raises BadInput, with the `name` of
    the model, for a model that the Unigram format cannot express.
    """
    model = _PROTO.ModelProto.FromString(model_file)
    if model.trainer_spec.model_type != _PROTO.TrainerSpec.UNIGRAM:
        raise BadInput(
            f"tokenizer {name}: not a unigram model; only unigram models can be exported"
        )
    if any(piece.type == piece.BYTE for piece in model.pieces):
        raise BadInput(
            f"tokenizer {name}: has byte pieces, "
            "which XLNet tokenizers of other libraries do not support"
        )
    special, names = special_of([piece.piece for piece in model.pieces])
    vocab = [
        [
            piece.piece,
            piece.score
            - _UNLIKELY * (ends_in_digit_comma(piece.piece) or piece.type == piece.UNUSED),
        ]
        for piece in model.pieces
    ]
    rule = model.normalizer_spec
    prefix = rule.add_dummy_prefix
    prepend = "always" if prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": True}
    # The split at white space drops it, which is right only if each word then gets a mark.
    steps = _normalizers(rule, normalization) + [_ONE_SPACE, _STRIP] * (not prefix)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        # The mask absorbs the space before it, so that "a <mask>" is two tokens.
        "added_tokens": special_tokens(names, special.mask),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        # SentencePiece splits at white space only after its own rule has run, and so does this
        # pre-tokeniser.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}] * prefix + [metaspace],
        },
        "post_processor": None,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": special.unk,
            "vocab": vocab,
            "byte_fallback": False,
        },
    }


def special_tokens(pieces: Sequence[str], mask: int | None = None) -> list[Json]:
    """Returns the special pieces, from id 0 on, as tokens that are found in a text; `mask` absorbs
    the space before it.
    """
    return [
        {
            "id": index,
            "content": piece,
            "single_word": False,
            "lstrip": index == mask,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, piece in enumerate(pieces)
    ]


def sentencepiece_model(document: Json, name: str) -> bytes:
    """Makes a SentencePiece model from a `tokenizer.json`, for folders without `spiece.model`.

    The model has the same pieces, scores and character map. The file does not tell which pieces
    were user-defined; pieces with a score of 0 are taken as user-defined. Raises BadInput if the
    file has no Unigram model, or no pieces with scores.
    """
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        raise BadInput(f"{name}: not a unigram model, as XLNet has")
    made, kinds = _PROTO.ModelProto(), _PROTO.ModelProto.SentencePiece
    try:
        special, names = special_of([piece for piece, _ in model["vocab"]])
        for index, (piece, score) in enumerate(model["vocab"]):
            low = score <= -_UNLIKELY
            if index < (special.eop or len(names)):
                kind = kinds.UNKNOWN if index == special.unk else kinds.CONTROL
            elif low and not ends_in_digit_comma(piece):
                kind = kinds.UNUSED
            else:
                kind = kinds.USER_DEFINED if score == 0 or index == special.eop else kinds.NORMAL
            made.pieces.add(piece=piece, score=score + _UNLIKELY if low else score, type=kind)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{name}: its model has no list of pieces and scores") from error
    trainer = made.trainer_spec
    trainer.model_type, trainer.vocab_size = _PROTO.TrainerSpec.UNIGRAM, len(made.pieces)
    trainer.unk_id, trainer.pad_id = special.unk, -1 if special == XLNET else special.pad
    trainer.bos_id, trainer.eos_id = (
        -1 if each is None else each for each in (special.bos, special.eos)
    )
    normalizers, rule = _steps(document.get("normalizer")), made.normalizer_spec
    maps = [step["precompiled_charsmap"] for step in normalizers if step["type"] == "Precompiled"]
    rule.name = "nmt_nfkc" if maps else "identity"
    rule.precompiled_charsmap = base64.b64decode(maps[0]) if maps else b""
    spaces = [step for step in _steps(document.get("pre_tokenizer")) if step["type"] == "Metaspace"]
    rule.add_dummy_prefix = not spaces or _prepends(spaces[0]) != "never"
    return made.SerializeToString()


def normalization_of(document: Json, model: bytes, name: str) -> Normalization:
    """Recognises the text normalisation in the steps of a Unigram `tokenizer.json` that this
    package or `transformers` wrote; `model` is its `sentencepiece_model`. Raises BadInput for other
    steps.
    """
    rule = _PROTO.ModelProto.FromString(model).normalizer_spec
    # Steps on white space are ignored, because the pre-tokeniser splits at white space anyway.
    blank = (_SPACES, _STRIP, _ONE_SPACE, _ONE_SPACE | {"content": "▁"})
    found = [step for step in _steps(document.get("normalizer")) if step not in blank]
    kinds = [step["type"] for step in found]
    normalization = Normalization("Lowercase" in kinds, "NFKD" not in kinds, nfkc="NFKC" in kinds)
    lower, accents = [{"type": "Lowercase"}], [{"type": "NFKD"}, {"type": "StripAccents"}]
    ours = [step for step in _normalizers(rule, normalization) if step != _SPACES]
    theirs = [*_QUOTES, *accents * ("NFKD" in kinds), *lower * normalization.lower]
    if found not in (ours, theirs + [step for step in ours if step["type"] == "Precompiled"]):
        raise BadInput(
            f"{name}: its normalizer ({', '.join(kinds)}) belongs to neither XLNet nor ALBERT; "
            "name a SentencePiece model with --tokenizer"
        )
    if [step for step in _steps(document.get("pre_tokenizer")) if _prepends(step) == "first"]:
        raise BadInput(
            f"{name}: its pre_tokenizer differs from SentencePiece; "
            "name a SentencePiece model with --tokenizer"
        )
    return normalization


def _prepends(step: Json) -> str:
    """Returns which words a step marks: "always" means all, "first" the first, "never" none. Old
    files have a switch.
    """
    if step["type"] != "Metaspace" or not step.get("split", True):
        return "never" if step["type"] == "WhitespaceSplit" else "first"
    return step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")


def _steps(step: Json | None) -> list[Json]:
    """Returns the steps of a normaliser or pre-tokeniser, with sequences flattened."""
    if not step:
        return []
    inner = step.get("normalizers") or step.get("pretokenizers") or []
    return [step] * (step["type"] != "Sequence") + [each for part in inner for each in _steps(part)]


def _normalizers(rule: Any, normalization: Normalization) -> list[Json]:
    """Returns the steps of a `Normalization`, then those of `rule`, the model's
    `normalizer_spec`.
    """
    steps = normalization_steps(normalization, [_SPACES])
    if "nfkc" in rule.name:
        # The rule composes characters, but the library applies it to strings that are too short to
        # compose Hangul.
        steps.append({"type": "NFC"})
    if charsmap := rule.precompiled_charsmap:
        steps.append(
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
        )
    return steps


def normalization_steps(normalization: Normalization, spaces: Sequence[Json]) -> list[Json]:
    """Returns the steps of a `Normalization`; `spaces` are those of `remove_space`."""
    steps = [*spaces] * normalization.remove_space + _QUOTES
    if not normalization.keep_accents:
        # The library's StripAccents drops all marks, also marks that are letters; the original
        # drops only combining marks.
        steps += [{"type": "NFKD"}, replace({"Regex": f"[{_combining_characters()}]"}, "")]
    if normalization.nfkc:
        steps.append({"type": "NFKC"})
    if normalization.lower:
        # The library lowers each character alone, but a final sigma has another lower case.
        steps += [replace({"Regex": "(?<=\\p{L})Σ(?!\\p{L})"}, "ς"), {"type": "Lowercase"}]
    return steps


def replace(pattern: dict[str, str], content: str) -> Json:
    """Returns the step that replaces a pattern."""
    return {"type": "Replace", "pattern": pattern, "content": content}


# The four separators U+001C to U+001F are white space in Python, but not in Unicode.
_SPACES = replace({"Regex": "[\\s\u001c-\u001f]+"}, " ")
_ONE_SPACE = replace({"Regex": " {2,}"}, " ")
_STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
_QUOTES = [replace({"String": "``"}, '"'), replace({"String": "''"}, '"')]


@functools.cache
def _combining_characters() -> str:
    """Returns all characters with a canonical combining class, as ranges for a regular
    expression.
    """
    codes = [code for code in range(0x110000) if unicodedata.combining(chr(code))]
    first = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    last = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(first, last, strict=True))
