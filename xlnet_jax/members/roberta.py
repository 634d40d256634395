"""RoBERTa: BERT with another head, without sentence pairs, with byte-level pieces."""

from xlnet_jax.members.bert import ATTENTION, BERT, LAYER, PEER, encoder
from xlnet_jax.members.peer import Entry, heads

_TABLE = (
    *encoder(
        "roberta",
        "layer.{}",
        ATTENTION,
        LAYER,
        {"lm_head/transform": "lm_head.dense", "lm_head/norm": "lm_head.layer_norm"},
    ),
    Entry("lm_head/bias", "lm_head.bias"),
)

ROBERTA = BERT._replace(
    name="roberta",
    parts=BERT.parts._replace(head="dense_erf"),
    separators=2,
    segments=1,
    first_position=2,
    padding_row=1,
    usual_model={"activation": "gelu_erf", "layer_norm_epsilon": 1e-5},
    usual_data={"pairs": "none", "spans": "random"},
    vocabulary="bytebpe",
    dropped_tasks=frozenset(
        {"classification", "multi_label_classification", "regression", "token_classification"}
    ),
    peer=PEER._replace(
        title="RoBERTa",
        prefix="Roberta",
        pretraining=("ForMaskedLM",),
        table=_TABLE,
        heads=heads("roberta.pooler.dense")
        | {
            "ForSequenceClassification": {
                "summary": "classifier.dense",
                "logits": "classifier.out_proj",
            }
        },
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        named=PEER.named | {"vocab_size": ("vocab_size", 50265)},
        # transformers counts positions from the id of padding.
        required=PEER.required | {"type_vocab_size": 1, "pad_token_id": 1},
        ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
