"""The objectives beside permutation language modelling: their batches, what a prediction looks at,
that they learn.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from special_ids import CLS, MASK, SEP

from xlnet_jax.batch import Memory, stack
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

T = 32
PLM = {"objective": "plm", "reuse_len": 16, "num_predict": 6}
CLM = {"objective": "clm", "reuse_len": T, "num_predict": T}
MLM = {"objective": "mlm", "reuse_len": T - 3, "num_predict": 5, "spans": "random"}
MDM = {"objective": "mdm", "reuse_len": T, "num_predict": T}
ROWS = np.arange(8)


def config(data, **sections):
    if data["objective"] in ("mlm", "mdm"):
        sections["model"] = {"memory_len": 0, **sections.get("model", {})}
    return tiny.config(data=data, **sections)


def read_as_text(batch, settings, step):
    """Of each row what it reads, before any masking, and the window of the text that its tokens are
    from.
    """
    tokens = batch.tokens.copy()
    np.put_along_axis(tokens, batch.target_positions, batch.target_tokens, axis=1)
    plan = extend_plan((), 0, 8, settings.data.windows_per_block)
    where, first = (
        tiny.mixture().stream(settings).locate(step // 4 * 4, ROWS, plan),
        step % 4 * (T - 3),
    )
    place = where.cursor_B[:, None] + where.direction_B[:, None] * (first + np.arange(T - 3))
    return tokens, tiny.words().text[place % tiny.words().tokens]


def of_text(tokens):
    return tokens[(tokens != SEP) & (tokens != CLS)]


def test_a_causal_batch_is_the_text_and_predicts_each_next_token():
    settings = config(CLM)
    first, second = tiny.batch(settings, 0), tiny.batch(settings, 1)
    np.testing.assert_array_equal(first.target_tokens[:, :-1], first.tokens[:, 1:])
    # The last prediction is the first token of the next window, which the memory then continues.
    np.testing.assert_array_equal(first.target_tokens[:, -1], second.tokens[:, 0])
    assert not first.continues.any() and second.continues.all()
    assert (first.rank == np.arange(T)).all() and (first.target_positions == np.arange(T)).all()
    assert (first.target_weights == 1).all() and (first.label_weight == 0).all()
    assert set(first.direction.tolist()) == {1, -1}


def test_a_masked_batch_reads_its_window_as_a_and_b_after_cls():
    settings = config(MLM | {"positive_pair_rate": 1.0})
    for step in (0, 1):
        batch = tiny.batch(settings, step)
        tokens, window = read_as_text(batch, settings, step)
        assert (tokens[:, 0] == CLS).all() and (tokens[:, -1] == SEP).all()
        assert ((tokens == SEP).sum(axis=1) == 2).all() and (batch.summary_position == 0).all()
        assert (
            (batch.rank == 0).all()
            and (batch.segments[:, 0] == 0).all()
            and (batch.segments[:, -1] == 1).all()
        )
        # With B what follows A, the two are the window, whole.
        assert (batch.label == 1).any()
        for row in np.flatnonzero(batch.label == 1):
            np.testing.assert_array_equal(of_text(tokens[row]), window[row])


def test_sentence_order_swaps_half_of_the_pairs_and_says_so():
    settings = config(MLM | {"pairs": "order"})
    labels = []
    for step in range(0, 40, 4):
        batch = tiny.batch(settings, step)
        tokens, window = read_as_text(batch, settings, step)
        for row in range(8):
            read, cut = of_text(tokens[row]), np.flatnonzero(tokens[row] == SEP)[0] - 1
            if batch.label[row]:
                np.testing.assert_array_equal(read, window[row])
            else:
                np.testing.assert_array_equal(np.concatenate([read[cut:], read[:cut]]), window[row])
                assert not np.array_equal(read, window[row])
        labels.append(batch.label[batch.label_weight > 0])
    assert 0.3 < np.concatenate(labels).mean() < 0.7


def test_a_text_without_a_sentence_start_has_no_label_for_its_order():
    class Endless(tiny.Words):
        def read(self, starts, length):
            tokens, _ = super().read(starts, length)
            return tokens, np.zeros_like(tokens, bool)

    batch = tiny.batch(config(MLM | {"pairs": "order"}), text=Endless())
    assert (batch.label_weight == 0).all()
    assert (batch.tokens[:, -2:] == SEP).all(), "all of it is A"


@pytest.mark.parametrize("family", ["xlnet", "bert"])
def test_masked_diffusion_masks_any_number_of_a_window(family):
    """Counts and places are uniform; the faults: a share of masks as in BERT, other tokens than
    MASK, masked CLS.
    """
    framed = family == "bert"
    N = T - 2 * framed
    data = MDM | {
        "reuse_len": N,
        "num_predict": N,
        "pairs": "none" if framed else "next",
        "sentence_loss": False,
    }
    settings = tiny.family("bert", data=data) if framed else config(data)
    batch, B = tiny.batch(settings, 0, 2000), 2000
    masked, frame = batch.tokens == MASK, slice(1, -1) if framed else slice(None)
    count_B = masked.sum(axis=1)
    np.testing.assert_array_equal(batch.target_weights.sum(axis=1), count_B)
    used = batch.target_weights > 0
    rows = np.nonzero(used)[0]
    text = batch.tokens.copy()
    assert masked[rows, batch.target_positions[used]].all()
    text[rows, batch.target_positions[used]] = batch.target_tokens[used]
    where = (
        tiny.mixture()
        .stream(settings)
        .locate(0, np.arange(B), extend_plan((), 0, B, settings.data.windows_per_block))
    )
    place = where.cursor_B[:, None] + where.direction_B[:, None] * np.arange(N)
    np.testing.assert_array_equal(text[:, frame], tiny.words().text[place % tiny.words().tokens])
    assert not framed or ((text[:, 0] == CLS) & (text[:, -1] == SEP)).all()
    assert (
        (batch.rank == 0).all() and (batch.label_weight == 0).all() and (batch.segments == 0).all()
    )
    # Five standard deviations.
    assert abs(np.bincount(count_B, minlength=N + 1)[1:] - B / N).max() < 5 * np.sqrt(B / N)
    assert abs(masked[:, frame].mean(axis=0) - (N + 1) / (2 * N)).max() < 5 * 0.5 / np.sqrt(B)


def test_the_loss_of_masked_diffusion_is_the_bound_by_hand(x64):
    """From log-probabilities of the model, in numpy: T / n over the masks that stand in the text,
    divided by the T of each row. The fault: a mean over all masked tokens, by which rows of many
    masks count more.
    """
    settings = config(
        MDM, model={"dropout": 0.0, "attention_dropout": 0.0, "compute_dtype": "float64"}
    )
    model, params = (
        make_recipe(settings).model,
        jax.tree.map(np.float64, tiny.random_params(settings, 0.3)),
    )
    batch = tiny.batch(settings)
    # A row past the end of a single pass.
    weights = batch.target_weights * (np.arange(8) != 5)[:, None].astype(np.float32)
    batch, memory = (
        dataclasses.replace(batch, target_weights=weights),
        empty_memory(settings.model, 8),
    )

    @jax.jit
    def run(params):
        out = model.transformer.apply({"params": params}, batch, memory)
        log_p_BPV = jax.nn.log_softmax(model.logits(params, out.target_vectors_BPD))
        return log_p_BPV, *mean_loss(params, model, batch, memory)

    log_p_BPV, loss, rows = jax.device_get(run(params))
    bounds, plain = [], []
    for row in (0, 1, 2, 3, 4, 6, 7):
        n = int((batch.tokens[row] == MASK).sum())
        nll = [-log_p_BPV[row, slot, batch.target_tokens[row, slot]] for slot in range(n)]
        bounds.append(T / n * sum(nll))
        plain += nll
    assert loss == pytest.approx(sum(bounds) / (7 * T), rel=1e-9) and loss.dtype == np.float64
    np.testing.assert_array_equal(rows.sums["tokens"][1], T * (np.arange(8) != 5))
    assert abs(loss - np.mean(plain)) > 1e-3 * loss


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (CLM, {}),
        (CLM | {"bidirectional": False}, {"architecture": "vanilla", "memory_len": 0}),
        (MLM, {}),
    ],
    ids=["clm", "vanilla", "mlm"],
)
def test_a_prediction_looks_at_what_its_objective_allows_and_no_further(data, model):
    settings = config(data, model=model | {"dropout": 0.0, "attention_dropout": 0.0})
    transformer, params = make_recipe(settings).model.transformer, tiny.params(settings)
    batch = dataclasses.replace(tiny.batch(settings), continues=np.ones(8, bool))
    M, place = settings.model.memory_len, 10
    memory = Memory(jax.random.normal(jax.random.key(1), (2, 8, M, 16)), jnp.full(8, M, jnp.int32))

    @jax.jit
    def vectors(batch):
        return transformer.apply({"params": params}, batch, memory).target_vectors_BPD

    def moved(**changes):
        other = vectors(dataclasses.replace(batch, **changes))
        return np.abs(np.asarray(other - vectors(batch))).max(axis=(0, 2)) > 0

    tokens = batch.tokens.copy()
    tokens[:, place] = (tokens[:, place] - 9 + 50) % 191 + 9
    seen = moved(tokens=tokens)
    if data["objective"] == "clm":
        np.testing.assert_array_equal(seen, np.arange(T) >= place)
    else:
        assert seen.all(), "everything sees everything"
    without_memory = moved(continues=np.zeros(8, bool))
    assert without_memory.all() if M else not without_memory.any(), "the memory is seen, if any"


@pytest.mark.slow
@pytest.mark.parametrize("data", [CLM, MLM, MDM], ids=["clm", "mlm", "mdm"])
def test_it_learns(data):
    settings = config(
        data | {"bidirectional": False},
        train={"steps": 60, "steps_per_dispatch": 60},
        optimizer={"learning_rate": 2e-2},
        checkpoint={"every": 60},
    )
    text = tiny.Words(tokens=6000)
    # Every token but a few follows from the one before it.
    text.text[:] = 9 + (np.cumsum(np.random.default_rng(0).random(6000) < 0.97) * 7) % 40
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[:1])
    batches = stack([tiny.batch(settings, step, text=text) for step in range(60)])
    with jax.set_mesh(mesh):
        built = build_step(make_recipe(settings), mesh)
        _, metrics = built.jitted(
            create_state(built), meshes.place(batches, mesh), built.dropout_seed
        )
    loss = np.asarray(metrics["loss"])
    assert loss[0] > 4.5 and loss[-5:].mean() < loss[0] - 1.0, loss


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": "clm"},
            "data.reuse_len=16 must be data.segment_len = 32 with data.objective=clm",
        ),
        ({"objective": "clm", "reuse_len": 32}, "data.num_predict=6 must be data.segment_len = 32"),
        (
            {"objective": "mdm"},
            "data.reuse_len=16 must be data.segment_len = 32 with data.objective=mdm",
        ),
        (MDM, "model.memory_len=24 must be 0 with data.objective=mdm"),
    ],
)
def test_lengths_that_do_not_fit_the_objective_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        tiny.config(data=changes)


def test_labels_are_smoothed_in_training_alone():
    """A share e of every target is spread over the vocabulary; the fault: an evaluation that says
    it, or a sum of V.
    """
    settings = config(
        PLM, train={"label_smoothing": 0.2}, model={"dropout": 0.0, "attention_dropout": 0.0}
    )
    model, batch = make_recipe(settings).model, tiny.batch(settings)
    params, memory = tiny.random_params(settings), empty_memory(settings.model, 8)

    @jax.jit
    def run(params):
        out = model.transformer.apply({"params": params}, batch, memory)
        log_p_BPV = jax.nn.log_softmax(model.logits(params, out.target_vectors_BPD))
        losses = [
            mean_loss(params, model, batch, memory, *key)[0] for key in ((), (jax.random.key(0),))
        ]
        return log_p_BPV, losses

    log_p_BPV, (plain, smoothed) = run(params)
    nll_BP = -np.take_along_axis(np.asarray(log_p_BPV), batch.target_tokens[..., None], axis=-1)[
        ..., 0
    ]
    spread_BP = -np.asarray(log_p_BPV).mean(axis=-1)
    weights_BP = batch.target_weights / batch.target_weights.sum()
    assert float(plain) == pytest.approx((nll_BP * weights_BP).sum(), rel=1e-5)
    assert float(smoothed) == pytest.approx(
        ((0.8 * nll_BP + 0.2 * spread_BP) * weights_BP).sum(), rel=1e-5
    )
    assert abs(plain - smoothed) > 0.01
    for changes, said in (
        ({"train": {"label_smoothing": 1.0}}, "train.label_smoothing=1.0 must be below 1"),
        (
            {"train": {"label_smoothing": 0.1}, "model": {"cutoffs": "50"}},
            "is not for the clusters of model.cutoffs",
        ),
        (
            {"train": {"label_smoothing": 0.1}, "finetune": {"task": "regression"}},
            "is for losses of tokens; use 0",
        ),
    ):
        with pytest.raises(BadInput, match=said):
            tiny.config(**changes)
