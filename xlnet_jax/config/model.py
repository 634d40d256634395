"""`model`: the architecture and its rules."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from xlnet_jax.keys import FREE, FROZEN, Rule, key, split_numbers
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.member import Member

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture. Defaults are XLNet-Large."""

    architecture: str = key("xlnet", "member of the family", " ".join(MEMBERS))
    vocab_size: int = key(32000, "vocabulary size; must equal the tokenizer's", "[0, 16_777_216]")
    spare_rows: int = key(
        0,
        "number of last rows of `vocab_size` without a piece, as in padded tables of imports; "
        "the loss counts them, decoding excludes them",
        "[0, 16_777_216]",
    )
    layers: int = key(24, "number of layers", "[1, 1_000]")
    d_model: int = key(1024, "model width D", "[1, 65_536]")
    heads: int = key(16, "attention heads H", "[1, 4_096]")
    head_dim: int = key(64, "width of one head E", "[1, 4_096]")
    d_ff: int = key(4096, "inner width of the feed-forward layer F", "[1, 262_144]")
    activation: str = key("gelu", "gelu is the tanh approximation", "gelu gelu_erf relu")
    biases_per_layer: bool = key(
        True, "each layer has its own attention biases u, v and w (`untie_r`)"
    )
    norm: str = key(
        "post", "LayerNorm after each residual sum (post) or before each branch (pre)", "post pre"
    )
    scale_embedding: bool = key(
        False, "multiplies word embeddings by sqrt(d_model) (Transformer-XL)"
    )
    cutoffs: str = key(
        "",
        "ids at which the tail clusters of the adaptive softmax begin, with commas; empty = no "
        "clusters",
    )
    div_val: int = key(1, "tail cluster i has vectors of width d_embed / div_val^i", "[1, 65_536]")
    d_embed: int = key(
        0,
        "width of the word embedding before its projection; 0 = d_model, without projection",
        "[0, 65_536]",
    )
    tie_embedding: bool = key(True, "the softmax shares the weights of the word embedding")
    tie_projections: str = key(
        "all",
        "clusters whose softmax shares the embedding's projection; rest = all but the first",
        "all rest none",
    )
    share_layers: bool = key(False, "all layers share their parameters (ALBERT)")
    max_positions: int = key(
        512,
        "tokens of the longest text of bert, roberta, albert, modernbert, gpt2 and transformer",
        "[1, 1_048_576]",
    )
    layer_losses: bool = key(
        False,
        "each layer below the last also predicts, layer l of n until l / (2n) of train.steps "
        "(Vanilla Transformer)",
        of_run=True,
    )
    memory_len: int = key(
        384, "memory slots M; 0 = no memory", "[0, 1_048_576]", of_run=True, phased=True
    )
    same_length: bool = key(
        False, "each query sees the `memory_len` newest positions, itself included", of_run=True
    )
    clamp_len: int = key(
        -1, "larger relative distances count as this distance", "[1, inf)", special={-1: "off"}
    )
    window: int = key(
        0,
        "modern, modernbert: layers that are not global see tokens at a distance of at most "
        "window // 2; 0 = all layers are global",
        "[2, 1_048_576]",
        special={0: "off"},
    )
    global_every: int = key(
        3, "with a window, every n-th layer is global, the first one too", "[1, 1_000]"
    )
    theta: float = key(
        10000.0, "base of the rotary angles in global layers", "[1, inf)", phased=True
    )
    theta_local: float = key(
        10000.0, "base of the rotary angles in layers with a window", "[1, inf)", phased=True
    )
    dropout: float = key(
        0.1,
        "rate on embedding, position table, sub-layer outputs and final output",
        "[0, 1)",
        of_run=True,
        phased=True,
    )
    attention_dropout: float = key(
        0.1, "rate on attention probabilities", "[0, 1)", of_run=True, phased=True
    )
    activation_dropout: float = key(
        0.0, "rate after the feed-forward activation", "[0, 1)", of_run=True, phased=True
    )
    init_std: float = key(
        0.02, "standard deviation of the normal initialiser", "(0, inf)", of_run=True
    )
    init_truncated: bool = key(
        False, "truncates the initialiser at 2 standard deviations (Google's BERT)", of_run=True
    )
    layer_norm_epsilon: float = key(1e-12, "epsilon of LayerNorm", "(0, inf)")
    compute_dtype: str = key(
        "bfloat16",
        "dtype of activations and memory; softmax, LayerNorm, positions and loss use at "
        "least float32",
        "bfloat16 float32 float64",
        of_run=True,
    )
    remat: str = key(
        "none",
        "recomputed in the backward pass: nothing, all but matrix products (dots), or whole "
        "layers (full)",
        "none dots full",
        FREE,
    )
    attention: str = key(
        "auto",
        "implementation, with equal results; auto = chosen by device",
        "auto xla cpu fused",
        FREE,
    )
    unroll: str = key(
        "auto",
        "unrolls the layers of a training step; auto = only with attention=cpu",
        "auto on off",
        FREE,
    )

    @property
    def member(self) -> Member:
        """The member that `architecture` names."""
        return MEMBERS[self.architecture]

    @property
    def pieces(self) -> int:
        """Number of vocabulary rows with a piece; the spare rows follow them."""
        return self.vocab_size - self.spare_rows

    @property
    def on_cpu(self) -> bool:
        """Whether the program is for a CPU."""
        return self.attention == "cpu"

    def cutoff_list(self) -> list[int]:
        """Returns `cutoffs` as numbers."""
        return split_numbers(self.cutoffs, int)

    @property
    def saves_probabilities(self) -> bool:
        """Whether the TPU attention kernel keeps probabilities for its backward pass. A loop over
        layers would copy them into a stack; and without relative positions computing them again is
        faster than writing and reading them.
        """
        relative = self.member.parts.positions == "relative"
        return relative and self.remat == "none" and self.unroll == "on"

    @property
    def adaptive(self) -> bool:
        """Whether the embedding has clusters or projections, or the head has untied weights."""
        own = bool(self.cutoffs or self.d_embed not in (0, self.d_model) or not self.tie_embedding)
        return own and not self.member.bounded


ARCHITECTURE = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if field.metadata["resume"] == FROZEN and not field.metadata["of_run"]
)
"""Keys of `model` that belong to parameters: a run that starts from a checkpoint takes their values
from the checkpoint.
"""


def rules(config: Config) -> list[Rule]:
    """Returns the rules for the architecture."""
    return [
        *_member_rules(config),
        *_rotary_rules(config.model),
        *_cluster_rules(config.model),
        *_causal_rules(config),
    ]


def _member_rules(config: Config) -> list[Rule]:
    """Returns the rules of the member of the family."""
    model, data, member = config.model, config.data, config.model.member
    name, bounded, pretrains = (
        f"model.architecture={member.name}",
        member.bounded,
        config.pretrains,
    )
    return [
        (
            "data.objective",
            not pretrains or data.objective in member.objectives,
            f"is not for {name}, which is trained by {' or '.join(member.objectives)}",
        ),
        (
            "finetune.task",
            pretrains or member.parts.positions != "per_layer",
            f"is not for {name}; use none",
        ),
        *(
            (f"model.{key}", getattr(model, key) == value, f"is not for {name}; use {value!r}")
            for key, value in member.required.items()
        ),
        ("model.vocab_size", model.pieces > 9, "must hold the nine special pieces and some text"),
        (
            "model.d_model",
            model.d_model % 2 == 0 or member.parts.positions in ("input", "rotary"),
            "must be even: positions are half sine, half cosine",
        ),
        (
            "data.segment_len",
            not bounded or data.segment_len <= model.max_positions,
            f"is more than model.max_positions={model.max_positions}",
        ),
        (
            "data.bidirectional",
            not (bounded and pretrains and data.bidirectional),
            f"must be False with {name}: its positions have one direction",
        ),
        (
            "data.sentence_loss",
            not (bounded and data.sentence_loss) or (pretrains and member.segments == 2),
            f"needs two segments; use False with {name}"
            if pretrains
            else "is for pretraining; use False",
        ),
    ]


def _rotary_rules(model: ModelConfig) -> list[Rule]:
    """Returns the rules of rotary positions and of the keys that only they, or only windows,
    have.
    """
    default, rotary = ModelConfig(), model.member.parts.positions == "rotary"
    if rotary:
        needs, other = "layers with a window", "model.window=0"
        unread = () if model.window else ("global_every", "theta_local")
    else:
        needs, other = "rotary positions", f"model.architecture={model.architecture}"
        unread = ("window", "global_every", "theta", "theta_local")
    return [
        (
            "model.head_dim",
            not rotary or model.head_dim % 2 == 0,
            "must be even: rotary positions turn pairs of elements",
        ),
        *(
            (
                f"model.{key}",
                getattr(model, key) == getattr(default, key),
                f"is for {needs}; use {getattr(default, key)} with {other}",
            )
            for key in unread
        ),
    ]


def _cluster_rules(model: ModelConfig) -> list[Rule]:
    """Returns the rules of the clusters of the adaptive embedding and softmax."""
    return [
        (
            "model.cutoffs",
            all(a < b for a, b in itertools.pairwise([0, *model.cutoff_list(), model.vocab_size])),
            (
                "must be rising numbers between 0 and "
                f"model.vocab_size={model.vocab_size}, with commas: 20000,40000"
            ),
        ),
        (
            "model.spare_rows",
            not (model.spare_rows and model.adaptive),
            "must be 0 with clusters or projections",
        ),
        (
            "model.div_val",
            model.cutoffs or model.div_val == 1,
            "must be 1 without model.cutoffs",
        ),
        (
            "model.div_val",
            (model.d_embed or model.d_model) >= model.div_val ** (model.cutoffs.count(",") + 1),
            "leaves no width for the last cluster; use a smaller value or fewer model.cutoffs",
        ),
    ]


def _causal_rules(config: Config) -> list[Rule]:
    """Returns the rules of keys that only left-to-right models have."""
    model, data, causal = config.model, config.data, config.objective.causal
    pretrains_causal = causal and config.pretrains
    return [
        (
            "model.same_length",
            model.memory_len or not model.same_length,
            "needs a memory: a query would see nothing with model.memory_len=0",
        ),
        ("model.same_length", causal or not model.same_length, "needs data.objective=clm"),
        (
            "model.layer_losses",
            not model.layer_losses or model.norm == "post",
            "needs model.norm=post: the sums of pre-norm layers are not normalised",
        ),
        (
            "model.layer_losses",
            not model.layer_losses or pretrains_causal,
            "is for pretraining with data.objective=clm; use False",
        ),
        (
            "model.layer_losses",
            not model.layer_losses or model.layers > 1,
            "needs layers below the last; use False",
        ),
        (
            "data.multi_token_prediction",
            data.multi_token_prediction == 1 or (pretrains_causal and not model.member.bounded),
            (
                "is for pretraining with data.objective=clm of members whose texts do not end at "
                "model.max_positions; use 1"
            ),
        ),
    ]
