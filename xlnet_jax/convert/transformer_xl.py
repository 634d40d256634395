"""Reads checkpoints of Transformer-XL's TensorFlow code (kimiyoung/transformer-xl), released
in 2019. Requires the extra `tf`.

No file beside a checkpoint has the sizes of the model; they follow from the shapes of its arrays.
Its vocabulary has no special pieces; ours has nine. So the rows of the tables are put into the
order of our vocabulary. The shortlist has n words with vectors W and biases b. In it, a special
piece that is not a symbol of the checkpoint gets

    W_s = mean(W)      b_s = mean(b) - 20

    and so      p_s = e^-20 exp(mean(logits)) / Z <= e^-20 / n

for any text, by Jensen's inequality: Z is at least the sum of n exponentials, n times their mean.
Nine special pieces take less than 2e-8 of the probability, so the loss of any other word equals the
original's loss to the precision of float32. A special piece itself has a loss of at least
20 + ln(n) nats; further training can learn it. Its input vector is the mean of the shortlist.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.config import ModelConfig
from xlnet_jax.convert import names, tensorflow
from xlnet_jax.convert.formats import Source, make_config
from xlnet_jax.convert.names import Arrays, Params
from xlnet_jax.data import vocabulary as vocabularies
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, XLNET
from xlnet_jax.data.vocabulary import END_OF_LINE, Vocabulary
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.model.embeddings import clusters, projections
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

CONSTANTS = {"architecture": "transformer_xl", "activation": "relu", "scale_embedding": True}
"""Keys of `ModelConfig` that the original code fixes. Its LayerNorm has the epsilon 1e-12, our
default.
"""
DATA = {"data.objective": "clm", "data.bidirectional": False}
LENGTHS = {"data.segment_len": 512, "data.reuse_len": 512, "data.num_predict": 512}
"""Default lengths, because a checkpoint has none; `evaluate` and a new run can set others."""

BIAS_OF_SPECIAL_PIECES = -20.0
"""Difference to the mean bias of the shortlist."""

_ROOT, _EMBEDDING, _SOFTMAX = (
    "transformer",
    "transformer/adaptive_embed",
    "transformer/adaptive_softmax",
)
_MARK = f"{_ROOT}/r_w_bias"
"""Name of a variable that only these checkpoints have."""
_NAMES = {
    "words": {"<UNK>": SPECIAL_PIECES[XLNET.unk], "<S>": END_OF_LINE},
    "characters": {"_": " "},
}
"""Symbols with another name here: two of One Billion Words, and the space of text8."""


def open_vocabulary(path: str | None, where: str) -> tuple[Vocabulary, np.ndarray]:
    """Reads the original's symbols, one per line in the order of their ids. Returns the vocabulary,
    and our id of each symbol.

    The symbols are bytes in a file of numbers below 256, characters in a file of single characters,
    and words in any other file. Raises BadInput if the file is missing, or if a line is empty,
    repeated or has white space.
    """
    if path is None:
        raise BadInput(
            f"{where}: a Transformer-XL needs the symbols of its vocabulary; name a text file, "
            "one per line in the order of their ids, with --tokenizer=symbols.txt (docs/convert.md)"
        )
    try:
        symbols = files.read(path).decode().removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--tokenizer={path}: {summary(error)}; name a text file of the original's symbols"
        ) from error
    if all(re.fullmatch("[0-9]{1,3}", symbol) and int(symbol) < 256 for symbol in symbols):
        level, pieces = "bytes", [f"<0x{int(symbol):02X}>" for symbol in symbols]
    else:
        level = "characters" if all(len(symbol) == 1 for symbol in symbols) else "words"
        pieces = [_NAMES[level].get(symbol, symbol) for symbol in symbols]
    earlier = set[str]()
    for line, (symbol, piece) in enumerate(zip(symbols, pieces, strict=True), 1):
        if symbol.split() != [symbol] or piece in earlier:
            # A file of another kind may be a single line.
            raise BadInput(
                f"--tokenizer={path}: line {line}, {symbol[:40]!r}, "
                "must be one symbol that no other line has"
            )
        earlier.add(piece)
    own = [piece for piece in pieces if piece not in SPECIAL_PIECES]
    ids = {piece: index for index, piece in enumerate([*SPECIAL_PIECES, *own])}
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, Vocabulary.file_name)
        vocabularies.write_pieces(made, level, dict.fromkeys(own, 0), verbatim=True)
        return Vocabulary(made), np.array([ids[piece] for piece in pieces])


def read_model(arrays: Arrays, ids_N: np.ndarray) -> Json:
    """Returns the keys of `ModelConfig` that follow from the shapes; `ids_N` has our id of each of
    the N symbols.

    Raises BadInput if a variable that gives a size is missing, or if the number of symbols of the
    model is not N.
    """
    *untied, heads, head_dim = _shape(arrays, _MARK, 2, 3)
    (d_model,) = _shape(arrays, f"{_ROOT}/layer_0/ff/layer_2/bias", 1)
    starts = _starts(arrays)
    if starts[-1] != len(ids_N):
        raise BadInput(
            f"{arrays.where}: the model has {starts[-1]} symbols, "
            f"the file of --tokenizer {len(ids_N)}"
        )
    _, *cuts, _ = starts
    if cuts and (ids_N[cuts[0] :] < len(SPECIAL_PIECES)).any():
        raise BadInput(
            f"{arrays.where}: <unk> is not one of its {cuts[0]} most "
            "frequent words, as it must be here"
        )
    if f"{_EMBEDDING}/lookup_table" in arrays.forms:
        width = second = _shape(arrays, f"{_EMBEDDING}/lookup_table", 2)[1]
    else:
        width, second = (
            _shape(arrays, f"{_EMBEDDING}/cutoff_{i}/lookup_table", 2)[1] for i in range(2)
        )
    # `cutoff_i/proj` is a projection of the softmax alone, not shared with the embedding.
    own = [f"{_SOFTMAX}/cutoff_{i}/proj" in arrays.forms for i in range(len(starts) - 1)]
    return {
        "vocab_size": int(ids_N.max()) + 1,
        "layers": sum(
            bool(re.fullmatch(rf"{_ROOT}/layer_\d+/rel_attn/r/kernel", name))
            for name in arrays.forms
        ),
        "d_model": d_model,
        "heads": heads,
        "head_dim": head_dim,
        "biases_per_layer": bool(untied),
        "d_ff": _shape(arrays, f"{_ROOT}/layer_0/ff/layer_1/bias", 1)[0],
        "cutoffs": ",".join(str(ids_N[cut]) for cut in cuts),
        "div_val": width // max(1, second),
        "d_embed": 0 if width == d_model else width,
        "tie_projections": "none" if any(own[1:]) else "rest" if own[0] else "all",
    }


def _shape(arrays: Arrays, name: str, *axes: int) -> tuple[int, ...]:
    """Returns the shape of a variable. Raises BadInput if it is missing, or if its number of axes
    is not in `axes`.
    """
    form = arrays.forms.get(name)
    if form is None or len(form.shape) not in axes:
        found = "is missing" if form is None else f"has the shape {list(form.shape)}"
        raise BadInput(
            f"{arrays.where}: {name} {found}; "
            "the size of the model follows from it. Copy the checkpoint again"
        )
    return form.shape


def _starts(arrays: Arrays) -> list[int]:
    """Returns the first symbol of each cluster, and the number of symbols."""
    if f"{_SOFTMAX}/bias" in arrays.forms:
        return [0, *_shape(arrays, f"{_SOFTMAX}/bias", 1)]
    biases = itertools.takewhile(
        arrays.forms.get, (f"{_SOFTMAX}/cutoff_{i}/b" for i in itertools.count(1))
    )
    names_of = [f"{_SOFTMAX}/cutoff_0/b", *biases]
    return [0, *itertools.accumulate(_shape(arrays, name, 1)[0] for name in names_of)]


class Place(NamedTuple):
    """Part of a variable of the checkpoint, and its place in our parameter."""

    ours: str
    """Path of the parameter."""
    at: Any = slice(None)
    """Index in the parameter; in kernels of attention, heads and their elements share one axis."""
    take: Callable[[np.ndarray], np.ndarray] = np.asarray
    """Function that takes the part from the variable."""


Variable = tuple[str, tuple[int, ...], tuple[Place, ...]]
"""Name, shape and parts of a variable of the checkpoint."""


def table(model: ModelConfig, ids_N: np.ndarray, arrays: Arrays) -> Iterator[Variable]:
    """Yields all variables of a model, with their shapes and places."""
    L, D, F, H, E = model.layers, model.d_model, model.d_ff, model.heads, model.head_dim
    shape, scope = ((L, H, E), "layers/attention") if model.biases_per_layer else ((H, E), "biases")
    yield _MARK, shape, (Place(f"{scope}/content_bias"),)
    yield f"{_ROOT}/r_r_bias", shape, (Place(f"{scope}/position_bias"),)
    for i in range(L):
        at = f"{_ROOT}/layer_{i}"
        qkv = (
            Place(f"layers/attention/{ours}", i, itemgetter(np.s_[:, k * H * E : (k + 1) * H * E]))
            for k, ours in enumerate(("query", "key", "value"))
        )
        output = Place("layers/attention/output", i, np.transpose)
        yield f"{at}/rel_attn/qkv/kernel", (D, 3 * H * E), tuple(qkv)
        yield f"{at}/rel_attn/r/kernel", (D, H * E), (Place("layers/attention/position", i),)
        yield f"{at}/rel_attn/o/kernel", (H * E, D), (output,)
        for ours, theirs, size in (("inner", "layer_1", (D, F)), ("outer", "layer_2", (F, D))):
            ours = f"layers/feed_forward/{ours}"
            yield f"{at}/ff/{theirs}/kernel", size, (Place(f"{ours}/kernel", i),)
            yield f"{at}/ff/{theirs}/bias", size[1:], (Place(f"{ours}/bias", i),)
        for ours, theirs in (("attention", "rel_attn"), ("feed_forward", "ff")):
            ours, theirs = f"layers/{ours}/norm", f"{at}/{theirs}/LayerNorm"
            yield f"{theirs}/gamma", (D,), (Place(f"{ours}/scale", i),)
            yield f"{theirs}/beta", (D,), (Place(f"{ours}/bias", i),)
    yield from _embeddings(model, ids_N, arrays)


def _embeddings(model: ModelConfig, ids_N: np.ndarray, arrays: Arrays) -> Iterator[Variable]:
    """Yields the variables of embedding and softmax, with parts by cluster."""
    parts, starts = clusters(model), _starts(arrays)
    every, rows = range(len(parts)), [slice(a, b) for a, b in itertools.pairwise(starts)]
    ids = [ids_N[row] for row in rows]
    tables = [
        Place(
            f"word_embedding/table_{i}" if model.adaptive else "word_embedding",
            ids[i] - parts[i].first,
        )
        for i in every
    ]
    if model.div_val == 1:
        whole = tuple(
            part._replace(take=itemgetter(row)) for part, row in zip(tables, rows, strict=True)
        )
        yield f"{_EMBEDDING}/lookup_table", (len(ids_N), parts[0].width), whole
    else:
        for i in every:
            size = len(ids[i]), parts[i].width
            yield f"{_EMBEDDING}/cutoff_{i}/lookup_table", size, (tables[i],)
    stored = [i for i in every if i or not _is_identity(model, arrays)]
    for i in stored[: projections(model)]:
        name = f"{_EMBEDDING}/cutoff_{i}/proj_W" if model.div_val > 1 else f"{_EMBEDDING}/proj_W"
        yield name, (parts[i].width, model.d_model), (Place(f"word_embedding/projection_{i}"),)
    for i in stored if projections(model) else []:
        if model.tie_projections == "none" or (model.tie_projections == "rest" and i == 0):
            at = (Place(f"lm_head/projection_{i}"),)
            yield f"{_SOFTMAX}/cutoff_{i}/proj", (parts[i].width, model.d_model), at
    if not model.cutoffs:
        yield f"{_SOFTMAX}/bias", (len(ids_N),), (Place("lm_head/bias", ids_N),)
        return
    for i in every:
        yield f"{_SOFTMAX}/cutoff_{i}/b", (len(ids[i]),), (Place("lm_head/bias", ids[i]),)
    tails, scope = len(parts) - 1, f"{_SOFTMAX}/cutoff_0"
    yield f"{scope}/cluster_W", (tails, parts[0].width), (Place("lm_head/cluster_table"),)
    at = slice(model.vocab_size, None)
    yield f"{scope}/cluster_b", (tails,), (Place("lm_head/bias", at),)


def _is_identity(model: ModelConfig, arrays: Arrays) -> bool:
    """Returns whether the first cluster has no projection (`proj_same_dim=False`, as for One
    Billion Words), so that our projection is the identity.
    """
    return (
        model.div_val > 1
        and not model.d_embed
        and f"{_EMBEDDING}/cutoff_0/proj_W" not in arrays.forms
    )


def from_original(model: ModelConfig, ids_N: np.ndarray, params: Params, arrays: Arrays) -> Params:
    """Returns our tree of numpy arrays, filled variable by variable; see `read_model` and
    `names.from_foreign`.
    """
    variables = list(table(model, ids_N, arrays))
    names.check_arrays(
        {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape, _ in variables},
        arrays,
    )
    flat = names.by_path(params)
    found = {
        # The kernels of attention [L, D, H, E] as [L, D, H E].
        path: np.full(
            (*x.shape[:2], math.prod(x.shape[2:])) if x.ndim == 4 else x.shape, np.nan, x.dtype
        )
        for path, x in flat.items()
    }
    for name, _, parts in variables:
        array = arrays.read(name)
        for ours, at, take in parts:
            found[ours][at] = take(array)
    if _is_identity(model, arrays):
        for path in ("word_embedding/projection_0", "lm_head/projection_0"):
            if path in found:
                found[path][...] = np.eye(model.d_model)
    shortlist = ids_N[: _starts(arrays)[1]]
    special = np.setdiff1d(np.arange(len(SPECIAL_PIECES)), shortlist)
    words = found["word_embedding/table_0" if model.adaptive else "word_embedding"]
    bias = found["lm_head/bias"]
    words[special] = words[shortlist].mean(axis=0, dtype=np.float64)
    bias[special] = bias[shortlist].mean(dtype=np.float64) + BIAS_OF_SPECIAL_PIECES
    return traverse_util.unflatten_dict(
        {path: x.reshape(flat[path].shape) for path, x in found.items()}, sep="/"
    )


recognise = tensorflow.is_checkpoint
"""Of any checkpoint; the checkpoints of an XLNet are recognised earlier, by `tensorflow`."""


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[Source]:
    """Reads a checkpoint without a configuration; `tokenizer` is the file of its symbols."""
    arrays = tensorflow.open_checkpoint(tensorflow.prefix_of(path))
    if _MARK not in arrays.forms:
        raise BadInput(
            f"{arrays.where}: no Transformer-XL: it has no {_MARK}; for an XLNet put its "
            f"{tensorflow.CONFIG} beside it"
        )
    vocabulary, ids_N = open_vocabulary(tokenizer, path)
    sizes = read_model(arrays, ids_N)
    known = {f"model.{key}": value for key, value in (sizes | CONSTANTS).items()} | DATA
    config, assumed = make_config(path, known, overrides, LENGTHS)
    if changed := [
        f"model.{key}={value}"
        for key, value in sizes.items()
        if getattr(config.model, key) != value
    ]:
        raise BadInput(f"{path} has {', '.join(changed)}; leave these keys out")
    convert = functools.partial(from_original, config.model, ids_N)
    yield Source(path, "tensorflow", config, vocabulary, arrays, convert, assumed)
