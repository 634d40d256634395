"""`xlnet-jax compare`: several configurations trained with several seeds, scored by one estimator,
on one page.

    WORKDIR/NAME/SEED/                the run, as of `train`, of the configuration file NAME.py
    WORKDIR/NAME/SEED/measures.json   its scores, written last: with all of them the run is not
                                      opened again
    WORKDIR/NAME/TASK/SEED/           the same of `finetune`, from that run, for a task's
                                      configuration file TASK.py
    WORKDIR/compare.json, page.html   what there is so far

The first configuration sets the budget: the others get as many steps as cost the same FLOPs, or
read as many fresh tokens. Each seed is that of parameters, data and dropout, so that systems with
the same windows read the same text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.commands.finetune import finetune as fine_tune
from xlnet_jax.commands.train import train
from xlnet_jax.comparison.intervals import differences
from xlnet_jax.comparison.page import of_measure, of_task, page
from xlnet_jax.comparison.report import binned
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.estimators import MEASURES, estimate, text_tokens_at_once, unknown_places
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.infer.orders import any_order
from xlnet_jax.infer.score import Scorer
from xlnet_jax.messages import quantity
from xlnet_jax.model.flops import step_flops
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train import sliding

log = logging.getLogger("xlnet_jax")

RESULT, PAGE, MEASURED = "compare.json", "page.html", "measures.json"
ENVIRONMENT = (
    "time",
    "xlnet_jax",
    "git_commit",
    "python",
    "packages",
    "device_kind",
    "devices",
    "cores",
)
CURVE_POINTS = 100
"""Of a learning curve, each the mean of the steps since the one before."""


def compare(
    configs: str,
    corpus: str,
    workdir: str,
    *,
    seeds: int = 5,
    equal: str = "flops",
    only: str | None = None,
    windows: int = 32,
    length: int | None = None,
    orders: int = 2,
    finetune: str | None = None,
    overrides: Sequence[str] = (),
) -> Json:
    """Trains and scores what is not there yet, one run after the other, and writes the page.

    Args:
      configs: configuration files, separated by commas; the name of a system is that of its file.
      corpus: folder of `prepare`, which is trained on and whose held-out split is scored.
      equal: what all systems spend as much of as the first: flops or tokens.
      only: `NAME:SEED`, the one run to do here.
      windows, length, orders: of `infer.estimators`; None = what every system reads at a time.
      finetune: configuration files of the command, separated by commas; each run is fine-tuned on
        each, with its seed.
      overrides: of all configurations; `--config.train.steps=100` is of the first, which sets the
        budget.

    Returns:
      `systems` {name: {seed: scores}}, `differences` [{a, b, measure, mean, low, high, ...}] in
      bits per byte or in the metric of the task that `measure` names, `page`; and what was asked.

    Raises BadInput: configurations that do not fit together, other ones than those of `workdir`,
    and as `train`.
    """
    named, tuned = scaled(loaded(configs, corpus, overrides), equal), task_configs(finetune)
    workdirs.check_folder(workdir, ours=(RESULT,), what="comparison")
    heldout = open_mixture(next(iter(named.values())), "heldout", weighted=False)
    length = length or min(text_tokens_at_once(config.parts[-1]) for config in named.values())
    tokens_NT = sliding.windows(heldout, length, windows, every=length)
    asked = {
        "equal": equal,
        "windows": len(tokens_NT),
        "length": length,
        "orders": orders,
        "corpus_sha256": heldout.sha256,
    }
    start(workdir, named, asked)
    for name, seed in (
        itertools.product(named, range(seeds)) if only is None else [chosen(only, named, seeds)]
    ):
        folder = os.path.join(workdir, name, str(seed))
        measures = measured(folder).get("measures", {})
        if set(MEASURES) - measures.keys():
            log.info("%s, seed %d: %s", name, seed, quantity(named[name].train.steps, "step"))
            run(named[name], folder, seed, heldout, tokens_NT, orders)
        for task, config in tuned.items():
            tune(config, folder, os.path.join(workdir, name, task, str(seed)), seed)
    return collected(workdir, named, [*tuned], asked, unit_bytes(heldout, tokens_NT))


def loaded(paths: str, corpus: str, overrides: Sequence[str]) -> dict[str, Config]:
    """The configurations by name. Raises BadInput unless there are two or more, of one
    vocabulary.
    """
    words, named = (
        [*overrides, f"--config.data.corpus={workdirs.absolute(corpus)}"],
        dict[str, Config](),
    )
    for name, path in by_name(paths, "--configs").items():
        # The steps of the others follow from the budget, and they may be those of phases.
        later = [word for word in words if not word.startswith("--config.train.steps=")]
        named[name] = configs.load(path, later if named else words)
    if len(named) < 2:
        raise BadInput(
            f"--configs={paths} is one configuration; name two or more, separated by commas"
        )
    (first, one), *others = named.items()
    for name, config in others:
        if config.model.vocab_size != one.model.vocab_size:
            raise BadInput(
                f"{first} has model.vocab_size={one.model.vocab_size}, and {name} has "
                f"{config.model.vocab_size}: they do not compare; use one vocabulary"
            )
    return named


def by_name(paths: str, option: str) -> dict[str, str]:
    """Files by their names. Raises BadInput for two with one name."""
    found = dict[str, str]()
    for path in map(str.strip, paths.split(",")):
        name = os.path.splitext(os.path.basename(path))[0]
        if name in found:
            raise BadInput(f"{option} has two files with the name {name}; rename one")
        found[name] = path
    return found


def task_configs(paths: str | None) -> dict[str, Config]:
    """The configurations of `--finetune` by name, with one evaluation, after the last step. Raises
    BadInput.
    """
    found = dict[str, Config]()
    for name, path in by_name(paths, "--finetune").items() if paths else ():
        config = configs.load(path)
        if config.pretrains or not config.finetune.dev:
            raise BadInput(
                f"--finetune: {path} names no finetune.task, or no finetune.dev to score it by"
            )
        # A choice among several checkpoints would be made on the dev set.
        last = {"every": config.train.steps}
        found[name] = config.changed(evaluation=last, checkpoint=last)
        configs.check(found[name])
    return found


def spent(config: Config, equal: str) -> int:
    """FLOPs or fresh tokens of a whole run."""
    parts, steps = config.parts, np.diff([0, *config.ends]).tolist()
    each = [
        step_flops(part) if equal == "flops" else part.train.batch_size * part.data.reuse_len
        for part in parts
    ]
    return sum(cost * count for cost, count in zip(each, steps, strict=True))


def scaled(named: dict[str, Config], equal: str) -> dict[str, Config]:
    """Each with as many steps, in each of its phases, as spend what the first does, up to half a
    step.
    """
    budget = spent(next(iter(named.values())), equal)
    found = dict[str, Config]()
    for name, config in named.items():
        share = budget / spent(config, equal)
        keys = {
            f"phases[{number}].steps": phase["steps"] for number, phase in enumerate(config.phases)
        }
        keys = keys or {"train.steps": config.train.steps}
        words = [f"--config.{key}={max(1, round(share * steps))}" for key, steps in keys.items()]
        found[name] = configs.override(config, words)
    return found


def chosen(only: str, named: dict[str, Config], seeds: int) -> tuple[str, int]:
    """The run of `--only`. Raises BadInput."""
    name, _, seed = only.rpartition(":")
    if name not in named or not seed.isdecimal() or int(seed) >= seeds:
        raise BadInput(
            f"--only={only} is no NAME:SEED of {', '.join(named)} with seeds 0 to {seeds - 1}"
        )
    return name, int(seed)


def start(workdir: str, named: dict[str, Config], asked: Json) -> None:
    """Marks a new folder as that of this comparison. Raises BadInput for that of another one."""
    values = {
        name: {key: value for key, value in configs.flat(config).items() if key != "data.corpus"}
        | {"phases": config.phases}
        for name, config in named.items()
    }
    asked["configs_sha256"] = digest(values)
    path = os.path.join(workdir, RESULT)
    with files.translate_errors(path):
        files.make_folder(workdir)
        before = files.read_if_there(path)
        if before is None:
            files.write(path, files.to_json(asked))
            return
    saved = files.json_object(before, path)
    if other := [
        f"{key}: {saved.get(key)} -> {value}"
        for key, value in asked.items()
        if saved.get(key) != value
    ]:
        raise BadInput(
            f"{path} is of another comparison ({'; '.join(other)}); "
            "restore it, or give another --workdir"
        )


def digest(values: Any) -> str:
    """SHA-256 of their JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def run(
    config: Config, folder: str, seed: int, heldout: Mixture, tokens_NT: np.ndarray, orders: int
) -> None:
    """Trains one system, or goes on, and writes `measures.json`; to one that is there adds what it
    lacks.
    """
    if not (content := measured(folder)):
        trained = train(config.changed(seeds={"init": seed, "data": seed, "dropout": seed}), folder)
        where = {key: value for key, value in workdirs.environment().items() if key in ENVIRONMENT}
        content = {
            "steps": trained["step"],
            "seconds": trained["seconds"],
            "heldout_loss": trained["heldout_loss"],
            "curve": curve(folder),
            "measures": {},
            "environment": where,
        }
    workdirs.check_tokenizer(folder, heldout)
    config = workdirs.load_config(folder, step=content["steps"])
    rows, scores = config.evaluation.batch_size or config.train.batch_size, content["measures"]
    with opened(Stored(folder, config, heldout.tokenizer), content["steps"]) as model:
        member, T = config.model.member, config.data.segment_len
        reach = config.model.max_positions if member.positions_at_input else T
        scorer = Scorer(
            any_order(model.recipe.config), model.params, heldout.tokenizer.special, reach, rows
        )
        for measure in [each for each in MEASURES if each not in scores]:
            found = estimate(scorer, config, measure, tokens_NT, orders)
            scores[measure] = found and found._asdict() | {"nats_N": found.nats_N.tolist()}
    write_measures(folder, content)


def tune(config: Config, source: str, folder: str, seed: int) -> None:
    """Fine-tunes the run in `source`, or goes on, and writes `measures.json`. Raises BadInput for
    another task's.
    """
    asked = digest(configs.flat(config))
    if content := measured(folder):
        if content.get("config_sha256") != asked:
            raise BadInput(
                f"{folder} was fine-tuned with another configuration; "
                "restore it, or rename the file"
            )
        return
    log.info("fine-tuning in %s: %s", folder, quantity(config.train.steps, "step"))
    seeds = {"init": seed, "data": seed, "dropout": seed}
    found = fine_tune(config.changed(seeds=seeds, checkpoint={"init_from": source}), folder)
    write_measures(
        folder, {"score": found["score"], "metric": found["metric"], "config_sha256": asked}
    )


def write_measures(folder: str, content: Json) -> None:
    """Marks a run as done."""
    path = os.path.join(folder, MEASURED)
    with files.translate_errors(path):
        files.write(path, files.to_json(content, indent=None))


def measured(folder: str) -> Json:
    """What the `measures.json` of a run has; empty if there is none."""
    path = os.path.join(folder, MEASURED)
    content = files.read_if_there(path)
    return {} if content is None else files.json_object(content, path)


def curve(folder: str) -> list[tuple[int, float]]:
    """Steps, and the mean training loss of those before."""
    points = binned(read_jsonl(folder, "metrics.jsonl"), "loss", CURVE_POINTS)
    return [(int(step), loss) for step, loss in points.tolist()]


def unit_bytes(heldout: Mixture, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
    """By measure the bytes of text in what is unknown of each window, [N]."""
    bytes_NT = heldout.tokenizer.text_lengths()[1][tokens_NT]
    return {
        measure: (bytes_NT * unknown_places(measure, tokens_NT.shape)).sum(axis=1)
        for measure in MEASURES
    }


def collected(
    workdir: str,
    named: dict[str, Config],
    tasks: list[str],
    asked: Json,
    bytes_by: dict[str, np.ndarray],
) -> Json:
    """Writes `compare.json` and the page of all runs that have been scored."""
    systems: dict[str, Json] = {}
    for name, config in named.items():
        folder, systems[name] = os.path.join(workdir, name), {}
        seeds = sorted(
            int(seed) for each in files.listing(folder) if (seed := each.rstrip("/")).isdecimal()
        )
        for seed in seeds:
            if one := measured(os.path.join(folder, str(seed))):
                one["measures"] = dict.fromkeys(MEASURES) | one["measures"]
                for measure, found in one["measures"].items():
                    if found:
                        bits_N = np.array(found["nats_N"]) / np.log(2)
                        found["bits_per_byte"] = float(bits_N.sum() / bytes_by[measure].sum())
                        found["bits_per_byte_N"] = (
                            bits_N / np.maximum(bytes_by[measure], 1)
                        ).tolist()
                tuned = {task: measured(os.path.join(folder, task, str(seed))) for task in tasks}
                one["tasks"] = {task: content for task, content in tuned.items() if content}
                systems[name][str(seed)] = one | {
                    "train_flops": spent(config, "flops"),
                    "train_tokens": spent(config, "tokens"),
                }
    result = asked | {
        "systems": systems,
        "differences": paired(systems, tasks),
        "page": os.path.join(workdir, PAGE),
    }
    with files.translate_errors(workdir):
        files.write(result["page"], page(result).encode())
        files.write(os.path.join(workdir, RESULT), files.to_json(result))
    return result


def paired(systems: dict[str, Json], tasks: Sequence[str]) -> list[Json]:
    """The differences of every measure, in bits per byte, with their standard deviation over
    windows; then of tasks.
    """
    found = []
    for measure in MEASURES:
        having = {name: of_measure(runs, measure) for name, runs in systems.items()}
        bits, bits_N = (
            {
                name: {seed: score[key] for seed, score in runs.items()}
                for name, runs in having.items()
            }
            for key in ("bits_per_byte", "bits_per_byte_N")
        )
        for pair in differences(bits):
            shared = bits_N[pair.a].keys() & bits_N[pair.b].keys()
            d_N = np.mean(
                [np.subtract(bits_N[pair.a][seed], bits_N[pair.b][seed]) for seed in shared], axis=0
            )
            found.append(pair._asdict() | {"measure": measure, "spread": float(d_N.std(ddof=1))})
    for task in tasks:
        scores = {name: of_task(runs, task) for name, runs in systems.items()}
        found += [
            pair._asdict() | {"measure": task, "spread": None} for pair in differences(scores)
        ]
    return found


def show(result: Json) -> None:
    """Mean bits per byte of each system, and the differences that are named."""
    for name, runs in result["systems"].items():
        for measure in MEASURES:
            values = [score["bits_per_byte"] for score in of_measure(runs, measure).values()]
            line = (
                f"{np.mean(values):.4f} bits per byte, {quantity(len(values), 'seed')}"
                if values
                else "not defined"
            )
            print(f"{name:24} {measure:14} {line if runs else 'not run'}")
        metrics = {
            task: each["metric"] for one in runs.values() for task, each in one["tasks"].items()
        }
        for task, metric in metrics.items():
            values = [*of_task(runs, task).values()]
            print(
                f"{name:24} {task:14} {np.mean(values):.4f} {metric}, "
                f"{quantity(len(values), 'seed')}"
            )
    for each in result["differences"]:
        if each["named"]:
            print(
                f"{each['a']} - {each['b']}, {each['measure']}: {each['mean']:.4f} "
                f"[{each['low']:.4f}, {each['high']:.4f}]"
            )
    print(f"{'page':24} {result['page']}")
