"""`xlnet-jax glue`: fine-tunes the nine tasks of GLUE from its files, and averages their scores.

The files are those that GLUE publishes: a folder for each task, with `train.tsv` and `dev.tsv`. The
score of a task is the mean of its metrics, and GLUE's score is the mean over the tasks (Wang et al.
2018, arXiv:1804.07461). The scores are of the dev sets; those of the test sets are not published.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from xlnet_jax import config as configs
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.data.prepare.sources import find_sources
from xlnet_jax.errors import BadInput
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train.evaluation import best

log = logging.getLogger("xlnet_jax")


class GlueTask(NamedTuple):
    """A task: its folder, its metrics, its dev sets, and the numbers of its columns if its files
    have no header.
    """

    folder: str
    metrics: Sequence[str] = ("accuracy",)
    dev: Sequence[str] = ("dev.tsv",)
    columns: str = ""


TASKS = {
    "cola": GlueTask("CoLA", ("matthews",), columns="3,1"),
    "sst2": GlueTask("SST-2"),
    "mrpc": GlueTask("MRPC", ("accuracy", "f1")),
    "stsb": GlueTask("STS-B", ("pearson", "spearman")),
    "qqp": GlueTask("QQP", ("accuracy", "f1")),
    "mnli": GlueTask("MNLI", dev=("dev_matched.tsv", "dev_mismatched.tsv")),
    "qnli": GlueTask("QNLI"),
    "rte": GlueTask("RTE"),
    "wnli": GlueTask("WNLI"),
}
"""The tasks by the name of their configuration in configs/finetune."""
_OF_A_TASK = tuple(f"--config.finetune.{key}=" for key in ("train", "dev", "columns"))


def glue(data: str, workdir: str, overrides: Sequence[str] = ()) -> Json:
    """Fine-tunes all tasks, each in a folder of `workdir` with the name of its configuration;
    resumes as `finetune` does.

    Args:
      data: folder of the folders `CoLA`, `SST-2` and so on.
      overrides: words for all configurations, such as `--config.checkpoint.init_from=RUN`.

    Returns:
      `glue`, the mean over the tasks; for each task its metrics at the best checkpoint, of MNLI the
      accuracy on each dev set; `workdir`. All scores are from 0 to 1.

    Raises BadInput if a file is missing, and the errors of `finetune`.
    """
    chosen = {}
    for name, task in TASKS.items():
        train, *dev = (os.path.join(data, task.folder, file) for file in ("train.tsv", *task.dev))
        find_sources([train, *dev])  # refuses a missing file before the first task is trained
        own = {"train": train, "dev": ",".join(dev), "columns": task.columns}
        words = [f"--config.finetune.{key}={value}" for key, value in own.items()]
        if given := [word for word in overrides if word.startswith(_OF_A_TASK)]:
            raise BadInput(f"{given[0]}: glue gives each task its own; leave it out")
        chosen[name] = configs.load(f"finetune/{name}", [*words, *overrides])
    scores = {}
    for name, config in chosen.items():
        folder = os.path.join(workdir, name)
        finetune(config, folder)
        scores[name] = _scores(TASKS[name], folder)
        log.info("glue: %s %s", name, scores[name])
    mean = statistics.fmean(statistics.fmean(each.values()) for each in scores.values())
    return {"glue": mean, **scores, "workdir": workdir}


def _scores(task: GlueTask, folder: str) -> dict[str, float]:
    """Returns the metrics of a finished run at its best checkpoint. With several dev sets returns
    the accuracy on each, from the predictions at that checkpoint.
    """
    if len(task.dev) == 1:
        line = best(read_jsonl(folder, "evaluations.jsonl")) or {}
        return {metric: line[metric] for metric in task.metrics}
    right = collections.defaultdict(list)
    content = files.read(os.path.join(folder, "predictions.jsonl"))
    for line in map(json.loads, content.splitlines()):
        file = os.path.basename(line["where"].rpartition(", row ")[0])
        right[file].append(line["label"] == line["gold"])
    return {name: statistics.fmean(right[name]) for name in task.dev}
