"""Text to text: who sees whom, batches by length, decoding with a cache, beam search, and rules
that are learned.
"""

import collections
import dataclasses
import functools
import itertools
import json
import pathlib
import random
import subprocess
import sys

import data_fixtures
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
import tiny
from test_finetune import fingerprint

from xlnet_jax import config as configs
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.commands.predict import predict
from xlnet_jax.data import vocabulary
from xlnet_jax.data.batches.stream import PlanEntry
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.evaluation import TaskEvaluator
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import encode_examples, prepare, rows_of
from xlnet_jax.finetune.task import Example
from xlnet_jax.finetune.text_to_text import TextToText, as_batch
from xlnet_jax.infer import text_to_text
from xlnet_jax.infer.beam import Beam, _penalty, search
from xlnet_jax.infer.options import Decoding
from xlnet_jax.infer.text_to_text import Writer
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import loop
from xlnet_jax.train.recipe import make_recipe

T = 32
MEMBERS = {
    "xlnet": tiny.config(),
    "transformer_xl": tiny.family("transformer_xl"),
    "masked_xlnet": tiny.config(
        model={"memory_len": 0}, data={"objective": "mlm", "reuse_len": T - 3}
    ),
    **{name: tiny.family(name) for name in ("bert", "roberta", "albert", "gpt2")},
    "modernbert": tiny.family("modernbert", model={"window": 8, "global_every": 2}),
}
"""What a task may start from."""


def _task(member="xlnet", **finetune):
    pretrained = MEMBERS[member]
    task = configs.FinetuneConfig(task="text_to_text", max_answer=12, **finetune)
    config = dataclasses.replace(pretrained, finetune=task).changed(
        model={"memory_len": 0, "dropout": 0.0}
    )
    return TextToText(config, data_fixtures.tokenizer())


EXAMPLES = [
    Example(("bame dono",), "dono", ""),
    Example(("kira",), "kira bame lusi", ""),
    Example(("lusi tume veve",), "veve tume", ""),
    Example(("ba",), "do", ""),
]


def _recipe(task):
    return task_recipe(task, task.encode(0, EXAMPLES[0])[0], task.config)


@functools.cache
def _trained(member):
    """A model with parameters that tell tokens apart."""
    task = _task(member)
    return task, _recipe(task), tiny.random_params(task.config, 0.5, task.tokenizer)


def _hidden(recipe, params, batch):
    """The vectors of all positions of a batch, without a cache, [B, T, D]."""
    batch = as_batch(batch)
    memory = empty_memory(recipe.config.model, len(batch.tokens), 0)
    return recipe.model.transformer.apply({"params": params}, batch, memory).hidden_BTD


@pytest.mark.parametrize("member", ["xlnet", "gpt2"])
def test_the_target_sees_its_past_and_the_source_sees_itself(member):
    """By the gradient of each position's vector with respect to the vectors of distinct tokens."""
    _, recipe, params = _trained(member)
    source, length = 5, 9
    tokens_T = jnp.arange(20, 20 + T, dtype=jnp.int32)
    labels = {"source": jnp.array([[source]]), "length": jnp.array([[length]])}
    batch = dataclasses.replace(_batch(member), tokens=tokens_T[None, None, None], labels=labels)

    def vectors(table_VD):
        hidden_BTD = _hidden(recipe, {**params, "word_embedding": table_VD}, batch)
        return (hidden_BTD[0] ** 3).sum(axis=-1)

    seen_TVD = jax.jit(jax.jacrev(vectors))(params["word_embedding"])
    seen_TT = np.abs(np.asarray(seen_TVD)[:length, 20 : 20 + length]).sum(axis=-1) > 0
    place = np.arange(length)
    assert (seen_TT == ((place[None] < source) | (place[None] <= place[:, None]))).all()
    fed = as_batch(batch)
    predicts_T = fed.target_weights[0] > 0
    assert np.flatnonzero(predicts_T).tolist() == [4, 5, 6, 7]
    assert (np.asarray(fed.target_tokens[0])[predicts_T] == np.asarray(tokens_T)[5:9]).all()


def _batch(member):
    task, _, _ = _trained(member)
    return task.batch(rows_of(task, EXAMPLES[:1]), 1)


@pytest.mark.parametrize("member", MEMBERS)
def test_all_parameters_are_those_of_the_pretrained_model(member):
    """The fault: a head that starts fresh, or parts of another model of the family."""
    task = _task(member)
    theirs = nn.meta.unbox(make_recipe(MEMBERS[member]).abstract_params)
    ours = nn.meta.unbox(_recipe(task).abstract_params)
    of_pairs = {"pooler", "sentence_head"}
    assert jax.tree.structure(ours) == jax.tree.structure(
        {k: v for k, v in theirs.items() if k not in of_pairs}
    )


U, V, END = 3, 6, 2


@functools.cache
def _small(member, end=0.0):
    """A model of six tokens; `end` is added to the logit of END."""
    task = _task(member)
    config = task.config.changed(model={"vocab_size": V, "init_std": 0.6})
    recipe = _recipe(dataclasses.replace(task, config=config))
    params = jax.jit(lambda: nn.meta.unbox(recipe.init_params()))()
    if end:
        params = {**params, "lm_head": {"bias": params["lm_head"]["bias"].at[END].add(end)}}
    return recipe, params


SOURCES = [(3, 4, 5, 1), (5, 1), *((a, b, 1) for a in (0, 3, 4, 5) for b in (0, 4, 5))]


@functools.cache
def _likelihoods(member, source, end=0.0):
    """log p of all sequences of up to U pieces that end with END or have U pieces."""
    log_probs, others = {(): 0.0}, [token for token in range(V) if token != END]
    for n in range(U):
        rows = np.zeros((V ** (U - 1), T), np.int32)
        length = len(source) + n
        prefixes = list(itertools.product(others, repeat=n))
        for b, prefix in enumerate(prefixes):
            rows[b, :length] = [*source, *prefix]
        log_p_BV = _without_cache(member, end)(rows, len(source), length)
        for b, prefix in enumerate(prefixes):
            for token in range(V):
                log_probs[*prefix, token] = log_probs[prefix] + log_p_BV[b, token]
    return {seq: p for seq, p in log_probs.items() if END in seq or len(seq) == U}


@functools.cache
def _without_cache(member, end):
    """log p of the piece after the first `length` of each row, from one forward pass."""
    recipe, params = _small(member, end)

    @jax.jit
    def log_p(rows, source, length):
        full = jnp.full((len(rows), 1), length)
        labels = {"source": full * 0 + source, "length": full + 1}
        batch = dataclasses.replace(_batch(member), tokens=rows[:, None, None], labels=labels)
        last_B1D = _hidden(recipe, params, batch)[:, length - 1][:, None]
        return jax.nn.log_softmax(recipe.model.logits(params, last_B1D)[:, 0])

    return lambda *args: np.asarray(log_p(*args), np.float64)


def _found(member, sources, width, alpha, end=0.0):
    """The pieces and log p that a beam search finds for each source, and the number of its calls.

    What it finds has the log p that the model gives without a cache.
    """
    recipe, params = _small(member, end)
    tokens = np.zeros((len(sources), 16), np.int32)
    for b, source in enumerate(sources):
        tokens[b, : len(source)] = source
    lengths = np.array([len(source) for source in sources], np.int32)
    beam = Beam(width, U, END, T)
    tokens_BU, log_prob_B, count = search(recipe.model, beam, params, tokens, lengths, alpha)
    found = [tuple(token for token in row if token >= 0) for row in tokens_BU.tolist()]
    for source, said, log_prob in zip(sources, found, log_prob_B.tolist(), strict=True):
        assert _likelihoods(member, source, end)[said] == pytest.approx(log_prob, abs=1e-4)
    return found, int(count)


def _is_best(member, source, said, alpha, end=0.0):
    """Whether no sequence has a better score."""
    score = {
        seq: log_prob / ((5 + len(seq)) / 6) ** alpha
        for seq, log_prob in _likelihoods(member, source, end).items()
    }
    return score[said] == pytest.approx(max(score.values()), abs=1e-4)


@pytest.mark.parametrize("member", ["xlnet", pytest.param("bert", marks=pytest.mark.slow), "gpt2"])
def test_a_wide_beam_is_an_exhaustive_search(member):
    """Its likelihoods are those of the model without a cache, with any length penalty; the fault: a
    search that ends too early, a wrong length, or rows of the cache that are not those of their
    prefix. A beam of 1 finds no more.
    """
    for alpha in (0.0, 0.6, 8.0):  # the last one wants long targets
        found, calls = _found(member, SOURCES, V**2, alpha)
        for source, said in zip(SOURCES, found, strict=True):
            assert _is_best(member, source, said, alpha)
        _found(member, SOURCES, 1, alpha)
    assert calls == U


def test_the_strongest_length_penalty_of_the_longest_target_is_finite():
    """Else its score is -0, better than any other."""
    keys = ("finetune.length_penalty", "data.segment_len")
    power, longest = (configs.fields()[key].metadata["bounds"]["at most"] for key in keys)
    assert np.isfinite(_penalty(jnp.float32(longest), power))


def test_a_search_ends_when_nothing_can_win_and_not_before():
    """With END nearly certain one call is enough. Where END is likely at once, but long targets are
    wanted, the search goes on: one source at a time, since in a batch the others keep it going.
    """
    for source in SOURCES[2:6]:
        (said,), _ = _found("xlnet", [source], V**2, 8.0, end=4.0)
        assert _is_best("xlnet", source, said, 8.0, end=4.0)
    assert _found("xlnet", SOURCES[:1], 4, 0.6, end=20.0) == ([(END,)], 1)


@pytest.mark.parametrize(
    "member", ["xlnet", "gpt2", pytest.param("modernbert", marks=pytest.mark.slow)]
)
def test_greedy_pieces_are_the_most_probable_without_a_cache(member):
    task, recipe, params = _trained(member)
    mesh = meshes.make_mesh(recipe.config.mesh)
    rows = rows_of(task, EXAMPLES)
    greedy = dataclasses.replace(recipe, config=recipe.config.changed(finetune={"beam": 1}))
    with jax.set_mesh(mesh):
        found = Writer(task, greedy, mesh, 8)(params, rows)
        drawn = Writer(task, greedy, mesh, 8, Decoding(temperature=1.0, seed=3))(params, rows)
    assert (drawn["tokens"] != found["tokens"]).any()
    assert (drawn["log_prob"] < found["log_prob"] + 1e-4).any()
    for row, tokens, log_prob in zip(rows, found["tokens"], found["log_prob"], strict=True):
        said = tokens[tokens >= 0]
        source = int(row.labels["source"][0])
        tokens = np.append(row.tokens[0][:source], said).astype(np.int32)
        labels = row.labels | {"length": np.array([source + len(said)], np.int32)}
        whole = row._replace(tokens=(tokens,), segments=(tokens * 0,), labels=labels)
        hidden_BTD = _hidden(recipe, params, task.batch([whole], 1))
        logits = recipe.model.logits(params, hidden_BTD)[0, source - 1 : source + len(said) - 1]
        assert np.argmax(logits, axis=1).tolist() == said.tolist()
        chosen = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), said[:, None], axis=1)
        assert float(chosen.sum()) == pytest.approx(float(log_prob), abs=1e-3)


def test_targets_of_a_beam_search_come_in_the_order_of_their_sources(monkeypatch):
    """Batches have sources of similar lengths; the fault: targets of other sources."""
    task, recipe, params = _trained("xlnet")
    wide = dataclasses.replace(recipe, config=recipe.config.changed(finetune={"beam": 4}))

    def lengths(model, beam, params, tokens_BQ, length_B, alpha):
        return np.repeat(length_B[:, None], beam.longest, axis=1), -1.0 * length_B, 0

    monkeypatch.setattr(text_to_text, "search", lengths)
    rows = rows_of(task, EXAMPLES)
    found = Writer(task, wide, meshes.make_mesh(wide.config.mesh), 8)(params, rows)
    source_N = np.array([row.labels["source"][0] for row in rows])
    assert found["log_prob"].tolist() == (-1.0 * source_N).tolist() and len({*source_N}) > 2
    assert found["tokens"].tolist() == np.repeat(source_N[:, None], 12 + 1, axis=1).tolist()


def test_batches_are_by_length_and_a_function_of_the_step():
    """Every row comes once an epoch, all batches have as many tokens, and a new batch size loses
    and repeats none.
    """
    task = _task()
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["ba", "do", "ki"], k=draw.randint(1, 9))) for _ in range(96)]
    data = encode_examples(task, "train.jsonl", [Example((text,), "ba", "") for text in texts])
    stream, plan = data.stream(task.config), (PlanEntry(0, 0, 4),)
    shapes, seen = set(), collections.Counter()
    assert [length.k for length in stream.lengths] == [0, 1]
    steps = 0
    while stream.epochs(steps, plan)[0] < 2 - 1e-9:
        where = stream.locate(steps, np.arange(4), plan)
        batch = data.build(task.config, where, name="train", step=steps, rows=np.arange(4))
        shapes.add(batch.tokens.shape)
        assert batch.tokens.size == 4 * T and batch.weight.tolist() == [1] * 4
        lengths = batch.labels["length"]
        assert ((batch.tokens[:, :, 0] != task.tokenizer.special.pad).sum(axis=-1) == lengths).all()
        seen.update(where.block_B.tolist())
        steps += 1
    assert shapes == {(4, 1, 1, T), (4, 2, 1, T // 2)}
    assert len(seen) == 96 and set(seen.values()) <= {1, 2, 3}
    # From step 7 on with two rows: what comes next is what would have come.
    other = (*plan, PlanEntry(7, 0, 2))
    after = [stream.locate(step, np.arange(2), other).block_B for step in range(7, 40)]
    before = [stream.locate(step, np.arange(4), plan).block_B for step in range(40)]
    which_S = stream.steps.deal(np.arange(40))[0]
    for which in range(2):
        whole, changed = (
            np.concatenate([rows for rows, its in zip(each, which_S, strict=True) if its == which])
            for each in (before, before[:7] + after)
        )
        assert (changed == whole[: len(changed)]).all()
    # Rows of two hosts, and those past the batch.
    parts = [stream.locate(3, rows, plan).block_B for rows in np.arange(4).reshape(2, 2)]
    assert (np.concatenate(parts) == before[3]).all()
    assert stream.locate(0, np.arange(3, 6), plan).exists_B.tolist() == [True, False, False]


def reverse(row):
    """A rule that cannot be learned without all of the source."""
    return row[::-1]


@pytest.fixture
def digits(tmp_path):
    """Makes the keys of a run on a rule for digits."""

    def make(rule, count):
        path, draw, files = str(tmp_path / "words.json"), random.Random(0), {}
        vocabulary.write_counted(
            path, "words", collections.Counter("0123456789"), None, verbatim=False
        )
        for name, lines in (("train", count), ("dev", 200)):
            rows = [draw.choices("0123456789", k=draw.randint(1, 8)) for _ in range(lines)]
            pairs = [f"{' '.join(row)}\t{' '.join(rule(row))}\n" for row in rows]
            files[name] = str(tmp_path / f"{name}.tsv")
            pathlib.Path(files[name]).write_text("source\ttarget\n" + "".join(pairs))
        return {"task": "text_to_text", "tokenizer": path, "max_answer": 10, "beam": 1, **files}

    return make


SIZE = {"d_model": 64, "heads": 4, "head_dim": 16, "d_ff": 128, "memory_len": 0, "dropout": 0.0}


@pytest.mark.slow
def test_a_rule_is_learned_exactly(tmp_path, digits, settings):
    """In half a minute, by the command line: on one device, compiled as in production."""
    config = settings(
        finetune=digits(reverse, 8000),
        model={**SIZE, "attention_dropout": 0.0, "init_std": 0.05},
        data={"segment_len": T},
        optimizer={"learning_rate": 3e-3, "warmup_steps": 100, "weight_decay": 0.0},
        train={"steps": 1600, "batch_size": 16},
        checkpoint={"every": 400},
        evaluation={"every": 400},
    )
    head = "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
    (tmp_path / "config.py").write_text(
        f"{head}    return ConfigDict({dataclasses.asdict(config)})\n"
    )
    environment = shared.environment() | {"XLA_FLAGS": ""}

    def run(command, *options):
        words = [sys.executable, "-m", "xlnet_jax", command, f"--workdir={tmp_path}/run", "--json"]
        done = subprocess.run([*words, *options], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(run("finetune", f"--config={tmp_path}/config.py"))["score"] > 0.99
    texts = ["3 1 4 1 5", "7", "9 9 8 2 6 0"]
    for options in (["--temperature=0.5", "--seed=1"], ["--config.finetune.beam=3"]):
        found = [
            json.loads(line)["target"].split()
            for line in run("predict", *texts, *options).splitlines()
        ]
        assert found == [reverse(text.split()) for text in texts]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path, digits, settings, monkeypatch):
    """With two lengths, whose steps alternate, and another dispatch size in the configuration.

    No step runs while another one is compiled: it would seem to take no time, at 794,253 tokens a
    second.
    """
    beside, compile_ = [], loop.Run._compile

    def watched(run, *given):
        beside.append(run.sent)
        return compile_(run, *given)

    monkeypatch.setattr(loop.Run, "_compile", watched)
    keys = {
        "finetune": digits(reverse, 64) | {"beam": 2, "max_answer": 9},
        "model": {"memory_len": 0},
        "data": {"segment_len": T},
        "train": {"steps": 8, "batch_size": 8},
        "checkpoint": {"every": 4},
        "evaluation": {"every": 4},
    }
    whole = finetune(settings(**keys), str(tmp_path / "whole"))
    finetune(settings(**keys), str(tmp_path / "cut"), stop_at=3)
    assert finetune(settings(**keys), str(tmp_path / "cut"))["score"] == whole["score"]
    assert fingerprint(tmp_path / "cut", 8) == fingerprint(tmp_path / "whole", 8)
    lines = read_jsonl(str(tmp_path / "cut" / "metrics.jsonl"))
    assert len({line["targets"] for line in lines}) > 2
    assert len(beside) > 3 and not any(beside)
    with pytest.raises(
        BadInput, match="top_k and top_p change nothing with temperature=0; give temperature=1"
    ):
        predict(str(tmp_path / "cut"), texts=["1 2"], top_k=3)


def test_a_run_starts_with_all_parameters_of_a_pretrained_one(tmp_path, settings, digits, caplog):
    """The fault: a left-to-right model read as one of two streams, or a softmax that starts
    anew.
    """
    source = MEMBERS["transformer_xl"]
    tiny.save_run(str(tmp_path / "source"), source, jax.tree.map(np.asarray, tiny.params(source)))
    keys = digits(sorted, 16) | {"tokenizer": "", "dev": "", "max_answer": 20}
    config = settings(
        finetune=keys,
        checkpoint={"init_from": str(tmp_path / "source")},
        model={"memory_len": 0},
        evaluation={"every": 0},
        data={"segment_len": T},
        train={"steps": 1, "steps_per_dispatch": 1},
        optimizer={"warmup_steps": 0},
    )
    with caplog.at_level("INFO"):
        finetune(config, str(tmp_path / "run"))
    (line,) = [
        line
        for line in caplog.messages
        if line.startswith("starting with the parameters of step 3")
    ]
    assert "new: " not in line and "not used: " not in line


def test_what_cannot_be_a_target_is_one_line(tmp_path, settings, digits):
    task = _task()
    for source, target, said in (
        ("ba", "ba " * 9, "the target has 27 pieces, more than finetune"),
        ("\u0301", "ba", "the source is empty after normalisation"),
        ("ba", "\u0301", "the target is empty after normalisation"),
    ):
        with pytest.raises(BadInput, match=f"a.tsv, row 3: {said}"):
            task.encode(0, Example((source,), target, "a.tsv, row 3"))
    # A source loses its end, and leaves room for any target.
    row = task.encode(0, Example(("ba " * 99,), "do", ""))[0]
    assert row.labels["source"] == T - 12 - 1 and len(row.tokens[0]) <= T
    good = digits(sorted, 8)
    for keys, said in (
        (
            {"model": {"memory_len": 8}},
            "model.memory_len=8 must be 0 with finetune.task=text_to_text",
        ),
        (
            {"finetune": {**good, "max_answer": T}},
            f"finetune.max_answer={T} leaves no room for a source",
        ),
        ({"finetune": {**good, "beam": 100}}, "finetune.beam=100 is more than model.vocab_size=20"),
        (
            {"finetune": {**good, "columns": "source"}},
            "finetune.columns=source must name the source and the target",
        ),
        ({"finetune": {**good, "columns": "a, a"}}, "finetune.columns=a, a names a column twice"),
        (
            {"data": {"segment_len": 15}},
            "data.segment_len=15 must be at least 16 with finetune.task=text_to_text",
        ),
    ):
        sections = {"finetune": good, "model": {"memory_len": 0}, "data": {"segment_len": T}} | keys
        with pytest.raises(BadInput, match=said):
            finetune(settings(**sections), str(tmp_path / "run"), dry_run=True)


def test_a_target_that_the_tokenizer_cannot_write_is_told(tmp_path, settings, digits, caplog):
    """This one strips accents: every score would be that of other texts."""
    path = tmp_path / "accents.tsv"
    path.write_text("source\ttarget\n" + "ba\t bame \n" * 14 + "ba\tbam\u00e9\n" * 2)
    keys = {"task": "text_to_text", "train": str(path), "dev": "", "max_answer": 8}
    config = settings(finetune=keys, model={"memory_len": 0}, evaluation={"every": 0})
    prepare(config, str(tmp_path / "run"))
    # Nothing is said of a tokenizer that keeps all, nor of spaces around a target.
    prepare(settings(finetune=digits(list, 16), model={"memory_len": 0}), str(tmp_path / "run"))
    (line,) = [line for line in caplog.messages if line.startswith("the tokenizer cannot write ")]
    assert " 2 targets of 16, " in line and "'bam\u00e9' becomes 'bame'" in line


def test_the_loss_of_the_dev_set_weighs_tokens_as_training_does(tmp_path):
    """The fault: a mean of the means of rows, in which short targets count as much as long ones."""
    task, recipe, params = _trained("gpt2")
    dev = encode_examples(task, "dev.tsv", EXAMPLES)
    mesh = meshes.make_mesh(recipe.config.mesh)
    nothing = {"tokens": np.full((4, 1), -1), "log_prob": np.zeros(4)}
    with jax.set_mesh(mesh):
        found = TaskEvaluator(recipe, mesh, dev, str(tmp_path), lambda *_: nothing)(params)["loss"]
    nats_B, tokens_B = map(
        np.asarray, recipe.model.row_losses(params, task.batch(dev.rows, 4), ()).sums["tokens"]
    )
    assert found == pytest.approx(nats_B.sum() / tokens_B.sum(), rel=1e-4)
    assert found != pytest.approx((nats_B / tokens_B).mean(), rel=1e-2)


def test_two_files_of_lines_are_pairs(tmp_path, settings, digits):
    files = [str(tmp_path / name) for name in ("a.en", "a.de")]
    pathlib.Path(files[0]).write_text("1 2\n3\n")
    config = settings(
        model={"memory_len": 0},
        data={"segment_len": T},
        train={"batch_size": 2, "elastic": True},
        finetune=digits(sorted, 8) | {"dev": "", "train": ",".join(files)},
        evaluation={"every": 0},
    )
    # Saves after any number of steps: a dispatch is one step, whatever the configuration says.
    configs.check(config.changed(train={"steps_per_dispatch": 4}, checkpoint={"every": 7}))
    # A target of Windows has no carriage return to learn.
    pathlib.Path(files[1]).write_bytes(b"2 1\r\n3\r\n")
    assert finetune(config, str(tmp_path / "run"), dry_run=True)
    train, _ = prepare(config, str(tmp_path / "run"))
    assert [example.label for example in train.examples] == ["2 1", "3"]
    pathlib.Path(files[1]).write_text("2 1\n\n")
    with pytest.raises(BadInput, match="a.en, line 2: 'target' is empty"):
        prepare(config, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "\n", "a.txt, row 1: a text is empty; correct the row or remove it"),
        ("a.jsonl", '{"en": ""}\n', "a.jsonl, row 1: 'en' is empty; correct the row"),
        (
            "a.jsonl",
            '{"es": "1", "word": "2"}\n',
            "a.jsonl, row 1: no column 'source', but 'es', 'word'; set",
        ),
    ],
)
def test_each_line_to_predict_has_a_source(tmp_path, name, text, said):
    """The fault: a line left out, so that the targets of the next ones are one too early; the
    columns of the run.
    """
    tiny.save_run(str(tmp_path / "run"), _task(columns="en,es").config, {"bias": np.zeros(2)})
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=said):
        predict(str(tmp_path / "run"), input=str(tmp_path / name))
