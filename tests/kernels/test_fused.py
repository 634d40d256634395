"""The fused kernels in interpret mode against `xla`: drawn shapes, dropout, blocks, shards."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import GATHERED, cast, draw, draw_documents, without_positions
from hypothesis import given, settings
from hypothesis import strategies as st

from xlnet_jax.batch import NEVER
from xlnet_jax.config import ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import fused, gpu, packing, tpu, xla
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.packing import first_and_last, padded_keys, padded_queries, seen_blocks
from xlnet_jax.model.transformer import REMAT_POLICIES

SMALL = functools.partial(GATHERED, blocks=replace(GATHERED.keywords["blocks"], strided=True))
"""In interpret mode a strided roll is one operation for every row, so most tests shift by
gathers.
"""
STRIPS = functools.partial(
    GATHERED,
    blocks=replace(
        GATHERED.keywords["blocks"],
        queries=256,
        strips=(128, 128),
        packed=(256, 256),
        near=(256, 128),
    ),
)
"""Several strips in a program."""
WIDE = functools.partial(
    SMALL,
    blocks=replace(SMALL.keywords["blocks"], queries=256, strips=(256, 256), packed=(256, 128)),
)
"""Strips of two tiles."""
GPU = functools.partial(
    gpu.attend, interpret=True, blocks=gpu.GpuBlocks(queries=32, keys=64, chosen=16, programs=1)
)
"""Two blocks of queries in order in a window, and all blocks of a row and head in one program."""
TILES = functools.partial(GPU, blocks=gpu.GpuBlocks(queries=16, keys=16, chosen=16))
DEFAULT = functools.partial(GATHERED, blocks=tpu.TpuBlocks(strided=False))
NAMES = ["tpu", "gpu"]


def saved(arguments, keys=512):
    """The TPU kernel that leaves the probabilities to its backward pass, if all keys are in one
    block.
    """
    blocks = replace(GATHERED.keywords["blocks"], keys=keys, near=(16, keys))
    return GATHERED(replace(arguments, save=True), blocks=blocks)


differentiated = jax.jit(xla.differentiated, static_argnums=0)


@st.composite
def cases(draw_one):
    """Sizes of `draw`, and options of `attend`: lengths around the edges of blocks, which are
    multiples of 128.
    """
    T = draw_one(st.sampled_from([1, 2, 31, 127, 128, 130, 260]))
    return {
        "T": T,
        "M": draw_one(st.sampled_from([0, 1, 96, 129])),
        "B": draw_one(st.integers(1, 2)),
        "chosen": draw_one(st.sampled_from([None, None, 1, 5, 37])),
        "seed": draw_one(st.integers(0, 2**16)),
        "H": draw_one(st.integers(1, 3)),
        "E": draw_one(st.sampled_from([3, 32, 64, 100, 128])),
    }


def compare(arguments, attend, limit=(1e-5, 1e-4)):
    """Forward and every gradient, relative to the largest element, at most `limit`; returns the
    kernel's results.
    """
    rng = np.random.default_rng(1)
    do_BQHE = jnp.asarray(rng.standard_normal(arguments.q_BQHE.shape), arguments.q_BQHE.dtype)
    o_BQHE, _, ours = differentiated(attend, arguments, do_BQHE)
    exact = jax.tree.map(
        lambda x: x.astype(jnp.float32) if jnp.result_type(x) == jnp.bfloat16 else x,
        (arguments, do_BQHE),
    )
    expected_BQHE, probability_BHQK, theirs = differentiated(xla.attend, *exact)
    for bound, ours_, theirs_ in ((limit[0], o_BQHE, expected_BQHE), (limit[1], ours, theirs)):
        jax.tree.map(functools.partial(close, bound), ours_, theirs_)
    blind_BQH = ~np.any(np.asarray(probability_BHQK), axis=-1).transpose(0, 2, 1)
    assert not np.any(np.asarray(o_BQHE, np.float32)[blind_BQH]), (
        "a query that sees nothing has an output"
    )
    assert not np.any(np.asarray(ours.q_BQHE, np.float32)[blind_BQH]), (
        "a query that sees nothing has a gradient"
    )
    return o_BQHE, ours


def close(bound, ours, theirs):
    theirs = np.asarray(theirs)
    # A gradient of the scores is a difference: where it is 0, its terms still round.
    np.testing.assert_allclose(
        np.asarray(ours, np.float32), theirs, rtol=0, atol=bound * max(np.abs(theirs).max(), 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [(SMALL, GATHERED, STRIPS, WIDE, saved), (GPU,)], ids=NAMES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    case=cases(), rate=st.sampled_from([0, 0.1]), far=st.sampled_from([None, 0, 50]), data=st.data()
)
def test_equals_the_plain_attention(kernels, case, rate, far, data):
    dropout = AttentionDropout(jnp.uint32(4), rate, 1, first_head=3) if rate else None
    arguments = replace(
        cast(draw(**case), jnp.float32),
        rows_B=jnp.arange(case["B"]) * 7 + 2,
        dropout=dropout,
        max_distance=far,
    )
    compare(arguments, data.draw(st.sampled_from(kernels)))


@pytest.mark.parametrize(
    ("chosen", "kernel"),
    [
        (None, GATHERED),
        (24, GATHERED),
        (24, saved),
        pytest.param(None, GPU, marks=pytest.mark.slow),
        (24, GPU),
    ],
)
def test_tables_of_rows_and_blind_queries(chosen, kernel):
    """Padded keys, too, stay hidden from a limit above NEVER."""
    arguments = cast(draw(T=150, M=20, B=3, tables=3, chosen=chosen, E=128, H=1), jnp.float32)
    limit_BQ = arguments.limit_BQ.at[0].set(NEVER + 1).at[1].set(-5).at[2, -3:].set(-5)
    arguments = replace(
        arguments, limit_BQ=limit_BQ, rank_BK=arguments.rank_BK.at[0, ::2].set(NEVER)
    )
    o_BQHE, grads = compare(arguments, kernel)
    assert not np.any(o_BQHE[1]) and np.any(o_BQHE[0]) and not np.any(grads.position[0][1])


WITHOUT = {
    "text-window": ("text", None, [1, 65, NEVER]),
    "text": ("text", 40, [None]),
    "documents": ("documents", None, [None]),
    "documents-window": ("documents", 40, [1, 65, NEVER]),
}
"""Text, number of chosen queries, and windows, smaller and larger than a block."""


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        *(
            pytest.param(kernel, case, id=f"{name}-{case}")
            for name, kernel in zip(NAMES, (GATHERED, GPU), strict=True)
            for case in WITHOUT
        ),
        *(
            pytest.param(kernel, case, id=f"{name}-{case}", marks=pytest.mark.slow)
            for name, kernel, case in (
                ("saved", saved, "text-window"),
                ("saved", saved, "text"),
                ("strips", STRIPS, "text-window"),
                ("strips", STRIPS, "documents-window"),
            )
        ),
    ],
)
def test_without_relative_positions(kernel, case):
    """Over a memory, there windows have no dropout, and in documents; all windows are one
    program.
    """
    drawn, chosen, sizes = WITHOUT[case]
    arguments = (
        draw(T=300, M=96, chosen=chosen, H=1, E=64)
        if drawn == "text"
        else draw_documents(360, [(100, 56, -9, 170, 20), (60, 290)], chosen, H=1)
    )
    dropout = None if case == "text-window" else AttentionDropout(jnp.uint32(4), 0.3, 0)
    for size in sizes:
        near = cast(without_positions(arguments, size), jnp.float32)
        compare(replace(near, dropout=dropout, save=kernel is saved), kernel)


@pytest.mark.parametrize("drawn", [draw(1000, 0, H=1), draw_documents(1000, [(1000,)] * 2, H=1)])
@pytest.mark.parametrize(("size", "visits"), [(0, 8), (1, 14), (128, 14), (129, 20), (NEVER, 32)])
def test_a_window_visits_the_blocks_in_its_reach(drawn, size, visits):
    """Eight blocks of 128 queries, four of 256 keys; padding does not count in the last ones."""
    arguments = cast(without_positions(drawn, size), jnp.float32)
    queries, keys = (padded(arguments, 1024) for padded in (padded_queries, padded_keys))
    first, last = first_and_last(seen_blocks(arguments, queries, keys, 128, 256))
    assert np.sum(last - first + 1, axis=1).tolist() == [visits] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [GATHERED, GPU, saved], ids=[*NAMES, "saved"])
@pytest.mark.parametrize("chosen", [None, 24])
def test_bfloat16_is_as_exact_as_its_rounding(chosen, kernel):
    """Catches a sum that is kept in bfloat16: its error would grow with the 170 keys."""
    arguments = cast(draw(T=150, M=20, chosen=chosen, H=2, E=64), jnp.bfloat16)
    unit = float(jnp.finfo(jnp.bfloat16).eps)
    arguments = replace(arguments, dropout=AttentionDropout(jnp.uint32(4), 0.1, 0))
    compare(arguments, kernel, limit=(2 * unit, 4 * unit))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [DEFAULT, TILES], ids=NAMES)
def test_blocks_of_other_sizes_draw_the_same_dropout(kernel):
    arguments = cast(draw(T=130, M=20, chosen=40, E=64), jnp.float32)
    compare(replace(arguments, dropout=AttentionDropout(jnp.uint32(4), 0.5, 0)), kernel)


@pytest.mark.parametrize(
    ("kernel", "drawn"),
    [
        pytest.param(GATHERED, functools.partial(draw, M=5, B=4), id="tpu"),
        pytest.param(GPU, functools.partial(draw, M=5, B=4), id="gpu", marks=pytest.mark.slow),
        pytest.param(
            GATHERED,
            lambda **sizes: without_positions(
                draw_documents(lengths=[(9, 8), (20,)] * 2, **sizes), 3
            ),
            id="window",
        ),
    ],
)
def test_shards_of_rows_and_heads_equal_the_whole(kernel, drawn, monkeypatch):
    """Catches dropout by a shard's own heads, and a gradient of shared arrays that misses some
    devices' rows.
    """
    monkeypatch.setitem(fused.KERNELS, "cpu", kernel)
    arguments = cast(drawn(T=20, chosen=7, E=64), jnp.float32)
    arguments = replace(arguments, dropout=AttentionDropout(jnp.uint32(4), 0.3, 1))
    do_BQHE = jnp.asarray(
        np.random.default_rng(1).standard_normal(arguments.q_BQHE.shape), jnp.float32
    )
    mesh = jax.make_mesh(
        (1, 1, 2, 2),
        ("slices", "data", "fsdp", "tensor"),
        axis_types=(jax.sharding.AxisType.Auto,) * 4,
        devices=jax.devices()[:4],
    )
    with jax.set_mesh(mesh):
        # A function of its own: that of another kernel would be compiled already.
        o_BQHE, _, grads = differentiated(functools.partial(fused.attend), arguments, do_BQHE)
    assert o_BQHE.sharding.spec == jax.P("fsdp", None, "tensor")
    expected_BQHE, _, expected = differentiated(xla.attend, arguments, do_BQHE)
    jax.tree.map(functools.partial(close, 1e-4), (o_BQHE, grads), (expected_BQHE, expected))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [GATHERED, STRIPS, GPU], ids=["tpu", "strips", "gpu"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_documents_equal_the_plain_attention(kernel, data):
    """Drawn packings, some with rows of padding alone."""
    T = data.draw(st.sampled_from([128, 200, 390]))
    row = st.lists(st.integers(1, 150), max_size=6)
    lengths = [
        np.diff(np.minimum([0, *np.cumsum(lengths)], T))
        for lengths in data.draw(st.lists(row, min_size=1, max_size=2))
    ]
    E, rate = data.draw(st.sampled_from([3, 64, 128])), data.draw(st.sampled_from([0, 0.3]))
    chosen, seed = data.draw(st.sampled_from([None, 1, 40])), data.draw(st.integers(0, 99))
    arguments = cast(draw_documents(T, lengths, chosen, seed, E=E), jnp.float32)
    dropout = AttentionDropout(jnp.uint32(4), rate, 1, first_head=3) if rate else None
    compare(replace(arguments, dropout=dropout, save=True), kernel)
    # A kernel in interpret mode takes thousands of memory maps, of which a process has 65,530.
    jax.clear_caches()


@pytest.mark.parametrize("chosen", [None, 40])
@pytest.mark.parametrize("kernel", [GATHERED, GPU], ids=NAMES)
def test_no_document_sees_another(kernel, chosen):
    """Blocks begin and end inside documents, one row is all padding, dropout is by document."""
    lengths = [(100, 56, -9, 170, 20), (60, 290), ()]
    arguments = cast(draw_documents(360, lengths, chosen, H=1), jnp.float32)
    dropout = AttentionDropout(jnp.uint32(4), 0.3, 0)
    o_BQHE, _ = compare(replace(arguments, dropout=dropout), kernel)
    assert not np.any(o_BQHE[2]) and np.any(o_BQHE[1])


@pytest.mark.parametrize("chosen", [None, range(0, 384, 8)], ids=["in_order", "chosen"])
@pytest.mark.parametrize("kernel", [GATHERED, GPU], ids=NAMES)
def test_blocks_that_no_query_sees_are_not_read(kernel, chosen):
    """NaN in a document or in padding stays there in the forward and the backward pass: a block
    that is read and then hidden would spread it, because 0 times NaN is NaN.

    Each document begins a block; padding, also in these blocks, does not count, nor do unused
    targets.
    """
    arguments = cast(draw_documents(512, [(100, -28, 256)], chosen, H=1), jnp.float32)
    document_K = np.searchsorted([128, 384], np.arange(512), side="right")
    floor_Q = arguments.packed.floor_BQ[0]
    for bad in range(3):
        k_BKHE, v_BKHE = (
            jnp.where((document_K == bad)[None, :, None, None], jnp.nan, x)
            for x in (arguments.k_BKHE, arguments.v_BKHE)
        )
        poisoned = replace(arguments, k_BKHE=k_BKHE, v_BKHE=v_BKHE)
        o_BQHE, _, grads = differentiated(kernel, poisoned, arguments.q_BQHE)
        for x in (o_BQHE, grads.q_BQHE):
            assert np.all(np.isfinite(x[0, (floor_Q != NEVER) & (floor_Q != 128 * bad)]))
        for x in (grads.k_BKHE, grads.v_BKHE):
            assert np.all(np.isfinite(x[0, (document_K != bad) & (document_K < 2)]))
        assert bad == 2 or not np.all(np.isfinite(o_BQHE))


def test_a_window_sees_the_blocks_that_it_touches():
    """Of two rows, one is read in reverse; the keys begin with a memory."""
    arguments = without_positions(draw(T=500, M=70), size=20)
    arguments = replace(
        arguments, rank_BK=0 * arguments.rank_BK, limit_BQ=0 * arguments.limit_BQ + 1
    )
    queries, keys = packing.padded_queries(arguments, 512), packing.padded_keys(arguments, 576)
    near_QK = np.abs(np.arange(500)[:, None] - np.arange(570) + 70) <= 20
    near_IJ = np.pad(near_QK, ((0, 12), (0, 6))).reshape(16, 32, 9, 64).any((1, 3))
    seen_BIJ = packing.seen_blocks(arguments, queries, keys, 32, 64)
    np.testing.assert_array_equal(seen_BIJ, np.tile(near_IJ, (2, 1, 1)))


@pytest.mark.parametrize("drawn", ["text", pytest.param("documents", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", [GATHERED, GPU], ids=NAMES)
def test_blocks_outside_the_window_are_not_read(kernel, drawn):
    """NaN in keys and values from 256 to 383 stays near; without a window it spreads."""
    text = drawn == "text"
    arguments = (
        draw(512, 0, B=1, H=1)
        if text
        else draw_documents(512, [(512,)], chosen=range(0, 512, 4), H=1)
    )
    for size in (20, NEVER):
        near = cast(without_positions(arguments, size), jnp.float32)
        k_BKHE, v_BKHE = (x.at[:, 256:384].set(jnp.nan) for x in (near.k_BKHE, near.v_BKHE))
        near = replace(near, k_BKHE=k_BKHE, v_BKHE=v_BKHE)
        o_BQHE, _, grads = differentiated(kernel, near, near.q_BQHE)
        far = 192 if text else 192 // 4
        for x in (o_BQHE[:, :far], grads.q_BQHE[:, :far], grads.k_BKHE[:, :128]):
            assert np.all(np.isfinite(x)) == (size == 20)


@pytest.mark.parametrize(
    ("kernel", "T", "kept"),
    [(GATHERED, 20, 2), (GPU, 20, 2), (saved, 20, 3), (functools.partial(saved, keys=128), 150, 2)],
    ids=[*NAMES, "saved", "blocks"],
)
def test_remat_of_all_but_products_keeps_what_the_gradient_needs(kernel, T, kept, capsys):
    """Catches a forward pass that runs again in the backward pass: what it leaves must have the
    policy's name. Of several blocks of keys there are no probabilities.
    """
    arguments = cast(draw(T=T, M=5), jnp.float32)
    layer = jax.checkpoint(lambda a: jnp.sin(kernel(a)[0]), policy=REMAT_POLICIES["dots"])
    jax.ad_checkpoint.print_saved_residuals(layer, arguments)
    assert capsys.readouterr().out.count("named 'fused_attention'") == kept


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GH200 480GB"]
)
def test_gpus_are_known_by_their_family(name):
    assert fused.why_no_kernel(name, 64, jnp.dtype("bfloat16")) is None
    assert fused.why_no_kernel("NVIDIA GeForce RTX 4090", 64, jnp.dtype("bfloat16")) is not None


@pytest.mark.parametrize(
    ("kernels", "E", "dtype", "message"),
    [
        ({}, 64, "float32", "no kernel for cpu, only for TPU v4"),
        ({"cpu": tpu.attend}, 129, "float32", "model.head_dim=129 is above 128"),
        (
            {"cpu": tpu.attend},
            64,
            "float64",
            "model.compute_dtype=float64 is not float32 or bfloat16",
        ),
    ],
)
def test_refuses_what_it_has_no_kernel_for(kernels, E, dtype, message, monkeypatch, x64):
    monkeypatch.setattr(fused, "KERNELS", fused.KERNELS | kernels)
    with pytest.raises(
        BadInput, match=f"model.attention=fused: .*{message}.*; use model.attention=xla"
    ):
        fused.attend(cast(draw(T=2, M=1, E=E), dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [GATHERED, functools.partial(gpu.attend, interpret=True)], ids=NAMES
)
def test_the_kernels_agree_with_xla_on_the_small_case(kernel, monkeypatch):
    monkeypatch.setitem(fused.KERNELS, "cpu", kernel)
    if kernel is not GATHERED:  # then with fewer programs
        monkeypatch.setattr(gpu, "attend", kernel)
    for model in ({}, {"architecture": "modern", "window": 128}):
        config = ModelConfig(head_dim=64, compute_dtype="float32", **model)
        assert fused.compare(config, jax.local_devices()[0]) <= fused.UNITS
