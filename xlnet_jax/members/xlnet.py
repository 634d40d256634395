"""XLNet: two streams, relative positions and segments, a memory; trained by any objective."""

from __future__ import annotations

from xlnet_jax.members.member import Member
from xlnet_jax.members.parts import Parts
from xlnet_jax.members.peer import NOT_ROTARY, Entry, Peer, Table, Twin, heads
from xlnet_jax.objectives import CLM

_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
_SHARED = [
    (f"{scope}/{ours}", theirs)
    for scope in ("biases", "layers/attention")
    for ours, theirs in _BIASES.items()
]
"""Names of the biases; a model has one set for all layers, or one for each layer."""
_OF_LAYER = (
    ("attention/query", "rel_attn/q/kernel", "rel_attn.q", ""),
    ("attention/key", "rel_attn/k/kernel", "rel_attn.k", ""),
    ("attention/value", "rel_attn/v/kernel", "rel_attn.v", ""),
    ("attention/position", "rel_attn/r/kernel", "rel_attn.r", ""),
    ("attention/output", "rel_attn/o/kernel", "rel_attn.o", ""),
    ("feed_forward/inner/kernel", "ff/layer_1/kernel", "ff.layer_1.weight", "transposed"),
    ("feed_forward/inner/bias", "ff/layer_1/bias", "ff.layer_1.bias", ""),
    ("feed_forward/outer/kernel", "ff/layer_2/kernel", "ff.layer_2.weight", "transposed"),
    ("feed_forward/outer/bias", "ff/layer_2/bias", "ff.layer_2.bias", ""),
    ("attention/norm/scale", "rel_attn/LayerNorm/gamma", "rel_attn.layer_norm.weight", ""),
    ("attention/norm/bias", "rel_attn/LayerNorm/beta", "rel_attn.layer_norm.bias", ""),
    ("feed_forward/norm/scale", "ff/LayerNorm/gamma", "ff.layer_norm.weight", ""),
    ("feed_forward/norm/bias", "ff/LayerNorm/beta", "ff.layer_norm.bias", ""),
)
"""Our name, the original's name, and the name in `transformers` with the form there."""

TENSORFLOW: Table = (
    Entry("word_embedding", "model/transformer/word_embedding/lookup_table"),
    Entry("mask_embedding", "model/transformer/mask_emb/mask_emb", "1,1,D"),
    Entry("lm_head/bias", "model/lm_loss/bias"),
    Entry("layers/attention/segment_embedding", "model/transformer/seg_embed"),
    *(Entry(ours, f"model/transformer/{theirs}") for ours, theirs in _SHARED),
    *(
        Entry(f"layers/{ours}", f"model/transformer/layer_{{}}/{theirs}")
        for ours, theirs, _, _ in _OF_LAYER
    ),
)
"""Variables of the original (zihangdai/xlnet): one for each layer, except for biases and segment
embedding.
"""
HUGGINGFACE: Table = (
    Entry("word_embedding", "transformer.word_embedding.weight"),
    Entry("mask_embedding", "transformer.mask_emb", "1,1,D"),
    Entry("lm_head/bias", "lm_loss.bias"),
    Entry("layers/attention/segment_embedding", "transformer.layer.{}.rel_attn.seg_embed"),
    # transformers has no single set for all layers; copies compute the same until they are
    # fine-tuned.
    *(Entry(ours, f"transformer.layer.{{}}.rel_attn.{theirs}") for ours, theirs in _SHARED),
    *(
        Entry(f"layers/{ours}", f"transformer.layer.{{}}.{theirs}", form)
        for ours, _, theirs, form in _OF_LAYER
    ),
)
"""The state dict of `XLNetLMHeadModel` in `transformers`, without `lm_loss.weight`, which is the
word embedding.
"""

_CLASSIFIERS = ("ForSequenceClassification", "ForMultipleChoice")

XLNET = Member(
    name="xlnet",
    objectives=("plm", "clm", "mlm", "mdm"),
    parts=Parts(),
    other_parts={CLM: Parts(segments="none", streams=1)},
    cls="last",
    xlnet_ids=True,
    peer=Peer(
        title="XLNet",
        prefix="XLNet",
        pretraining=("LMHeadModel",),
        table=HUGGINGFACE,
        heads=heads("sequence_summary.summary", "logits_proj")
        | {
            "ForQuestionAnswering": {
                "start_logits/dense": "start_logits.dense",
                "end_logits/dense_0": "end_logits.dense_0",
                "end_logits/norm": "end_logits.LayerNorm",
                "end_logits/dense_1": "end_logits.dense_1",
                "answer_class/dense_0": "answer_class.dense_0",
                "answer_class/dense_1": "answer_class.dense_1",
            }
        },
        copies={"lm_loss.weight": "transformer.word_embedding.weight"},
        named={
            "architecture": ("model_type", ""),
            "vocab_size": ("vocab_size", 32000),
            "layers": ("n_layer", 24),
            "d_model": ("d_model", 1024),
            "heads": ("n_head", 16),
            "head_dim": ("d_head", None),
            "d_ff": ("d_inner", 4096),
            "activation": ("ff_activation", "gelu"),
            "biases_per_layer": ("untie_r", True),
            "clamp_len": ("clamp_len", -1),
            "dropout": ("dropout", 0.1),
            "init_std": ("initializer_range", 0.02),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
        },
        only=NOT_ROTARY
        | {
            "norm": "post",
            "d_embed": 0,
            "share_layers": False,
            "scale_embedding": False,
            "cutoffs": "",
            "div_val": 1,
            "tie_embedding": True,
            "layer_losses": False,
            "same_length": False,
        },
        required={"attn_type": "bi", "tie_word_embeddings": True, "same_length": False},
        ids={"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "pad"},
        # The lengths of pretraining would change inference and generation in transformers.
        kept={
            "mem_len": None,
            "reuse_len": None,
            "bi_data": False,
            "use_mems_train": False,
            "use_mems_eval": True,
            "start_n_top": 5,
        },
        of_task={"start_n_top": ("beam", 5)},
        aliases={
            "n_token": "vocab_size",
            "num_hidden_layers": "n_layer",
            "hidden_size": "d_model",
            "num_attention_heads": "n_head",
        },
        twins={
            "summary_last_dropout": Twin("dropout", 0.1, _CLASSIFIERS),
            "end_n_top": Twin("start_n_top", 5, ("ForQuestionAnswering",)),
        },
        always={"biases_per_layer": True},  # one set is copied to each layer
        summary={"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"},
        card="""\
The tokenizer pads on the left and puts `<sep><cls>` at the end: the vector of a text is the last
one. Long texts are cut with `truncation=True` at $max_length tokens, the length of a segment in
training; the model itself has no limit.
""",
        why_filled="""this model learned to predict masked pieces from the content stream, as BERT
does, and needs neither `perm_mask` nor `target_mapping`.""",
        # `generate` of transformers takes neither segments nor the pieces at the end of a text.
        prompt="add_special_tokens=False, return_token_type_ids=False, ",
    ),
)
