"""GPT-2: the Transformer with learned positions, and norms before the branches and at the end."""

from xlnet_jax.members.bert import BERT, PEER
from xlnet_jax.members.peer import NOT_ROTARY, Entry, Peer, Twin, modules
from xlnet_jax.members.transformer import TRANSFORMER

_BLOCK = "transformer.h.{}"
_TABLE = (
    Entry("word_embedding", "transformer.wte.weight"),
    Entry("position_embedding", "transformer.wpe.weight"),
    *modules("", {"final_norm": "transformer.ln_f"}),
    # Kernels are [in, out] in transformers.
    *modules(
        "layers/",
        {
            "attention/norm": f"{_BLOCK}.ln_1",
            "feed_forward/inner": f"{_BLOCK}.mlp.c_fc",
            "feed_forward/outer": f"{_BLOCK}.mlp.c_proj",
            "feed_forward/norm": f"{_BLOCK}.ln_2",
        },
        "",
    ),
    Entry(
        "layers/attention/query layers/attention/key layers/attention/value",
        f"{_BLOCK}.attn.c_attn.weight",
        "joined",
    ),
    Entry(
        "layers/attention/query_bias layers/attention/key_bias layers/attention/value_bias",
        f"{_BLOCK}.attn.c_attn.bias",
        "flat",
    ),
    Entry("layers/attention/output", f"{_BLOCK}.attn.c_proj.weight", "transposed"),
    Entry("layers/attention/output_bias", f"{_BLOCK}.attn.c_proj.bias"),
)
_REQUIRED = BERT.required | {"norm": "pre"}

GPT2 = TRANSFORMER._replace(
    name="gpt2",
    parts=TRANSFORMER.parts._replace(positions="input", final_norm=True, scaled_init=True),
    required=_REQUIRED,
    usual_model={"layer_norm_epsilon": 1e-5},
    vocabulary="bytebpe",
    peer=Peer(
        title="GPT-2",
        prefix="GPT2",
        pretraining=("LMHeadModel",),
        table=_TABLE,
        heads={"ForSequenceClassification": {"logits": "score"}},
        copies={"lm_head.weight": "transformer.wte.weight"},
        named=PEER.named
        | {
            "vocab_size": ("vocab_size", 50257),
            "layers": ("n_layer", 12),
            "d_model": ("n_embd", 768),
            "heads": ("n_head", 12),
            "d_ff": ("n_inner", None),
            "activation": ("activation_function", "gelu_new"),
            "dropout": ("resid_pdrop", 0.1),
            "attention_dropout": ("attn_pdrop", 0.1),
            "max_positions": ("n_positions", 1024),
            "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        },
        only=_REQUIRED | NOT_ROTARY,
        required={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
        ids={"bos_token_id": "bos", "eos_token_id": "eos"},
        # `reorder_and_upcast_attn` changes nothing in float32.
        kept={"use_cache": True, "reorder_and_upcast_attn": False},
        aliases={
            "hidden_size": "n_embd",
            "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        twins={"embd_pdrop": Twin("resid_pdrop", 0.1)},
        # Keys of the head of a class that has no counterpart in this project.
        ignored=frozenset(
            {
                "summary_type",
                "summary_use_proj",
                "summary_activation",
                "summary_proj_to_labels",
                "summary_first_dropout",
            }
        ),
        card="""\
Every vector sees the text up to its piece, so the vector of a text is the last one. Long texts are
cut with `truncation=True` at $max_length tokens, the length of an example in training; positions
end at $longest.
""",
    ),
)
