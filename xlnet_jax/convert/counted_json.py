"""Converts a counted vocabulary of characters or of a pattern to the `tokenizer.json` of the
`tokenizers` library and back.

A `Split` cuts the text, and a `WordLevel` model numbers the pieces. Text that our vocabulary
refuses is an error there too, because the model names no unknown piece. One difference remains:
text that spells a special piece (`<sep>`) becomes the id of that piece.
"""

from __future__ import annotations

import itertools

from xlnet_jax.convert.tokenizer_json import normalization_steps, replace, special_tokens
from xlnet_jax.data import vocabulary as vocabularies
from xlnet_jax.data.patterns import LINE_END
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput
from xlnet_jax.storage.files import Json

_CHARACTER = r"[\s\S]"
# A line keeps its end. `^` and `$` are the ends of a line there.
_SPACES = [
    replace({"Regex": "[\\s\u001c-\u001f&&[^\\n]]+"}, " "),
    replace({"Regex": "^ | $"}, ""),
]


def tokenizer_json(vocabulary: Vocabulary) -> Json:
    """Returns the content of `tokenizer.json` for a vocabulary of the level `characters` or
    `pattern`. `tokenizer_files` adds the step that puts special pieces around a text.
    """
    regex = vocabulary.pattern + LINE_END if vocabulary.pattern else _CHARACTER
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(SPECIAL_PIECES),
        "normalizer": None if vocabulary.verbatim else _normalizer(vocabulary.normalization),
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {piece: index for index, piece in enumerate(vocabulary.pieces)},
            "unk_token": "",
        },
    }


def _normalizer(normalization: Normalization) -> Json:
    return {"type": "Sequence", "normalizers": normalization_steps(normalization, _SPACES)}


def write_vocabulary(document: Json, name: str, path: str) -> Normalization | None:
    """Writes the vocabulary of a `tokenizer.json` of this package, without its counts, for folders
    without a `vocabulary.json`. Returns the normalisation (None if text is encoded unchanged).

    Raises BadInput for a file with other steps or other special pieces.
    """
    known = [Normalization(*each) for each in itertools.product((False, True), repeat=4)]
    steps = next((each for each in known if _normalizer(each) == document.get("normalizer")), None)
    try:
        ids, regex = document["model"]["vocab"], document["pre_tokenizer"]["pattern"]["Regex"]
        pattern = "" if regex == _CHARACTER else regex.removesuffix(LINE_END)
        plain = sorted(ids, key=ids.__getitem__)[len(SPECIAL_PIECES) :]
        level, verbatim = "pattern" if pattern else "characters", not document["normalizer"]
        vocabularies.write_pieces(path, level, dict.fromkeys(plain, 0), verbatim, pattern)
        mine = tokenizer_json(Vocabulary(path, steps or vocabularies.PLAIN))
        same = all(
            document[part] == mine[part] for part in ("normalizer", "pre_tokenizer", "model")
        ) and all(token["id"] < len(SPECIAL_PIECES) for token in document["added_tokens"])
    except (BadInput, AttributeError, KeyError, TypeError):
        same = False
    if not same:
        raise BadInput(
            f"{name}: not a vocabulary of characters or of a pattern as this package writes it; "
            "name its vocabulary.json with --tokenizer"
        )
    return steps
