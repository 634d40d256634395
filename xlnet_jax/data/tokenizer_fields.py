"""The fields in the files of a tokenizer from another program, and how each is treated here:
`FIELDS`.

A class of `transformers` replaces the steps of a tokenizer.json by the steps of the class, with the
switches of tokenizer_config.json or their defaults. This package does the same, and refuses a
tokenizer.json with steps that no switch makes. If tokenizer_config.json is missing or names
`PreTrainedTokenizerFast`, the steps of tokenizer.json apply.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

DONE, FREE = "done", "no effect on the ids of a text"
_ANY = 'null "PreTrainedTokenizer" "PreTrainedTokenizerFast" "TokenizersBackend"'
"""Classes that take a tokenizer.json unchanged."""
FIELDS = {
    "tokenizer_config.json": {
        DONE: (
            "added_tokens_decoder additional_special_tokens extra_special_tokens unk_token "
            "bos_token eos_token cls_token sep_token pad_token mask_token"
        ),
        # Lengths, results other than ids, decoding, origin of the files, and options for opening
        # them.
        FREE: "model_max_length max_len max_length max_seq_length truncation truncation_side "
        "truncation_strategy stride padding padding_side pad_to_multiple_of pad_token_type_id "
        "model_input_names clean_up_tokenization_spaces spaces_between_special_tokens errors "
        "trim_offsets chat_template return_token_type_ids return_attention_mask name_or_path "
        "special_tokens_map_file tokenizer_file vocab_file merges_file use_fast from_slow backend "
        "is_local local_files_only processor_class transformers_version init_inputs _commit_hash "
        "cache_dir verbose model_type tokenizer_type task_specific_params cls_token_id "
        "bos_token_id eos_token_id pad_token_id unk_id legacy "
        # Here a special piece that a text spells is always encoded as text.
        "split_special_tokens",
        "null false": "add_bos_token add_eos_token fix_mistral_regex byte_fallback",
        "null true": "add_special_tokens",
        "null {}": "auto_map model_specific_special_tokens",
    },
    "wordpiece": {
        DONE: "do_lower_case strip_accents tokenize_chinese_chars",
        FREE: "keep_accents remove_space add_prefix_space",
        (
            f'{_ANY} "BertTokenizer" "BertTokenizerFast" "DistilBertTokenizer" '
            '"DistilBertTokenizerFast" "ElectraTokenizer" "ElectraTokenizerFast"'
        ): "tokenizer_class",
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
        f'{_ANY} "RobertaTokenizer" "RobertaTokenizerFast" "GPT2Tokenizer" "GPT2TokenizerFast"': "tokenizer_class",  # noqa: E501
        FREE: "tokenize_chinese_chars keep_accents remove_space",
        "null false": "do_lower_case strip_accents",
        "null 0 0.0": "dropout",
    },
    "sentencepiece": {
        DONE: "do_lower_case keep_accents remove_space nfkc",
        f'{_ANY} "XLNetTokenizer" "XLNetTokenizerFast" "AlbertTokenizer" "AlbertTokenizerFast"': "tokenizer_class",  # noqa: E501
        "null true": "add_prefix_space",
        "null {}": "sp_model_kwargs strip_accents",
    },
    **dict.fromkeys(
        ("words", "characters", "bytes", "pattern"),
        {DONE: "do_lower_case keep_accents remove_space nfkc", _ANY: "tokenizer_class"},
    ),
    # The class takes tokenizer.json unchanged.
    "verbatim": {
        FREE: "do_lower_case strip_accents tokenize_chinese_chars keep_accents remove_space nfkc"
    },
    "special_tokens_map.json": {
        DONE: (
            "additional_special_tokens extra_special_tokens unk_token bos_token eos_token "
            "cls_token sep_token pad_token mask_token"
        ),
    },
    "tokenizer.json": {
        DONE: "added_tokens normalizer pre_tokenizer post_processor model",
        FREE: "version truncation padding decoder",
    },
    "model": {
        DONE: "type vocab merges max_input_chars_per_word unk_id fuse_unk ignore_merges",
        'null "" "[UNK]" "<unk>" "<|endoftext|>"': "unk_token",
        'null "" "##"': "continuing_subword_prefix",
        'null ""': "end_of_word_suffix",
        "null 0 0.0": "dropout",
        "null false": "byte_fallback",
    },
}
"""Fields by file and level: obeyed, without effect, or restricted to some JSON values. Any other
field is refused by its name, because it may change ids.
"""
_TYPES = {
    "do_lower_case": bool,
    "strip_accents": bool,
    "tokenize_chinese_chars": bool,
    "add_prefix_space": bool,
    "keep_accents": bool,
    "remove_space": bool,
    "nfkc": bool,
    "model_max_length": float,
    "tokenizer_class": str,
    "added_tokens_decoder": dict,
}
# Fields of steps and models that are not compared: they change no ids, a class has a switch for
# them, or `FIELDS` treats them.
_NOT_COMPARED = (
    "trim_offsets lowercase strip_accents handle_chinese_chars add_prefix_space vocab merges "
    "unk_token fuse_unk continuing_subword_prefix end_of_word_suffix byte_fallback dropout"
)


def check_fields(found: Mapping[str, Any], tables: Sequence[str], where: str) -> None:
    """Raises BadInput for a field that is in none of the `tables` of `FIELDS`, or has a value that
    cannot be used.
    """
    rules = {
        name: rule
        for table in tables
        for rule, names in FIELDS[table].items()
        for name in names.split()
    }
    for name, value in found.items():
        rule, text = rules.get(name, ""), json.dumps(value)
        why = "is not a known field, and may change ids; remove it if it does not"
        if rule:
            why = f"makes other ids; only {' or '.join(rule.split())} can be used"
        if rule not in (DONE, FREE) and text not in rule.split():
            raise BadInput(f"{where}: {name}={text:.60} {why}")


def check_file(document: Mapping[str, Any], where: str) -> None:
    """Checks the fields of a tokenizer.json and of its model. Raises BadInput."""
    check_fields(document, ["tokenizer.json"], where)
    check_fields(document["model"], ["model"], f"{where}: model")


class Settings:
    """The settings of a tokenizer in a folder, beside the file of its pieces.

    Attributes:
      where, said: the path and content of its tokenizer_config.json.
      names: the content of its special_tokens_map.json.
      verbatim: whether the steps of a tokenizer.json apply unchanged.
      added: added tokens in the form of a tokenizer.json.
    """

    def __init__(self, folder: str):
        """Reads the settings. Raises BadInput for a damaged file."""
        names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        self.where, where, _ = paths = [os.path.join(folder, name) for name in names]
        self.said, self.names, old = map(files.read_json_if_listed, paths)
        files.check_types(self.said, _TYPES, self.where)
        check_fields(self.names, names[1:2], where)
        self.verbatim = (
            names[0] not in files.listing(folder)
            or json.dumps(self.said.get("tokenizer_class")) in _ANY.split()[1:]
        )
        named = json.dumps([self.said, self.names])
        try:
            tokens = {
                number: {"content": text, "special": json.dumps(text) in named}
                for text, number in old.items()
            }
            tokens |= self.said.get("added_tokens_decoder") or {}
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            self.added: list[Json] = [
                flags
                | {"normalized": not each.get("special"), "content": each["content"]}
                | each
                | {"id": int(number)}
                for number, each in tokens.items()
            ]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(
                f"{self.where}: added_tokens_decoder has no content for an id, "
                "or added_tokens.json no id"
            ) from error

    def check(self, opened: Tokenizer) -> None:
        """Raises BadInput for a field that this tokenizer cannot have, a special piece that differs
        from the tokenizer's, or an added token with the id of another piece.
        """
        check_fields(
            self.said,
            ["tokenizer_config.json", opened.level, *["verbatim"] * self.verbatim],
            self.where,
        )
        # GPT-2 has no piece for padding, so any piece is accepted.
        ours = {
            f"{name}_token": opened.pieces[index]
            for name, index in opened.special._asdict().items()
            if index is not None and (name != "pad" or opened.special.cls is not None)
        }
        for name, theirs in (*self.said.items(), *self.names.items()):
            theirs = theirs.get("content") if isinstance(theirs, dict) else theirs
            if name in ours and theirs not in (None, ours[name]):
                raise BadInput(
                    f"{self.where}: {name} is {theirs!r:.60}; only {ours[name]!r} can be used here"
                )
        ids = {piece: index for index, piece in enumerate(opened.pieces)}
        for token in self.added:
            text, number = token["content"], token["id"]
            # An added token that is not a piece must have an id above all pieces.
            if number != ids.get(text, max(number, opened.vocab_size)):
                raise BadInput(
                    f"{self.where}: added token {text!r:.60} has id {number}, which is another "
                    "piece or not the next one; correct it"
                )

    def apply(self, document: Json, usual: Json | None, roles: Collection[str | None]) -> None:
        """Gives a tokenizer.json the steps of its class and the added tokens. As in the other
        program, added tokens are found in texts, except the special pieces, `roles`.

        `usual` has the steps of the class before its switches are set; None keeps the steps of the
        file. Raises BadInput if the file has other steps than `usual`.
        """
        if usual:
            for name in ("normalizer", "pre_tokenizer", "model"):
                mine = {
                    key: value
                    for key, value in (document[name] or {}).items()
                    if key not in _NOT_COMPARED.split()
                }
                if not mine.items() <= (usual[name] or {}).items():
                    raise BadInput(
                        f"{self.where}: its class has another {name} than tokenizer.json; if that "
                        "file is right, set tokenizer_class to PreTrainedTokenizerFast"
                    )
            if usual["normalizer"]:
                lower, chinese = (
                    self.said.get(name) is not False
                    for name in ("do_lower_case", "tokenize_chinese_chars")
                )
                strip = self.said.get("strip_accents")
                usual["normalizer"] |= {
                    "lowercase": lower,
                    "handle_chinese_chars": chinese,
                    "strip_accents": lower if strip is None else strip,
                }
            else:
                usual["pre_tokenizer"]["add_prefix_space"] = bool(self.said.get("add_prefix_space"))
            document |= {name: usual[name] for name in ("normalizer", "pre_tokenizer")}
        tokens = {
            token["content"]: token | {"special": token["content"] in roles}
            for token in (*document["added_tokens"], *self.added)
        }
        document["added_tokens"] = sorted(tokens.values(), key=operator.itemgetter("id"))
