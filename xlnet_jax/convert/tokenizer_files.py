"""The tokenizer files of an exported folder, for `AutoTokenizer` and for older programs.

    SentencePiece     tokenizer.json, by `tokenizer_json`     spiece.model
    wordpiece         tokenizer.json of the training run      vocab.txt
    bytebpe           tokenizer.json of the training run      vocab.json, merges.txt
    characters and    tokenizer.json, by `counted_json`       vocabulary.json
    pattern

The member decides the special pieces around a text. `data.vocabulary.open_in` reads such a folder.
"""

from __future__ import annotations

import json
import os
from typing import Any

import tokenizers
from tokenizers import models, processors

from xlnet_jax.config import Config
from xlnet_jax.convert import counted_json, tokenizer_json
from xlnet_jax.data.subwords import Subwords
from xlnet_jax.data.tokenizer import XLNET, Tokenizer
from xlnet_jax.data.vocabulary import RULES, Vocabulary
from xlnet_jax.errors import BadInput
from xlnet_jax.members.member import Member
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json


def check_frame(folder: str, tokenizer: Tokenizer, config: Config) -> None:
    """Raises BadInput if a folder's tokenizer.json puts other special pieces around texts than the
    member does.
    """
    path, member = os.path.join(folder, "tokenizer.json"), config.model.member
    data = files.read_if_there(path)
    theirs = data and files.json_object(data, path).get("post_processor")
    if theirs and _framed(theirs, member) != _framed(_frame(member, tokenizer), member):
        raise BadInput(
            f"{path}: its post_processor puts other special pieces around texts than a model of "
            f"{config.model.architecture} reads; only the pieces of the model can be used"
        )


def _framed(step: Any, member: Member) -> list[tuple[list[int], list[int]]]:
    """Returns ids and types that a post-processor makes of one text and of two; a text has one
    piece.
    """
    usual = json.loads(tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).to_str())
    made = tokenizers.Tokenizer.from_str(json.dumps(usual | {"post_processor": step}))
    return [
        (each.ids, each.type_ids * member.types) for each in made.encode_batch(["a", ("a", "a")])
    ]


def contents(tokenizer: Tokenizer, config: Config) -> dict[str, bytes]:
    """Returns the files by name."""
    member = config.model.member
    frame = _frame(member, tokenizer)
    if isinstance(tokenizer, Subwords):
        document = json.loads(tokenizer.content)
        others = _old_files(tokenizer, document)
        if tokenizer.level == "bytebpe":
            # The offsets of a word exclude the space before it.
            of_bytes = {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            }
            frame = {"type": "Sequence", "processors": [of_bytes, *[frame] * (frame is not None)]}
    elif isinstance(tokenizer, Vocabulary):
        document = counted_json.tokenizer_json(tokenizer)
        others = {tokenizer.file_name: tokenizer.content}
    else:
        document = tokenizer_json.tokenizer_json(
            tokenizer.content, tokenizer.normalization, tokenizer.path
        )
        others = {"spiece.model": tokenizer.content}
    document["post_processor"] = frame
    settings = _settings(tokenizer, document, member, config.data.segment_len)
    return {
        "tokenizer.json": files.to_json(document, None),
        "tokenizer_config.json": files.to_json(settings, 2),
    } | others


def _old_files(tokenizer: Subwords, document: Json) -> dict[str, bytes]:
    if tokenizer.level == "wordpiece":
        return {"vocab.txt": "".join(f"{piece}\n" for piece in tokenizer.pieces).encode()}
    merges = document["model"]["merges"]
    rows = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    ids = {piece: index for index, piece in enumerate(tokenizer.pieces)}
    return {
        "vocab.json": files.to_json(ids, None),
        "merges.txt": "\n".join(["#version: 0.2", *rows, ""]).encode(),
    }


def _settings(tokenizer: Tokenizer, document: Json, member: Member, length: int) -> Json:
    """Returns the content of `tokenizer_config.json` beside the tokenizer.json `document`; `length`
    is the default limit of tokens.
    """
    names = {
        f"{name}_token": tokenizer.pieces[index]
        for name, index in tokenizer.special._asdict().items()
        if index is not None and name not in ("eod", "eop")
    }
    if tokenizer.level == "bytebpe":
        # Version 4 of transformers reads this switch here, and not in tokenizer.json.
        step = document["pre_tokenizer"] or {}
        switches = {"add_prefix_space": step.get("add_prefix_space", False)}
    elif isinstance(tokenizer, Subwords):
        rules = document["normalizer"] or {}
        switches = (
            {
                "do_lower_case": bool(rules.get("lowercase")),
                "strip_accents": rules.get("strip_accents"),
                "tokenize_chinese_chars": rules.get("handle_chinese_chars", True),
            }
            if rules
            else {}
        )
    else:
        switches = {
            theirs: getattr(tokenizer.normalization, ours) for ours, theirs in RULES.items()
        }
    more = {"additional_special_tokens": ["<eop>", "<eod>"]} if tokenizer.special == XLNET else {}
    # Without `token_type_ids` here the tokenizer does not return them, and fine-tuning silently
    # loses the segments A, B and CLS.
    inputs = [
        "input_ids",
        *["token_type_ids"] * member.types,
        "attention_mask",
    ]
    return {
        # This class uses tokenizer.json unchanged. Other classes of transformers 5 replace our
        # rules: XLNet's always strips accents, and treats vowel signs of Thai or Devanagari as
        # accents.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        **more,
        **switches,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left" if member.cls == "last" else "right",
        "model_input_names": inputs,
    }


def _frame(member: Member, tokenizer: Tokenizer) -> Json | None:
    """Returns the post-processor that puts special pieces around one text and around two texts;
    None for a member without CLS. A SEP has the type of its text; CLS has type 0, or 2 at the end.
    """
    if member.cls == "none":
        return None
    ids = {tokenizer.pieces[at]: at for at in (tokenizer.special.cls, tokenizer.special.sep)}
    (cls, sep), of_b = ids, int(member.types)
    pair = f"$A:0 {f'{sep}:0 ' * member.separators}$B:{of_b} {sep}:{of_b}"
    single, pair = (
        f"{text} {cls}:2" if member.cls == "last" else f"{cls}:0 {text}"
        for text in (f"$A:0 {sep}:0", pair)
    )
    step: Any = processors.TemplateProcessing(single, pair, [*ids.items()])
    return json.loads(step.__getstate__())
