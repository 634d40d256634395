"""Every field of the files of a tokenizer from another program, and what becomes of it here: `FIELDS`.

Classes of `transformers` put their own steps in the place of those of a tokenizer.json, with the switches of
tokenizer_config.json or else their defaults. So does this package, and refuses a tokenizer.json with steps that no
switch makes. Where tokenizer_config.json is missing or names `PreTrainedTokenizerFast`, tokenizer.json is right.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

DONE, FREE = "done", "no effect on the ids of a text"
FIELDS = {
    "tokenizer_config.json": {
        DONE: "tokenizer_class added_tokens_decoder additional_special_tokens extra_special_tokens unk_token bos_token "
        "eos_token cls_token sep_token pad_token mask_token",
        # Lengths, what comes beside ids, and what is made of them; where the files came from, and how they are opened.
        FREE: "model_max_length max_len max_length max_seq_length truncation truncation_side "
        "truncation_strategy stride padding padding_side pad_to_multiple_of pad_token_type_id "
        "model_input_names clean_up_tokenization_spaces spaces_between_special_tokens errors "
        "trim_offsets chat_template return_token_type_ids return_attention_mask name_or_path "
        "special_tokens_map_file tokenizer_file vocab_file merges_file use_fast from_slow backend "
        "is_local local_files_only processor_class transformers_version init_inputs _commit_hash "
        "cache_dir verbose model_type tokenizer_type task_specific_params cls_token_id "
        "bos_token_id eos_token_id pad_token_id unk_id legacy "
        # Special pieces that a text spells are always text here.
        "split_special_tokens",
        "null false": "add_bos_token add_eos_token fix_mistral_regex byte_fallback",
        "null true": "add_special_tokens",
        "null {}": "auto_map model_specific_special_tokens",
    },
    "wordpiece": {
        DONE: "do_lower_case strip_accents tokenize_chinese_chars",
        FREE: "keep_accents remove_space add_prefix_space",
        "null true": "do_basic_tokenize do_word_tokenize do_subword_tokenize clean_text",
        "null []": "never_split",
        'null "basic"': "word_tokenizer_type",
        'null "wordpiece"': "subword_tokenizer_type",
        'null "##"': "wordpieces_prefix wordpiece_prefix",
        "null 100": "max_input_chars_per_word",
        "null {}": "mecab_kwargs sudachi_kwargs jumanpp_kwargs",
    },
    "bytebpe": {
        DONE: "add_prefix_space",
        FREE: "tokenize_chinese_chars keep_accents remove_space",
        "null false": "do_lower_case strip_accents",
        "null 0 0.0": "dropout",
    },
    "sentencepiece": {
        DONE: "do_lower_case keep_accents remove_space nfkc",
        "null true": "add_prefix_space",
        "null {}": "sp_model_kwargs strip_accents",
    },
    # The class takes tokenizer.json as it is.
    "verbatim": {FREE: "do_lower_case strip_accents tokenize_chinese_chars keep_accents remove_space nfkc"},
    "special_tokens_map.json": {
        DONE: "additional_special_tokens extra_special_tokens unk_token bos_token eos_token cls_token sep_token "
        "pad_token mask_token",
    },
    "tokenizer.json": {
        DONE: "added_tokens normalizer pre_tokenizer post_processor model",
        FREE: "version truncation padding decoder",
    },
    "WordPiece": {
        DONE: "type vocab max_input_chars_per_word",
        '"[UNK]"': "unk_token",
        '"##"': "continuing_subword_prefix",
    },
    "BPE": {
        DONE: "type vocab merges unk_token fuse_unk ignore_merges",
        "null 0 0.0": "dropout",
        'null ""': "continuing_subword_prefix end_of_word_suffix",
        "null false": "byte_fallback",
    },
    "Unigram": {DONE: "type vocab unk_id", "null false": "byte_fallback"},
}
"""By file, level and type of model: fields that are done, that are free, or that have one of some values in JSON. Any
other field is refused by its name: it may change ids."""
CLASSES = {
    "wordpiece": "BertTokenizer DistilBertTokenizer ElectraTokenizer",
    "bytebpe": "RobertaTokenizer GPT2Tokenizer",
    "sentencepiece": "XLNetTokenizer AlbertTokenizer",
}
"""By level, those of `transformers`, which also have names with `Fast` at the end."""
_VERBATIM = ("PreTrainedTokenizer", "TokenizersBackend")
_BOOLS = "do_lower_case strip_accents tokenize_chinese_chars add_prefix_space keep_accents remove_space nfkc"
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}


def check(found: Mapping[str, Any], tables: Sequence[str], where: str) -> None:
    """Raises BadInput for a field that is in none of some `FIELDS`, or has a value that cannot be used."""
    rules = {name: rule for table in tables for rule, names in FIELDS[table].items() for name in names.split()}
    for name, value in found.items():
        rule, text = rules.get(name), json.dumps(value)
        if rule is None:
            raise BadInput(
                f"{where}: {name}={text:.60} is not a known field, and may change ids; remove it if it does not"
            )
        if rule not in (DONE, FREE) and text not in rule.split():
            raise BadInput(f"{where}: {name}={text:.60} makes other ids; only {' or '.join(rule.split())} can be used")


def check_file(document: Mapping[str, Any], where: str) -> None:
    """`check` of a tokenizer.json and its model."""
    check(document, ["tokenizer.json"], where)
    model = document.get("model")
    if isinstance(model, dict) and model.get("type") in FIELDS:
        check(model, [model["type"]], f"{where}: model")


class Settings:
    """What a folder says beside the file of its pieces.

    Attributes:
      where, said: the path and content of its tokenizer_config.json.
      added: added tokens by their text, as a tokenizer.json has them.
    """

    def __init__(self, folder: str):
        """Reads them. Raises BadInput for a damaged file."""
        names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        listed, paths = files.listing(folder), [os.path.join(folder, name) for name in names]
        self.where = paths[0]
        self.said, self.names, old = (
            files.read_json_object(path) if name in listed else {} for name, path in zip(names, paths, strict=True)
        )
        types = dict.fromkeys(_BOOLS.split(), bool) | {
            "model_max_length": float,
            "tokenizer_class": str,
        }
        files.check_types(self.said, types | {"added_tokens_decoder": dict}, self.where)
        check(self.names, names[1:2], paths[1])
        # A class or PreTrainedTokenizer, as the name without `Fast` is.
        self.kind = (self.said.get("tokenizer_class") or "").removesuffix("Fast")
        self.verbatim = names[0] not in listed or self.kind in _VERBATIM
        tokens = self.said.get("added_tokens_decoder") or {}
        named = json.dumps([self.said, self.names])
        every = {text: {"id": number, "special": json.dumps(text) in named} for text, number in old.items()}
        try:
            every |= {token["content"]: {"id": int(number), **token} for number, token in tokens.items()}
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"{self.where}: added_tokens_decoder has no content for each id") from error
        self.added = {text: {"content": text, **_FLAGS, "normalized": not token.get("special"), **token}
                      for text, token in every.items()}  # fmt: skip

    def check(self, level: str) -> None:
        """Raises BadInput for a class of another level, or a field that cannot be used."""
        if self.kind not in ("", *_VERBATIM, *CLASSES[level].split()):
            raise BadInput(f"{self.where}: tokenizer_class is {self.kind}; only {CLASSES[level]} and "
                           f"PreTrainedTokenizerFast can be used for {level}")  # fmt: skip
        check(
            self.said,
            ["tokenizer_config.json", level, *["verbatim"] * (self.kind in _VERBATIM)],
            self.where,
        )

    def check_names(self, special: SpecialIds, pieces: Sequence[str]) -> None:
        """Raises BadInput if a special piece that a model reads has another name than here."""
        for name in ("unk", "cls", "sep", "mask", "eos" if special.cls is None else "pad"):
            ours = None if getattr(special, name) is None else pieces[getattr(special, name)]
            for found in (self.said, self.names):
                theirs: Any = found.get(f"{name}_token")
                theirs = theirs.get("content") if isinstance(theirs, dict) else theirs
                if None not in (ours, theirs) and ours != theirs:
                    raise BadInput(f"{self.where}: {name}_token is {theirs!r:.60}; only {ours!r} can be used here")

    def switches(self, level: str) -> tuple[str, dict[str, bool]]:
        """The step of a tokenizer.json that a class changes, and how."""
        lower, strip, chinese, prefix = (self.said.get(name) for name in _BOOLS.split()[:4])
        if level == "bytebpe":
            return "pre_tokenizer", {"add_prefix_space": bool(prefix)}
        lower = lower is not False
        return "normalizer", {"lowercase": lower, "strip_accents": lower if strip is None else strip,
                              "handle_chinese_chars": chinese is not False}  # fmt: skip

    def change(self, document: dict[str, Any], level: str, usual: Mapping[str, Any] | None) -> None:
        """Does to a tokenizer.json what its class does. `usual`: one as the class makes it without its switches; None:
        the file is made that way. Raises BadInput if it has other steps."""
        self.check(level)
        place, switches = self.switches(level)
        step = document.get(place) or {}
        if usual and self.verbatim:
            prefix = self.said.get("add_prefix_space")
            if level == "bytebpe" and prefix not in (None, step.get("add_prefix_space")):
                raise BadInput(f"{self.where}: add_prefix_space is not that of tokenizer.json; make them equal")
            return
        step |= switches
        for name in ("normalizer", "pre_tokenizer", "model") if usual else ():
            mine, wanted = document.get(name) or {}, (usual or {})[name] or {}
            mine = {key: value for key, value in mine.items() if key not in _COMPARED_ELSEWHERE | switches.keys()}
            if bool(mine) != bool(wanted) or not mine.items() <= wanted.items():
                raise BadInput(f"{self.where}: its class has another {name} than tokenizer.json; if that file is "
                               "right, set tokenizer_class to PreTrainedTokenizerFast")  # fmt: skip

    def add(self, document: dict[str, Any], roles: Collection[str | None]) -> None:
        """Adds the added tokens. All but the special pieces count in texts, as they do there."""
        tokens = {token["content"]: token for token in document.get("added_tokens", [])} | self.added
        tokens = {text: token | {"special": text in roles} for text, token in tokens.items()}
        document["added_tokens"] = sorted(tokens.values(), key=lambda token: token["id"])


# No effect on ids, or in `FIELDS`.
_COMPARED_ELSEWHERE = {"trim_offsets", "vocab", "merges", "unk_token", "fuse_unk", "continuing_subword_prefix",
                       "end_of_word_suffix", "byte_fallback", "dropout"}  # fmt: skip
