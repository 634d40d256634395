"""`tokenizer.json` of vocabularies of characters and patterns: the ids of our own code for any
text, and the vocabulary that comes back.
"""

import itertools
import json
import random

import pytest
import tokenizers

from xlnet_jax.config import Config
from xlnet_jax.convert import counted_json, huggingface, tokenizer_files
from xlnet_jax.data import vocabulary
from xlnet_jax.data.patterns import SMILES, Unseen
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

TEXT = "aAbÅé ''`` \"<unk>\n<sep>.ﬁﬀ가\u0301ΑΣσς ½"
LEVELS = {"characters": "", "pattern": r"Br|[A-Z][a-z]?|<...>|\s|[^\s]"}
NORMALIZATIONS = [Normalization(*each) for each in itertools.product((False, True), repeat=4)]


def made(folder, level, normalization, texts, verbatim=False):
    """A vocabulary of all normalised texts but a few of their pieces."""
    path, pattern = str(folder / "vocabulary.json"), LEVELS[level]
    normal = (
        texts if verbatim else ["\n".join(map(normalization, text.split("\n"))) for text in texts]
    )
    counts = vocabulary.count(normal, level, pattern)
    for piece in sorted(counts.keys() - set(SPECIAL_PIECES))[::9]:
        del counts[piece]
    vocabulary.write_counted(path, level, counts, None, verbatim, pattern)
    return Vocabulary(path, normalization)


def drawn(count):
    rng = random.Random(0)
    parts = [
        *TEXT,
        "Br",
        "  ",
        "\n",
        " \n ",
        "\t",
        "\r\n",
        "\x1c",
        "\x85",
        "\u3000",
        "<mask>",
        "é",
        "😀",
        "\0",
    ]
    return ["".join(rng.choices(parts, k=rng.randrange(12))) for _ in range(count)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "rules", [*NORMALIZATIONS, None], ids=lambda rules: str(rules and [*vars(rules).values()])
)
def test_the_ids_of_any_text_are_ours_and_what_ours_refuses_is_an_error(tmp_path, level, rules):
    texts = drawn(400)
    ours = made(tmp_path, level, rules or Normalization(), texts, verbatim=rules is None)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(counted_json.tokenizer_json(ours)))
    theirs.encode_special_tokens = True
    refused = 0
    for text in texts:
        try:
            wanted = ours.encode(text).tolist()
        except Unseen:
            refused += 1
            with pytest.raises(Exception, match="Missing \\[UNK\\] token"):
                theirs.encode(text)
        else:
            assert theirs.encode(text).ids == wanted, text
            assert theirs.decode(wanted) == ours.decode(wanted)
    assert 20 < refused < 380
    # A special piece that a text spells, as for all exported tokenizers.
    theirs.encode_special_tokens = False
    assert theirs.encode("<mask><sep>").ids == [6, 4]


@pytest.mark.parametrize("level", LEVELS)
def test_the_vocabulary_comes_back_with_its_steps(tmp_path, level):
    for number, rules in enumerate([*NORMALIZATIONS, None]):
        folder = tmp_path / str(number)
        folder.mkdir()
        ours = made(folder, level, rules or vocabulary.PLAIN, drawn(50), verbatim=rules is None)
        config = Config().changed(model={"vocab_size": ours.vocab_size})
        for name, content in tokenizer_files.contents(ours, config).items():
            (folder / name).write_bytes(content)
        for removed in ((), ("vocabulary.json",), ("tokenizer_config.json",)):
            for name in removed:
                (folder / name).unlink()
            back = huggingface.open_tokenizer(str(folder))
            assert (back.pieces, back.level, back.special) == (ours.pieces, level, ours.special)
            assert (back.pattern, back.verbatim) == (ours.pattern, ours.verbatim)
            assert back.normalization == ours.normalization or rules is None
            assert (back.sha256 == ours.sha256) == (not removed)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model", lambda model: model | {"unk_token": "<unk>"}),
        ("model", lambda model: model | {"vocab": model["vocab"] | {"a": 999}}),
        ("model", lambda model: model | {"vocab": ["a"]}),
        ("normalizer", lambda step: {"type": "Lowercase"}),
        ("pre_tokenizer", lambda step: step | {"behavior": "Removed"}),
        ("pre_tokenizer", lambda step: {"type": "Whitespace"}),
        ("pre_tokenizer", lambda step: step | {"pattern": {"Regex": "("}}),
        ("added_tokens", lambda tokens: [*tokens, tokens[0] | {"id": 99, "content": "<new>"}]),
    ],
)
def test_a_file_of_another_program_is_refused(tmp_path, part, change):
    ours = made(tmp_path, "pattern", Normalization(), drawn(50))
    document = counted_json.tokenizer_json(ours)
    files.write(
        f"{tmp_path}/tokenizer.json", files.to_json(document | {part: change(document[part])})
    )
    for folder in ("with", "without"):
        if folder == "without":
            (tmp_path / "vocabulary.json").unlink()
        with pytest.raises(
            BadInput, match="tokenizer.json: (not a vocabulary of characters or of a)"
        ):
            huggingface.open_tokenizer(str(tmp_path))


def test_two_files_that_differ_are_refused(tmp_path):
    ours = made(tmp_path, "pattern", Normalization(), drawn(50))
    document = counted_json.tokenizer_json(ours)
    document["pre_tokenizer"]["pattern"]["Regex"] = SMILES
    files.write(f"{tmp_path}/tokenizer.json", files.to_json(document))
    with pytest.raises(BadInput, match="tokenizer.json: "):
        huggingface.open_tokenizer(str(tmp_path))
