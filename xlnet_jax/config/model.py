"""`model`: the architecture, and the rules for it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from xlnet_jax.keys import FREE, FROZEN, Rule, key, numbers
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.member import Member

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture. Defaults are XLNet-Large."""

    architecture: str = key(
        "xlnet",
        "member of the family: its parts, objectives and examples",
        choices=" ".join(MEMBERS),
    )
    vocab_size: int = key(32000, "pieces in the vocabulary; must be the tokenizer's", le=2**24)
    spare_rows: int = key(
        0,
        "how many of the last rows of `vocab_size` have no piece, as in imported tables that are "
        "padded; they are kept and in the softmax of the loss, but never predicted",
        le=2**24,
    )
    layers: int = key(24, "number of layers", ge=1, le=1000)
    d_model: int = key(1024, "model width D", ge=1, le=2**16)
    heads: int = key(16, "attention heads H", ge=1, le=2**12)
    head_dim: int = key(64, "width of one head E", ge=1, le=2**12)
    d_ff: int = key(4096, "inner width of the feed-forward layer F", ge=1, le=2**18)
    activation: str = key(
        "gelu", "gelu is the tanh approximation, as in the original", choices="gelu gelu_erf relu"
    )
    biases_per_layer: bool = key(True, "every layer has its own u, v and w biases (`untie_r`)")
    norm: str = key(
        "post",
        "LayerNorm after each residual sum, or before each of its branches",
        choices="post pre",
    )
    scale_embedding: bool = key(False, "word embeddings times sqrt(d_model), as in Transformer-XL")
    cutoffs: str = key(
        "",
        "adaptive embedding and softmax: first words of the tail clusters, by commas; empty = none",
    )
    div_val: int = key(
        1, "vectors of tail cluster i have the width d_embed / div_val^i", ge=1, le=2**16
    )
    d_embed: int = key(
        0, "width of the word embedding before its projection; 0 = d_model, without one", le=2**16
    )
    tie_embedding: bool = key(True, "the softmax has the word embedding as its weights")
    tie_projections: str = key(
        "all",
        "clusters whose softmax has the embedding's projection; rest = all but the first",
        choices="all rest none",
    )
    share_layers: bool = key(False, "one layer's parameters serve as all layers (ALBERT)")
    max_positions: int = key(
        512, "positions at the input: tokens of the longest text", ge=1, le=2**20
    )
    layer_losses: bool = key(
        False,
        "layer l of n predicts too, with a softmax of its own, "
        "until l / 2n of train.steps (Vanilla Transformer)",
        of_run=True,
    )
    memory_len: int = key(384, "memory slots M; 0 = no memory", le=2**20, of_run=True, phased=True)
    same_length: bool = key(
        False,
        "a query sees the `memory_len` newest positions, itself included: all see equally many",
        of_run=True,
    )
    clamp_len: int = key(-1, "clip relative distances to +-clamp_len", ge=1, special={-1: "off"})
    dropout: float = key(
        0.1,
        "embedding, position table, both sub-layer outputs, final output",
        lt=1,
        of_run=True,
        phased=True,
    )
    attention_dropout: float = key(0.1, "attention probabilities", lt=1, of_run=True, phased=True)
    activation_dropout: float = key(
        0.0, "after the feed-forward activation", lt=1, of_run=True, phased=True
    )
    init_std: float = key(0.02, "standard deviation of the normal initialiser", gt=0, of_run=True)
    init_truncated: bool = key(
        False, "the initialiser is cut off at 2 standard deviations (Google's BERT)", of_run=True
    )
    layer_norm_epsilon: float = key(1e-12, "as in the original", gt=0)
    compute_dtype: str = key(
        "bfloat16",
        "dtype of activations and memory; softmax, LayerNorm, "
        "positions and loss are at least float32",
        choices="bfloat16 float32 float64",
        of_run=True,
    )
    remat: str = key(
        "none",
        "recomputed backward: nothing, all but matmuls, or whole layers",
        FREE,
        "none dots full",
    )
    attention: str = key(
        "auto",
        "all implementations give the same results; auto = fused on TPU v4 and later and on "
        "NVIDIA A100, H100 and H200 if it agrees with xla, cpu on a CPU, else xla",
        FREE,
        "auto xla cpu fused",
    )
    unroll: str = key(
        "auto",
        "layers of a training step one by one; auto = with attention=cpu",
        FREE,
        "auto on off",
    )

    @property
    def member(self) -> Member:
        """All that `architecture` says."""
        return MEMBERS[self.architecture]

    @property
    def pieces(self) -> int:
        """Rows of the vocabulary that have a piece: the first ones."""
        return self.vocab_size - self.spare_rows

    @property
    def on_cpu(self) -> bool:
        """Whether the program is for a CPU."""
        return self.attention == "cpu"

    def cutoff_list(self) -> list[int]:
        """`cutoffs` as numbers."""
        return numbers(self.cutoffs, int)

    @property
    def saves_probabilities(self) -> bool:
        """Whether the attention kernel on TPU leaves them to its backward pass. A loop would copy
        them into a stack.
        """
        return self.remat == "none" and self.unroll == "on"

    @property
    def adaptive(self) -> bool:
        """Whether the embedding has clusters or projections, or the head has weights of its own."""
        own = bool(self.cutoffs or self.d_embed not in (0, self.d_model) or not self.tie_embedding)
        return own and not self.member.positions_at_input


ARCHITECTURE = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if field.metadata["resume"] == FROZEN and not field.metadata["of_run"]
)
"""Keys of `model` that belong to its parameters: a run that starts from other parameters takes
these keys with them.
"""


def rules(config: Config) -> list[Rule]:
    """Rules for the architecture; Vanilla's own keys are the last."""
    model, data, member, pretrains = (
        config.model,
        config.data,
        config.model.member,
        config.pretrains,
    )
    name, at_input = f"model.architecture={member.name}", member.positions_at_input
    causal = config.objective.causal
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
            model.d_model % 2 == 0 or member.parts.positions == "input",
            "must be even: positions are half sine, half cosine",
        ),
        (
            "data.segment_len",
            not at_input or data.segment_len <= model.max_positions,
            f"is more than model.max_positions={model.max_positions}",
        ),
        (
            "data.bidirectional",
            not (at_input and pretrains and data.bidirectional),
            f"must be False with {name}: its positions have one direction",
        ),
        (
            "data.sentence_loss",
            not (at_input and data.sentence_loss) or (pretrains and member.segments == 2),
            f"needs two segments; use False with {name}"
            if pretrains
            else "is for pretraining; use False",
        ),
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
            not model.spare_rows or not model.adaptive,
            "must be 0 with clusters or projections",
        ),
        (
            "model.div_val",
            model.div_val == 1 or bool(model.cutoffs),
            "must be 1 without model.cutoffs",
        ),
        (
            "model.div_val",
            (model.d_embed or model.d_model) >= model.div_val ** (model.cutoffs.count(",") + 1),
            "leaves no width for the last cluster; use a smaller one or fewer model.cutoffs",
        ),
        (
            "model.same_length",
            model.memory_len > 0 or not model.same_length,
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
            not model.layer_losses or (causal and pretrains),
            "is for pretraining with data.objective=clm; use False",
        ),
        (
            "model.layer_losses",
            not model.layer_losses or model.layers > 1,
            "needs layers below the last; use False",
        ),
        (
            "data.multi_token_prediction",
            data.multi_token_prediction == 1 or (causal and pretrains and not at_input),
            "is for pretraining with data.objective=clm, without positions at the input; use 1",
        ),
    ]
