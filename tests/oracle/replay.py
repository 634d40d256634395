"""The cases of the oracle, and our side of them: replays what an independent XLNet was fed, and
compares.

`generate.py` writes what that implementation (Hugging Face `transformers`) did with three segments
in a row, memory carried: one .npz file per case, and one with the weights, which all cases share.
Nothing here needs it or torch. Arrays of a file, S = 3 segments; outputs and gradients are those of
the last segment:

    tokens, segments, rank        [S, B, T]       as our Batch has them
    padding                       [S, B, T]       bool
    hidden                        [S, B, T, T]    bool, i may not see j: what the other side was
                                                  given instead of ranks
    target_positions, _weights    [S, B, P]
    direction                     [B]
    content, query                [L, B, T or P, D]    after every layer
    attention_content, _query     [L, B, H, P, K]      rows of the targets; K counts filled memory
                                                       slots only
    logits, loss                  [B, P, V], []
    memory_0, memory_1, memory_2  [L, B, filled slots, D]   after each segment
    gradient                      all gradients, flattened, in the order of the weights' file
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import ModelConfig
from xlnet_jax.model.transformer import Output, XLNet, empty_memory
from xlnet_jax.train.loss import LanguageModel, mean_loss

FOLDER = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = "weights"
SEGMENTS = 3
TOLERANCES = {
    "float64": {"forward": 1e-10, "gradient": 1e-8},
    "float32": {"forward": 2e-5, "gradient": 2e-5},
}
"""Relative to the largest value of each array."""
NO_EFFECT = 1e-6
"""A gradient this much smaller than the largest is rounding."""

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and one kind of input. Everything that both sides have to agree on."""

    vocab_size: int = 24
    layers: int = 3
    width: int = 8
    heads: int = 2
    ff_width: int = 20
    activation: str = "gelu"
    tied: bool = False
    clamp_len: int = -1
    memory_len: int = 8
    reuse_len: int | None = 6
    """What enters the memory; None: the whole segment."""
    length: int = 14
    direction: tuple[int, ...] = (1, 1)
    """One entry per row: here is where B comes from."""
    left_padding: tuple[int, ...] = (0, 0)
    right_padding: tuple[int, ...] = (0, 0)
    """Of the last segment only: the other side lets later segments see the padding in their memory,
    ours too.
    """
    targets: tuple[int, ...] = (5, 5)
    segments: bool = True
    """False: the other side is given none, ours a constant."""
    two_streams: bool = True
    order: str = "permutation"
    """Who sees whom: `permutation`, `everything` or `left_to_right`."""


CASES = {
    "plain": Case(),
    "reversed": Case(direction=(-1, 1)),
    "clamp_len": Case(clamp_len=4, direction=(1, -1)),
    "memory_shorter": Case(memory_len=4),
    "memory_longer": Case(memory_len=17, direction=(-1, -1)),
    "padding": Case(left_padding=(3, 0), right_padding=(0, 2)),
    "fewer_targets": Case(targets=(4, 2)),
    "no_segments": Case(segments=False),
    "tied_biases": Case(tied=True),
    "relu": Case(activation="relu"),
    "gelu_erf": Case(activation="gelu_erf"),
    "single_stream": Case(two_streams=False, order="everything", reuse_len=None),
    "left_to_right": Case(
        two_streams=False, order="left_to_right", reuse_len=None, direction=(1, -1)
    ),
    "one_token": Case(
        length=1,
        memory_len=1,
        two_streams=False,
        order="left_to_right",
        reuse_len=None,
        direction=(1, -1),
        targets=(1, 1),
    ),
}
"""The tanh form of gelu is the default, so that `plain` and most others are about it."""


def path(name: str) -> str:
    """The file of a case, or of the weights; in a folder, as `xl/plain`, a case of `xl_replay`."""
    return os.path.join(FOLDER, f"{name}.npz")


def load(name: str) -> Arrays:
    with np.load(path(name)) as arrays:
        return dict(arrays)


def model_config(case: Case, dtype: str, attention: str = "auto") -> ModelConfig:
    return ModelConfig(
        vocab_size=case.vocab_size,
        layers=case.layers,
        d_model=case.width,
        heads=case.heads,
        head_dim=case.width // case.heads,
        d_ff=case.ff_width,
        activation=case.activation,
        biases_per_layer=not case.tied,
        memory_len=case.memory_len,
        clamp_len=case.clamp_len,
        dropout=0.0,
        attention_dropout=0.0,
        compute_dtype=dtype,
        attention=attention,
    )


# Their names and ours. Kernels of dense layers are [out, in] there.
WHOLE = {
    "transformer.word_embedding.weight": "word_embedding",
    "transformer.mask_emb": "mask_embedding",
    "lm_loss.bias": "lm_head/bias",
}
OF_LAYER = {
    "rel_attn.q": "attention/query",
    "rel_attn.k": "attention/key",
    "rel_attn.v": "attention/value",
    "rel_attn.r": "attention/position",
    "rel_attn.o": "attention/output",
    "rel_attn.seg_embed": "attention/segment_embedding",
    "rel_attn.layer_norm.weight": "attention/norm/scale",
    "rel_attn.layer_norm.bias": "attention/norm/bias",
    "ff.layer_1.weight": "feed_forward/inner/kernel",
    "ff.layer_1.bias": "feed_forward/inner/bias",
    "ff.layer_2.weight": "feed_forward/outer/kernel",
    "ff.layer_2.bias": "feed_forward/outer/bias",
    "ff.layer_norm.weight": "feed_forward/norm/scale",
    "ff.layer_norm.bias": "feed_forward/norm/bias",
}
BIASES = {
    "rel_attn.r_w_bias": "content_bias",
    "rel_attn.r_r_bias": "position_bias",
    "rel_attn.r_s_bias": "segment_bias",
}


def parameters(tensors: Arrays, case: Case, *, gradients: bool = False) -> Arrays:
    """Their tensors under our paths, layers stacked.

    Tied biases are copies in every layer there: as weights any of them will do, as gradients they
    add up.
    """
    ours = {mine: tensors[theirs] for theirs, mine in WHOLE.items()}
    ours["mask_embedding"] = ours["mask_embedding"].reshape(-1)

    def stacked(name: str) -> np.ndarray:
        return np.stack([tensors[f"transformer.layer.{i}.{name}"] for i in range(case.layers)])

    for theirs, mine in OF_LAYER.items():
        array = stacked(theirs)
        ours[f"layers/{mine}"] = array.transpose(0, 2, 1) if mine.endswith("kernel") else array
    for theirs, mine in BIASES.items():
        array = stacked(theirs)
        if not case.tied:
            ours[f"layers/attention/{mine}"] = array
        else:
            ours[f"biases/{mine}"] = array.sum(axis=0) if gradients else array[0]
    return ours


def split(flat: np.ndarray, weights: Arrays) -> Arrays:
    """The vector of all gradients as tensors under their names."""
    ends = np.cumsum([tensor.size for tensor in weights.values()])
    return {
        name: part.reshape(weights[name].shape)
        for name, part in zip(weights, np.split(flat, ends[:-1]), strict=True)
    }


def batch_of(case: Case, recorded: Arrays, segment: int) -> Batch:
    tokens, positions = recorded["tokens"][segment], recorded["target_positions"][segment]
    B = len(tokens)
    return Batch(
        tokens=tokens.astype(np.int32),
        segments=recorded["segments"][segment].astype(np.int32),
        rank=recorded["rank"][segment].astype(np.int32),
        direction=recorded["direction"].astype(np.int32),
        continues=np.full(B, segment > 0),
        target_positions=positions.astype(np.int32),
        target_tokens=np.take_along_axis(tokens, positions, axis=1).astype(np.int32),
        target_weights=recorded["target_weights"][segment].astype(np.float32),
        summary_position=np.full(B, tokens.shape[1] - 1, np.int32),
        label=np.zeros(B, np.int32),
        label_weight=np.zeros(B, np.float32),
    )


class Observed:
    """The model, but keeps output and intermediates: they are compared from the very pass that the
    gradient is of.
    """

    def __init__(self, model: XLNet) -> None:
        self.model, self.config, self.parts, self.out, self.layers = (
            model,
            model.config,
            model.parts,
            None,
            None,
        )
        self.objective = model.objective

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Output:
        self.out, seen = self.model.apply(
            variables, *args, mutable=["intermediates", "layer_outputs"], **kwargs
        )
        self.layers = {**seen["intermediates"]["layers"], **seen["layer_outputs"]["layers"]}
        return self.out


@functools.partial(jax.jit, static_argnames=("config", "reuse_len", "two_streams"))
def measure(
    config: ModelConfig,
    reuse_len: int | None,
    two_streams: bool,
    params: Any,
    batch: Batch,
    memory: Memory,
) -> dict[str, Any]:
    """All that is compared, of one segment. Without a query stream the content stream predicts, at
    the same places.
    """
    at_targets = jax.vmap(lambda x, at: jnp.take(x, at, axis=-2))

    def content_loss(params: Any, model: Any) -> jax.Array:
        none = {
            name: getattr(batch, name)[:, :0]
            for name in ("target_positions", "target_tokens", "target_weights")
        }
        out = model.apply({"params": params}, dataclasses.replace(batch, **none), memory)
        vectors_BPD = at_targets(out.hidden_BTD, batch.target_positions)
        nll_BP = LanguageModel(model).nll(params, vectors_BPD, batch.target_tokens)
        return jnp.sum(nll_BP * batch.target_weights) / jnp.sum(batch.target_weights)

    def loss(params: Any) -> tuple[jax.Array, Any]:
        model: Any = Observed(XLNet(config, reuse_len))
        if two_streams:
            value, _ = mean_loss(params, LanguageModel(model), batch, memory)
        else:
            value = content_loss(params, model)
        return value, (model.out, model.layers)

    (value, (out, layers)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    positions, attention = batch.target_positions, layers["attention"]
    vectors = out.target_vectors_BPD if two_streams else at_targets(out.hidden_BTD, positions)
    found = {
        "content": layers["content_stream"][0],
        "logits": LanguageModel(XLNet(config, reuse_len)).logits(params, vectors),
        "loss": value,
        "gradient": gradient,
        "memory": out.memory,
    }
    if two_streams:
        found["query"] = layers["query_stream"][0]
    # The fused kernels have no probabilities.
    if config.attention != "fused":
        found["attention_content"] = jax.vmap(lambda x: at_targets(x, positions))(
            attention["probability_content"][0]
        )
        if two_streams:
            found["attention_query"] = attention["probability_query"][0]
    return found


def our_parameters(case: Case, weights: Arrays, dtype: str) -> Any:
    flat = {name: array.astype(dtype) for name, array in parameters(weights, case).items()}
    return traverse_util.unflatten_dict(flat, sep="/")


def named_gradient(gradient: Any) -> Arrays:
    return {
        f"gradient/{name}": np.asarray(x)
        for name, x in traverse_util.flatten_dict(gradient, sep="/").items()
    }


def run(
    case: Case,
    weights: Arrays,
    recorded: Arrays,
    dtype: str,
    attention: str = "auto",
) -> Arrays:
    """Our results for the segments of a file, in its layout.

    The caller has x64 enabled if `dtype` is float64. `attention` is the implementation, as in
    `model.attention`.
    """
    config, params = model_config(case, dtype, attention), our_parameters(case, weights, dtype)
    memory = empty_memory(config, len(case.direction))
    results: Arrays = {}
    for segment in range(SEGMENTS):
        batch = batch_of(case, recorded, segment)
        empty = case.memory_len - filled_slots(memory)
        found = measure(config, case.reuse_len, case.two_streams, params, batch, memory)
        memory = found["memory"]
        kept = np.asarray(memory.hidden_LBMD)[:, :, case.memory_len - filled_slots(memory) :]
        results[f"memory_{segment}"] = kept
    for name in ("attention_content", "attention_query"):
        if name in found:
            probability = np.asarray(found[name])
            assert not probability[..., :empty].any(), "an empty memory slot is attended to"
            results[name] = probability[..., empty:]
    results |= {
        name: np.asarray(found[name])
        for name in ("content", "query", "logits", "loss")
        if name in found
    }
    return results | named_gradient(found["gradient"])


def filled_slots(memory: Memory) -> int:
    """Of every row: here all rows have read the same number of segments."""
    filled = set(np.asarray(memory.valid_B).tolist())
    assert len(filled) == 1
    return filled.pop()


def errors(case: Case, weights: Arrays, recorded: Arrays, found: Arrays) -> dict[str, float]:
    """The largest error of every array compared, relative to the largest value the other side has
    there.

    Left out is what means nothing: unused target slots, and the content stream at padding, which
    nobody looks at and which differs by intent: over there padding sees itself, here not even that.
    """
    text_SBT, used_BP = ~recorded["padding"], recorded["target_weights"][-1] > 0
    compared: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def compare(name: str, keep_BX: np.ndarray, rows: int = 2) -> None:
        """Of an array [L, B, ..] those rows of the batch and of the axis `rows` that count."""
        ours, theirs = found[name], recorded[name]
        assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
        compared[name] = (
            np.moveaxis(ours, rows, 2)[:, keep_BX],
            np.moveaxis(theirs, rows, 2)[:, keep_BX],
        )

    compare("content", text_SBT[-1])
    if case.two_streams:
        compare("query", used_BP)
    for name in found.keys() & {"attention_content", "attention_query"}:
        compare(name, used_BP, rows=3)
    slots_BM = np.zeros((len(used_BP), 0), bool)
    for segment in range(SEGMENTS):
        slots_BM = np.concatenate([slots_BM, text_SBT[segment][:, : case.reuse_len]], axis=1)
        slots_BM = slots_BM[:, max(0, slots_BM.shape[1] - case.memory_len) :]
        compare(f"memory_{segment}", slots_BM)
    compared["logits"] = found["logits"][used_BP], recorded["logits"][used_BP]
    compared["loss"] = found["loss"], recorded["loss"]

    theirs = gradients(case, weights, recorded)
    ours = by_layer({name: found[f"gradient/{name}"] for name in parameters(weights, case)})
    assert ours.keys() == theirs.keys()
    compared |= {f"gradient/{name}": (ours[name], theirs[name]) for name in theirs}
    largest = max(np.abs(array).max() for array in theirs.values())

    def error(ours: np.ndarray, theirs: np.ndarray) -> float:
        scale = np.abs(theirs).max()
        # What is nothing but rounding (the gradient of what has no effect) has no scale of its own.
        return float(
            np.abs(ours - theirs).max() / (scale if scale > NO_EFFECT * largest else largest)
        )

    return {name: error(*pair) for name, pair in compared.items() if pair[1].size}


def gradients(case: Case, weights: Arrays, recorded: Arrays) -> Arrays:
    """Theirs, under our paths, one array per layer."""
    return by_layer(parameters(split(recorded["gradient"], weights), case, gradients=True))


def by_layer(arrays: Arrays) -> Arrays:
    """Stacked arrays taken apart: an array over there is one layer here."""
    parts = {
        f"{name}[{i}]": x
        for name, xs in arrays.items()
        if name.startswith("layers/")
        for i, x in enumerate(xs)
    }
    return parts | {name: array for name, array in arrays.items() if not name.startswith("layers/")}


def too_large(errors: dict[str, float], dtype: str) -> dict[str, float]:
    """What differs; a NaN does."""
    limits = TOLERANCES[dtype]
    return {
        name: x
        for name, x in errors.items()
        if not x <= limits["gradient" if "gradient" in name else "forward"]
    }
