"""`tokenizer.json` of a model with every kind of piece, and the model that comes back from it."""

import json

import data_fixtures
import pytest
from sentencepiece import sentencepiece_model_pb2
from special_ids import CLS, EOP, SEP

from xlnet_jax.config import Config
from xlnet_jax.convert import tokenizer_files
from xlnet_jax.convert.tokenizer_json import sentencepiece_model, tokenizer_json
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization

PROTO = sentencepiece_model_pb2.ModelProto
KIND = PROTO.SentencePiece
ORDINARY = [("▁a", -1.5, KIND.NORMAL), ("7,", -2.0, KIND.NORMAL), ("(", 0.0, KIND.USER_DEFINED),
            ("▁b", -3.0, KIND.UNUSED)]  # fmt: skip


def model(prefix=True):
    """With every kind of piece; `<eop>` is user-defined whatever its score."""
    made = PROTO()
    made.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    made.normalizer_spec.add_dummy_prefix = prefix
    kinds = [KIND.UNKNOWN, *[KIND.CONTROL] * (EOP - 1), KIND.USER_DEFINED]
    special = [(piece, -1.0 * (piece == "<eop>"), kind) for piece, kind in zip(SPECIAL_PIECES, kinds, strict=True)]
    for piece, score, kind in special + ORDINARY:
        made.pieces.add(piece=piece, score=score, type=kind)
    return made


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_with_their_kinds_and_the_prefix_come_back(prefix):
    ours = model(prefix)
    document = tokenizer_json(ours.SerializeToString(), Normalization(), "t")
    # A piece that SentencePiece does not use, or splits, is never worth taking there.
    assert dict(document["model"]["vocab"][len(SPECIAL_PIECES) :]) == {"▁a": -1.5, "7,": -102, "(": 0, "▁b": -103}
    assert document["decoder"]["prepend_scheme"] == ("always" if prefix else "never")
    back = PROTO.FromString(sentencepiece_model(document, "t"))
    assert [(x.piece, x.score, x.type) for x in back.pieces] == [(x.piece, x.score, x.type) for x in ours.pieces]
    assert back.normalizer_spec.add_dummy_prefix == prefix


def test_special_tokens_and_the_segments_of_a_pair():
    document = tokenizer_json(model().SerializeToString(), Normalization(), "t")
    # Only <mask> takes the space before it, and none is normalised.
    assert [token["content"] for token in document["added_tokens"] if token["lstrip"]] == ["<mask>"]
    assert not any(token["normalized"] or token["rstrip"] for token in document["added_tokens"])
    written = tokenizer_files.contents(data_fixtures.tokenizer(), Config())
    template = json.loads(written["tokenizer.json"])["post_processor"]
    ids = {name: token["ids"] for name, token in template["special_tokens"].items()}
    assert ids == {"<sep>": [SEP], "<cls>": [CLS]}

    def laid_out(parts):
        return [(part["id"], part["type_id"]) for each in parts for part in each.values()]

    assert laid_out(template["single"]) == [("A", 0), ("<sep>", 0), ("<cls>", 2)]
    assert laid_out(template["pair"]) == [("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1), ("<cls>", 2)]
