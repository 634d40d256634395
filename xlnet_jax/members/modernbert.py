"""ModernBERT: BERT with rotary positions, windows, gated feed-forward layers, norms before the
branches, and almost no biases (Warner et al. 2024, arXiv 2412.13663).
"""

from xlnet_jax.members.bert import BERT, PEER, REQUIRED
from xlnet_jax.members.parts import Parts
from xlnet_jax.members.peer import Entry, Peer, Twin, modules

PARTS = Parts(
    positions="rotary",
    segments="none",
    streams=1,
    embedding_norm=True,
    layer_biases=False,
    gated=True,
    first_norm=False,
    final_norm=True,
    output_dropout=False,
    scaled_init=True,
    head="dense",
    summary="head",
)
USUAL = {
    "activation": "gelu_erf",
    "layer_norm_epsilon": 1e-5,
    "window": 128,
    "theta": 160_000.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_truncated": True,
}

_LAYER = "model.layers.{}"
_TABLE = (
    Entry("word_embedding", "model.embeddings.tok_embeddings.weight"),
    *modules(
        "",
        {
            "embedding_norm": "model.embeddings.norm",
            "final_norm": "model.final_norm",
            "lm_head/transform": "head.dense",
            "lm_head/norm": "head.norm",
        },
    ),
    Entry("lm_head/bias", "decoder.bias"),
    Entry(
        "layers/attention/query layers/attention/key layers/attention/value",
        f"{_LAYER}.attn.Wqkv.weight",
        "transposed",
    ),
    Entry("layers/attention/output", f"{_LAYER}.attn.Wo.weight", "joined"),
    Entry("layers/attention/norm/scale", f"{_LAYER}.attn_norm.weight", first=1),
    Entry(
        "layers/feed_forward/inner/kernel layers/feed_forward/gate/kernel",
        f"{_LAYER}.mlp.Wi.weight",
        "transposed",
    ),
    *modules(
        "layers/",
        {"feed_forward/outer": f"{_LAYER}.mlp.Wo", "feed_forward/norm": f"{_LAYER}.mlp_norm"},
    ),
)
_REQUIRED = REQUIRED | {"norm": "pre"}
_HEAD = {"summary/transform": "head.dense", "summary/norm": "head.norm", "logits": "classifier"}

_PEER = Peer(
    title="ModernBERT",
    prefix="ModernBert",
    pretraining=("ForMaskedLM",),
    table=_TABLE,
    heads=dict.fromkeys(
        (
            "ForSequenceClassification",
            "ForMultipleChoice",
            "ForTokenClassification",
            "ForQuestionAnswering",
        ),
        _HEAD,
    )
    | {"Model": {}},
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    # Version 5 of transformers has other keys for the last four, and reads these too.
    named={
        "architecture": ("model_type", ""),
        "vocab_size": ("vocab_size", 50368),
        "layers": ("num_hidden_layers", 22),
        "d_model": ("hidden_size", 768),
        "heads": ("num_attention_heads", 12),
        "d_ff": ("intermediate_size", 1152),
        "activation": ("hidden_activation", "gelu"),
        "activation_dropout": ("mlp_dropout", 0.0),
        "max_positions": ("max_position_embeddings", 8192),
        "init_std": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "window": ("local_attention", 128),
        "global_every": ("global_attn_every_n_layers", 3),
        "theta": ("global_rope_theta", 160_000.0),
        "theta_local": ("local_rope_theta", 10_000.0),
    },
    only=_REQUIRED,
    required={
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        # transformers drops at other places, so a rate would train another model.
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
        "pad_token_id": "pad",
    },
    kept={"initializer_cutoff_factor": 2.0, "classifier_pooling": "mean"},
    of_task={"classifier_pooling": ("pooling", "cls")},
    twins={"classifier_activation": Twin("hidden_activation", "gelu")},
    summary={"classifier_dropout": 0.0},
    # Keys of computation, of the loss, and of no class.
    ignored=frozenset(
        {
            "deterministic_flash_attn",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_prediction",
            "sparse_pred_ignore_index",
            "gradient_checkpointing",
            "layer_norm_eps",
            "position_embedding_type",
        }
    ),
    card=PEER.card,
)

MODERNBERT = BERT._replace(
    name="modernbert",
    parts=PARTS,
    segments=0,
    padding_row=-1,
    required=_REQUIRED,
    usual_model=USUAL,
    usual_data={"pairs": "none", "spans": "random"},
    vocabulary="bytebpe",
    dropped_tasks=frozenset(),
    peer=_PEER,
)
