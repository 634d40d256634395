"""`tokenizer.json` of a model with every kind of piece, and the model that comes back from it."""

import json

import data_fixtures
import pytest
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from special_ids import CLS, EOP, SEP

from xlnet_jax.config import Config
from xlnet_jax.convert import tokenizer_files
from xlnet_jax.convert.tokenizer_json import sentencepiece_model, tokenizer_json
from xlnet_jax.data import subwords
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization
from xlnet_jax.data.vocabulary import open_tokenizer

PROTO = sentencepiece_model_pb2.ModelProto
KIND = PROTO.SentencePiece
ORDINARY = [
    ("▁a", -1.5, KIND.NORMAL),
    ("7,", -2.0, KIND.NORMAL),
    ("(", 0.0, KIND.USER_DEFINED),
    ("▁b", -3.0, KIND.UNUSED),
]


def model(prefix=True):
    """With every kind of piece; `<eop>` is user-defined whatever its score."""
    made = PROTO()
    made.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    made.normalizer_spec.add_dummy_prefix = prefix
    kinds = [KIND.UNKNOWN, *[KIND.CONTROL] * (EOP - 1), KIND.USER_DEFINED]
    special = [
        (piece, -1.0 * (piece == "<eop>"), kind)
        for piece, kind in zip(SPECIAL_PIECES, kinds, strict=True)
    ]
    for piece, score, kind in special + ORDINARY:
        made.pieces.add(piece=piece, score=score, type=kind)
    return made


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_with_their_kinds_and_the_prefix_come_back(prefix):
    ours = model(prefix)
    document = tokenizer_json(ours.SerializeToString(), Normalization(), "t")
    # A piece that SentencePiece does not use, or splits, is never worth taking there.
    assert dict(document["model"]["vocab"][len(SPECIAL_PIECES) :]) == {
        "▁a": -1.5,
        "7,": -102,
        "(": 0,
        "▁b": -103,
    }
    assert document["decoder"]["prepend_scheme"] == ("always" if prefix else "never")
    back = PROTO.FromString(sentencepiece_model(document, "t"))
    assert [(x.piece, x.score, x.type) for x in back.pieces] == [
        (x.piece, x.score, x.type) for x in ours.pieces
    ]
    assert back.normalizer_spec.add_dummy_prefix == prefix


def test_spaces_that_are_kept_have_no_step():
    with_step, without = (
        tokenizer_json(model().SerializeToString(), Normalization(remove_space=remove), "t")
        for remove in (True, False)
    )
    spaces, *rest = with_step["normalizer"]["normalizers"]
    assert spaces["content"] == " " and without["normalizer"]["normalizers"] == rest


def test_special_tokens():
    document = tokenizer_json(model().SerializeToString(), Normalization(), "t")
    # Only <mask> takes the space before it, and none is normalised.
    assert [token["content"] for token in document["added_tokens"] if token["lstrip"]] == ["<mask>"]
    assert not any(token["normalized"] or token["rstrip"] for token in document["added_tokens"])
    written = tokenizer_files.contents(data_fixtures.tokenizer(), Config())
    special = json.loads(written["tokenizer.json"])["post_processor"]["special_tokens"]
    assert {name: token["ids"] for name, token in special.items()} == {
        "<sep>": [SEP],
        "<cls>": [CLS],
    }


FRAMES = {
    "xlnet": ("A:0 <sep>:0 <cls>:2", "A:0 <sep>:0 B:1 <sep>:1 <cls>:2", "left", "token_type_ids"),
    "bert": ("[CLS]:0 A:0 [SEP]:0", "[CLS]:0 A:0 [SEP]:0 B:1 [SEP]:1", "right", "token_type_ids"),
    # BERT's types are of two segments, RoBERTa has one, and two pieces between the texts.
    "roberta": ("<s>:0 A:0 </s>:0", "<s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0", "right", ""),
    "gpt2": ("", "", "right", ""),
    "modernbert": ("<s>:0 A:0 </s>:0", "<s>:0 A:0 </s>:0 B:0 </s>:0", "right", ""),
}
"""A text and a pair with their types; the side of the padding; what a model reads beside ids and
mask.
"""


@pytest.mark.parametrize("family", FRAMES)
def test_what_is_put_around_the_texts_of_each_family(family, tmp_path):
    config = Config().changed(
        model={} if family == "xlnet" else {"architecture": family}, data={"segment_len": 48}
    )
    tokenizer = data_fixtures.tokenizer()
    if family != "xlnet":
        path, level = f"{tmp_path}/tokenizer.json", "wordpiece" if family == "bert" else "bytebpe"
        subwords.train(
            data_fixtures.synthetic_text(0, 100).split("\n"), path, 280, level, Normalization()
        )
        tokenizer = open_tokenizer(path)
    written = {
        name: content
        for name, content in tokenizer_files.contents(tokenizer, config).items()
        if name.startswith("tokenizer")
    }
    document, settings = (
        json.loads(written[name]) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    single, pair, side, more = FRAMES[family]
    step = document["post_processor"] or {}
    (step,) = [
        each for each in step.get("processors", [step]) if each.get("type") != "ByteLevel"
    ] or [{}]

    def laid_out(parts):
        return " ".join(
            f"{part['id']}:{part['type_id']}" for each in parts for part in each.values()
        )

    assert (laid_out(step.get("single", [])), laid_out(step.get("pair", []))) == (single, pair)
    assert (settings["padding_side"], settings["model_max_length"]) == (side, 48)
    assert settings["model_input_names"] == ["input_ids", *more.split(), "attention_mask"]


@pytest.mark.parametrize("lower", [False, True])
def test_the_steps_there_change_a_text_as_ours_do(lower):
    """The fault: a step that is missing, or in another place."""
    ours = Normalization(lower=lower)
    document = tokenizer_json(model().SerializeToString(), ours, "t")
    made = tokenizers.Tokenizer.from_str(json.dumps(document)).normalizer
    for text in (
        "ΟΔΟΣ ΣΟΦΙΑΣ, Σ",
        "``So'' it ''is``",
        "a\x1cb\x1d \t c\u3000d",
        "Éa\u0301 \u0e01\u0e38 İ",
        "x" * 40,
    ):
        assert made.normalize_str(text) == ours(text), text
