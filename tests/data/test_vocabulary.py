"""Counted vocabularies: exact round trips, the order by frequency, and text that a vocabulary
cannot express.
"""

import json
import pickle

import numpy as np
import pytest
from special_ids import EOD, UNK

from xlnet_jax.config import Config
from xlnet_jax.convert import huggingface
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data import offsets, vocabulary
from xlnet_jax.data.tokenizer import SPECIAL_PIECES
from xlnet_jax.data.vocabulary import Unseen, Vocabulary, open_tokenizer
from xlnet_jax.errors import BadInput

# Tabs, runs of spaces, control characters, SentencePiece's own mark, characters of one to four
# bytes, special pieces.
STRANGE = "a  b\t\x01\x7f\x85\u2028▁ <unk><0x41><eos>\né€😀\n\n z"


def made(tmp_path, level, texts, bound=None, verbatim=True, pattern=""):
    tmp_path.mkdir(exist_ok=True)
    path = str(tmp_path / "vocabulary.json")
    counts = vocabulary.count(texts, level, pattern)
    vocabulary.write_counted(path, level, counts, bound, verbatim, pattern)
    opened = open_tokenizer(path)
    assert isinstance(opened, Vocabulary) and tuple(opened.pieces[:9]) == SPECIAL_PIECES
    return opened


@pytest.mark.parametrize("level", ["characters", "bytes", "pattern"])
def test_any_text_comes_back_with_every_space_and_control_character(tmp_path, level):
    # Two spaces are one match.
    opened = made(tmp_path, level, [STRANGE], pattern="  ?|[^ \n]" * (level == "pattern"))
    size = len(STRANGE.encode()) if level == "bytes" else len(STRANGE)
    if level == "pattern":
        assert "  " in opened.pieces and opened.word_start.all()
        size -= 1
    ids, length = opened.encode_normalized([STRANGE, "", STRANGE[4:7]])
    assert length.tolist() == [size, 0, 3] and ids.dtype == np.int32
    whole = ids[:size]
    assert ids.min() >= len(SPECIAL_PIECES) and opened.decode([*whole, EOD, UNK]) == STRANGE
    characters_V, bytes_V = opened.text_lengths()
    assert characters_V[whole].sum() == len(STRANGE)
    assert bytes_V[whole].sum() == len(STRANGE.encode())
    assert not characters_V[:9].any() and not bytes_V[:9].any()


def test_every_byte_is_a_piece_also_where_it_is_no_text(tmp_path):
    every = bytes(range(256))
    opened = made(tmp_path, "bytes", [every.decode(errors="surrogateescape")])
    ids = opened.encode(every.decode(errors="surrogateescape"))
    assert len(set(ids.tolist())) == 256
    assert opened.decode(ids) == every.decode(errors="replace")


def test_words_are_white_space_and_line_ends(tmp_path):
    opened = made(tmp_path, "words", ["b  b a\n", " <unk> c\u00a0é <pad> \n", "\n"])
    # Equally frequent ones in the order of their letters.
    assert opened.pieces[9:] == ["<eos>", "b", "a", "c", "é"]
    assert opened.counts.tolist() == [0] * 9 + [3, 2, 1, 1, 1]
    ids = opened.encode("a\nnever <unk> <pad> <eos>\nb")
    assert ids.tolist() == [11, 9, UNK, UNK, UNK, UNK, 9, 10], "a special piece was made from text"
    assert opened.decode(ids) == "a\n<unk> <unk> <unk> <unk>\nb"
    assert [lengths[9:].tolist() for lengths in opened.text_lengths()] == [
        [1, 2, 2, 2, 2],
        [1, 2, 2, 2, 3],
    ]
    assert made(tmp_path / "bound", "words", ["b b a\n"], bound=11).pieces[9:] == ["<eos>", "b"]
    assert opened.word_start.all()


def test_the_most_frequent_pieces_come_first_and_equal_counts_give_equal_bytes(tmp_path):
    first = made(tmp_path / "a", "characters", ["abbc", "c"])
    second = made(tmp_path / "b", "characters", ["cbcba"])
    assert first.pieces[9:] == ["b", "c", "a"] and first.sha256 == second.sha256
    assert first.word_start[9:].tolist() == [False, False, False]
    assert pickle.loads(pickle.dumps(first)).pieces == first.pieces


def test_what_a_vocabulary_lacks_is_refused(tmp_path):
    opened = made(tmp_path, "characters", ["ab\n"], verbatim=False)
    assert opened.decode(opened.encode("  a\n b ")) == "a\nb", "lines are normalised one by one"
    with pytest.raises(Unseen, match=r"character '\\xe9' \(U\+00E9\) is not in the vocabulary"):
        opened.encode_normalized(["ab", "é"])
    with pytest.raises(Unseen, match="byte 0xC3 is not"):
        made(tmp_path / "b", "bytes", ["ab"]).encode("aé")
    with pytest.raises(
        BadInput, match="--vocab_size=11 is too small: this text has 3 characters and 9 special"
    ):
        vocabulary.write_counted(
            str(tmp_path / "c.json"), "characters", {"a": 1, "b": 1, "c": 2}, 11, False
        )


def test_what_needs_sentencepiece_says_so(tmp_path):
    opened = made(tmp_path, "characters", ["ab"])
    with pytest.raises(
        BadInput, match="is a vocabulary of characters; spans need a SentencePiece tokenizer"
    ):
        offsets.encode(opened, "ab")
    config = Config().changed(model={"vocab_size": 11})
    words = made(tmp_path / "words", "words", ["ab"])
    with pytest.raises(
        BadInput, match="a vocabulary of words; Hugging Face needs SentencePiece pieces with the"
    ):
        huggingface.write(Trained(config, words, {}), str(tmp_path / "exported"))


@pytest.mark.parametrize(
    "change",
    [
        {"vocabulary": "letters"},
        {"pieces": ["a"]},
        {"counts": [1]},
        {"pieces": [*SPECIAL_PIECES, "ab"]},
        {"pieces": [*SPECIAL_PIECES, "a", "a"], "counts": [0] * 11},
        {"pieces": 3},
        {"vocabulary": "pattern"},
        {"vocabulary": "pattern", "pattern": "("},
        {"vocabulary": "pattern", "pattern": ["a"]},
        {"vocabulary": "pattern", "pattern": "a", "pieces": [*SPECIAL_PIECES, "<pad>"]},
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change):
    opened = made(tmp_path, "characters", ["a"])
    (tmp_path / "vocabulary.json").write_text(json.dumps(json.loads(opened.content) | change))
    with pytest.raises(BadInput, match=r"vocabulary .*/vocabulary.json: .*--vocabulary"):
        Vocabulary(opened.path)


def test_whole_words_are_targets_only_if_a_piece_starts_a_word(tmp_path):
    """BERT leaves out words that are longer than its goal: a protein would have no target."""
    proteins = made(tmp_path, "characters", ["MKVL"])
    (tmp_path / "b").mkdir()
    prose = made(tmp_path / "b", "characters", ["a word"])
    for objective, spans, tokenizer in (
        ("mlm", "random", proteins),
        ("mdm", "words", proteins),
        ("mlm", "words", prose),
    ):
        config = Config().changed(
            model={"architecture": "bert"}, data={"objective": objective, "spans": spans}
        )
        vocabulary.check_pieces(tokenizer, config, "corpus")
    config = config.changed(data={"objective": "mlm"})
    with pytest.raises(BadInput, match="^corpus: no piece .* starts a word, .*spans=random"):
        vocabulary.check_pieces(proteins, config, "corpus")
