"""`xlnet-jax report`: writes state, curves and settings of runs to one page. It only reads the
runs, which may still be training.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.comparison import report as pages
from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import formats
from xlnet_jax.finetune.setup import trained_task
from xlnet_jax.messages import printable
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import SAMPLES, STARTS, read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train.evaluation import best


def report(workdirs: Sequence[str], output: str) -> Json:
    """Writes one HTML file, `output`, about the runs in some work directories.

    Returns `page`, and `runs` {name: {state, step, steps, loss, heldout_loss, score, metric,
    tokens_per_second, seconds, goodput}}; `score` is the best score of a task, in its `metric`.
    Raises BadInput for a folder that holds no run.
    """
    if not workdirs:
        raise BadInput("name the work directory of a run: `xlnet-jax report runs/quickstart/run`")
    paths = [path.rstrip("/") for path in workdirs]
    common = os.path.commonprefix(paths).rpartition("/")[0] + "/"
    runs = {path.removeprefix(common): read_run(path) for path in paths}
    with files.translate_errors(output):
        files.write(output, pages.report(runs).encode())
    told = (
        "state",
        "step",
        "steps",
        "loss",
        "heldout_loss",
        "score",
        "metric",
        "tokens_per_second",
        "seconds",
        "goodput",
    )
    return {
        "runs": {name: {key: run[key] for key in told} for name, run in runs.items()},
        "page": output,
    }


def show(result: Json) -> None:
    """Prints a line for each run, and the page."""
    for name, run in result["runs"].items():
        print(
            f"{printable(name):24} {pages.STATES[run['state']]}, step {run['step']:,} of "
            f"{run['steps']:,}, loss "
            f"{pages.or_dash(run['loss'])}{', ' + pages.task_score(run) if run['metric'] else ''}"
        )
    print(f"{'page':24} {printable(result['page'])}")


def read_run(workdir: str) -> Json:
    """Reads the files of a run. Raises BadInput if there is no run; damaged lines are left out,
    each with a warning.
    """
    config = workdirs.load_config(workdir)
    with files.translate_errors(workdir):
        metrics, evaluations, times, starts, samples = (
            read_jsonl(workdir, name)
            for name in ("metrics.jsonl", "evaluations.jsonl", "time.jsonl", STARTS, SAMPLES)
        )
        path = os.path.join(workdir, "predictions.jsonl")
        lines = files.lines((files.read_if_there(path) or b"").decode(errors="replace"))
    if not starts:
        raise BadInput(
            f"{workdir}: no {STARTS}: no training has started here; "
            "give the --workdir of a training run"
        )
    saved, defaults = workdirs.read_config(workdir) or {}, configs.flat(Config())
    keys = saved["config"]
    line, last = goodputs.last_complete(times), (metrics or [{"step": starts[-1]["step"]}])[-1]
    kept = list[int]()
    if "checkpoints/" in files.listing(workdir):
        with Checkpoints(workdir) as checkpoints:
            kept = checkpoints.steps()
    scored = {each["step"]: workdirs.heldout_loss(each) for each in evaluations}
    of_task = not config.pretrains
    metric = trained_task(config, workdirs.tokenizer(workdir), workdir).metric if of_task else None
    rates = [each["tokens_per_second"] for each in metrics if each.get("tokens_per_second")]
    return {
        "state": goodputs.end_of(line, last, config.train.max_bad_steps) or "lost",
        "step": last["step"],
        "steps": config.ends[-1],
        "loss": last.get("loss"),
        "heldout_loss": scored[max(scored)] if scored else None,
        "score": (best(evaluations) or {}).get("score"),
        "metric": metric,
        "predictions": [record.fields for record in formats.json_lines(path, lines)],
        "heldout_share": evaluations[-1].get("heldout_share") if scored else None,
        "tokens_per_second": statistics.median(rates) if rates else None,
        **goodputs.summary(line),
        "memory": (line or {}).get("memory", {}),
        "metrics": metrics,
        "starts": starts,
        "samples": samples,
        "evaluations": [each | {"heldout_loss": scored[each["step"]]} for each in evaluations],
        "checkpoints": kept,
        "scored": scored,
        "config": keys,
        "tokenizer": saved["tokenizer_sha256"],
        "changed": {key for key, value in keys.items() if defaults.get(key) != value},
    }
