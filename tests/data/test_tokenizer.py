"""Normalisation, the digit-comma rule, special ids, and training that repeats."""

import os
import pickle

import data_fixtures as data
import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from xlnet_jax.data import tokenizer as module
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, cut, train_tokenizer
from xlnet_jax.errors import BadInput


def _changed_model(path, change):
    """The test tokenizer's model with its pieces changed by `change(pieces)`."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(data.tokenizer_path(), "rb") as file:
        model.ParseFromString(file.read())
    change(model.pieces)
    path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.parametrize(
    ("text", "normal", "options"),
    [
        ("  a \t b\u00a0c\n", "a b c", {}),
        ("``quoted'' isn't", '"quoted" isn\'t', {}),
        ("España ½ … ﬁ", "Espana 1⁄2 ... fi", {}),
        ("\u0301", "", {}),
        ("Straße É", "Straße E", {}),
        ("ÀB İ", "ab i", {"lower": True}),
        ("ñ ﬁ ``x''", 'ñ ﬁ "x"', {"keep_accents": True}),
        (" a  b ", " a  b ", {"remove_space": False}),
    ],
)
def test_normalization_is_the_originals(text, normal, options):
    assert Normalization(**options)(text) == normal


@pytest.mark.parametrize(
    ("text", "plain", "nfkc", "keep_accents", "both"),
    [
        # Hangul and kana are taken apart by NFKD and put together by NFKC; a dakuten is an accent
        # to the original.
        ("한국 カ", "\u1112\u1161\u11ab\u1100\u116e\u11a8 カ", "한국 カ", "한국 カ", "한국 カ"),
        ("が", "か", "か", "が", "が"),
        ("e\u0301 é", "e e", "e e", "e\u0301 é", "é é"),
        ("ﬁ Ａ① ｶﾞ", "fi A1 カ", "fi A1 カ", "ﬁ Ａ① ｶﾞ", "fi A1 ガ"),
        ("ASCII `` only", 'ASCII " only', 'ASCII " only', 'ASCII " only', 'ASCII " only'),
    ],
)
def test_nfkc(text, plain, nfkc, keep_accents, both):
    assert Normalization()(text) == plain
    assert Normalization(nfkc=True)(text) == nfkc
    assert Normalization(keep_accents=True)(text) == keep_accents
    assert Normalization(keep_accents=True, nfkc=True)(text) == both


def test_special_ids_and_user_symbols():
    pieces = data.tokenizer().pieces
    special = {
        "unk": "<unk>",
        "bos": "<s>",
        "eos": "</s>",
        "cls": "<cls>",
        "sep": "<sep>",
        "pad": "<pad>",
        "mask": "<mask>",
        "eod": "<eod>",
        "eop": "<eop>",
    }
    assert pieces[:9] == list(special.values())
    assert data.tokenizer().special._asdict() == {name: i for i, name in enumerate(special)}
    assert pieces[9:17] == [".", "(", ")", '"', "-", "–", "£", "€"]
    assert len(pieces) == data.tokenizer().vocab_size == data.VOCAB_SIZE


def test_encode_and_decode():
    tokenizer, special = data.tokenizer(), module.XLNET
    text = "Bado kilu, 12. Menora."
    ids = tokenizer.encode(f"  {text} ")
    assert ids.dtype == np.int32 and tokenizer.decode([special.cls, *ids, special.sep]) == text
    assert not tokenizer.encode("").size
    # Normalising is the caller's affair where he says so.
    tokens, lengths = tokenizer.encode_normalized([text, "", "``"])
    np.testing.assert_array_equal(tokens[: lengths[0]], ids)
    assert lengths.tolist() == [len(ids), 0, len(tokens) - len(ids)]
    assert special.unk in tokens[lengths[0] :] and special.unk not in tokenizer.encode("``")
    tokens, lengths = tokenizer.encode_normalized([])
    assert (tokens.dtype, len(tokens), len(lengths)) == (np.int32, 0, 0)
    # Control pieces are never made from text, <eop> is.
    spelled = tokenizer.encode("<cls><mask><eod><eop>").tolist()
    assert not {special.cls, special.mask, special.eod} & set(spelled)
    assert spelled.count(special.eop) == 1


def test_long_text_is_encoded_in_parts(monkeypatch):
    long = " ".join(["Bado kilu, 12."] * 50)
    texts = ["", long, "Bado", "", long, ""]
    whole = data.encode(texts, data.tokenizer())
    monkeypatch.setattr(module, "_LONGEST_TEXT", 40)
    for many, each in zip(data.encode(texts, data.tokenizer()), whole, strict=True):
        np.testing.assert_array_equal(many, each)
    assert list(cut("x" * 95, 40)) == ["x" * 40, "x" * 40, "x" * 15]
    assert list(cut("ab cd  ef", 5)) == ["ab", "cd ", "ef"] and list(cut("", 5)) == []


def test_word_start():
    tokenizer, punctuation = data.tokenizer(), set('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
    expected = [piece.startswith(("▁", "<")) or piece in punctuation for piece in tokenizer.pieces]
    np.testing.assert_array_equal(tokenizer.word_start, expected, strict=True)
    assert not all(expected)


@pytest.mark.parametrize(
    ("piece", "start"),
    [
        ("▁東京", True),
        ("東京", True),
        ("ひらがな", True),
        ("カナ", True),
        ("ｶﾅ", True),
        ("ㄅㄆ", True),
        ("〇", True),
        ("ก", True),
        ("ກ", True),
        ("ក", True),
        ("မြန်", True),
        ("བོད", True),
        ("ꀀ", True),
        ("ꦗ", True),
        # Marks, vowels after their consonant, and what repeats or lengthens belong to the character
        # before them.
        ("ิก", False),
        ("า", False),
        ("ໆ", False),
        ("ー", False),
        # Punctuation, as ASCII punctuation; but also with something after it, for no space comes
        # before it.
        ("。", True),
        ("！", True),
        ("・", True),
        ("。」", True),
        ("Ａ", False),
        ("１", False),
        # Scripts with spaces, Hangul among them.
        ("한국", False),
        ("é", False),
        ("क", False),
        ("—", False),
        ("a", False),
        (".", True),
        ("..", False),
        ("<sep>", True),
        ("", False),
    ],
)
def test_word_start_of_scripts(piece, start):
    assert module.starts_word(piece) is start


def _with_digit_comma(pieces):
    # Four rare pieces become digit-comma pieces that SentencePiece likes best.
    normal = [piece for piece in pieces if piece.type == piece.NORMAL and len(piece.piece) > 2]
    for piece, name in zip(normal[-4:], ("▁12,", "34,", "5,6", "▁1,000,"), strict=True):
        piece.piece, piece.score = name, -0.1


@pytest.mark.parametrize(
    "text", ["Bado 12, kilu", "do34, ba", "5,6 5,6", "1,000, bado 12,", "12,34,"]
)
def test_digit_comma_rule(tmp_path, text):
    tokenizer = Tokenizer(_changed_model(tmp_path / "m", _with_digit_comma))
    processor = tokenizer.processor
    plain = processor.encode(text, out_type=str)
    expected = []
    for piece in plain:  # the rule as it is stated, piece by piece
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            expected += [*parts, ","]
        else:
            expected.append(piece)
    assert (expected == plain) == (text == "5,6 5,6")
    # As in the original, a piece that the rule makes and the vocabulary lacks becomes <unk>.
    ids = [processor.piece_to_id(piece) for piece in expected]
    before, found, after = data.encode(["Bado 12, kilu", text, "Bado"], tokenizer)
    assert found.tolist() == ids
    assert before.tolist() == tokenizer.encode("Bado 12, kilu").tolist()
    assert after.tolist() == tokenizer.encode("Bado").tolist()


def test_pickle_is_light_and_loads_again():
    pickled = pickle.dumps(data.tokenizer())
    assert len(pickled) < 1000
    assert pickle.loads(pickled).sha256 == data.tokenizer().sha256


def test_other_special_ids_and_files_that_are_no_model_are_refused(tmp_path):
    def swap(pieces):
        pieces[5].piece, pieces[6].piece = "<mask>", "<pad>"

    (tmp_path / "junk").write_bytes(b"junk")
    for path, said in (
        (_changed_model(tmp_path / "m", swap), "id 5 holds '<mask>', XLNet needs '<pad>' there"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "junk", "junk: not a SentencePiece model"),
    ):
        with pytest.raises(BadInput, match=said) as error:
            Tokenizer(str(path))
        assert "\n" not in str(error.value)


def test_long_lines_are_trained_on(tmp_path):
    # SentencePiece drops lines of more than max_sentence_length bytes without a word.
    greek = str.maketrans("abdeiklmnorstuv", "αβδειклμνορστυφ")
    line = " ".join(data.synthetic_text(0, 200).lower().translate(greek).split())
    assert len(line) > 4 * module._LONGEST_TRAINING_LINE
    train_tokenizer([line], str(tmp_path / "a"), 150, seed=0, threads=2)
    assert Tokenizer(str(tmp_path / "a")).vocab_size == 150


@pytest.mark.parametrize(
    ("text", "size", "message", "kind"),
    [
        ("some words, here and there", 30_000, "too high .* <= ", module.TooLittleText),
        # These no smaller vocabulary mends.
        ("some words, here and there", 20, "smaller than required_chars", BadInput),
        ("", 100, "INTERNAL: .*sentences_.empty", BadInput),
    ],
)
def test_vocabulary_that_does_not_fit(tmp_path, text, size, message, kind):
    with pytest.raises(BadInput, match=f"--vocab_size={size}: .*{message}") as raised:
        train_tokenizer([text], str(tmp_path / "a"), size, seed=0, threads=1)
    assert raised.type is kind
    assert not os.listdir(tmp_path)


def test_the_text_of_each_piece_is_counted():
    tokenizer, text = data.tokenizer(), "Bado kilu, 12."
    characters_V, bytes_V = tokenizer.text_lengths()
    # And the space before a sentence.
    assert characters_V[tokenizer.encode(text)].sum() == len(text) + 1
    euro = tokenizer.pieces.index("€")
    assert (characters_V[euro], bytes_V[euro]) == (1, 3)
    assert not characters_V[:9].any() and not bytes_V[:9].any()
