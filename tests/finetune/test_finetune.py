"""`xlnet-jax finetune`: learns, keeps its best, ends early, and a run cut anywhere ends with the
same bits.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import time

import data_fixtures
import numpy as np
import pytest
import tiny
from hosts import Hosts

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.export import export
from xlnet_jax.commands.finetune import _job, finetune
from xlnet_jax.commands.predict import predict
from xlnet_jax.data.tokenizer import train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.setup import prepare
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import evaluation

STEPS = 16


def fingerprint(workdir, step=STEPS):
    """The checksums of all saved arrays, what every step and evaluation measured, and the
    predictions.
    """
    with Checkpoints(str(workdir)) as checkpoints:
        record = checkpoints.record(step)
    lines = {
        name: read_jsonl(os.path.join(workdir, f"{name}.jsonl"))
        for name in ("metrics", "evaluations")
    }
    steps = [
        [line[key] for key in ("step", "loss", "grad_norm", "learning_rate")]
        for line in lines["metrics"]
    ]
    scores = [
        {key: value for key, value in line.items() if key != "seconds"}
        for line in lines["evaluations"]
    ]
    predictions = pathlib.Path(workdir, "predictions.jsonl").read_bytes()
    return record["checksums"], record["plan"], steps, scores, predictions


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of the run that the first test makes."""
    return tmp_path_factory.mktemp("finetune") / "run"


@pytest.fixture
def result(settings, undisturbed):
    return finetune(settings(), str(undisturbed))


def test_a_task_is_learned_and_a_killed_run_ends_with_the_same_bits(
    tmp_path, settings, undisturbed, result
):
    assert result.keys() == {"task", "step", "metric", "score", "scores", "spread", "workdir"}
    whole = fingerprint(undisturbed)
    _, _, steps, scores, _ = whole
    assert len(steps) == STEPS and [line["step"] for line in scores] == [4, 8, 12, 16]
    # The majority class is 10 of 19.
    assert result["score"] == max(line["accuracy"] for line in scores) > 0.8
    assert result["step"] == next(
        line["step"] for line in scores if line["score"] == result["score"]
    )
    # As a kill leaves it: steps and evaluations that no checkpoint has.
    killed = tmp_path / "killed"
    finetune(settings(), str(killed), stop_at=12)
    shutil.rmtree(killed / "checkpoints" / "12")
    assert finetune(settings(), str(killed)) == result | {"workdir": str(killed)}
    assert fingerprint(killed) == whole
    assert [line["step"] for line in read_jsonl(str(killed / "runs.jsonl"))] == [0, 8]
    # Again: nothing is left to do.
    assert finetune(settings(), str(killed)) == result | {"workdir": str(killed)}


def test_predict_gives_what_the_evaluation_of_the_best_checkpoint_gave(
    tmp_path, examples, undisturbed, result, caplog
):
    with open(examples["dev"]) as file:
        texts = [line.split("\t")[0] for line in file.read().splitlines()[1:]]
    lines = tmp_path / "more.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[7:]))
    found = predict(str(undisturbed), texts=texts[:7], input=str(lines), batch_size=16)
    with open(undisturbed / "predictions.jsonl") as file:
        written = [json.loads(line) for line in file]
    assert [line["where"] for line in written] == [
        f"{examples['dev']}, row {row}" for row in range(2, 21)
    ]
    assert [line["label"] for line in found] == [line["label"] for line in written]
    assert [line["texts"] for line in written] == [[text] for text in texts]
    assert {line["gold"] for line in written} == {"yes", "no"} and "gold" not in found[0]
    for mine, theirs in zip(found, written, strict=True):
        assert mine["scores"] == pytest.approx(theirs["scores"], abs=1e-5)
    # The best is not always the newest.
    shutil.copytree(undisturbed, tmp_path / "copy")
    with open(tmp_path / "copy" / "evaluations.jsonl", "a") as file:
        file.write(json.dumps({"step": 8, "score": 2.0}) + "\n")
    caplog.set_level("INFO")
    predict(str(tmp_path / "copy"), texts=texts[:1], batch_size=8)
    assert "predicting with step 8" in caplog.text
    # The exported folders are the same model: the labels and the head come back.
    for format in ("huggingface", "orbax"):
        export(str(undisturbed), str(tmp_path / format), format=format)
        again = predict(str(tmp_path / format), texts=texts[:2], batch_size=8)
        assert [line["label"] for line in again] == [line["label"] for line in found[:2]]
        assert again[0]["scores"] == pytest.approx(found[0]["scores"], abs=1e-5)
    with pytest.raises(BadInput, match=r"text 2: a text is empty"):
        predict(str(undisturbed), texts=["bame", " "])


def test_run_n_of_several_adds_n_to_the_seeds_and_stops_where_it_is_asked(tmp_path, settings):
    train, dev = prepare(settings(), str(tmp_path / "seed_0"))
    jobs = [
        _job(train, dev, str(tmp_path / f"seed_{n}"), n, stop_at)
        for n, stop_at in enumerate((None, 5, 99))
    ]
    first = vars(train.task.config.seeds)
    for n, job in enumerate(jobs):
        assert vars(job.config.seeds) == {name: seed + n for name, seed in first.items()}
    assert [job.stop for job in jobs] == [STEPS, 5, STEPS]


def test_several_seeds_do_not_go_into_the_folder_of_one_run(tmp_path, settings):
    run = str(tmp_path / "run")
    tiny.save_run(run, tiny.config(), {"w": np.zeros(2, np.float32)})
    with pytest.raises(BadInput, match="holds a run of one seed; name another .* --seeds=2"):
        finetune(settings(), run, seeds=2, dry_run=True)


@pytest.mark.slow
def test_several_seeds_have_a_mean_and_a_spread_and_patience_ends_a_run(tmp_path, settings):
    """With a rate of nothing no evaluation is better than the first."""
    config = settings(
        optimizer={"learning_rate": 1e-12, "warmup_steps": 0}, finetune={"patience": 2}
    )
    result = finetune(config, str(tmp_path), seeds=2)
    assert result["score"] == pytest.approx(sum(result["scores"]) / 2) and result["spread"] >= 0
    for seed in range(2):
        folder = tmp_path / f"seed_{seed}"
        evaluations = read_jsonl(str(folder / "evaluations.jsonl"))
        assert [line["step"] for line in evaluations] == [4, 8, 12]
        with Checkpoints(str(folder)) as checkpoints:
            assert set(checkpoints.steps()) >= {4, 12}, "the best and the last"
    assert len({fingerprint(tmp_path / f"seed_{seed}", 12)[2][0][1] for seed in range(2)}) == 2
    assert finetune(config, str(tmp_path), seeds=2) == result
    assert [line["step"] for line in read_jsonl(str(tmp_path / "seed_0" / "runs.jsonl"))] == [0]
    # As a kill leaves it between the last save and its evaluation: the run ends where it would have
    # ended.
    path = tmp_path / "seed_0" / "evaluations.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert finetune(config, str(tmp_path), seeds=2) == result
    assert [line["step"] for line in read_jsonl(str(path))] == [4, 8, 12]
    assert len(read_jsonl(str(tmp_path / "seed_0" / "metrics.jsonl"))) == 12


@pytest.mark.parametrize(
    ("scores", "ends"),
    [([], False), ([5, 5, 4], True), ([5, 4, 6], False), ([5, 4, 6, 6, 6], True)],
)
def test_patience_counts_evaluations_since_the_best(scores, ends):
    config = tiny.config(finetune={"patience": 2})
    lines = [{"step": 4 * n, "score": score} for n, score in enumerate(scores, 1)]
    assert evaluation.ends(config, lines) is ends


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"dev": "sentence\tlabel\nbame\tmaybe\n"},
            r"dev.tsv, row 2: unknown label .maybe.; .* are no, yes",
        ),
        ({"train": "sentence\tlabel\nbame\tyes\n"}, r"train.tsv has one label, 'yes'"),
        (
            {"train": "sentence\tlabel\nbame\tyes\nbame\tno\n"},
            r"train.tsv has 2 rows, fewer than train.batch_size=8",
        ),
        ({"dev": "", "dev_share": 0.999}, r"dev_share=0.999 leaves none of \d+ examples for"),
        ({"task": "regression"}, r"row 2: the label 'no' is not a finite float32 number"),
        (
            {"task": "regression", "train": "text\tlabel\nbame\t1e39\n"},
            r"the label '1e39' is not a finite float32 number",
        ),
        (
            {"train": f"sentence\tlabel\nbame\t{'9' * 5000}\n"},
            r"the label '9{60}' has 5000 characters; name its",
        ),
        (
            {"metric": "rouge"},
            r"finetune.metric=rouge is no score of classification; use accuracy or f1 or matthews",
        ),
        ({"labels": "no,yes,no"}, r"finetune.labels=no,yes,no names a label twice"),
        ({"tokenizer": ""}, r"checkpoint.init_from is empty"),
        (
            {"pooling": "cls"},
            r"pooling=cls has no meaning with finetune.task=classification, which reads",
        ),
        ({"task": "none"}, r"finetune.task is none; choose one of classification"),
    ],
)
def test_an_example_or_a_key_that_does_not_fit_is_refused_in_one_line(
    tmp_path, settings, changes, told
):
    for name in ("train", "dev"):
        if "\n" in changes.get(name, ""):
            (tmp_path / f"{name}.tsv").write_text(changes[name])
            changes = changes | {name: str(tmp_path / f"{name}.tsv")}
    config = settings().changed(finetune=changes)
    with pytest.raises(BadInput, match=told) as error:
        finetune(config, str(tmp_path / "run"))
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_another_tokenizer_than_the_models_is_refused(tmp_path, settings, undisturbed, result):
    path = str(tmp_path / "other.model")
    train_tokenizer(["a few other words in a row"] * 9, path, 30, seed=0, threads=1)
    config = settings(checkpoint={"init_from": str(undisturbed)}, finetune={"tokenizer": path})
    with pytest.raises(BadInput, match=r"finetune.tokenizer=.* is not the tokenizer of"):
        finetune(config, str(tmp_path / "run"))


def start(workdir, cache, examples, count=1):
    return Hosts(
        "finetune",
        workdir,
        f"--config={tiny.TESTS}/tiny_config.py",
        "--config.finetune.task=classification",
        f"--config.finetune.tokenizer={data_fixtures.corpus_path()}/spiece.model",
        "--config.data.segment_len=16",
        f"--config.finetune.train={examples['train']}",
        f"--config.finetune.dev={examples['dev']}",
        "--config.train.steps=16",
        "--config.evaluation.every=4",
        "--config.evaluation.final=True",
        "--config.optimizer.learning_rate=0.005",
        count=count,
        cache=cache,
    )


@pytest.mark.slow
def test_killed_at_a_random_moment_it_ends_with_the_same_bits_and_two_hosts_agree(
    tmp_path, examples
):
    cache, (whole, killed, two) = (
        tmp_path / "cache",
        (tmp_path / name for name in ("whole", "killed", "two")),
    )
    result = json.loads(start(whole, cache, examples).finish()[0][0])
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    hosts = start(killed, cache, examples)
    after = draw.choice((4, 8, 12))
    while hosts.processes[0].poll() is None and not (killed / "checkpoints" / str(after)).exists():
        time.sleep(0.005)
    time.sleep(draw.uniform(0, 0.2))
    hosts.processes[0].send_signal(signal.SIGKILL)
    hosts.processes[0].communicate()
    again = json.loads(start(killed, cache, examples).finish()[0][0])
    assert again == result | {"workdir": str(killed)}, f"seed {seed}"
    assert fingerprint(killed) == fingerprint(whole), f"seed {seed}"

    outs = start(two, cache, examples, count=2).finish()
    assert all(json.loads(out)["scores"] == result["scores"] for out, _ in outs.values())
    one, other = (fingerprint(folder)[3] for folder in (whole, two))
    assert [line["loss"] for line in other] == pytest.approx(
        [line["loss"] for line in one], abs=1e-4
    )
    assert os.path.exists(two / "predictions.jsonl")
