"""`xlnet-jax compare`: trains several configurations with several seeds, scores all runs by one
estimator, and writes one page.

    WORKDIR/NAME/SEED/                a run of `train` with the configuration file NAME.py
    WORKDIR/NAME/SEED/measures.json   its scores, written last: a run with all measures is not
                                      opened again
    WORKDIR/NAME/TASK/SEED/           a run of `finetune` from that run, with the task's
                                      configuration file TASK.py
    WORKDIR/compilation_cache/        compiled programs of all runs
    WORKDIR/compare.json, page.html   the results so far

The first configuration sets the budget, in training FLOPs or in fresh tokens. The other
configurations get the number of steps that costs the same. A seed sets parameters, data and
dropout, so systems with equal windows and the same seed read the same text. A step takes its seed
as an argument, so the first run of a system compiles it for all its runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.commands.finetune import finetune as fine_tune
from xlnet_jax.commands.train import train
from xlnet_jax.comparison.intervals import differences
from xlnet_jax.comparison.page import of_measure, page, scores_of, units
from xlnet_jax.comparison.report import binned
from xlnet_jax.config import Config
from xlnet_jax.data.batches import frames
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.errors import BadInput, XLNetError, shortage
from xlnet_jax.infer.estimators import MEASURES, estimate, text_tokens_at_once, unknown_places
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.infer.orders import any_order
from xlnet_jax.infer.score import Scorer
from xlnet_jax.messages import quantity
from xlnet_jax.model.flops import step_flops
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.run.programs import cache_folder
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
"""Keys of `workdir.environment` that a run's measures record."""
Systems = dict[str, Config]
"""Configurations by the names of their files."""
CURVE_POINTS = 100
"""Number of points of a learning curve; a point is the mean loss since the previous point."""


class Terms(NamedTuple):
    """The terms that are equal for all systems; a later call with other terms is refused."""

    equal: str = "flops"
    """Unit of the training cost, which is equal for all systems: flops or tokens."""
    windows: int = 32
    """Number of held-out windows, or whole documents."""
    length: int | None = None
    """Tokens of a window, or of the longest document; None = the largest number that every system
    reads at a time.
    """
    orders: int = 2
    """Number of random orders of the measure `half`."""


def compare(
    configs: str,
    corpus: str,
    workdir: str,
    *,
    seeds: int = 5,
    only: str | None = None,
    finetune: str | None = None,
    overrides: Sequence[str] = (),
    **terms: Any,
) -> Json:
    """Trains and scores the missing runs, one after the other, and writes the page.

    Args:
      configs: configuration files, separated by commas; a system has the name of its file.
      corpus: folder of `prepare`; systems train on it and are scored on its held-out split.
      only: `NAME:SEED`, the only run to do here.
      finetune: configuration files of tasks, separated by commas; each run is fine-tuned on each
        task, with its seed.
      overrides: changes to all configurations; but `--config.train.steps=100` changes only the
        first configuration, which sets the budget.
      terms: fields of `Terms`.

    Returns:
      `systems` {name: {seed: scores}}, `differences` [{a, b, measure, mean, low, high, ...}] in
      bits per byte or in the metric of the task that `measure` names, `page`; and the terms.

    Raises BadInput if the configurations do not fit together, or differ from the configurations in
    `workdir`. Raises the errors of `train`, which begin with the name of the system and the seed.
    """
    asked = Terms(**terms)
    systems = equal_budgets(load_systems(configs, corpus, overrides), asked.equal)
    tuned = load_tasks(finetune)
    workdirs.check_folder(workdir, ours=(RESULT,), what="comparison")
    first, *_ = systems.values()
    heldout, whole = open_mixture(first, "heldout", weighted=False), first.data.whole_documents
    at_once = min(text_tokens_at_once(config.parts[-1]) for config in systems.values())
    length = asked.length or at_once
    if whole:  # no document is cut
        length = min(length, at_once)
    tokens_NT = sliding.windows(heldout, length, asked.windows, length, whole)
    asked = asked._replace(windows=len(tokens_NT), length=length)
    result = asked._asdict() | {"corpus_sha256": heldout.sha256}
    claim_folder(workdir, systems, result)
    cache = {"compilation_cache": cache_folder(first, workdir)}
    for name, seed in (
        itertools.product(systems, range(seeds))
        if only is None
        else [parse_only(only, systems, seeds)]
    ):
        folder = os.path.join(workdir, name, str(seed))
        measures = read_measures(folder).get("measures", {})
        if set(MEASURES) - measures.keys():
            log.info("%s, seed %d: %s", name, seed, quantity(systems[name].train.steps, "step"))
            config = systems[name].changed(log=cache)
            with errors_of(f"{name}, seed {seed}"):
                train_and_score(config, folder, seed, heldout, tokens_NT, asked.orders)
        for task, config in tuned.items():
            to = os.path.join(workdir, name, task, str(seed))
            with errors_of(f"{name}, {task}, seed {seed}"):
                fine_tune_run(config, folder, to, seed, cache)
    bytes_by = unit_bytes(heldout, tokens_NT)
    result["bytes"] = int(bytes_by["left_to_right"].sum())
    result["systems"] = read_runs(workdir, systems, [*tuned], bytes_by)
    if whole:
        result["length_modelled"] = [name for name in systems if systems[name].objective.causal]
    result["differences"] = all_differences(result["systems"], [*tuned])
    result["page"] = os.path.join(workdir, PAGE)
    with files.translate_errors(workdir):
        files.write(result["page"], page(result).encode())
        files.write(os.path.join(workdir, RESULT), files.to_json(result))
    return result


@contextlib.contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Puts `where`, such as the name of a system and a seed, before the line of an error of the
    block. A shortage of memory becomes BadInput.
    """
    try:
        yield
    except XLNetError as error:
        error.args = (f"{where}: {error}",)
        raise
    except Exception as error:
        if line := shortage(error):
            raise BadInput(f"{where}: {line}") from error
        raise


def load_systems(paths: str, corpus: str, overrides: Sequence[str]) -> Systems:
    """Returns the configurations by name. Raises BadInput unless there are two or more, with one
    vocabulary and one kind of documents.
    """
    words = [*overrides, f"--config.data.corpus={workdirs.absolute(corpus)}"]
    # The budget sets the steps of the other configurations, which may have phases.
    later = [word for word in words if not word.startswith("--config.train.steps=")]
    systems = Systems()
    for name, path in by_name(paths, "--configs").items():
        with errors_of(name):
            systems[name] = configs.load(path, later if systems else words)
    if len(systems) < 2:
        raise BadInput(
            f"--configs={paths} is one configuration; name two or more, separated by commas"
        )
    kinds = {
        name: (config.model.vocab_size, config.data.documents) for name, config in systems.items()
    }
    if len({*kinds.values()}) > 1:
        raise BadInput(
            f"model.vocab_size and data.documents are {kinds}: such systems cannot be compared; "
            "use one vocabulary, and documents of one kind"
        )
    return systems


def by_name(paths: str, option: str) -> dict[str, str]:
    """Returns paths by the names of their files. Raises BadInput for two files with one name."""
    named = dict[str, str]()
    for path in map(str.strip, paths.split(",")):
        name = pathlib.PurePath(path).stem
        if not name:
            raise BadInput(f"{option}={paths} has an empty name; separate files by single commas")
        if name in named:
            raise BadInput(f"{option} has two files with the name {name}; rename one")
        named[name] = path
    return named


def load_tasks(paths: str | None) -> Systems:
    """Returns the configurations of `--finetune` by name, with one evaluation, after the last step.
    Raises BadInput.
    """
    tasks = Systems()
    for name, path in by_name(paths, "--finetune").items() if paths else ():
        with errors_of(name):
            config = configs.load(path)
        if config.pretrains or not config.finetune.dev:
            raise BadInput(
                f"--finetune: {path} names no finetune.task, or no finetune.dev to score it by"
            )
        # A choice among several checkpoints would be made on the dev set.
        last = {"every": config.train.steps}
        tasks[name] = config.changed(evaluation=last, checkpoint=last)
        with errors_of(name):
            configs.check(tasks[name])
    return tasks


def training_cost(config: Config, unit: str) -> int:
    """Returns the FLOPs or fresh tokens of a whole run; `unit` is flops or tokens."""
    steps = np.diff([0, *config.ends]).tolist()
    return sum(
        count
        * (step_flops(part) if unit == "flops" else part.train.batch_size * part.data.reuse_len)
        for part, count in zip(config.parts, steps, strict=True)
    )


def equal_budgets(systems: Systems, unit: str) -> Systems:
    """Sets the steps, or the steps of each phase, so that all systems cost as much as the first, to
    within half a dispatch of each phase, and have at least one: a short dispatch would be a second
    program to compile. The first keeps its steps.
    """
    (name, first), *others = systems.items()
    budget, scaled = training_cost(first, unit), Systems({name: first})
    for name, config in others:
        share, words = budget / training_cost(config, unit), []
        keys = [f"phases[{n}].steps" for n in range(len(config.phases))] or ["train.steps"]
        counts = np.diff([0, *config.ends]).tolist()
        for key, part, count in zip(keys, config.parts, counts, strict=True):
            size = part.train.steps_per_dispatch
            words.append(f"--config.{key}={size * max(1, round(share * count / size))}")
        with errors_of(name):
            scaled[name] = configs.override(config, words)
    return scaled


def parse_only(only: str, systems: Systems, seeds: int) -> tuple[str, int]:
    """Returns name and seed of `--only`. Raises BadInput."""
    name, _, seed = only.rpartition(":")
    if name not in systems or not seed.isdecimal() or int(seed) >= seeds:
        raise BadInput(
            f"--only={only} is no NAME:SEED of {', '.join(systems)} with seeds 0 to {seeds - 1}"
        )
    return name, int(seed)


def claim_folder(workdir: str, systems: Systems, terms: Json) -> None:
    """Adds the hash of the configurations to `terms`, and writes them into a new folder. Raises
    BadInput for a folder with other terms.
    """
    terms["configs_sha256"] = digest(
        {
            name: {
                key: value for key, value in configs.flat(config).items() if key != "data.corpus"
            }
            | {"phases": config.phases}
            for name, config in systems.items()
        }
    )
    path = os.path.join(workdir, RESULT)
    with files.translate_errors(path):
        files.make_folder(workdir)
        before = files.read_if_there(path)
        if before is None:
            files.write(path, files.to_json(terms))
            return
    saved = files.json_object(before, path)
    if other := [
        f"{key}: {saved.get(key)} -> {value}"
        for key, value in terms.items()
        if saved.get(key) != value
    ]:
        raise BadInput(
            f"{path} is of another comparison ({'; '.join(other)}); "
            "restore it, or give another --workdir"
        )


def digest(values: Any) -> str:
    """Returns the SHA-256 of the values as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def train_and_score(
    config: Config, folder: str, seed: int, heldout: Mixture, tokens_NT: np.ndarray, orders: int
) -> None:
    """Trains one system, or resumes it, and adds the missing scores to its `measures.json`."""
    if not (content := read_measures(folder)):
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
    cache = f"--config.log.compilation_cache={config.log.compilation_cache}"
    config = workdirs.load_config(folder, [cache], content["steps"])
    rows, scores = config.evaluation.batch_size or config.train.batch_size, content["measures"]
    with opened(Stored(folder, config, heldout.tokenizer), content["steps"]) as model:
        member, T = config.model.member, config.data.segment_len
        reach = config.model.max_positions if member.bounded else T
        special, made = heldout.tokenizer.special, any_order(model.recipe.config)
        frame = frames.ids(config, special)
        scorer = Scorer(made, model.params, special, reach, rows, frame)
        for measure in MEASURES:
            if measure not in scores:
                found = estimate(scorer, config, measure, tokens_NT, orders)
                scores[measure] = found and found._asdict() | {"nats_N": found.nats_N.tolist()}
    write_measures(folder, content)


def fine_tune_run(config: Config, source: str, folder: str, seed: int, cache: Json) -> None:
    """Fine-tunes the run in `source`, or resumes it, and writes `measures.json`. `cache` has
    `log.compilation_cache`. Raises BadInput if the file is of another configuration.
    """
    asked = digest(configs.flat(config))
    if content := read_measures(folder):
        if content.get("config_sha256") != asked:
            raise BadInput(
                f"{folder} was fine-tuned with another configuration; "
                "restore it, or rename the configuration file"
            )
        return
    log.info("fine-tuning in %s: %s", folder, quantity(config.train.steps, "step"))
    seeds = {"init": seed, "data": seed, "dropout": seed}
    begun = config.changed(seeds=seeds, checkpoint={"init_from": source}, log=cache)
    found = fine_tune(begun, folder)
    write_measures(
        folder, {"score": found["score"], "metric": found["metric"], "config_sha256": asked}
    )


def write_measures(folder: str, content: Json) -> None:
    """Writes the scores of a run; the file marks the run as done."""
    path = os.path.join(folder, MEASURED)
    with files.translate_errors(path):
        files.write(path, files.to_json(content, indent=None))


def read_measures(folder: str) -> Json:
    """Returns the content of a run's `measures.json`; empty if the file does not exist."""
    path = os.path.join(folder, MEASURED)
    content = files.read_if_there(path)
    return {} if content is None else files.json_object(content, path)


def curve(folder: str) -> list[tuple[int, float]]:
    """Returns the learning curve: points of a step and the mean training loss since the previous
    point.
    """
    points = binned(read_jsonl(folder, "metrics.jsonl"), "loss", CURVE_POINTS)
    return [(int(step), loss) for step, loss in points.tolist()]


def unit_bytes(heldout: Mixture, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the bytes of the unknown text of each window, [N], by measure."""
    bytes_NT = heldout.tokenizer.text_lengths()[1][tokens_NT]
    return {
        measure: (bytes_NT * unknown_places(measure, tokens_NT)).sum(axis=1) for measure in MEASURES
    }


def read_runs(
    workdir: str, named: Systems, tasks: list[str], bytes_by: dict[str, np.ndarray]
) -> Json:
    """Returns the scores {name: {seed: scores}} of all runs that have been scored, with bits per
    byte, the scores of the tasks, and the cost of training.
    """
    systems: Json = {}
    for name, config in named.items():
        folder, systems[name] = os.path.join(workdir, name), {}
        seeds = (each.rstrip("/") for each in files.listing(folder))
        for seed in sorted(filter(str.isdecimal, seeds), key=int):
            if not (run := read_measures(os.path.join(folder, seed))):
                continue
            run["measures"] = dict.fromkeys(MEASURES) | run["measures"]
            for measure, score in run["measures"].items():
                if score:
                    bits_N, bytes_N = np.array(score["nats_N"]) / np.log(2), bytes_by[measure]
                    score["bits_per_byte"] = float(bits_N.sum() / bytes_N.sum())
                    score["bits_per_byte_N"] = (bits_N / np.maximum(bytes_N, 1)).tolist()
            tuned = {task: read_measures(os.path.join(folder, task, seed)) for task in tasks}
            systems[name][seed] = run | {
                "tasks": {task: content for task, content in tuned.items() if content},
                "train_flops": training_cost(config, "flops"),
                "train_tokens": training_cost(config, "tokens"),
            }
    return systems


def all_differences(systems: Json, tasks: Sequence[str]) -> list[Json]:
    """Returns the differences in every measure, in bits per byte, with their standard deviation
    over windows, and then the differences in every task.
    """
    found = []
    for measure in [*MEASURES, *tasks]:
        for pair in differences({name: scores_of(runs, measure) for name, runs in systems.items()}):
            spread = None
            if measure in MEASURES:
                a, b = (of_measure(systems[name], measure) for name in (pair.a, pair.b))
                d_SN = [
                    np.subtract(a[seed]["bits_per_byte_N"], b[seed]["bits_per_byte_N"])
                    for seed in a.keys() & b.keys()
                ]
                spread = float(np.mean(d_SN, axis=0).std(ddof=1))
            found.append(pair._asdict() | {"measure": measure, "spread": spread})
    return found


def show(result: Json) -> None:
    """Prints the mean scores of each system, and the differences with `named` set."""
    for name, runs in result["systems"].items():
        for measure, unit in units(result["systems"]).items():
            values = [*scores_of(runs, measure).values()]
            line = "not defined" if runs and measure in MEASURES else "not run"
            if values:
                line = f"{np.mean(values):.4f} {unit}, {quantity(len(values), 'seed')}"
            print(f"{name:24} {measure:14} {line}")
    for each in result["differences"]:
        if each["named"]:
            print(
                f"{each['a']} - {each['b']}, {each['measure']}: {each['mean']:.4f} "
                f"[{each['low']:.4f}, {each['high']:.4f}]"
            )
    print(f"{'page':24} {result['page']}")
