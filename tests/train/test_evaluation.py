"""Evaluation of left-to-right models: every token once, memory from segment to segment, bits of
text; how far back one looks: the paper's rule on losses whose answer is known, and losses of exact
contexts.
"""

import dataclasses
import functools
import json
import math
import os

import jax
import numpy as np
import pytest
import shared
import tiny

from xlnet_jax.cli import main
from xlnet_jax.commands.train import train
from xlnet_jax.config import MeshConfig
from xlnet_jax.data.batches.stream import SinglePass
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import sliding
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import example_batch, make_recipe

T, M = 8, 12
COUNTS = np.ones(tiny.VOCAB, np.int64)


def settings(memory_len=M, **sections):
    return tiny.config(
        model={"memory_len": memory_len, "compute_dtype": "float64"},
        data={"objective": "clm", "segment_len": T, "reuse_len": T, "num_predict": T},
        **{"train": {"batch_size": 4}, **sections},
    )


@functools.cache
def of_length(config, n):
    return config.changed(data={"segment_len": n, "reuse_len": n, "num_predict": n})


def text(tokens=51):
    return tiny.Words(tokens, seed=3)


@functools.cache
def params():
    return tiny.params(settings())


def scored(config, words, devices=1, kind=LanguageModel, values=None, **options):
    mesh, recipe = meshes.make_mesh(MeshConfig(), jax.devices()[:devices]), make_recipe(config)
    recipe = dataclasses.replace(recipe, model=kind(**vars(recipe.model)))
    with jax.set_mesh(mesh):
        placed = jax.device_put(values or params(), jax.NamedSharding(mesh, jax.P()))
        return HeldoutLoss(recipe, mesh, tiny.mixture(words), COUNTS, **options)(placed)


def by_hand(config, tokens, segment_len):
    """Nats of every token after the first, from one segment after the other, each of its real
    length.
    """
    memory = empty_memory(config.model, 1)
    found = []
    for start in range(0, len(tokens) - 1, segment_len):
        piece = tokens[start : start + segment_len + 1]
        n = len(piece) - 1
        place = np.arange(n)[None]
        short = of_length(config, n)
        batch = dataclasses.replace(
            example_batch(short, 1),
            tokens=piece[None, :-1],
            rank=place,
            direction=np.ones(1, np.int32),
            continues=np.array([start > 0]),
            target_positions=place,
            target_tokens=piece[None, 1:],
            target_weights=np.ones((1, n), np.float32),
        )
        nll_T, memory = forward(short, params(), batch, memory)
        found.append(nll_T)
    return np.concatenate(found)


@functools.partial(jax.jit, static_argnums=0)
def forward(config, params, batch, memory):
    model = make_recipe(config).model
    out = model.transformer.apply({"params": params}, batch, memory)
    return model.nll(params, out.target_vectors_BPD, batch.target_tokens)[0], out.memory


def test_a_memory_as_long_as_the_text_is_the_whole_text_at_once(x64):
    words = text()
    result = scored(settings(memory_len=48), words, streams=1)
    whole = by_hand(settings(memory_len=0), words.text, words.tokens)
    assert result["heldout_loss"] == pytest.approx(whole.mean(), rel=1e-12)


def test_streams_decide_the_loss_and_devices_and_batches_do_not(x64):
    """A stream is a plain loop over its text; here it has two dispatches, and the last stream ends
    with a segment of four tokens.
    """
    words = text(T * 27 + 5)
    result = scored(settings(), words, streams=3)
    assert result["streams"] == 3 and result["targets"] == words.tokens - 1
    rows = np.split(np.arange(words.tokens - 1), [10 * T, 20 * T])
    parts = [by_hand(settings(), words.text[row[0] : row[-1] + 2], T) for row in rows]
    nats = np.concatenate(parts)
    assert result["heldout_loss"] == pytest.approx(nats.mean(), rel=1e-12)
    assert result["loss_without_memory"] != pytest.approx(nats.mean(), rel=1e-6)
    # A token is a character of two bytes.
    units = {"character": len(nats), "byte": 2 * len(nats)}
    units["word"] = words.tokenizer.word_start[words.text[1:]].sum()
    for unit, count in units.items():
        bits = nats.sum() / math.log(2) / count
        assert result[f"bits_per_{unit}"] == pytest.approx(bits, rel=1e-12)
    two = settings(evaluation={"batch_size": 2})
    for config, devices in ((settings(), 4), (two, 1)):
        again = scored(config, words, devices=devices, streams=3)
        assert again["heldout_loss"] == pytest.approx(nats.mean(), rel=1e-12)


def test_streams_tile_every_split_and_are_long_by_default():
    cut = SinglePass.of_streams((1000, 17, 65), 8, streams=0, reach=20, most=4)
    assert cut.rows_S3.tolist() == [
        [0, 0, 32],
        [0, 32, 32],
        [0, 64, 32],
        [0, 96, 29],
        [1, 0, 2],
        [2, 0, 8],
    ]
    where = cut.locate(np.arange(7), 1)
    assert where.cursor_B[:6].tolist() == [8, 264, 520, 776, 8, 8]
    assert where.exists_B.tolist() == [True] * 6 + [False] and where.continues_B.all()
    assert cut.locate(np.array([3, 4]), 28).exists_B.tolist() == [True, False]
    # Whole streams that hold so many segments, from the middle of what they stand for.
    some = [
        SinglePass.of_streams((1000,), 8, streams=0, reach=20, most=4, limit=n).rows_S3.tolist()
        for n in (3, 40)
    ]
    assert some == [[[0, 64, 32]], [[0, 32, 32], [0, 96, 29]]]


class TwoLosses(LanguageModel):
    """The second is three times the first, of half as many targets."""

    def row_losses(self, *args):
        rows = super().row_losses(*args)
        loss_B, weight_B = rows.sums["tokens"]
        return dataclasses.replace(rows, sums=rows.sums | {"second": (3 * loss_B, weight_B / 2)})


def test_every_loss_is_reported_with_its_own_divisor(x64):
    one, two = (
        scored(settings(), text(), kind=kind, streams=2) for kind in (LanguageModel, TwoLosses)
    )
    assert two.pop("heldout_loss_second") == pytest.approx(6 * one["heldout_loss"], rel=1e-6)
    assert two == pytest.approx(one, rel=1e-12)


def test_masked_diffusion_is_evaluated_with_the_weights_of_its_loss(x64):
    """Each masked token stands for T / n: so all tokens have been scored, and with equal counts in
    the train split each costs log V by its frequency. The fault: targets that count once.
    """
    data = {"objective": "mdm", "segment_len": T, "reuse_len": T, "num_predict": T}
    config = tiny.config(
        model={"memory_len": 0, "compute_dtype": "float64"}, data=data, train={"batch_size": 4}
    )
    found = scored(config, text(64), values=tiny.params(config))
    assert found["targets"] == 64 and found["unigram_cross_entropy"] == pytest.approx(
        math.log(tiny.VOCAB), rel=1e-6
    )
    assert "loss_without_memory" not in found, "it has no memory"
    # Every piece of this text has two bytes.
    assert found["bits_per_byte"] == pytest.approx(
        found["heldout_loss"] / math.log(2) / 2, rel=1e-6
    )


def test_a_split_shorter_than_a_segment_is_one_line(x64):
    with pytest.raises(
        BadInput,
        match="has 8 tokens, but a segment with its targets needs 9; use more text or",
    ):
        scored(settings(), text(8))


@pytest.mark.slow
def test_a_run_is_evaluated_with_another_memory_and_by_context(tmp_path, pytestconfig, capsys):
    config = shared.settings(
        pytestconfig,
        model={"memory_len": M},
        train={"steps": 2},
        optimizer={"warmup_steps": 1},
        data={"objective": "clm", "segment_len": T, "reuse_len": T, "num_predict": T},
        evaluation={"every": 2},
    )
    workdir = str(tmp_path)
    train(config, workdir)

    def evaluated(*words):
        assert main(["evaluate", f"--workdir={workdir}", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    (line,) = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    same = evaluated()
    assert line.pop("seconds") > 0
    assert same == pytest.approx(line) and same["perplexity"] == pytest.approx(
        math.exp(same["heldout_loss"])
    )
    assert (
        0 < same["bits_per_byte"] <= same["bits_per_character"] < same["bits_per_word"]
        and same["streams"] == 8
    )
    reach = ["--memory_len=40", "--segment_len=16", "--clamp_len=9", "--same_length"]
    one = evaluated("--streams=1", "--batch_size=16", *reach)
    assert (
        one["streams"] == 1
        and one["targets"] == same["targets"]
        and one["heldout_loss"] != same["heldout_loss"]
    )
    found = evaluated("--context", f"--against={workdir}", "--memory_len=24")
    assert found["lengths"] == [1, 2, 4, 8, 16, 32] and found["targets"] == 2000
    assert len(found["models"][workdir]["loss"]) == 6 and os.path.exists(found["picture"])
    assert main(["evaluate", f"--workdir={workdir}", "--context", "--streams=2"]) == 2
    assert "--streams is not for the context mode" in capsys.readouterr().err


LENGTHS = sliding.doubling(130)


def looks_back(reach_N):
    """Losses of a model that uses `reach` tokens before each target, and no more."""
    return 4 / np.minimum(np.array(LENGTHS)[:, None], reach_N)


def lengths_of(*models):
    found = sliding.effective_contexts(LENGTHS, np.stack(models))
    return [
        {share: each["effective_context"] for share, each in model["share"].items()}
        for model in found
    ]


def test_the_length_is_where_a_longer_context_stops_to_help():
    """Catches: the gain of a pair under the wrong length, the share of the easiest tokens, each its
    own baseline.
    """
    assert LENGTHS == [1, 2, 4, 8, 16, 32, 64, 128]
    near, far = np.full(100, 4), np.full(100, 16)
    assert lengths_of(looks_back(far)) == [{"0.1": 16, "0.5": 16, "1": 16}]
    # The better model is the baseline of both, but neither takes from the other.
    assert [model["1"] for model in lengths_of(looks_back(near), looks_back(far))] == [4, 16]
    assert sliding.effective(np.full(7, 0.5), LENGTHS) == 128
    # A tenth of the tokens stays hard until 64 tokens back; of all tokens it is a gain of 0.995 %,
    # too little.
    hard = looks_back(far)
    hard[:, :10] = np.where(np.array(LENGTHS)[:, None] < 64, 8 - np.arange(8)[:, None] / 10, 1)
    (lengths,) = lengths_of(hard)
    assert lengths["0.1"] == 64 and lengths["1"] == 16
    f_C2 = sliding.hardest_losses(hard[None], 0.1)[0]
    assert f_C2[4].tolist() == pytest.approx([7.6, 7.5]) and f_C2[5].tolist() == pytest.approx(
        [7.5, 1]
    )


def test_losses_are_of_exactly_so_many_tokens_before_the_target(x64):
    """Predicted from the last position of a window, by a model with relative positions."""
    config = tiny.config(
        model={"memory_len": 4, "compute_dtype": "float64"},
        data={"objective": "clm", "segment_len": 4, "reuse_len": 4, "num_predict": 4},
        evaluation={"batch_size": 8},
    )
    recipe, fresh = make_recipe(config), tiny.params(config)
    windows_NX = sliding.windows(tiny.mixture(text(100)), 9, 11)
    alone = jax.jit(functools.partial(sliding.window_nll, recipe.model, slots=3))
    expected_N3 = alone(fresh, windows_NX[:, -4:])
    mesh = meshes.make_mesh(MeshConfig(), jax.devices()[:4])
    with jax.set_mesh(mesh):
        placed = jax.device_put(fresh, jax.NamedSharding(mesh, jax.P()))
        found = sliding.losses(recipe, mesh, placed, windows_NX, (3,))
    np.testing.assert_allclose(found, expected_N3[None, :, 2], rtol=1e-12)
