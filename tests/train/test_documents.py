"""Rows of several documents: each document is computed as if it were alone, with dropout too."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import packed
import pytest
import tiny

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.data.batches import documents as builder
from xlnet_jax.data.batches import frames
from xlnet_jax.data.batches.examples import ExampleBuilder
from xlnet_jax.data.batches.packing import RowPieces
from xlnet_jax.data.batches.stream import Windows
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.heads import weighed
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.train import gradients
from xlnet_jax.train.loss import LanguageModel, mean_loss
from xlnet_jax.train.recipe import make_recipe

T, LENGTHS, V = 14, (5, 1, 8, 3, 6, 2), 31
ROWS = len(LENGTHS)
"""As many as documents, so that one program computes packed and lone ones; packing leaves rows
empty.
"""
CASES = [
    (name, objective, attention)
    for name, member in MEMBERS.items()
    for objective in member.objectives
    for attention in ("cpu", "xla")[: 1 + (objective == "plm")]
]
FAST = [
    ("xlnet", "plm", "cpu"),
    ("xlnet", "mdm", "cpu"),
    ("vanilla", "clm", "cpu"),
    ("roberta", "mlm", "cpu"),
    ("transformer", "clm", "cpu"),
    ("modern", "plm", "xla"),
]
"""Two streams, a bound, and each way in which positions are not relative."""


@functools.cache
def computed(name, objective, attention):
    """A function of (batch, key): (loss, what predicts), gradient; every site has a dropout."""
    sizes = {"d_embed": 6} if MEMBERS[name].parts.projected else {}
    if MEMBERS[name].parts.positions == "rotary":
        sizes = {"window": 5, "global_every": 2, "theta": 90.0}
    config = ModelConfig(
        **{
            **MEMBERS[name].usual(T, None if objective == "plm" else objective)["model"],
            **sizes,
            "attention": attention,
            "vocab_size": V,
            "layers": 2,
            "d_model": 8,
            "heads": 2,
            "head_dim": 4,
            "d_ff": 12,
            "memory_len": 0,
            "dropout": 0.2,
            "attention_dropout": 0.2,
            "activation_dropout": 0.2,
            "unroll": "off",
            "compute_dtype": "float64",
        }
    )
    model = LanguageModel(XLNet(config, T, objective=OBJECTIVES[objective]))
    example = packed.pack([], [], np.ones(1), T, T)
    shapes = nn.meta.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), example)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.standard_normal(x.shape), shapes)

    def loss(params, batch, key):
        out = model.run(params, batch, None, key)
        nll_BP = model.nll(params, out.target_vectors_BPD, batch.target_tokens)
        mean = weighed(nll_BP, model.weights(batch)[0]).sum() / model.divisors(batch)["tokens"]
        return mean, (out.hidden_BTD, out.target_vectors_BPD, nll_BP)

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return functools.partial(gradient, params)


def of_documents(found, batch, documents, places):
    """The loss, the vectors and losses of each document, and the gradient."""
    (loss, (hidden, *of_slots)), grads = jax.device_get(found)
    parts = []
    for document, (row, start) in zip(documents, places, strict=True):
        ours = batch.target_weights[row] != 0
        ours &= np.isin(batch.target_positions[row], start + document.targets_M)
        parts += [hidden[row, start : start + len(document.tokens_N)]]
        parts += [x[row][ours] for x in of_slots]
    return loss, parts, grads


def assert_equal(found, expected):
    """As numbers of float64 are whose sums have another order."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max(initial=1))


def compare(case, seed):
    """Compares randomly packed documents with the same documents, one in each row."""
    run, rng, key = computed(*case), np.random.default_rng(seed), jax.random.key(seed)
    numbers = rng.permutation(1000)
    documents = [
        packed.draw(rng, case[1], number, n, V) for number, n in zip(numbers, LENGTHS, strict=False)
    ]
    places = packed.place(rng, LENGTHS, T, ROWS)
    direction_B = rng.choice([-1, 1], ROWS)
    batch = packed.pack(documents, places, direction_B, T, T)
    assert len({row for row, _ in places}) < ROWS - 1, "no row has several documents"
    found = of_documents(run(batch, key), batch, documents, places)

    def alone(documents):
        own = [packed.Place(row, 0) for row in range(ROWS)]
        # The direction is the only thing that a document takes from its packed row.
        batch = packed.pack(documents, own, direction_B[[row for row, _ in places]], T, T)
        return of_documents(run(batch, key), batch, documents, own)

    assert_equal(found, alone(documents))
    others = alone([each._replace(number=each.number + 1) for each in documents])
    moved = np.abs(found[1][0] - others[1][0]).max()
    assert moved > 1e-3, "the masks do not depend on the document"


ORDERS = ("uniform", "spans", "left_within")
OWN = (5, 3, 8, 3, 6, 4)
"""Positions of documents of the builder, with up to two pieces around the text."""


class Text(tiny.Words):
    """Random documents that take `OWN` positions."""

    def __init__(self, around: int, seed: int) -> None:
        self.lengths = np.array(OWN) - around + 1
        super().__init__(int(self.lengths.sum()), seed)
        self.text = (9 + self.text % (V - 9)).astype(np.int32)
        self.tokenizer = tiny.Vocabulary(np.random.default_rng(seed).random(V) < 0.7)


def built(case, groups, direction_B, seed):
    """Builds rows of groups of documents as training does; `plm` by each order distribution."""
    name, objective, _ = case
    usual = MEMBERS[name].usual(T, None if objective == "plm" else objective)
    order = ORDERS[seed % len(ORDERS)] if objective == "plm" else "spans"
    # Targets are a share of the text: known positions are wanted too.
    share = order == "spans" and objective in ("plm", "mlm")
    whole = {
        "documents": "whole",
        "factorization_order": order,
        "pairs": "none",
        "reuse_len": T,
        "num_predict": T // 2 if share and not MEMBERS[name].bounded else T,
        "windows_per_block": 1,
        "target_rate": 0.4,
    }
    model = {"memory_len": 0, "vocab_size": V, "d_embed": 8 * MEMBERS[name].parts.projected}
    of_run = tiny.config(model=usual["model"] | model, data=usual["data"] | whole)
    text = Text(frames.pieces_around(of_run), seed)
    packing = builder.pack_corpus(text, of_run)
    rows = [packing.row(index) for index in range(packing.rows)]
    every = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    pieces = [part[np.argsort(every[-1])] for part in every]

    class Rows:
        """A packing that was not made by `packing.pack`."""

        def row(self, index):
            return RowPieces(*(part[groups[index]] for part in pieces))

    zeros_B = np.zeros(len(groups), np.int64)
    numbers = np.arange(len(groups))
    where = Windows(
        zeros_B,
        direction_B.astype(np.int32),
        zeros_B > 0,
        zeros_B == 0,
        zeros_B,
        numbers,
        zeros_B,
        0,
    )
    of_rows = ExampleBuilder(text, text.tokenizer, of_run, where, "train", 0, numbers)
    batch = builder.build(of_rows, Rows(), 3)
    # The loss of the targets is divided by the summed weights, to be compared in float64.
    return dataclasses.replace(batch, target_weights=batch.target_weights.astype(np.float64))


def by_document(found, batch):
    """The loss, the vectors and losses in the order of documents and their positions, and the
    gradient.
    """
    (loss, (hidden, *of_slots)), grads = jax.device_get(found)
    of, used = batch.documents, batch.rank != NEVER
    order = np.lexsort((of.position[used], of.number[used]))
    row, slot = np.nonzero(batch.target_weights)
    target = batch.target_positions[row, slot]
    slots = np.lexsort((of.position[row, target], of.number[row, target]))
    return loss, [hidden[used][order], *(x[row, slot][slots] for x in of_slots)], grads


def compare_built(case, seed):
    """Compares rows that training builds with the same documents, one in each row. Places are
    random, and directions too if the member reads both.
    """
    run, rng, key = computed(*case), np.random.default_rng(seed), jax.random.key(seed)
    two_way = not MEMBERS[case[0]].bounded
    direction_B = rng.choice([-1, 1] if two_way else [1], ROWS)
    places = packed.place(rng, OWN, T, ROWS)
    assert len({row for row, _ in places}) < ROWS - 1, "no row has several documents"
    groups = [
        [
            which
            for start, which in sorted(
                (start, n) for n, (at, start) in enumerate(places) if at == row
            )
        ]
        for row in range(ROWS)
    ]
    own_B = direction_B[[row for row, _ in places]]
    whole = built(case, groups, direction_B, seed)
    alone = built(case, [[which] for which in range(ROWS)], own_B, seed)
    assert_equal(by_document(run(whole, key), whole), by_document(run(alone, key), alone))


@pytest.mark.parametrize("case", FAST, ids="-".join)
def test_a_packed_row_is_its_documents_alone(case, x64):
    """Vectors, losses and every gradient, with dropout at every site."""
    for seed in range(3):
        compare(case, seed)
    compare_built(case, 3)


@pytest.mark.parametrize(
    "packings",
    [pytest.param(10, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.prove)],
)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_any_packing_of_any_member(case, packings, x64):
    for seed in range(packings):
        compare_built(case, seed)


def test_transformers_gets_the_mask_of_each_document():
    """A position sees what its own document says, and nothing else."""
    rng = np.random.default_rng(0)
    documents = [packed.draw(rng, "plm", number, n, V) for number, n in enumerate(LENGTHS)]
    places = packed.place(rng, LENGTHS, T, ROWS)
    batch = packed.pack(documents, places, np.ones(ROWS), T, T)
    visible = batch.for_transformers()["perm_mask"] == 0
    expected = np.zeros_like(visible)
    for document, (row, start) in zip(documents, places, strict=True):
        rank, at = document.rank_N, slice(start, start + len(document.rank_N))
        strictly = np.isin(np.arange(len(rank)), document.targets_M)[:, None]
        expected[row, at, at] = rank[None] <= rank[:, None] - strictly
    text = batch.rank != NEVER
    np.testing.assert_array_equal(visible[text], expected[text])


def test_devices_and_micro_batches_draw_the_masks_of_the_documents():
    """Two devices with two micro-batches each compute the gradient of all rows at once."""
    settings = tiny.config(
        model={"memory_len": 0},
        data={
            "documents": "whole",
            "factorization_order": "uniform",
            "pairs": "none",
            "segment_len": T,
            "reuse_len": T,
            "num_predict": T,
            "windows_per_block": 1,
        },
        train={"gradient_accumulation_steps": 2},
        mesh={"data": 2},
    )
    recipe, rng, key = make_recipe(settings), np.random.default_rng(0), jax.random.key(0)
    lengths = 3 * LENGTHS
    documents = [packed.draw(rng, "plm", number, n, V) for number, n in enumerate(lengths)]
    batch = packed.pack(documents, packed.place(rng, lengths, T, 8), np.ones(8), T, T)
    batch = dataclasses.replace(batch, target_weights=batch.target_weights.astype(np.float32))
    example = recipe.example_batch(8)
    assert jax.tree.map(np.shape, example) == jax.tree.map(np.shape, batch)
    params, memory = tiny.random_params(settings, 0.3), recipe.empty_memory(8)
    with jax.set_mesh(meshes.make_mesh(settings.mesh, jax.devices()[:2])):
        step = jax.jit(lambda *arguments: gradients.of_step(recipe, *arguments))
        (loss, _), grads = step(params, batch, memory, key)
    whole = jax.jit(jax.value_and_grad(mean_loss, has_aux=True), static_argnums=1)
    (expected, _), expected_grads = whole(params, recipe.model, batch, memory, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for x, y in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max(initial=1))
