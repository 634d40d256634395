"""ALBERT: BERT with one set of layers, a narrow embedding, and pairs in order or swapped."""

from xlnet_jax.members.bert import BERT, PEER, encoder
from xlnet_jax.members.peer import NOT_ROTARY, Entry, heads

_TABLE = (
    *encoder(
        "albert",
        "albert_layer_groups.0.albert_layers.0",
        {
            "query": "attention.query",
            "key": "attention.key",
            "value": "attention.value",
            "output": "attention.dense",
        },
        {
            "attention/norm": "attention.LayerNorm",
            "feed_forward/inner": "ffn",
            "feed_forward/outer": "ffn_output",
            "feed_forward/norm": "full_layer_layer_norm",
        },
        {
            "embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
            "pooler": "albert.pooler",
            "lm_head/transform": "predictions.dense",
            "lm_head/norm": "predictions.LayerNorm",
        },
    ),
    Entry("lm_head/bias", "predictions.bias"),
    Entry("sentence_head/kernel", "sop_classifier.classifier.weight", "swapped"),
    Entry("sentence_head/bias", "sop_classifier.classifier.bias", "swapped"),
)
_REQUIRED = {
    key: value for key, value in BERT.required.items() if key not in ("d_embed", "share_layers")
}

ALBERT = BERT._replace(
    name="albert",
    parts=BERT.parts._replace(projected=True, sentence_dropout=0.1),
    required=_REQUIRED,
    usual_model={"share_layers": True},
    usual_data={"pairs": "order", "spans": "words"},
    peer=PEER._replace(
        title="ALBERT",
        prefix="Albert",
        table=_TABLE,
        heads=heads("albert.pooler"),
        copies={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        named=PEER.named
        | {
            "vocab_size": ("vocab_size", 30000),
            "d_model": ("hidden_size", 4096),
            "heads": ("num_attention_heads", 64),
            "d_embed": ("embedding_size", 128),
            "d_ff": ("intermediate_size", 16384),
            "activation": ("hidden_act", "gelu_new"),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        },
        only=_REQUIRED | NOT_ROTARY | {"share_layers": True},
        required=PEER.required | {"num_hidden_groups": 1, "inner_group_num": 1},
        ids={"bos_token_id": "cls", "eos_token_id": "sep"},
        kept={},
        twins={},
        summary={"classifier_dropout_prob": 0.1},
    ),
)
