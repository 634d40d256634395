"""The page of `report`: state, curves and settings of runs in one HTML file, built like the page
of a comparison.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence

import numpy as np

from xlnet_jax.comparison.page import chart, colour, document, format_number, legend, table, text
from xlnet_jax.messages import duration, quantity
from xlnet_jax.storage.files import Json

Runs = dict[str, Json]
"""Results of `commands.report.read_run` by the names of the runs."""
ERRORS, LONGEST = 20, 300
"""Most lines of a table of errors, and most characters of a text in it."""
POINTS = 400
"""Most points of a curve; each is the mean of the steps since the point before."""
CURVES = {
    "Loss (dashed: held-out)": "loss",
    "Learning rate": "learning_rate",
    "Gradient norm": "grad_norm",
    "Tokens per second": "tokens_per_second",
}
STATES = {
    "end": "ended at the requested step",
    "signal": "stopped by a signal",
    "diverged": "diverged",
    "lost": "killed, failed, or still running",
    None: "not recorded",
}
"""Descriptions of the results of `goodput.end_of`."""
CAUSES = ("steps", "compile", "data", "save", "evaluation", "start", "restore", "restarts")


def report(runs: Runs) -> str:
    """Returns the whole file."""
    title = f"Report of {quantity(len(runs), 'run')}"
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    body = [
        f"<h1>{title}</h1>",
        f'<p class="no">Written at {written}.</p>',
        overview(runs),
        "<h2>Curves</h2>",
        legend(runs),
        curves(runs),
        "<h2>Where the time went</h2>",
        times(runs),
        "<h2>Starts and interruptions</h2>",
        *(starts(name, run["starts"]) for name, run in runs.items()),
        memory(runs),
        samples(runs),
        errors(runs),
        "<h2>Checkpoints</h2>",
        checkpoints(runs),
        "<h2>Configuration</h2>",
        configuration(runs),
    ]
    return document(f"{title}: {', '.join(runs)}", body)


def or_dash(value: float | None, how: Callable[[float], str] = format_number) -> str:
    """Formats a number; - if it was not recorded."""
    return "-" if value is None else how(value)


def task_score(run: Json) -> str:
    """Formats the score of a task as `accuracy 0.93`; - without a score."""
    return "-" if run["score"] is None else f"{run['metric']} {format_number(run['score'])}"


def overview(runs: Runs) -> str:
    """Returns the table with a line for each run."""
    columns = (
        "run",
        "step",
        "of",
        "state",
        "last loss",
        "held-out loss",
        "scored",
        "best score",
        "tokens/s",
        "training time",
        "goodput",
    )
    rows = [
        (
            name,
            f"{run['step']:,}",
            f"{run['steps']:,}",
            STATES[run["state"]],
            or_dash(run["loss"]),
            or_dash(run["heldout_loss"]),
            or_dash(run["heldout_share"], "{:.1%}".format),
            task_score(run),
            or_dash(run["tokens_per_second"]),
            or_dash((run["seconds"] or {}).get("steps"), duration),
            or_dash(run["goodput"], "{:.1%}".format),
        )
        for name, run in runs.items()
    ]
    caption = "Losses in nats per target; scored: share of the split; tokens/s: the median step"
    return table(caption, columns, rows)


def binned(lines: Sequence[Json], key: str, most: int = POINTS) -> np.ndarray:
    """Averages the lines that have a number for the key: step and mean, [at most `most`, 2]."""
    points = np.array(
        [(line["step"], line[key]) for line in lines if line.get(key) is not None], float
    )
    if not len(points):
        return np.zeros((0, 2))
    # On CPUs the last dispatch seems to take no time, because each result is read after the next
    # dispatch has started.
    if key == "tokens_per_second":
        points = points[points[:, 1] < 3 * np.median(points[:, 1])]
    return np.array(
        [
            (part[-1, 0], part[:, 1].mean())
            for part in np.array_split(points, min(most, len(points)))
        ]
    )


def curves(runs: Runs) -> str:
    """Returns a chart for each of `CURVES`, with one chart of losses per tokenizer, and a chart of
    the score of a task.
    """
    parts, tokenizers = [], list(dict.fromkeys(run["tokenizer"] for run in runs.values()))
    for title, key in (CURVES | {"Score": "score"}).items():
        held_out = {"loss": "heldout_loss", "score": "score"}.get(key, "")
        for tokenizer in tokenizers if key == "loss" else [None]:
            pair = [
                [
                    (number, points)
                    for number, run in enumerate(runs.values())
                    if tokenizer in (None, run["tokenizer"])
                    and len(points := binned(run[lines], name))
                ]
                for lines, name in (("metrics", key), ("evaluations", held_out))
            ]
            if any(pair):
                only = f", tokenizer {tokenizer[:8]}" if tokenizer and len(tokenizers) > 1 else ""
                parts.append(chart(title + only, "step", *pair))
    return "".join(parts) or "<p>No step has been written yet.</p>"


def times(runs: Runs) -> str:
    """Returns a bar and a row for each run, with the time by cause."""
    spent = {name: run["seconds"] for name, run in runs.items() if run["seconds"]}
    parts = [legend(CAUSES)]
    for name, seconds in spent.items():
        total = sum(seconds.values()) or 1.0
        pieces = "".join(
            (
                '<span class="colour" style="margin:0;height:100%;width:'
                f'{100 * seconds[cause] / total:.2f}%;background:{colour(number)}"></span>'
            )
            for number, cause in enumerate(CAUSES)
        )
        parts.append(f'{text(name)}<div class="bar">{pieces}</div>')
    rows = [
        (name, *(duration(seconds[cause]) for cause in CAUSES), duration(sum(seconds.values())))
        for name, seconds in spent.items()
    ]
    caption = "steps is training; restarts is repeated work and the wait between starts"
    parts.append(table(caption, ("run", *CAUSES, "all"), rows))
    return "".join(parts) if spent else "<p>Nothing has been saved yet.</p>"


def starts(name: str, lines: Sequence[Json]) -> str:
    """Returns the table of the starts of a run, with the end of the previous start."""
    rows, ended = [], STATES | {"lost": "killed, or failed"}
    for number, line in enumerate(lines):
        packages, commit = line.get("packages", {}), str(line.get("git_commit") or "-")
        rows.append(
            (
                line.get("time", "-"),
                f"{line['step']:,}",
                ended[line.get("before")] if number else "",
                f"{line['repeated']:,}" if number and "repeated" in line else "",
                f"{line.get('devices', '-')} x {line.get('device_kind', '-')}",
                f"{line.get('xlnet_jax', '-')}, jax {packages.get('jax', '-')}",
                commit[:12] + "+" * commit.endswith("+"),
            )
        )
    columns = (
        "start",
        "from step",
        "end of the previous start",
        "repeated steps",
        "devices",
        "version",
        "commit",
    )
    return table(name, columns, rows)


def memory(runs: Runs) -> str:
    """Returns the table of the peak memory, where it was recorded."""
    rows = [
        (
            name,
            *(
                or_dash(run["memory"].get(place), lambda size: f"{size / 2**20:,.0f} MiB")
                for place in ("host", "device")
            ),
        )
        for name, run in runs.items()
        if run["memory"]
    ]
    columns = ("run", "process 0", "its fullest device")
    return "<h2>Memory</h2>" + table("Peak since the last start", columns, rows) if rows else ""


def samples(runs: Runs) -> str:
    """Returns the held-out texts of each run, and below each text its fillings by step."""
    parts = []
    for name, lines in ((name, run["samples"]) for name, run in runs.items() if run["samples"]):
        parts.append(f"<h3>{text(name)}</h3>")
        for number, example in enumerate(lines[-1]["samples"]):
            parts.append(f"<p><b>{marked(example['parts'], example['truth'])}</b></p>")
            parts += [
                (
                    f'<p><span class="no">step {line["step"]:,}</span> '
                    f"{marked(each['parts'], each['filled'])}</p>"
                )
                for line in lines
                for each in line["samples"][number : number + 1]
            ]
    title = (
        "<h2>Filled text</h2><p>Held-out text in bold, with the hidden parts marked; below it the "
        "text that the model put there.</p>"
    )
    return title + "".join(parts) if parts else ""


def errors(runs: Runs) -> str:
    """Returns, for each task with classes, the confusion matrix and the errors with the highest
    probability.
    """
    parts = []
    for name, run in runs.items():
        counts, wrong = collections.Counter[tuple[str, str]](), []
        for line in run["predictions"]:
            if line.keys() >= {"gold", "label", "scores"}:
                gold, label, scores = str(line["gold"]), line["label"], line["scores"]
                counts[gold, label] += 1
                if gold != label:
                    # The scores of a choice are a list.
                    highest = max(scores.values() if isinstance(scores, dict) else scores)
                    texts = " | ".join(line["texts"])[:LONGEST]
                    wrong.append((line["where"], gold, label, highest, texts))
        if not counts:
            continue
        labels = sorted({label for pair in counts for label in pair})
        matrix = [(gold, *(counts[gold, label] for label in labels)) for gold in labels]
        parts.append(
            table(
                f"{name}: gold labels in rows, predicted labels in columns", ("", *labels), matrix
            )
        )
        wrong.sort(key=lambda each: -each[3])
        rows = [
            (where, gold, label, format_number(highest), texts)
            for where, gold, label, highest, texts in wrong[:ERRORS]
        ]
        columns = ("example", "gold", "predicted", "probability", "texts")
        parts.append(table(f"{name}: the most confident errors", columns, rows))
    return "<h2>Errors on the dev set</h2>" + "".join(parts) if parts else ""


def marked(parts: Sequence[str], gaps: Sequence[str]) -> str:
    """Returns a text with marked gaps, each between two parts, without the space before a gap."""
    first, *rest = parts
    return text(first) + "".join(
        f"{' ' * gap.startswith(' ')}<mark>{text(gap.strip() or '_')}</mark>{text(part)}"
        for gap, part in zip(gaps, rest, strict=False)
    )


def checkpoints(runs: Runs) -> str:
    """Returns the table of the kept checkpoints."""
    rows = [
        (name, f"{step:,}", or_dash(run["scored"].get(step)))
        for name, run in runs.items()
        for step in run["checkpoints"]
    ]
    columns = ("run", "step", "held-out loss")
    return table("Kept", columns, rows) if rows else "<p>None is kept.</p>"


def configuration(runs: Runs) -> str:
    """Returns the keys that differ between runs, those that are not at their default, and all."""
    keys = dict.fromkeys(key for run in runs.values() for key in run["config"])
    rows = [(key, *(run["config"].get(key, "-") for run in runs.values())) for key in keys]
    other = [row for row in rows if len({str(value) for value in row[1:]}) > 1]
    columns = ("key", *runs)
    compared = "<p>All are alike.</p>" * (len(runs) > 1)
    if other:
        compared = table("Where they differ", columns, other)
    changed = [row for row in rows if any(row[0] in run["changed"] for run in runs.values())]
    return (
        compared
        + table("Keys that are not at their default", columns, changed)
        + f"<details><summary>All keys</summary>{table('All keys', columns, rows)}</details>"
    )
