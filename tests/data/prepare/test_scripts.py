"""Chinese and Korean without a flag: marks, spaces, characters, documents; and the export."""

import itertools
import json

import numpy as np
import pytest
import tokenizers
from special_ids import EOD

from xlnet_jax.convert.tokenizer_json import normalization_of, sentencepiece_model, tokenizer_json
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.data.tokenizer import Tokenizer, train_tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer

CHINESE = [
    f"{who}{when}在{where}{what}（约{number}分钟），{end}"
    for number, (who, when, where, what, end) in enumerate(
        itertools.product(
            ("我们", "小王", "老师"),
            ("早上", "昨天晚上"),
            ("图书馆", "公园里"),
            ("读书", "用 the command line of Linux and a program for texts 写程序"),
            ("很高兴！", "对吗？", "真好……然后回家。"),
        ),
        100,
    )
]
KOREAN = [
    f"{who} {when} {where}에서 {what} ({number}분), {end}"
    for number, (who, when, where, what, end) in enumerate(
        itertools.product(
            ("우리는", "철수는", "선생님은"),
            ("아침에", "어제 저녁에"),
            ("도서관", "공원"),
            ("책을 읽었고", "Linux로 글을 썼고"),
            ("기뻤다ㅎㅎ.", "① 정말 좋았다!", "집으로 갔다…."),
        ),
        100,
    )
]
ENGLISH = [f"The {number} ships of the “Nation” were ½ ready…" for number in range(100, 172)]


def _paragraphs(sentences, joint):
    return [joint.join(sentences[start : start + 4]) for start in range(0, len(sentences), 4)]


@pytest.mark.parametrize(
    ("sentences", "joint", "size", "changed"),
    [
        (CHINESE, "", 110, {}),
        (KOREAN, " ", 80, {}),
        (ENGLISH, " ", 60, {"½": "1⁄2", "…": "..."}),
    ],
    ids=["chinese", "korean", "english"],
)
def test_a_corpus_has_the_text_as_it_was_written(sentences, joint, size, changed, tmp_path):
    """In English the rules of the released models hold, as before."""
    paragraphs = _paragraphs(sentences, joint)
    # Two ideographic spaces indent a paragraph, and a line of one is blank.
    (tmp_path / "a.txt").write_text("\n\u3000\n".join("\u3000\u3000" + each for each in paragraphs))
    folder = str(tmp_path / "c")
    options = PrepareOptions(sentences="punctuation", heldout=0, workers=1, vocab_size=size)
    manifest = prepare([str(tmp_path / "a.txt")], folder, options)
    assert manifest["unknown"]["pieces"] == 0
    assert manifest["splits"]["train"]["documents"] == len(paragraphs)
    if not changed:
        assert manifest["splits"]["train"]["sentences"] == len(sentences)
    corpus = Corpus(folder)
    (tokens,), _ = corpus.read(np.array([0]), corpus.tokens)
    documents = np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]
    for old, new in changed.items():
        paragraphs = [each.replace(old, new) for each in paragraphs]
    assert list(map(corpus.tokenizer.decode, documents)) == paragraphs


@pytest.mark.parametrize(
    ("sentences", "size"), [(CHINESE, 110), (KOREAN, 80)], ids=["chinese", "korean"]
)
def test_the_exported_tokenizer_cuts_alike(sentences, size, tmp_path):
    """The fault: a space inside Chinese text is lost."""
    path = str(tmp_path / "m")
    train_tokenizer(sentences, path, size, seed=0, threads=1)
    ours = open_tokenizer(path)  # a file alone, whose pieces NFKD would change
    assert ours.normalization.keep_accents
    document = tokenizer_json(ours.content, ours.normalization, path)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(document))
    texts = [
        *sentences,
        "  小王 用  Linux\u3000写，\u200b 很好！ ",
        "철수는 \u1112\u1161\u11ab Linux",
    ]
    for text in texts:
        assert theirs.encode(text).ids == ours.encode(text).tolist(), text
    back = sentencepiece_model(document, path)
    assert normalization_of(document, back, path) == ours.normalization


def test_a_vocabulary_that_is_too_small_for_all_characters_lacks_the_rarest(tmp_path):
    characters = list(map(chr, range(0x4E00, 0x4E00 + 200)))
    lines = ["".join(characters[:100])] * 400 + characters[100:]
    train_tokenizer(lines, str(tmp_path / "m"), 118, seed=0, threads=1)
    known = set("".join(Tokenizer(str(tmp_path / "m")).pieces))
    assert known.issuperset(characters[:100]) and known.isdisjoint(characters[100:])
