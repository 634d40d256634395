"""WordPiece and byte-level BPE: against slow code of our own, imports, documents without an end,
places in the text.
"""

import functools
import json
import pickle
import re
import subprocess
import sys
import unicodedata

import data_fixtures
import numpy as np
import pytest
from hostile import LINES

from xlnet_jax.config import Config
from xlnet_jax.data import offsets, subwords
from xlnet_jax.data.corpus import pages, verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.subwords import AS_IS, LEVELS, Subwords
from xlnet_jax.data.tokenizer import ALBERT, Normalization, SpecialIds, Tokenizer
from xlnet_jax.data.vocabulary import check_pieces, open_tokenizer
from xlnet_jax.errors import BadInput

LOWER, CASED = Normalization(lower=True), Normalization(keep_accents=True)
SIZE, SMALL = 380, 240


@functools.cache
def trained(level: str, lower: bool = False) -> Subwords:
    path = f"{data_fixtures.session_folder()}/{level}-{lower}-tokenizer.json"
    texts = [*data_fixtures.synthetic_text(0, 100).split("\n"), *LINES]
    subwords.train(texts, path, SIZE, level, LOWER if lower else CASED)
    opened = open_tokenizer(path)
    assert isinstance(opened, Subwords)
    return opened


def slow_wordpiece(tokenizer, text, lower):
    """The original's, in the order of its steps."""
    text = "".join(
        " " if char.isspace() else char
        for char in text
        if char in "\t\n\r" or not (unicodedata.category(char)[0] == "C" or char == "\ufffd")
    )
    text = "".join(
        f" {char} " if unicodedata.name(char, "").startswith("CJK ") else char for char in text
    )
    if lower:
        text = "".join(
            c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn"
        ).lower()
    is_mark = lambda c: (c.isascii() and not c.isalnum()) or unicodedata.category(c)[0] == "P"  # noqa: E731
    words = "".join(f" {char} " if is_mark(char) else char for char in text).split()
    ids = {piece: index for index, piece in enumerate(tokenizer.pieces)}
    for word in words:
        parts, start = [], 0
        while start < len(word) <= 100:
            prefix = "##" * (start > 0)
            end = next(
                (end for end in range(len(word), start, -1) if prefix + word[start:end] in ids),
                None,
            )
            if end is None:
                break
            parts.append(ids[prefix + word[start:end]])
            start = end
        yield from parts if start == len(word) else [tokenizer.special.unk]


def slow_bpe(tokenizer, text):
    """Pairs are joined in the order of the merges, from left to right."""
    model = json.loads(tokenizer.content)["model"]
    rank = {tuple(pair): place for place, pair in enumerate(model["merges"])}
    symbol = {code: char for char, code in subwords._BYTES.items()}
    for word in re.findall(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+", text
    ):
        parts = [symbol[code] for code in word.encode()]
        while pairs := [rank[pair] for pair in zip(parts, parts[1:], strict=False) if pair in rank]:
            first, second = model["merges"][min(pairs)]
            place = 0
            while place + 1 < len(parts):
                if (parts[place], parts[place + 1]) == (first, second):
                    parts[place : place + 2] = [first + second]
                place += 1
        yield from (model["vocab"][part] for part in parts)


@pytest.mark.parametrize("lower", [False, True])
def test_wordpiece_is_that_of_slow_code(lower):
    tokenizer = trained("wordpiece", lower)
    for line in [*LINES, *data_fixtures.synthetic_text(5, 20).split("\n")]:
        assert tokenizer.encode(line).tolist() == list(slow_wordpiece(tokenizer, line, lower)), line


def test_byte_bpe_is_that_of_slow_code_and_every_byte_comes_back():
    tokenizer = trained("bytebpe")
    for line in [*LINES, *data_fixtures.synthetic_text(5, 20).split("\n")]:
        ids = tokenizer.encode(line)
        assert ids.tolist() == list(slow_bpe(tokenizer, line)), line
        assert tokenizer.decode(ids) == line
        assert tokenizer.text_lengths()[1][ids].sum() == len(line.encode())


@pytest.mark.parametrize("level", LEVELS)
def test_two_processes_train_equal_bytes(level, tmp_path):
    """The trainer of the library alone numbers `##` characters in the order of a hash table."""
    code = (
        "import sys, test_subwords as t, data_fixtures\n"
        "data_fixtures.session_folder = lambda: sys.argv[1]\n"
        "t.trained(sys.argv[2])"
    )
    environment = {"PYTHONPATH": f"tests:tests/data:{':'.join(sys.path)}"}
    subprocess.run([sys.executable, "-c", code, tmp_path, level], check=True, env=environment)
    tokenizer = trained(level)
    assert (tmp_path / f"{level}-False-tokenizer.json").read_bytes() == tokenizer.content
    assert len(tokenizer.pieces) == SIZE


@pytest.mark.parametrize("level", LEVELS)
def test_too_little_text(level, tmp_path):
    said = f"vocab_size=9000: this text gives [0-9]+ pieces of {level}; give that"
    with pytest.raises(BadInput, match=said):
        subwords.train(["a few words"], f"{tmp_path}/tokenizer.json", 9000, level, CASED)


def test_special_pieces_word_starts_and_lengths():
    wordpiece, bytebpe = trained("wordpiece", lower=True), trained("bytebpe")
    assert wordpiece.special == SpecialIds(1, None, None, 2, 3, 0, 4, None, None)
    assert bytebpe.special == SpecialIds(3, 0, 2, 0, 2, 1, SIZE - 1, 2, None)
    for tokenizer, mark in ((wordpiece, "[MASK]"), (bytebpe, "<mask>")):
        assert tokenizer.special.mask not in tokenizer.encode(f"a {mark} b")  # a text's own letters
        assert len(tokenizer.text_ids) == SIZE - len(tokenizer.special.ids())
    text = "Bado kilu, menora."
    ids = wordpiece.encode(text)
    assert wordpiece.decode([2, *ids, 3, 0]) == text.lower()
    # Punctuation counts for WordPiece, and a first word without a space not for bytes.
    assert wordpiece.word_start[ids].sum() == 5
    assert bytebpe.word_start[bytebpe.encode(text)].sum() == 2
    characters_V, _ = wordpiece.text_lengths()
    assert characters_V[ids].sum() == len(f" {text}")


def test_a_vocab_txt_gives_the_same_ids_alone_and_in_a_folder(tmp_path):
    tokenizer, file = trained("wordpiece", lower=True), tmp_path / "vocab.txt"
    file.write_text("\n".join(tokenizer.pieces) + "\n")
    assert open_tokenizer(str(file), LOWER).sha256 == tokenizer.sha256
    assert open_tokenizer(str(tmp_path)).sha256 == tokenizer.sha256
    cased = open_tokenizer(str(file))
    assert cased.encode("Bado").tolist() != tokenizer.encode("Bado").tolist()
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert open_tokenizer(str(tmp_path)).sha256 == cased.sha256 != tokenizer.sha256


def test_a_vocab_json_with_merges_gives_the_same_ids(tmp_path):
    tokenizer = trained("bytebpe")
    model, file = json.loads(tokenizer.content)["model"], str(tmp_path / "vocab.json")
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = ["#version: 0.2", *map(" ".join, model["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(merges) + "\n")
    opened = open_tokenizer(str(tmp_path))
    assert opened.sha256 == open_tokenizer(file).sha256 == tokenizer.sha256
    assert pickle.loads(pickle.dumps(opened)).sha256 == tokenizer.sha256
    with pytest.raises(BadInput, match="its normalisation is fixed; leave out --uncased"):
        open_tokenizer(file, LOWER)


@pytest.mark.parametrize("level", LEVELS)
def test_a_tokenizer_json_with_a_frame_around_a_text_gives_the_same_ids(level, tmp_path):
    tokenizer = trained(level, lower=level == "wordpiece")
    frame = {"type": "BertProcessing", "sep": ["a", 3], "cls": ["b", 2]}
    framed = json.loads(tokenizer.content) | {"post_processor": frame}
    (tmp_path / "tokenizer.json").write_text(json.dumps(framed, indent=2))
    assert open_tokenizer(str(tmp_path)).sha256 == tokenizer.sha256


def test_a_vocabulary_of_gpt2_ends_with_the_end_of_a_text(tmp_path):
    data_fixtures.as_gpt2(trained("bytebpe"), tmp_path)
    opened = open_tokenizer(str(tmp_path))
    last = opened.vocab_size - 1
    assert opened.special == SpecialIds(None, last, last, None, None, last, None, last, None)
    assert opened.encode("a<|endoftext|>").max() < last


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.txt", "a\nb\na\n[UNK]", "its ids have gaps, or two pieces have one id"),
        ("vocab.txt", "a\nb", r"it has no \[UNK\]"),
        ("vocab.json", '{"a": 0, "b": 2}', "its ids have gaps, or two pieces have one id"),
        (
            "tokenizer.json",
            "{}",
            "name a tokenizer.json, vocab.json, vocab.txt of WordPiece or byte-level BPE",
        ),
        (
            "tokenizer.json",
            '{"model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}',
            "not WordPiece",
        ),
    ],
)
def test_unusable_files(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(BadInput, match=said):
        open_tokenizer(str(tmp_path / name))


def prepared(tmp_path, level, size, **options):
    """A corpus, and the sentences of its documents."""
    text = data_fixtures.synthetic_text(3, 60).replace(", ", " ''  ")
    data_fixtures.make_corpus(
        tmp_path / "corpus",
        data_fixtures.write(tmp_path, text=text),
        tokenizer=None,
        vocabulary=level,
        vocab_size=size,
        **options,
    )
    documents = [document.split("\n") for document in text.strip().split("\n\n")]
    return str(tmp_path / "corpus"), documents


def test_a_corpus_of_wordpiece_has_no_end_of_document(tmp_path):
    path, documents = prepared(tmp_path, "wordpiece", SMALL, uncased=True)
    assert verify.verify(path)[1] == []
    texts = []
    for split in ("train", "heldout"):
        corpus = Corpus(path, split)
        assert corpus.manifest["tokenizer"]["file"] == "tokenizer.json"
        (tokens,), (flags,) = corpus.read_flags(np.array([0]), corpus.tokens)
        starts = np.flatnonzero(flags & pages.DOCUMENT_START)
        assert len(starts) == corpus.documents
        assert corpus.lengths.tolist() == np.diff(starts, append=len(tokens)).tolist()
        assert not corpus.token_counts[corpus.tokenizer.special.ids()].any()
        texts += [each.tolist() for each in np.split(tokens, starts[1:])]
    encode = corpus.tokenizer.encode
    expected = [np.concatenate(list(map(encode, document))).tolist() for document in documents]
    assert sorted(texts) == sorted(expected)
    assert "§" in verify.sample(path, "train", 0, 1, 500)["samples"][0]["text"]
    with pytest.raises(BadInput, match="begun with uncased=True, not False"):
        prepared(tmp_path, "wordpiece", SMALL)


def test_sentences_of_byte_bpe_are_joined_by_spaces(tmp_path):
    path, documents = prepared(tmp_path, "bytebpe", SIZE)
    assert verify.verify(path)[1] == []
    corpus = Corpus(path)
    (tokens,), _ = corpus.read(np.array([0]), corpus.tokens)
    ends = np.flatnonzero(tokens == corpus.tokenizer.special.eod)
    found = [part.tolist()[:-1] for part in np.split(tokens, ends + 1)[:-1]]
    texts = list(map(corpus.tokenizer.decode, found))
    assert len(texts) == corpus.documents and set(texts) <= set(map(" ".join, documents))
    assert found[0] == corpus.tokenizer.encode(texts[0]).tolist()


@pytest.mark.parametrize(
    ("architecture", "objective", "kinds"),
    [
        ("bert", "mlm", {"wordpiece", "bytebpe", "albert"}),
        ("gpt2", "clm", {"bytebpe", "gpt2"}),
        ("xlnet", "clm", {"bytebpe", "gpt2"}),
        ("xlnet", "plm", {"wordpiece", "bytebpe", "albert"}),
        ("bert", "mdm", {"wordpiece", "bytebpe", "albert"}),
    ],
)
def test_which_vocabulary_a_family_can_have(architecture, objective, kinds, tmp_path):
    data_fixtures.as_gpt2(trained("bytebpe"), tmp_path)
    found = {level: trained(level) for level in LEVELS} | {"gpt2": open_tokenizer(str(tmp_path))}
    sentences = data_fixtures.synthetic_text(0, 50).split("\n")
    (tmp_path / "albert").mkdir()
    found["albert"] = open_tokenizer(data_fixtures.albert(tmp_path / "albert", sentences, 100))
    config = Config().changed(model={"architecture": architecture}, data={"objective": objective})
    for kind in kinds:
        check_pieces(found.pop(kind), config, "corpus")
    for tokenizer in found.values():
        with pytest.raises(BadInput, match="no piece for"):
            check_pieces(tokenizer, config, "corpus")


@pytest.mark.parametrize(
    ("level", "text", "answer"),
    [
        ("wordpiece", "  bado   ki, lu", "ki"),
        ("wordpiece", "be\u0301do re\u0301mi no", "re\u0301mi"),
        ("wordpiece", "日本語 ba", "本"),
        ("bytebpe", "  bado   ki, lu", "ki"),
        ("bytebpe", "be\u0301do re\u0301mi no", "re\u0301mi"),
        ("bytebpe", "ba \U0001f600\U0001f601 lu", "\U0001f601"),
    ],
)
def test_an_answer_is_found_by_its_pieces(level, text, answer):
    tokenizer = trained(level, lower=level == "wordpiece")
    pieces, start = offsets.encode(tokenizer, text), text.index(answer)
    assert pieces.tokens_N.tolist() == tokenizer.encode(text).tolist()
    assert (np.diff(pieces.start_N) >= 0).all()
    first, last = pieces.covering(start, start + len(answer))
    assert text[pieces.start_N[first] : pieces.end_N[last]].strip() == answer


def test_alberts_sentencepiece(tmp_path):
    path = data_fixtures.albert(tmp_path, data_fixtures.synthetic_text(0, 100).split("\n"), 100)
    opened, text = Tokenizer(path, LOWER), "Bádo 12,345, kilu"
    assert opened.special == ALBERT and opened.word_start[:5].all() and 2 not in opened.text_ids
    ids = opened.encode(text)
    assert opened.decode([2, *ids, 3, 0]) == "bado 12,345, kilu"
    found = offsets.encode(opened, text)
    assert found.tokens_N.tolist() == ids.tolist() and found.covering(13, 17)[1] == len(ids) - 1
    assert open_tokenizer(str(tmp_path)).normalization == LOWER
    assert open_tokenizer(path).normalization == Normalization()
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert open_tokenizer(str(tmp_path)).normalization == Normalization()
    assert trained("bytebpe").normalization == AS_IS


# Text, and what WordPiece gives back where that is another: punctuation outside of ASCII is a word,
# except in scripts without spaces and the punctuation of their blocks, before which there is no
# space.
SCRIPTS = {
    "Latin": ("Grüße, «ça va?» – “oui”…", "Grüße, « ça va? » – “ oui ” …"),
    "Greek": ("Καλημέρα· τι κάνεις;", "Καλημέρα · τι κάνεις;"),
    "Cyrillic": ("Привет, мир! «Да» — № 5", "Привет, мир! « Да » — № 5"),
    "Arabic": ("مرحبا، كيف حالك؟", "مرحبا ، كيف حالك ؟"),
    "Urdu": ("یہ کیا ہے؟ ٹھیک ہے۔", "یہ کیا ہے ؟ ٹھیک ہے ۔"),
    "Hebrew": ("שלום, מה־נשמע?", "שלום, מה ־ נשמע?"),
    "Devanagari": ("नमस्ते दुनिया। ठीक है॥", "नमस्ते दुनिया । ठीक है ॥"),
    "Armenian": ("Բարեւ։ Ինչպե՞ս ես", "Բարեւ ։ Ինչպե ՞ ս ես"),
    "Ethiopic": ("ሰላም። እንዴት ነህ፧", "ሰላም ። እንዴት ነህ ፧"),
    "Hangul": ("안녕하세요. 반갑습니다!", None),
    "Thai": ("สวัสดีชาวโลก ๆ", None),
    "Han": ("你好，世界！「好」。", None),
    "Kana": ("こんにちは、世界。「はい」ﾃｽﾄ｡", None),
    "Khmer": ("សួស្តី។", None),
    "Tibetan": ("བཀྲ་ཤིས།", None),
    "Burmese": ("မင်္ဂလာပါ။ ဟုတ်ကဲ့", "မင်္ဂလာပါ။ဟုတ်ကဲ့"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_decode_gives_back_of_each_script(script, tmp_path):
    """A WordPiece vocabulary with every character gives back the spaces of the text, except spaces
    that it cannot know.
    """
    text, spaced = SCRIPTS[script]
    characters = sorted(set(text) - {" "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    pieces += [f"##{each}" for each in characters]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = Subwords(str(tmp_path / "vocab.txt"), CASED)
    assert tokenizer.decode(tokenizer.encode(text)) == (spaced or text)
