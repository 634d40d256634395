"""Checkpoints of Transformer-XL's TensorFlow code: every variable comes in, and the model is the
one it was.

The variables are made of the weights in `tests/oracle/xl`, under the names and shapes that the
original's code gives them. What they compute is recorded there.
"""

import functools
import itertools
import math
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import traverse_util
from oracle import xl_replay
from oracle.xl_replay import CASES, SEGMENTS, B, T, batch_of

from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.convert import tensorflow, transformer_xl
from xlnet_jax.convert.names import Arrays
from xlnet_jax.data.tokenizer import SPECIAL_PIECES
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.recipe import language_model, make_recipe

CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "transformer_xl")
SAVED = ["plain", "same_length", "adaptive", "projected", "div_4"]
"""The recorded models that the original's TensorFlow code can express: no pre-norm, tied tables."""

OF_LAYER = {
    "rel_attn/qkv/kernel": "dec_attn.qkv_net.weight",
    "rel_attn/r/kernel": "dec_attn.r_net.weight",
    "rel_attn/o/kernel": "dec_attn.o_net.weight",
    "ff/layer_1/kernel": "pos_ff.CoreNet.0.weight",
    "ff/layer_1/bias": "pos_ff.CoreNet.0.bias",
    "ff/layer_2/kernel": "pos_ff.CoreNet.3.weight",
    "ff/layer_2/bias": "pos_ff.CoreNet.3.bias",
    **{
        f"{ours}/LayerNorm/{part}": f"{theirs}.layer_norm.{name}"
        for ours, theirs in (("rel_attn", "dec_attn"), ("ff", "pos_ff"))
        for part, name in (("gamma", "weight"), ("beta", "bias"))
    },
}
"""The original's variables of a layer, and those of the recordings."""


def variables_of(recorded, model: ModelConfig) -> dict[str, np.ndarray]:
    theirs = {
        name.removeprefix("weight/"): x
        for name, x in recorded.items()
        if name.startswith("weight/")
    }
    ends = [0, *model.cutoff_list(), model.vocab_size]
    found = {}
    for i, (name, their) in itertools.product(range(model.layers), OF_LAYER.items()):
        found[f"transformer/layer_{i}/{name}"] = theirs[f"transformer.layers.{i}.{their}"].T
    for name in ("r_w_bias", "r_r_bias"):
        each = [theirs.get(f"transformer.layers.{i}.dec_attn.{name}") for i in range(model.layers)]
        found[f"transformer/{name}"] = (
            np.stack(each) if model.biases_per_layer else theirs[f"transformer.{name}"]
        )
    embedding, softmax = "transformer/adaptive_embed", "transformer/adaptive_softmax"
    for i in range(len(ends) - 1):
        table = theirs.get(f"transformer.word_emb.emb_layers.{i}.weight")
        if table is not None:
            found[
                f"{embedding}/cutoff_{i}/lookup_table"
                if model.div_val > 1
                else f"{embedding}/lookup_table"
            ] = table
        for name, their in (
            (f"{embedding}/cutoff_{i}/proj_W", "transformer.word_emb.emb_projs"),
            (f"{softmax}/cutoff_{i}/proj", "crit.out_projs"),
        ):
            if f"{their}.{i}" in theirs:
                name = name if model.div_val > 1 or "softmax" in name else f"{embedding}/proj_W"
                found[name] = theirs[f"{their}.{i}"].T
    biases = [
        theirs[name]
        for name in sorted(theirs)
        if name.startswith("crit.out_layers") and name.endswith("bias")
    ]
    if not model.cutoffs:
        return found | {f"{softmax}/bias": biases[0]}
    bias = np.concatenate(biases)
    found |= {
        f"{softmax}/cutoff_{i}/b": bias[a:b] for i, (a, b) in enumerate(itertools.pairwise(ends))
    }
    return found | {
        f"{softmax}/cutoff_0/cluster_W": theirs["crit.cluster_weight"],
        f"{softmax}/cutoff_0/cluster_b": theirs["crit.cluster_bias"],
    }


SYMBOLS = ["the", "<eos>", "<unk>", *(f"w{i}" for i in range(21))]
"""`<unk>` is among the special pieces here."""


def vocabulary(folder, symbols):
    path = folder / "symbols.txt"
    path.write_text("".join(f"{symbol}\n" for symbol in symbols))
    return transformer_xl.open_vocabulary(str(path), "here")


def read(variables, ids, **changes):
    """The model and our tree, as `open_source` makes them."""
    arrays = Arrays.of("model.ckpt", variables)
    model = ModelConfig(
        **transformer_xl.read_model(arrays, ids), **transformer_xl.CONSTANTS, **changes
    )
    return model, transformer_xl.from_original(model, ids, abstract(model), arrays)


@functools.cache
def abstract(model):
    config = Config(model=model, data=DataConfig(objective="clm", bidirectional=False))
    return nn.meta.unbox(make_recipe(config).abstract_params)


@functools.partial(jax.jit, static_argnums=0)
def segment(model, params, batch, memory):
    """Losses [B, T], probabilities of the last position [B, V], and the memory."""
    whole = language_model(
        Config(model=model, data=DataConfig(objective="clm", segment_len=T, reuse_len=T))
    )
    out = whole.transformer.apply({"params": params}, batch, memory)
    last_BPD = out.target_vectors_BPD[:, -1:]
    p_BV = jax.nn.softmax(whole.logits(params, last_BPD))[:, 0]
    return whole.nll(params, out.target_vectors_BPD, batch.target_tokens), p_BV, out.memory


@pytest.mark.parametrize(
    "name", ["div_4", *(pytest.param(x, marks=pytest.mark.slow) for x in SAVED if x != "div_4")]
)
def test_losses_are_those_of_the_original(name, tmp_path, x64):
    """Three segments with memory. Catches a row of another symbol, a transposed kernel, q for k,
    shifted cut-offs.
    """
    recorded, case = xl_replay.load(name), CASES[name]
    tokenizer, ids = vocabulary(tmp_path, SYMBOLS)
    assert tokenizer.pieces == [*SPECIAL_PIECES, "the", "<eos>", *SYMBOLS[3:]]
    assert ids.tolist() == [9, 10, 0, *range(11, 32)]
    lengths = {
        key: getattr(case, key)
        for key in ("memory_len", "same_length", "clamp_len", "layer_norm_epsilon")
    }
    model, params = read(variables_of(recorded, case), ids, compute_dtype="float64", **lengths)
    assert model.cutoffs == ("17,23" if case.cutoffs else "")
    params, memory = (
        jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params),
        empty_memory(model, B),
    )
    recorded["tokens"] = ids[recorded["tokens"]]
    for number in range(SEGMENTS):
        nll_BT, p_BV, memory = segment(model, params, batch_of(recorded, number), memory)
        np.testing.assert_allclose(nll_BT, recorded["nll"][number], rtol=0, atol=1e-7)
    np.testing.assert_allclose(
        p_BV[:, ids], np.exp(recorded["log_probability"][:, -1]), rtol=0, atol=1e-7
    )


def test_special_pieces_take_nothing_from_the_others_whatever_the_text():
    """The bound e^-20 / n of each, also where all logits are far below 0; with a constant bias it
    fails there.
    """
    recorded, case = xl_replay.load("div_4"), CASES["div_4"]
    variables, ids = variables_of(recorded, case), np.arange(9, 33)
    name, n = "transformer/adaptive_embed/cutoff_0/lookup_table", 9
    variables[name] = variables[name] - 30
    variables["transformer/adaptive_softmax/cutoff_0/b"] = np.full(n, 3, np.float32)
    _, params = read(variables, ids)
    table, bias = params["word_embedding"]["table_0"], params["lm_head"]["bias"][: 9 + n]
    h = np.random.default_rng(0).standard_normal((500, 16)) + 10
    h[0] = 0
    logits = h @ table.T.astype(float) + bias
    assert np.median(logits.max(axis=1)) < -1000
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p[:, 9:].sum(axis=1, keepdims=True)
    # Equal logits are the worst case, here of the first text.
    np.testing.assert_allclose(p[0, :9], np.exp(-20) / n, rtol=1e-4)
    assert p[1:, :9].max() < np.exp(-20) / n
    assert np.float32(p.sum(axis=1).max()) == 1


def test_a_first_cluster_without_a_projection_has_the_identity():
    """One Billion Words (`proj_same_dim=False`): no tied projections, and none where the width is
    the model's.
    """
    variables = zeros(
        layers=1,
        d_model=8,
        heads=2,
        d_ff=12,
        sizes=(9, 6, 9),
        div_val=2,
        tied="none",
        same_dim=False,
    )
    model, params = read(variables, np.arange(9, 33))
    assert (model.cutoffs, model.div_val, model.tie_projections) == ("18,24", 2, "none")
    for each in ("word_embedding", "lm_head"):
        np.testing.assert_array_equal(params[each]["projection_0"], np.eye(8))
        assert params[each]["projection_1"].shape == (4, 8)


def shapes(layers, d_model, heads, d_ff, sizes, div_val=1, tied="rest", untied=True, same_dim=True):
    """Names and shapes of a model with d_embed = d_model, written down from the original's code."""
    root, embedding, softmax, D = (
        "transformer",
        "transformer/adaptive_embed",
        "transformer/adaptive_softmax",
        d_model,
    )
    bias = (layers, heads, D // heads) if untied else (heads, D // heads)
    found = {f"{root}/r_w_bias": bias, f"{root}/r_r_bias": bias}
    for i in range(layers):
        at = f"{root}/layer_{i}"
        found |= {
            f"{at}/rel_attn/{name}/kernel": (D, width)
            for name, width in (("qkv", 3 * D), ("r", D), ("o", D))
        }
        found |= {
            f"{at}/{part}/LayerNorm/{name}": (D,)
            for part in ("rel_attn", "ff")
            for name in ("beta", "gamma")
        }
        found |= {
            f"{at}/ff/layer_1/kernel": (D, d_ff),
            f"{at}/ff/layer_1/bias": (d_ff,),
            f"{at}/ff/layer_2/kernel": (d_ff, D),
            f"{at}/ff/layer_2/bias": (D,),
        }
    if len(sizes) == 1:
        return found | {f"{embedding}/lookup_table": (*sizes, D), f"{softmax}/bias": sizes}
    if div_val == 1:
        found[f"{embedding}/lookup_table"] = (sum(sizes), D)
    for i, size in enumerate(sizes):
        width = D // div_val**i
        found[f"{softmax}/cutoff_{i}/b"] = (size,)
        if div_val > 1:
            found[f"{embedding}/cutoff_{i}/lookup_table"] = (size, width)
            if same_dim or i:
                found[f"{embedding}/cutoff_{i}/proj_W"] = (width, D)
            if (same_dim or i) and (tied == "none" or (tied == "rest" and i == 0)):
                found[f"{softmax}/cutoff_{i}/proj"] = (width, D)
    return found | {
        f"{softmax}/cutoff_0/cluster_W": (len(sizes) - 1, D),
        f"{softmax}/cutoff_0/cluster_b": (len(sizes) - 1,),
    }


def zeros(**sizes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes(**sizes).items()}


def forms(sizes):
    structs = {
        name: jax.ShapeDtypeStruct(shape, np.dtype(np.float32)) for name, shape in sizes.items()
    }
    return Arrays("model.ckpt", structs, lambda name: pytest.fail(name))


WORDS_103, WORDS_LM1B = (20_000, 20_000, 160_000, 67_735), (60_000, 40_000, 540_000, 153_470)
RELEASED = {
    "enwik8_large": dict(layers=24, d_model=1024, heads=8, d_ff=3072, sizes=(204,), untied=False),
    "text8_large": dict(layers=24, d_model=1024, heads=8, d_ff=3072, sizes=(27,), untied=False),
    "wikitext103_large": dict(
        layers=18, d_model=1024, heads=16, d_ff=4096, sizes=WORDS_103, div_val=4
    ),
    "wikitext103_base": dict(layers=16, d_model=410, heads=10, d_ff=2100, sizes=WORDS_103),
    "lm1b_large": dict(
        layers=24,
        d_model=1280,
        heads=16,
        d_ff=8192,
        sizes=WORDS_LM1B,
        div_val=4,
        tied="none",
        same_dim=False,
    ),
}
"""By our configurations, with the flags of the original's TensorFlow scripts; the vocabularies'
sizes are recalled.
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("enwik8_large", "wikitext103_large") else pytest.mark.slow
        )
        for name in RELEASED
    ],
)
def test_names_and_shapes_of_the_released_models(name):
    """No array is made. The sizes that are read from the shapes are those of our configuration of
    that model.
    """
    sizes = RELEASED[name]
    N = sum(sizes["sizes"])
    # <unk> is the fourth word of WikiText-103 and One Billion Words.
    ids = np.array([9, 10, 11, 0, *range(12, N + 8)]) if N > 300 else np.arange(9, N + 9)
    arrays = forms(shapes(**sizes))
    found = transformer_xl.read_model(arrays, ids)
    config = configs.load(os.path.join(CONFIGS, f"{name}.py"))
    same = {
        key: value
        for key, value in found.items()
        if key not in ("vocab_size", "biases_per_layer", "cutoffs")
    }
    assert same == {key: getattr(config.model, key) for key in same} | (
        {} if sizes.get("div_val") == 4 else {"tie_projections": "all"}
    )
    assert found["cutoffs"] == ",".join(str(cut + 8) for cut in np.cumsum(sizes["sizes"])[:-1])
    assert found["biases_per_layer"] == sizes.get("untied", True)
    model = ModelConfig(**found, **transformer_xl.CONSTANTS)
    variables = list(transformer_xl.table(model, ids, arrays))
    assert {name: shape for name, shape, _ in variables} == shapes(**sizes)
    places = {part.ours for _, _, parts in variables for part in parts}
    tree = traverse_util.flatten_dict(abstract(model), sep="/")
    identity = (
        {"word_embedding/projection_0", "lm_head/projection_0"}
        if not sizes.get("same_dim", True)
        else set()
    )
    assert places | identity == tree.keys()
    # Theirs has u and v of each layer, and 8 words less in the last cluster.
    if name == "wikitext103_large":
        assert (
            sum(math.prod(shape) for _, shape, _ in variables)
            == 285_170_642 + 17 * 2 * 1024 - 8 * 17
        )


def test_what_does_not_fit_is_listed_in_one_line():
    sizes = dict(layers=2, d_model=8, heads=2, d_ff=12, sizes=(9, 6, 9), div_val=2)
    variables, ids = zeros(**sizes), np.arange(9, 33)
    missing = "transformer/layer_1/rel_attn/o/kernel"
    variables["transformer/extra"] = variables.pop(missing)
    with pytest.raises(BadInput, match=rf"missing \(1\): {missing}; left over \(1\): transformer/"):
        read(variables, ids)
    sizes = shapes(**sizes)
    for change, expected in (
        (
            {"transformer/layer_0/ff/layer_1/bias": None},
            "layer_0/ff/layer_1/bias is missing; the size of the model",
        ),
        ({"transformer/r_w_bias": (4,)}, r"r_w_bias has the shape \[4\]; the size of the model"),
    ):
        changed = {name: shape for name, shape in (sizes | change).items() if shape is not None}
        with pytest.raises(BadInput, match=expected):
            transformer_xl.read_model(forms(changed), ids)
    with pytest.raises(BadInput, match="the model has 24 symbols, the file of --tokenizer 23"):
        transformer_xl.read_model(forms(sizes), ids[1:])
    with pytest.raises(BadInput, match="<unk> is not one of its 9 most frequent words"):
        transformer_xl.read_model(forms(sizes), np.array([*ids[:20], 0, *ids[20:23]]))


def test_symbols_are_bytes_characters_or_words(tmp_path):
    for symbols, level, pieces in (
        (["32", "101", "9"], "bytes", ["<0x20>", "<0x65>", "<0x09>"]),
        (["_", "e", "3"], "characters", [" ", "e", "3"]),
        (["<S>", "the", "<UNK>", "_", "3"], "words", ["<eos>", "the", "_", "3"]),
    ):
        tokenizer, ids = vocabulary(tmp_path, symbols)
        assert (tokenizer.level, tokenizer.pieces[9:]) == (level, pieces)
        assert [tokenizer.pieces[index] for index in ids if index] == pieces
        assert (0 in ids) == (level == "words")
    tokenizer, _ = vocabulary(tmp_path, ["32", "256"])  # a byte has no such number
    assert tokenizer.level == "words"
    tokenizer, _ = vocabulary(tmp_path, ["97", "98"])  # enwik8 is without line ends there
    assert tokenizer.encode("a\nb\n").tolist() == [9, 10]
    with pytest.raises(BadInput, match="byte 0x63 is not in the vocabulary"):
        tokenizer.encode("a\nc")
    tokenizer, _ = vocabulary(tmp_path, ["<S>", "the", "<UNK>"])
    assert tokenizer.encode("the other\n").tolist() == [10, 0, 9]


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        (["the", "a", "the"], "line 3, 'the', must be one symbol that no other line has"),
        (["the", "of the"], "line 2, 'of the', must be one symbol"),
        (["<unk>", "the", "<UNK>"], "line 3, '<UNK>', must be one symbol that no other line has"),
    ],
)
def test_a_wrong_line_of_symbols_is_named(symbols, said, tmp_path):
    with pytest.raises(BadInput, match=said):
        vocabulary(tmp_path, symbols)
    with pytest.raises(BadInput, match="name a text file"):
        transformer_xl.open_vocabulary(None, "here")
    with pytest.raises(BadInput, match="missing.txt"):
        transformer_xl.open_vocabulary("missing.txt", "here")


@pytest.mark.slow
def test_imported_exported_and_imported_again_bit_for_bit(tmp_path, monkeypatch, capsys):
    """The way of the command, but for TensorFlow; `--format=orbax` holds clusters and projections
    as they are.
    """
    recorded, case = xl_replay.load("div_4"), CASES["div_4"]
    variables = variables_of(recorded, case)
    (tmp_path / "model.ckpt-0.index").touch()
    monkeypatch.setattr(tensorflow, "open_checkpoint", lambda prefix: Arrays.of(prefix, variables))
    _, ids = vocabulary(tmp_path, SYMBOLS)
    _, params = read(variables, ids)
    first, exported, second = (str(tmp_path / name) for name in ("first", "exported", "second"))
    symbols = [f"--tokenizer={tmp_path}/symbols.txt", "--config.model.memory_len=4"]
    assert (
        main(
            [
                "import",
                str(tmp_path),
                f"--workdir={first}",
                "--config.model.cutoffs=9,15",
                symbols[0],
            ]
        )
        == 2
    )
    assert "has model.cutoffs=17,23; leave these keys out" in capsys.readouterr().err
    assert main(["import", str(tmp_path), f"--workdir={first}", *symbols]) == 0
    assert main(["export", f"--workdir={first}", "--format=orbax", f"--output={exported}"]) == 0
    assert main(["import", exported, f"--workdir={second}"]) == 0
    assert workdirs.load_config(second).model == workdirs.load_config(first).model
    assert workdirs.tokenizer(second).sha256 == workdirs.tokenizer(first).sha256
    for path in (first, second):
        jax.tree.map(
            np.testing.assert_array_equal, jax.device_get(tiny.saved_parameters(path)[0]), params
        )
