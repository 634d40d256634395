"""How Hugging Face's `transformers` has each family: its classes, the names of its tensors, the keys of config.json.

A row for each value of `model.architecture`, which is `model_type` there. `names` and `fields` read the rows in both
directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.convert.names import HUGGINGFACE, Entry, Table
from xlnet_jax.errors import BadInput
from xlnet_jax.storage.files import Json


class Twin(NamedTuple):
    """Why a key of config.json must have the value of another one: here both are one. Null is that value, too."""

    of: str
    """The other key."""
    default: Any
    """Where a folder does not say it."""
    classes: tuple[str, ...] = ()
    """The classes that read it, without the family's prefix; () = all."""


class Peer(NamedTuple):
    """A family there."""

    prefix: str
    """What the names of its classes start with."""
    pretraining: tuple[str, ...]
    """How the name of its class goes on: without a loss of sentences, and with one."""
    table: Table
    """Of the tensors; the first is the word embedding."""
    heads: dict[str, dict[str, str]]
    """By the class of a task: the dense layers and LayerNorms of its head, with their names there."""
    copies: dict[str, str]
    """Tensors that other writers store again, with the one that each must equal."""
    named: dict[str, tuple[str, Any]]
    """Keys of `ModelConfig` with their names in config.json, and that library's defaults."""
    only: Json
    """Keys of `ModelConfig` with the only value that the library computes with."""
    required: Json
    """What of config.json has one value in our models."""
    ids: dict[str, str] = {}
    """Special pieces of config.json, by their names in `SpecialIds`."""
    kept: Json = {}
    """Keys of config.json that say how the model is used there, with the values for a run of ours. A run that starts
    from an import keeps those of its source."""
    aliases: dict[str, str] = {}
    """Other names of keys of config.json."""
    twins: dict[str, Twin] = {}
    """Keys of config.json that must have the value of another one."""
    idle: frozenset[str] = frozenset()
    """Keys of config.json that no class here reads, beside `IDLE`."""
    always: Json = {}
    """Keys of `ModelConfig` that have this value there: the same function, until it is trained there."""
    summary: Json = {}
    """Our heads, in config.json."""


SAME: Json = {"is_encoder_decoder": False, "pruned_heads": {}, "quantization_config": None, "auto_map": None}
"""What of config.json has one value in all our models, and is written by none: code of its own is the last one."""
IDLE = frozenset({"transformers_version", "_name_or_path", "return_dict", "output_hidden_states", "output_attentions",
                  "chunk_size_feed_forward"})  # fmt: skip
"""Keys of config.json that change no function."""


class Export(NamedTuple):
    """How a model is there that was fine-tuned on a task."""

    name: str
    """Of its class, behind that of the family: `ForSequenceClassification`. `Peer.heads` has its tensors."""
    problem_type: str = ""
    """Key of config.json; "" = none."""
    labels: Callable[[FinetuneConfig], Sequence[str]] = lambda _: ()
    """The names of the outputs; none for a task whose outputs have no names."""


EXPORTS = {
    "classification": Export("ForSequenceClassification", "single_label_classification", FinetuneConfig.label_list),
    "multi_label_classification": Export(
        "ForSequenceClassification", "multi_label_classification", FinetuneConfig.label_list
    ),
    "regression": Export("ForSequenceClassification", "regression", lambda _: ["score"]),
    "multiple_choice": Export("ForMultipleChoice"),
    "question_answering": Export("ForQuestionAnswering"),
    "token_classification": Export("ForTokenClassification", labels=FinetuneConfig.label_list),
    "embeddings": Export("Model"),
    "text_to_text": Export("ForTextToText"),  # no such class: a source that sees itself is unknown there
}
"""By `finetune.task`."""


def peer(model: ModelConfig) -> Peer:
    """The row of a model. Raises BadInput if there is none."""
    if model.architecture not in PEERS:
        raise BadInput(f"model.architecture={model.architecture}: Hugging Face has no such model; use --format=orbax")
    return PEERS[model.architecture]


def class_of(config: Config) -> str:
    """The name of its class there."""
    row, task = peer(config.model), config.finetune.task
    return row.prefix + (row.pretraining[config.data.sentence_loss] if task == "none" else EXPORTS[task].name)


def table(config: Config) -> Table:
    """All tensors of a model, with its head."""
    row, task = peer(config.model), config.finetune.task
    of_pairs = ("pooler/", "sentence_head/") if not config.data.sentence_loss else ()
    head = row.heads[EXPORTS[task].name] if task != "none" else {}
    return (*(entry for entry in row.table if not entry.ours.startswith(of_pairs)), *_modules("head/", head))


def _modules(scope: str, layers: Mapping[str, str], kernel: str = "transposed") -> Table:
    """Dense layers and LayerNorms, which have some of three parts; `kernel` is the form of the first."""
    parts = (("kernel", "weight", kernel), ("scale", "weight", ""), ("bias", "bias", ""))
    return tuple(Entry(f"{scope}{ours}/{part}", f"{theirs}.{name}", form)
                 for ours, theirs in layers.items() for part, name, form in parts)  # fmt: skip


def _encoder(
    root: str, layer: str, attention: Mapping[str, str], layers: Mapping[str, str], others: dict[str, str]
) -> Table:
    """BERT and those that follow it: the names below `layer`, and the `others`."""
    at, ours = f"{root}.encoder.{layer}", "layers/attention"
    return (
        Entry("word_embedding", f"{root}.embeddings.word_embeddings.weight"),
        Entry("position_embedding", f"{root}.embeddings.position_embeddings.weight"),
        Entry("segment_embedding", f"{root}.embeddings.token_type_embeddings.weight"),
        *_modules("", {"embedding_norm": f"{root}.embeddings.LayerNorm"} | others),
        *(Entry(f"{ours}/{name}", f"{at}.{theirs}.weight", "joined" if name == "output" else "transposed")
          for name, theirs in attention.items()),
        *(Entry(f"{ours}/{name}_bias", f"{at}.{theirs}.bias", "flat") for name, theirs in attention.items()),
        *_modules("layers/", {name: f"{at}.{theirs}" for name, theirs in layers.items()}),
    )  # fmt: skip


def _pairs(theirs: str) -> Table:
    """The head of pairs: there class 0 is that B follows A, or that both are in order, which is our label 1."""
    return (Entry("sentence_head/kernel", f"{theirs}.weight", "swapped"),
            Entry("sentence_head/bias", f"{theirs}.bias", "swapped"))  # fmt: skip


def _heads(pooler: str, logits: str = "classifier") -> dict[str, dict[str, str]]:
    """Those of the tasks, by `Export.name`."""
    classifier = {"summary": pooler, "logits": logits}
    return {"ForSequenceClassification": classifier, "ForMultipleChoice": classifier,
            "ForTokenClassification": {"logits": "classifier"}, "ForQuestionAnswering": {"logits": "qa_outputs"},
            "Model": {}}  # fmt: skip


def _tied(decoder: str, word: str, bias: str) -> dict[str, str]:
    """The copies of a decoder: its weight is the word embedding."""
    return {f"{decoder}.weight": word, f"{decoder}.bias": bias}


_QKV = ("query", "key", "value")
_BERT_ATTENTION = {name: f"attention.self.{name}" for name in _QKV} | {"output": "attention.output.dense"}
_BERT_LAYER = {
    "attention/norm": "attention.output.LayerNorm", "feed_forward/inner": "intermediate.dense",
    "feed_forward/outer": "output.dense", "feed_forward/norm": "output.LayerNorm",
}  # fmt: skip
_BERT = (
    *_encoder("bert", "layer.{}", _BERT_ATTENTION, _BERT_LAYER,
              {"lm_head/transform": "cls.predictions.transform.dense",
               "lm_head/norm": "cls.predictions.transform.LayerNorm", "pooler": "bert.pooler.dense"}),
    Entry("lm_head/bias", "cls.predictions.bias"), *_pairs("cls.seq_relationship"),
)  # fmt: skip
_ROBERTA = (
    *_encoder("roberta", "layer.{}", _BERT_ATTENTION, _BERT_LAYER,
              {"lm_head/transform": "lm_head.dense", "lm_head/norm": "lm_head.layer_norm"}),
    Entry("lm_head/bias", "lm_head.bias"),
)  # fmt: skip
_ALBERT = (
    *_encoder("albert", "albert_layer_groups.0.albert_layers.0",
              {name: f"attention.{name}" for name in _QKV} | {"output": "attention.dense"},
              {"attention/norm": "attention.LayerNorm", "feed_forward/inner": "ffn",
               "feed_forward/outer": "ffn_output", "feed_forward/norm": "full_layer_layer_norm"},
              {"embedding_projection": "albert.encoder.embedding_hidden_mapping_in", "pooler": "albert.pooler",
               "lm_head/transform": "predictions.dense", "lm_head/norm": "predictions.LayerNorm"}),
    Entry("lm_head/bias", "predictions.bias"), *_pairs("sop_classifier.classifier"),
)  # fmt: skip
_BLOCK = "transformer.h.{}"
_GPT2 = (
    Entry("word_embedding", "transformer.wte.weight"), Entry("position_embedding", "transformer.wpe.weight"),
    *_modules("", {"final_norm": "transformer.ln_f"}),
    # Kernels are [in, out] there.
    *_modules("layers/", {"attention/norm": f"{_BLOCK}.ln_1", "feed_forward/inner": f"{_BLOCK}.mlp.c_fc",
                          "feed_forward/outer": f"{_BLOCK}.mlp.c_proj", "feed_forward/norm": f"{_BLOCK}.ln_2"}, ""),
    Entry(" ".join(f"layers/attention/{name}" for name in _QKV), f"{_BLOCK}.attn.c_attn.weight", "joined"),
    Entry(" ".join(f"layers/attention/{name}_bias" for name in _QKV), f"{_BLOCK}.attn.c_attn.bias", "flat"),
    Entry("layers/attention/output", f"{_BLOCK}.attn.c_proj.weight", "transposed"),
    Entry("layers/attention/output_bias", f"{_BLOCK}.attn.c_proj.bias"),
)  # fmt: skip


def _named(vocab_size: int, **others: tuple[str, Any]) -> dict[str, tuple[str, Any]]:
    """`Peer.named`, with the names and defaults of BERT but for `others`."""
    return {
        "architecture": ("model_type", ""), "vocab_size": ("vocab_size", vocab_size),
        "layers": ("num_hidden_layers", 12), "d_model": ("hidden_size", 768), "heads": ("num_attention_heads", 12),
        "d_ff": ("intermediate_size", 3072), "activation": ("hidden_act", "gelu"),
        "dropout": ("hidden_dropout_prob", 0.1), "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "max_positions": ("max_position_embeddings", 512), "init_std": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("layer_norm_eps", 1e-12), **others,
    }  # fmt: skip


_OF_XLNET = {
    "scale_embedding": False, "cutoffs": "", "div_val": 1, "tie_embedding": True, "position_scheme": "relative",
    "layer_losses": False, "same_length": False,
}  # fmt: skip
_ONLY = _OF_XLNET | {"tie_projections": "all", "clamp_len": -1, "biases_per_layer": True, "memory_len": 0}
_CLASSIFIERS = ("ForSequenceClassification", "ForMultipleChoice")
_OF_HEADS = {"classifier_dropout": Twin("hidden_dropout_prob", None, (*_CLASSIFIERS, "ForTokenClassification"))}
_WHOLE = {"d_embed": 0, "share_layers": False}
_ENCODER = {"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True,
            "position_embedding_type": "absolute"}  # fmt: skip

PEERS = {
    "xlnet": Peer(
        prefix="XLNet", pretraining=("LMHeadModel",), table=HUGGINGFACE,
        heads=_heads("sequence_summary.summary", "logits_proj") | {"ForQuestionAnswering": {
            name: name.replace("/", ".").replace("norm", "LayerNorm")
            for name in ("start_logits/dense", "end_logits/dense_0", "end_logits/norm", "end_logits/dense_1",
                         "answer_class/dense_0", "answer_class/dense_1")}},
        copies={"lm_loss.weight": "transformer.word_embedding.weight"},
        named={
            "architecture": ("model_type", ""), "vocab_size": ("vocab_size", 32000), "layers": ("n_layer", 24),
            "d_model": ("d_model", 1024), "heads": ("n_head", 16), "head_dim": ("d_head", None),
            "d_ff": ("d_inner", 4096), "activation": ("ff_activation", "gelu"), "biases_per_layer": ("untie_r", True),
            "clamp_len": ("clamp_len", -1), "dropout": ("dropout", 0.1), "init_std": ("initializer_range", 0.02),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
        },
        only={"norm": "post"} | _WHOLE | _OF_XLNET,
        required={"attn_type": "bi", "tie_word_embeddings": True, "same_length": False},
        ids={"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "pad"},
        # The lengths of pretraining would change inference and generation there.
        kept={"mem_len": None, "reuse_len": None, "bi_data": False, "use_mems_train": False, "use_mems_eval": True},
        aliases={"n_token": "vocab_size", "num_hidden_layers": "n_layer", "hidden_size": "d_model",
                 "num_attention_heads": "n_head"},
        twins={"summary_last_dropout": Twin("dropout", 0.1, _CLASSIFIERS),
               "end_n_top": Twin("start_n_top", 5, ("ForQuestionAnswering",))},
        always={"biases_per_layer": True},  # one set is copied to each layer
        summary={"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"},
    ),
    "bert": Peer(
        prefix="Bert", pretraining=("ForMaskedLM", "ForPreTraining"), table=_BERT, heads=_heads("bert.pooler.dense"),
        copies=_tied("cls.predictions.decoder", _BERT[0].theirs, "cls.predictions.bias"),
        named=_named(30522), only=_ONLY | _WHOLE | {"norm": "post"},
        required=_ENCODER | {"type_vocab_size": 2, "pad_token_id": 0},
        kept={"classifier_dropout": None, "use_cache": True}, twins=_OF_HEADS,
    ),
    "roberta": Peer(
        prefix="Roberta", pretraining=("ForMaskedLM",), table=_ROBERTA,
        heads=_heads("roberta.pooler.dense") | {
            "ForSequenceClassification": {"summary": "classifier.dense", "logits": "classifier.out_proj"}},
        copies=_tied("lm_head.decoder", _ROBERTA[0].theirs, "lm_head.bias"),
        named=_named(50265), only=_ONLY | _WHOLE | {"norm": "post"},
        # Positions are counted from the id of padding there.
        required=_ENCODER | {"type_vocab_size": 1, "pad_token_id": 1},
        ids={"bos_token_id": "cls", "eos_token_id": "sep"}, kept={"classifier_dropout": None, "use_cache": True},
        twins=_OF_HEADS,
    ),
    "albert": Peer(
        prefix="Albert", pretraining=("ForMaskedLM", "ForPreTraining"), table=_ALBERT, heads=_heads("albert.pooler"),
        copies=_tied("predictions.decoder", _ALBERT[0].theirs, "predictions.bias"),
        named=_named(
            30000, d_model=("hidden_size", 4096), heads=("num_attention_heads", 64), d_embed=("embedding_size", 128),
            d_ff=("intermediate_size", 16384), activation=("hidden_act", "gelu_new"),
            dropout=("hidden_dropout_prob", 0.0), attention_dropout=("attention_probs_dropout_prob", 0.0)),
        only=_ONLY | {"norm": "post", "share_layers": True},
        required=_ENCODER | {"type_vocab_size": 2, "pad_token_id": 0, "num_hidden_groups": 1, "inner_group_num": 1},
        ids={"bos_token_id": "cls", "eos_token_id": "sep"}, summary={"classifier_dropout_prob": 0.1},
    ),
    "gpt2": Peer(
        prefix="GPT2", pretraining=("LMHeadModel",), table=_GPT2,
        heads={"ForSequenceClassification": {"logits": "score"}}, copies={"lm_head.weight": _GPT2[0].theirs},
        named=_named(
            50257, layers=("n_layer", 12), d_model=("n_embd", 768), heads=("n_head", 12), d_ff=("n_inner", None),
            activation=("activation_function", "gelu_new"), dropout=("resid_pdrop", 0.1),
            attention_dropout=("attn_pdrop", 0.1), max_positions=("n_positions", 1024),
            layer_norm_epsilon=("layer_norm_epsilon", 1e-5)),
        only=_ONLY | _WHOLE | {"norm": "pre"},
        required={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
                  "tie_word_embeddings": True},
        ids={"bos_token_id": "bos", "eos_token_id": "eos"},
        kept={"use_cache": True, "reorder_and_upcast_attn": False},  # in float32 the latter changes nothing
        aliases={"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
                 "num_hidden_layers": "n_layer"},
        twins={"embd_pdrop": Twin("resid_pdrop", 0.1)},
        # Of the head of a class that is not here.
        idle=frozenset({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                        "summary_first_dropout"}),
    ),
}  # fmt: skip
"""By `model.architecture`."""
