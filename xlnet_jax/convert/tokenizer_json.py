"""The files of a tokenizer for the `tokenizers` library. A SentencePiece model is converted and back, without it.

`tokenizer.json` describes every step from text to ids: normaliser, pre-tokeniser, Unigram pieces with their scores,
template of the special tokens. Our conversion agrees with the tokenizer of the training run; the conversions inside
`transformers` do not (they turn every user-defined piece, such as `(`, into a special token). Remaining differences:

- Text that spells a special piece (`<sep>`) becomes the id of that piece, and a space before it is dropped; in training
  only `<eop>` is converted, and the space stays.
- The digit-comma rule encodes a number again on its own, which a Unigram model cannot express. Instead the pieces that
  the rule would split ("2000,") get a low score; the result differs where the rest of the word is then segmented in
  another way ("12,000,").
- Scores are summed in float64, in SentencePiece in float32: ties and near-ties between two segmentations of a word.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from xlnet_jax.config.families import FAMILIES, Family
from xlnet_jax.data.subwords import LEVELS
from xlnet_jax.data.tokenizer import XLNET, Normalization, SpecialIds, Tokenizer, ends_in_digit_comma
from xlnet_jax.errors import BadInput

_UNLIKELY = 100.0  # subtracted from a score; no sum of other scores can make up for it


def documents(tokenizer: Tokenizer, family: Family, max_length: int) -> dict[str, Any]:
    """`tokenizer.json` and `tokenizer_config.json` of a family's tokenizer, with its pieces around a text.

    Raises BadInput for a vocabulary that the library has no kind of.
    """
    if tokenizer.level in LEVELS:
        document = json.loads(tokenizer.content)
        document["post_processor"] = _template(tokenizer.pieces, tokenizer.special, family)
    elif tokenizer.level == "sentencepiece":
        document = tokenizer_json(tokenizer.content, tokenizer.normalization, tokenizer.path, tokenizer.special, family)
    else:
        raise BadInput(f"tokenizer {tokenizer.path}: a vocabulary of {tokenizer.level}; Hugging Face has pieces of "
                       "SentencePiece, wordpiece and bytebpe; use --format=orbax")  # fmt: skip
    return {"tokenizer.json": document, "tokenizer_config.json": tokenizer_config(tokenizer, family, max_length)}


def tokenizer_json(
    model_file: bytes, normalization: Normalization, name: str, special: SpecialIds = XLNET,
    family: Family = FAMILIES["xlnet"],
) -> dict[str, Any]:  # fmt: skip
    """The content of `tokenizer.json` of a SentencePiece model.

    `normalization` is that of the text before SentencePiece. Raises BadInput, with the `name` of the model: the Unigram
    format cannot express this kind of model.
    """
    proto: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    model = proto.ModelProto.FromString(model_file)
    if model.trainer_spec.model_type != proto.TrainerSpec.UNIGRAM:
        raise BadInput(f"tokenizer {name}: not a unigram model; only unigram models can be exported")
    if any(piece.type == piece.BYTE for piece in model.pieces):
        raise BadInput(f"tokenizer {name}: has byte pieces, which XLNet tokenizers of other libraries do not support")
    scores = [piece.score - _UNLIKELY * (ends_in_digit_comma(piece.piece) or piece.type == piece.UNUSED)
              for piece in model.pieces]  # fmt: skip
    rule = model.normalizer_spec
    prepend = "always" if rule.add_dummy_prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        # The mask absorbs the space before it, so that "a <mask>" is two tokens.
        "added_tokens": [
            {
                "id": index,
                "content": model.pieces[index].piece,
                "single_word": False,
                "lstrip": index == special.mask,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in special.there()
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(rule, normalization)},
        # SentencePiece splits at white space only after its own rule has run, and so does this pre-tokeniser.
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": _template([piece.piece for piece in model.pieces], special, family),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": special.unk,
            "vocab": [[piece.piece, score] for piece, score in zip(model.pieces, scores, strict=True)],
            "byte_fallback": False,
        },
    }


def sentencepiece_model(document: dict[str, Any], name: str) -> bytes:
    """The inverse: a SentencePiece model from a `tokenizer.json`, for folders without `spiece.model`.

    It has the same pieces, scores and character map. Which pieces were user-defined is not in that file: they are
    those with a score of 0. Raises BadInput: it is no Unigram model, or has no pieces with scores.
    """
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        raise BadInput(f"{name}: not a unigram model; XLNet has one")
    proto: Any = sentencepiece_model_pb2
    made = proto.ModelProto()
    try:
        for index, (piece, score) in enumerate(model["vocab"]):
            low = score <= -_UNLIKELY
            special = made.SentencePiece.UNKNOWN if index == XLNET.unk else made.SentencePiece.CONTROL
            user = made.SentencePiece.USER_DEFINED if score == 0 or index == XLNET.eop else made.SentencePiece.NORMAL
            unused = made.SentencePiece.UNUSED if low and not ends_in_digit_comma(piece) else user
            kind = special if index < XLNET.eop else unused
            made.pieces.add(piece=piece, score=score + _UNLIKELY if low else score, type=kind)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{name}: its model has no list of pieces and scores") from error
    trainer = made.trainer_spec
    trainer.model_type, trainer.vocab_size = proto.TrainerSpec.UNIGRAM, len(made.pieces)
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = XLNET.unk, XLNET.bos, XLNET.eos, -1
    normalizers, rule = _steps(document.get("normalizer")), made.normalizer_spec
    maps = [step["precompiled_charsmap"] for step in normalizers if step["type"] == "Precompiled"]
    rule.name = "nmt_nfkc" if maps else "identity"
    rule.precompiled_charsmap = base64.b64decode(maps[0]) if maps else b""
    spaces = [step for step in _steps(document.get("pre_tokenizer")) if step["type"] == "Metaspace"]
    rule.add_dummy_prefix = not spaces or spaces[0].get("prepend_scheme") != "never"
    return made.SerializeToString()


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, which may be a sequence of others."""
    if not step:
        return []
    inner = step.get("normalizers") or step.get("pretokenizers") or []
    return [step, *(each for part in inner for each in _steps(part))]


def tokenizer_config(tokenizer: Tokenizer, family: Family, max_length: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; a text is cut to `max_length` tokens if a caller names no length."""
    normalization, special = tokenizer.normalization, tokenizer.special
    named = {name: getattr(special, name) for name in ("unk", "bos", "eos", "cls", "sep", "pad", "mask")}
    return {
        # Uses tokenizer.json unchanged. `XLNetTokenizer` of transformers 5 replaces our normaliser with its own: that
        # one always strips accents, and treats the vowel signs of Thai or Devanagari as accents.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": tokenizer.pieces[index] for name, index in named.items() if index is not None},
        **({"additional_special_tokens": ["<eop>", "<eod>"]} if special == XLNET else {}),
        "do_lower_case": normalization.lower,
        "keep_accents": normalization.keep_accents,
        "remove_space": normalization.remove_space,
        "nfkc": normalization.nfkc,  # ours alone
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left" if family.padding_left else "right",
        # Without this line token_type_ids are not returned, and fine-tuning silently loses the segments.
        "model_input_names": ["input_ids", *["token_type_ids"] * _typed(family), "attention_mask"],
    }


def _normalizers(rule: Any, normalization: Normalization) -> list[dict[str, Any]]:
    """The steps of `data.tokenizer.Normalization`, then the model's own rule, its `normalizer_spec`."""
    steps: list[dict[str, Any]] = []
    if normalization.remove_space:
        # The four separators U+001C to U+001F are white space in Python, but not in Unicode.
        steps.append(_replace({"Regex": "[\\s\u001c-\u001f]+"}, " "))
    steps += [_replace({"String": "``"}, '"'), _replace({"String": "''"}, '"')]
    if not normalization.keep_accents:
        # The library's StripAccents drops all marks, also those that are letters; the original only combining ones.
        steps += [{"type": "NFKD"}, _replace({"Regex": f"[{_combining_characters()}]"}, "")]
    if normalization.nfkc:
        steps.append({"type": "NFKC"})
    if normalization.lower:
        # The library lowers each character alone; but a final sigma has its own form.
        steps += [_replace({"Regex": "(?<=\\p{L})Σ(?!\\p{L})"}, "ς"), {"type": "Lowercase"}]
    if "nfkc" in rule.name:
        # The rule composes characters, but the library applies it to strings that are too short to compose Hangul.
        steps.append({"type": "NFC"})
    if charsmap := rule.precompiled_charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    return steps


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _combining_characters() -> str:
    """All characters with a canonical combining class, as the content of a regular expression's character class."""
    codes = [code for code in range(0x110000) if unicodedata.combining(chr(code))]
    first = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    last = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(first, last, strict=True))


def _typed(family: Family) -> bool:
    """Whether segments have numbers: XLNet's are relative."""
    return family.segments > 1 or not family.absolute


def _template(pieces: list[str], special: SpecialIds, family: Family) -> dict[str, Any] | None:
    """Where the family has CLS and SEP: A has type 0, B type 1, each SEP that of its segment, CLS at the end type 2."""
    if family.cls == "none":
        return None
    types = (0, 1, 2) if _typed(family) else (0, 0, 0)
    a, b = ({"Sequence": {"id": letter, "type_id": kind}} for letter, kind in zip("AB", types, strict=False))
    names = {name: pieces[getattr(special, name)] for name in ("sep", "cls")}
    sep_a, sep_b = ({"SpecialToken": {"id": names["sep"], "type_id": kind}} for kind in types[:2])
    first = family.cls == "first"
    cls = [{"SpecialToken": {"id": names["cls"], "type_id": types[0 if first else 2]}}]
    before, after = (cls, []) if first else ([], cls)
    ids = {piece: getattr(special, name) for name, piece in names.items()}
    return {
        "type": "TemplateProcessing",
        "single": [*before, a, sep_a, *after],
        "pair": [*before, a, *[sep_a] * family.separators, b, sep_b, *after],
        "special_tokens": {piece: {"id": piece, "ids": [index], "tokens": [piece]} for piece, index in ids.items()},
    }
