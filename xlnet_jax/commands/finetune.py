"""`xlnet-jax finetune`: trains a pretrained model on labelled examples, with the loop of
pretraining.
"""

from __future__ import annotations

import functools
import os
import statistics

from jax.sharding import Mesh

from xlnet_jax.config import Config
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.evaluation import TaskEvaluator
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import TaskData, prepare
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.infer.text_to_text import Writer
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.run.signals import stop_request
from xlnet_jax.storage.files import Json
from xlnet_jax.train import launch
from xlnet_jax.train.evaluation import best
from xlnet_jax.train.loop import Job
from xlnet_jax.train.recipe import Recipe


def finetune(
    config: Config,
    workdir: str,
    *,
    seeds: int = 1,
    stop_at: int | None = None,
    dry_run: bool = False,
) -> Json:
    """Trains a task until `config.train.steps`, or until `finetune.patience` ends it; resumes as
    `train` does.

    Args:
      seeds: number of runs; run n adds n to the seeds of the configuration. Several runs have the
        work directories `seed_0`, `seed_1` ... below `workdir`.
      stop_at, dry_run: for every run; see `train`.

    Returns:
      `task`; `step` of the best checkpoint of the first run; `metric`; the `scores` of the runs at
      their best checkpoints, their mean `score` and standard deviation `spread`; `workdir`.

    Raises BadInput for a configuration, example, tokenizer or work directory that does not fit; and
    the errors of `train`.
    """
    with stop_request() as request:
        folders = (
            [workdir]
            if seeds == 1
            else [os.path.join(workdir, f"seed_{seed}") for seed in range(seeds)]
        )
        for folder in folders:
            workdirs.check_folder(folder)
        if seeds > 1 and workdirs.read_config(workdir) is not None:
            raise BadInput(
                f"--workdir={workdir} holds a run of one seed; "
                f"name another folder for --seeds={seeds}"
            )
        train, dev = prepare(config, folders[0])
        jobs = [_job(train, dev, folder, seed, stop_at) for seed, folder in enumerate(folders)]
        equal = {
            "the examples (sha256)": train.sha256,
            "--stop_at": stop_at,
            "--dry_run": dry_run,
            "--seeds": seeds,
        }
        with session(train.task.config, equal) as processes:
            if dry_run:
                return launch.dry_run(jobs[0], processes)
            lines = []
            for job in jobs:
                result, _ = launch.run(job, processes, request, Goodput())
                evaluations = read_jsonl(job.workdir, "evaluations.jsonl")
                lines.append(best(evaluations) or {"step": result["step"]})
        scores = [line.get("score") for line in lines]
        known = [score for score in scores if score is not None]
        return {
            "task": train.task.config.finetune.task,
            "step": lines[0]["step"],
            "metric": train.task.metric,
            "score": statistics.fmean(known) if known else None,
            "scores": scores,
            "spread": statistics.stdev(known) if len(known) > 1 else None,
            "workdir": workdir,
        }


def _job(
    train: TaskData, dev: TaskData | None, workdir: str, seed: int, stop_at: int | None
) -> Job:
    """Returns one run, after checking its inputs against its work directory."""
    config = train.task.config
    config = config.changed(
        seeds={name: value + seed for name, value in vars(config.seeds).items()}
    )
    if (saved := workdirs.read_config(workdir)) is not None:
        workdirs.check_resume(saved, config, train, workdir)
    make_recipe = functools.partial(task_recipe, train.task, train.rows[0])
    make_recipe(config)  # refuses before a device is used

    def evaluator(recipe: Recipe, mesh: Mesh) -> TaskEvaluator:
        assert dev is not None
        write = Writer(dev.task, recipe, mesh) if isinstance(dev.task, TextToText) else None
        return TaskEvaluator(recipe, mesh, dev, workdir, write)

    stop = config.train.steps if stop_at is None else min(stop_at, config.train.steps)
    return Job(config, workdir, train, make_recipe, evaluator if dev else None, stop)
