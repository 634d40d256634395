"""BERT. RoBERTa, ALBERT, GPT-2 and the Transformer are BERT with some fields changed."""

from __future__ import annotations

from collections.abc import Mapping

from xlnet_jax.members.member import Member
from xlnet_jax.members.parts import Parts
from xlnet_jax.members.peer import NOT_ROTARY, Entry, Peer, Table, Twin, heads, modules

ATTENTION = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
}
LAYER = {
    "attention/norm": "attention.output.LayerNorm",
    "feed_forward/inner": "intermediate.dense",
    "feed_forward/outer": "output.dense",
    "feed_forward/norm": "output.LayerNorm",
}


def encoder(
    root: str,
    layer: str,
    attention: Mapping[str, str],
    layers: Mapping[str, str],
    others: dict[str, str],
) -> Table:
    """Returns the table of an encoder like BERT: names of a layer below `layer`, and `others`
    outside the layers.
    """
    at, ours = f"{root}.encoder.{layer}", "layers/attention"
    return (
        Entry("word_embedding", f"{root}.embeddings.word_embeddings.weight"),
        Entry("position_embedding", f"{root}.embeddings.position_embeddings.weight"),
        Entry("segment_embedding", f"{root}.embeddings.token_type_embeddings.weight"),
        *modules("", {"embedding_norm": f"{root}.embeddings.LayerNorm"} | others),
        *(
            Entry(
                f"{ours}/{name}",
                f"{at}.{theirs}.weight",
                "joined" if name == "output" else "transposed",
            )
            for name, theirs in attention.items()
        ),
        *(
            Entry(f"{ours}/{name}_bias", f"{at}.{theirs}.bias", "flat")
            for name, theirs in attention.items()
        ),
        *modules("layers/", {name: f"{at}.{theirs}" for name, theirs in layers.items()}),
    )


_TABLE = (
    *encoder(
        "bert",
        "layer.{}",
        ATTENTION,
        LAYER,
        {
            "lm_head/transform": "cls.predictions.transform.dense",
            "lm_head/norm": "cls.predictions.transform.LayerNorm",
            "pooler": "bert.pooler.dense",
        },
    ),
    Entry("lm_head/bias", "cls.predictions.bias"),
    # Class 0 of transformers means that B follows A, or that both are in order: our label 1.
    Entry("sentence_head/kernel", "cls.seq_relationship.weight", "swapped"),
    Entry("sentence_head/bias", "cls.seq_relationship.bias", "swapped"),
)

# Other values of these keys are for relative positions, or for clusters of words.
REQUIRED = {
    "memory_len": 0,
    "norm": "post",
    "scale_embedding": False,
    "cutoffs": "",
    "div_val": 1,
    "tie_projections": "all",
    "layer_losses": False,
    "same_length": False,
    "clamp_len": -1,
    "biases_per_layer": True,
    "tie_embedding": True,
    "d_embed": 0,
    "share_layers": False,
}

PEER = Peer(
    title="BERT",
    prefix="Bert",
    pretraining=("ForMaskedLM", "ForPreTraining"),
    table=_TABLE,
    heads=heads("bert.pooler.dense"),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    named={
        "architecture": ("model_type", ""),
        "vocab_size": ("vocab_size", 30522),
        "layers": ("num_hidden_layers", 12),
        "d_model": ("hidden_size", 768),
        "heads": ("num_attention_heads", 12),
        "d_ff": ("intermediate_size", 3072),
        "activation": ("hidden_act", "gelu"),
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "max_positions": ("max_position_embeddings", 512),
        "init_std": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    },
    only=REQUIRED | NOT_ROTARY,
    required={
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    kept={"classifier_dropout": None, "use_cache": True},
    twins={
        "classifier_dropout": Twin(
            "hidden_dropout_prob",
            None,
            ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification"),
        )
    },
    card="""\
The tokenizer pads on the right and puts `$cls` first: the vector of a text is the first one. Long
texts are cut with `truncation=True` at $max_length tokens, the length of an example in training;
positions end at $longest.
""",
)

BERT = Member(
    name="bert",
    objectives=("mlm", "mdm"),
    parts=Parts(
        positions="input",
        segments="input",
        streams=1,
        embedding_norm=True,
        biases=True,
        output_dropout=False,
        head="dense",
    ),
    bounded=True,
    segments=2,
    padding_row=0,
    required=REQUIRED,
    usual_model={"activation": "gelu_erf"},
    vocabulary="wordpiece",
    dropped_tasks=frozenset({"token_classification"}),
    peer=PEER,
)
