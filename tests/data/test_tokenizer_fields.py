"""Folders of other programs' tokenizers: every field is done or refused by its name."""

import json

import data_fixtures
import pytest

from xlnet_jax.convert import huggingface
from xlnet_jax.data import subwords
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.data.vocabulary import open_tokenizer
from xlnet_jax.errors import BadInput

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "A",
    "é",
    "É",
    "e",
    "E",
    "中",
    "国",
    "##国",
    "##é",
    "x",
    "[",
    "]",
]
BYTES = ["<s>", "<pad>", "</s>", "<unk>", *subwords._BYTES, "Ġa", "<mask>"]
TOKEN = {
    "content": "[new]",
    "lstrip": False,
    "rstrip": False,
    "single_word": False,
    "normalized": False,
}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def wordpiece(folder, normalizer=BERT, **model):
    """Writes a tokenizer.json."""
    ids = {piece: index for index, piece in enumerate(PIECES)}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": ids,
    } | model
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))


def bytebpe(folder, **model):
    """Writes vocab.json and merges.txt, or a tokenizer.json with these fields of the model."""
    ids, merges = {piece: index for index, piece in enumerate(BYTES)}, [["Ġ", "a"]]
    if not model:
        (folder / "vocab.json").write_text(json.dumps(ids))
        (folder / "merges.txt").write_text("#version: 0.2\nĠ a\n")
        return
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {"type": "BPE", "vocab": ids, "merges": merges} | model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))


def pieces(folder, text):
    opened = open_tokenizer(str(folder))
    return [opened.pieces[index] for index in opened.encode(text)]


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [
        ({"strip_accents": False}, "É", ["é"]),
        ({"strip_accents": True, "do_lower_case": False}, "É", ["E"]),
        ({"do_lower_case": False}, "É A", ["É", "A"]),
        ({"tokenize_chinese_chars": False}, "中国", ["中", "##国"]),
        ({"tokenizer_class": "BertTokenizer"}, "É A", ["e", "a"]),
        (
            {"added_tokens_decoder": {str(len(PIECES)): TOKEN}},
            "a[new] [NEW]",
            ["a", "[new]", "[", "[UNK]", "]"],
        ),
        (
            {"added_tokens_decoder": {str(len(PIECES)): TOKEN | {"normalized": True}}},
            "[NEW]",
            ["[new]"],
        ),
        (
            {
                "added_tokens_decoder": {
                    "15": {"content": "x", "single_word": True, "special": False}
                }
            },
            "xa",
            ["[UNK]"],
        ),
    ],
)
def test_settings_of_wordpiece_are_done_with_either_file(file, settings, text, expected, tmp_path):
    """Also where tokenizer.json says something else."""
    if file == "vocab.txt":
        (tmp_path / file).write_text("".join(f"{piece}\n" for piece in PIECES))
    else:
        wordpiece(tmp_path, BERT | {"lowercase": settings.get("do_lower_case") is False})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert pieces(tmp_path, text) == expected


def test_tokenizer_json_is_right_without_settings_and_for_a_class_that_takes_it_as_it_is(tmp_path):
    wordpiece(tmp_path, BERT | {"lowercase": False}, max_input_chars_per_word=2)
    assert pieces(tmp_path, "É AAA") == ["É", "[UNK]"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert pieces(tmp_path, "É AAA") == ["É", "[UNK]"]


def test_a_space_before_a_text_of_bytes(tmp_path):
    bytebpe(tmp_path)
    assert pieces(tmp_path, "a a") == ["a", "Ġa"]
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert pieces(tmp_path, "a a") == ["Ġa", "Ġa"]
    bytebpe(tmp_path, dropout=None)
    assert pieces(tmp_path, "a a") == ["Ġa", "Ġa"]


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (
            wordpiece,
            {"never_split": ["x"]},
            r'never_split=\["x"\] makes other ids; only null or \[\]',
        ),
        (
            wordpiece,
            {"tokenizer_class": "BertJapaneseTokenizer"},
            'tokenizer_class="BertJapaneseTokenizer" makes other ids; only null or',
        ),
        (wordpiece, {"unk_token": "x"}, r"unk_token is 'x'; only '\[UNK\]' can be used"),
        (
            wordpiece,
            {"mask_token": {"content": "x", "lstrip": True}},
            r"mask_token is 'x'; only '\[MASK\]'",
        ),
        (
            wordpiece,
            {"split_words": True},
            "split_words=true is not a known field, and may change ids",
        ),
        (wordpiece, {"added_tokens_decoder": {"3": TOKEN}}, r"added token '\[new\]' has id 3"),
        (wordpiece, {"added_tokens_decoder": {"99": TOKEN}}, r"added token '\[new\]' has id 99"),
        (wordpiece, {"added_tokens_decoder": {"99": 5}}, "added_tokens_decoder has no content"),
        (bytebpe, {"do_lower_case": True}, "do_lower_case=true makes other ids"),
    ],
)
def test_settings_that_cannot_be_done_are_refused_by_name(make, settings, said, tmp_path):
    make(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadInput, match=said) as error:
        open_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "model", "said"),
    [
        (wordpiece, {"unk_token": "x"}, 'model: unk_token="x" makes other ids'),
        (
            wordpiece,
            {"max_input_chars_per_word": 5},
            "its class has another model than tokenizer.json",
        ),
        (
            wordpiece,
            {"normalizer": BERT | {"clean_text": False}},
            "its class has another normalizer",
        ),
        (wordpiece, {"cut_off": 5}, "model: cut_off=5 is not a known field"),
        (bytebpe, {"dropout": 0.1}, "dropout=0.1 makes other ids; only null or 0 or 0.0"),
        (bytebpe, {"ignore_merges": True}, "its class has another model than tokenizer.json"),
    ],
)
def test_fields_of_tokenizer_json_that_its_class_does_not_read_are_refused(
    make, model, said, tmp_path
):
    make(tmp_path, **model)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadInput, match=said):
        open_tokenizer(str(tmp_path))


def unigram(folder, normalizer):
    """A folder with a tokenizer.json alone, whose pieces are those of ALBERT."""
    vocab = [[piece, 0.0] for piece in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    vocab += [[piece, -2.0] for piece in ("▁", "a", "A", "e", "é", "E", "É", '"', "`")]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    document = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizer},
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))


QUOTES = [{"type": "Replace", "pattern": {"String": text}, "content": '"'} for text in ("``", "''")]
ACCENTS = [{"type": "NFKD"}, {"type": "StripAccents"}]
LOWER = {"type": "Lowercase"}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (QUOTES, ["▁", "É", "A"]),
        ([*QUOTES, LOWER], ["▁", "é", "a"]),
        ([*QUOTES, *ACCENTS], ["▁", "E", "A"]),
        ([*QUOTES, *ACCENTS, LOWER], ["▁", "e", "a"]),
    ],
)
def test_the_steps_of_a_unigram_file_are_read(steps, expected, tmp_path):
    unigram(tmp_path, steps)
    opened = huggingface.open_tokenizer(str(tmp_path))
    assert [opened.pieces[index] for index in opened.encode("ÉA")] == expected
    assert opened.path == str(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "steps",
    [
        [*QUOTES, ACCENTS[1]],
        [*QUOTES, {"type": "NFC"}],
        [*QUOTES, {"type": "Prepend", "prepend": "a"}],
    ],
)
def test_other_steps_of_a_unigram_file_are_refused(steps, tmp_path):
    unigram(tmp_path, steps)
    with pytest.raises(
        BadInput, match=r"tokenizer.json: its normalizer \(.*belongs to neither XLNet nor ALBERT"
    ):
        huggingface.open_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_lower_case": False}, "do_lower_case differ from the steps of tokenizer.json"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs=.*makes other ids"),
        ({"added_tokens_decoder": {"7": TOKEN}}, "has id 7, which is another piece"),
    ],
)
def test_settings_of_a_unigram_folder_that_cannot_be_done_are_refused(settings, said, tmp_path):
    unigram(tmp_path, [*QUOTES, *ACCENTS, LOWER])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadInput, match=said):
        huggingface.open_tokenizer(str(tmp_path))


def test_added_tokens_above_a_sentencepiece_model_are_named(tmp_path, caplog):
    path = data_fixtures.albert(tmp_path, data_fixtures.synthetic_text(0, 100).split("\n"), 100)
    (tmp_path / "added_tokens.json").write_text('{"[new]": 100, "[other]": 101}')
    opened = open_tokenizer(str(tmp_path))
    assert opened.vocab_size == 100 and opened.normalization == Normalization(lower=True)
    assert (
        "added tokens above the pieces" in caplog.text
        and "'[new]' (100), '[other]' (101)" in caplog.text
    )
    assert opened.path == path
