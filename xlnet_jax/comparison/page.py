"""The page of a comparison: one HTML file with its plots inside (SVG). It loads nothing and runs no
script.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from xlnet_jax.comparison.intervals import FEWEST_SEEDS
from xlnet_jax.infer.estimators import DRAWS
from xlnet_jax.messages import duration
from xlnet_jax.storage.files import Json

TITLES = {
    "left_to_right": "Left to right",
    "half": "A random half, given the other",
    "pseudo": "Each token, given all others",
    "bound": "The bound of masked diffusion",
}
EXPLAINED = {
    "left_to_right": (
        "log p of a whole window by the chain rule from left to right. A distribution."
    ),
    "half": (
        "log p of a random half of a window given the other half, by the chain rule, as the mean "
        "over random orders. Each order is a distribution; the mean bounds log p of their mixture."
    ),
    "pseudo": (
        "the sum over tokens of log p given all others (pseudo-likelihood): "
        "no distribution over texts."
    ),
    "bound": (
        "the training objective of masked diffusion, for a whole window: an upper bound on -log p "
        f"of the mixture of all orders, estimated from {DRAWS} sets of masks, the same for all "
        "runs."
    ),
}
OF_TASK = (
    "After the last step, with the same settings for all systems. Each position sees the whole "
    "text, also in a model that was trained left to right. High is good."
)
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
STYLE = """
:root {color-scheme: light dark; --text: #222; --back: #fff; --line: #ddd; --faint: #6a6a6a}
@media (prefers-color-scheme: dark) {
  :root {--text: #ddd; --back: #16181c; --line: #3a3d42; --faint: #9a9a9a}
  polyline, circle, .colour {filter: brightness(1.4)}}
body {font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem}
body {color: var(--text); background: var(--back); overflow-wrap: break-word}
.wide {overflow-x: auto} table {border-collapse: collapse; margin: 1rem 0}
caption {text-align: left; font-weight: 600}
th, td {padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right}
th:first-child {text-align: left} th, td, .key {white-space: nowrap}
figure {display: inline-block; margin: 0 .5rem .5rem 0; max-width: 100%}
figcaption {font-weight: 600}
svg {max-width: 100%; height: auto} svg text {font: 12px system-ui, sans-serif; fill: currentColor}
.no {color: var(--faint)} .key {display: inline-block; margin-right: 1em}
.bar {display: flex; height: 1.2em; margin: .3rem 0}
mark {background: #4a90d955; color: inherit; border-radius: 3px; padding: 0 .15em}
.colour {display: inline-block; width: .9em; height: .9em; margin-right: .3em}
"""


def page(result: Json) -> str:
    """Returns the whole file, from the result of `compare`."""
    systems = result["systems"]
    first = next((run for runs in systems.values() for run in runs.values()), None)
    body = [
        f"<h1>Comparison of systems: {len(systems)}</h1>",
        summary(result),
        "<h2>Method</h2>",
        (
            "<p>Each window is read without the text before it. One estimator for all: the chain "
            "rule. A system that predicts from masks is called once for each token, with all later "
            "positions of the order masked; another system once for each window and order. Random "
            f"orders for half of a window: {result['orders']}.</p>"
        ),
        *(section(result, measure, unit) for measure, unit in units(systems).items()),
        "<h2>Cost</h2>",
        training_costs(systems),
        scoring_costs(systems),
        "<h2>Learning curves</h2>",
        (
            "<p>Training loss, nats per target, of each system's own objective: heights of "
            "different objectives do not compare.</p>"
        ),
        curves(systems),
    ]
    if first:
        where = first["environment"]
        packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
        body.append(
            f"<p class='no'>First run: {where['time']}; xlnet-jax {where['xlnet_jax']}, Python "
            f"{where['python']}, {packages}; {where['devices']} x {text(where['device_kind'])}, "
            f"{where['cores']} cores. Corpus {result['corpus_sha256'][:12]}, configurations "
            f"{result['configs_sha256'][:12]}.</p>"
        )
    return document("Comparison", body)


def document(title: str, body: Iterable[str]) -> str:
    """Returns an HTML file, light or dark as the reader's system is."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f'<title>{text(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def summary(result: Json) -> str:
    """Returns what was compared, and for each measure and task the best mean and the named
    differences.
    """
    systems = result["systems"]
    seeds = sorted({*map(len, systems.values())})
    budget = "FLOPs" if result["equal"] == "flops" else "fresh tokens"
    windows = "windows of"
    claim = (
        "A difference is named only where its interval, "
        "corrected for the number of pairs, excludes 0."
    )
    if seeds[0] < FEWEST_SEEDS:
        claim += f" No difference is claimed for a system with fewer than {FEWEST_SEEDS} seeds."
    if (modelled := result.get("length_modelled")) is not None:
        windows = "whole documents (the windows below) of at most"
        claim += f" Length of a document modelled by: {text(', '.join(modelled)) or 'none'}."
    lines = "".join(outcome(result, measure, unit) for measure, unit in units(systems).items())
    return (
        f"<p>Compared after equal training {budget}: {text(', '.join(systems))}. Seeds of each: "
        f"{' or '.join(map(str, seeds))}. Held-out text, the same for all: {result['windows']} "
        f"{windows} {result['length']} tokens, {result['bytes']:,} bytes in all. "
        f"<b>{claim}</b></p><ul>{lines}</ul>"
    )


def outcome(result: Json, measure: str, unit: str) -> str:
    """Returns the line of a measure or task in the summary; empty without scores."""
    high_is_good = measure not in TITLES
    means = {
        name: np.mean([*scores.values()])
        for name, runs in result["systems"].items()
        if (scores := scores_of(runs, measure))
    }
    if not means:
        return ""
    best = (max if high_is_good else min)(means, key=lambda name: means[name])
    said = [f"The best mean is that of {best}: {means[best]:.4f} {unit}."]
    for each in result["differences"]:
        if each["measure"] == measure and each["named"]:
            better, worse = each["a"], each["b"]
            if (each["mean"] > 0) != high_is_good:
                better, worse = worse, better
            low, high = sorted((abs(each["low"]), abs(each["high"])))
            mean = abs(each["mean"])
            said.append(f"{better} is better than {worse} by {mean:.4f} [{low:.4f}, {high:.4f}].")
    said += ["No other difference is named." if len(said) > 1 else "No difference is named."]
    return f"<li><b>{text(title(measure))}:</b> {text(' '.join(said))}</li>"


def text(value: Any) -> str:
    """Escapes a value for HTML."""
    return html.escape(str(value))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table whose first column names the rows."""
    lines = ["<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>"]
    for name, *cells in rows:
        lines.append(
            f"<tr><th>{text(name)}</th>"
            + "".join(f"<td>{text(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    rows_of = "\n".join(lines)
    return f'<div class="wide"><table><caption>{text(caption)}</caption>{rows_of}</table></div>'


def standard_deviation(values: Sequence[float]) -> str:
    """Formats the standard deviation; - for a single value."""
    return f"{np.std(values, ddof=1):.4f}" if len(values) > 1 else "-"


def of_measure(runs: Json, measure: str) -> Json:
    """Scores in this measure of a system's runs, by seed; a run without the measure is left out."""
    return {seed: score for seed, run in runs.items() if (score := run["measures"][measure])}


def scores_of(runs: Json, measure: str) -> dict[str, float]:
    """Scores of a system's runs by seed: bits per byte in a measure, or the score on a task."""
    if measure in TITLES:
        return {seed: score["bits_per_byte"] for seed, score in of_measure(runs, measure).items()}
    return {
        seed: run["tasks"][measure]["score"]
        for seed, run in runs.items()
        if measure in run["tasks"]
    }


def units(systems: Json) -> dict[str, str]:
    """The units of all measures, and the metrics of the tasks that runs were fine-tuned on."""
    return dict.fromkeys(TITLES, "bits per byte") | {
        task: score["metric"]
        for runs in systems.values()
        for run in runs.values()
        for task, score in run["tasks"].items()
    }


def title(measure: str) -> str:
    """The title of a measure or task."""
    return TITLES.get(measure, f"Fine-tuned: {measure}")


def section(result: Json, measure: str, unit: str) -> str:
    """Returns the section of a measure or task: its scores, and the differences with a plot."""
    explained, of_windows = OF_TASK, {}
    if measure in TITLES:
        explained = f"{EXPLAINED[measure]} Low is good."
        of_windows = {
            name: standard_deviation(
                np.mean([score["bits_per_byte_N"] for score in scores.values()], axis=0)
            )
            if (scores := of_measure(runs, measure))
            else ""
            for name, runs in result["systems"].items()
        }
    return f"<h2>{text(title(measure))}</h2><p>{explained}</p>" + score_tables(
        result, measure, unit, of_windows
    )


def score_tables(result: Json, measure: str, unit: str, of_windows: dict[str, str]) -> str:
    """Returns the scores of each system, and the differences with a plot. `of_windows`: standard
    deviations over windows; {} for a task, which has no windows.
    """
    rows = []
    for name, runs in result["systems"].items():
        found = [*scores_of(runs, measure).values()]
        without = "not defined" if of_windows and runs else "not run"
        mean = f"{np.mean(found):.4f}" if found else without
        of_system = [of_windows[name]] if of_windows else []
        rows.append((name, mean, standard_deviation(found), *of_system, len(found)))
    windows = ["s.d. over windows"] if of_windows else []
    scores = table("Scores", ("system", unit, "s.d. over seeds", *windows, "seeds"), rows)
    pairs = [each for each in result["differences"] if each["measure"] == measure]
    if not pairs:
        return scores
    lines = [
        (
            f"{each['a']} - {each['b']}",
            f"{each['mean']:+.4f}",
            "-" if each["low"] is None else f"[{each['low']:+.4f}, {each['high']:+.4f}]",
            *([f"{each['spread']:.4f}"] if of_windows else []),
            "yes" if each["named"] else "no",
        )
        for each in pairs
    ]
    columns = ("a - b, paired by seed", "mean", "interval over seeds", *windows, "named")
    return (
        scores
        + table(f"Differences in {unit}, 95 % with Holm's correction", columns, lines)
        + interval_plot(pairs, unit)
    )


def training_costs(systems: Json) -> str:
    """Returns the table of the cost of training a run, with the mean time over seeds."""
    rows = []
    for name, runs in systems.items():
        if not runs:
            rows.append((name, "not run", "", "", ""))
            continue
        first, *_ = runs.values()
        # The wait between two starts of a run is not a cost of its system.
        busy = [
            sum(run["seconds"].values()) - run["seconds"].get("restarts", 0)
            for run in runs.values()
        ]
        tokens, cost = f"{first['train_tokens']:,}", f"{first['train_flops']:.3e}"
        rows.append((name, first["steps"], tokens, cost, duration(float(np.mean(busy)))))
    return table("Training, a run", ("system", "steps", "fresh tokens", "FLOPs", "time"), rows)


def scoring_costs(systems: Json) -> str:
    """Returns the table of the cost of scoring a run, with the mean time over seeds."""
    rows = []
    for name, runs in systems.items():
        for measure, title in TITLES.items():
            if found := [*of_measure(runs, measure).values()]:
                seconds = float(np.mean([each["seconds"] for each in found]))
                count, cost = f"{found[0]['calls']:,}", f"{found[0]['flops']:.3e}"
                rows.append((f"{name}, {title.lower()}", count, cost, duration(seconds)))
    return table(
        "Scoring, a run (the time with compilation)", ("system", "calls", "FLOPs", "time"), rows
    )


def scale(values: Sequence[float], low: float, high: float) -> Callable[[float], float]:
    """Returns the linear map from the range of the values to `low` ... `high`."""
    least, most = min(values), max(values)
    return lambda value: low + (value - least) / ((most - least) or 1) * (high - low)


def svg(width: int, height: int, parts: Iterable[str], label: str) -> str:
    """Returns an SVG picture."""
    return (
        f'<svg role="img" aria-label="{text(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">' + "".join(parts) + "</svg>"
    )


def interval_plot(pairs: Sequence[Json], unit: str) -> str:
    """Plots the intervals over a numbered axis; the interval of a named difference is dark."""
    known = [each for each in pairs if each["low"] is not None]
    if not known:
        return ""
    ends = [0.0, *(each[end] for each in known for end in ("low", "high"))]
    x, bottom = scale(ends, 260, 700), 24 * len(known) + 10
    parts = [
        (
            f'<path d="M{x(value):.1f} 0V{bottom}" stroke="currentColor" '
            f'stroke-opacity="{0.12 if value else 0.6}"/>'
            f'<text x="{x(value):.1f}" y="{bottom + 14}" text-anchor="middle">'
            f"{format_number(value)}</text>"
        )
        for value in ticks(min(ends), max(ends))
    ]
    parts.append(f'<text x="480" y="{bottom + 32}" text-anchor="middle">a - b, {text(unit)}</text>')
    for number, each in enumerate(known):
        y, opacity = 24 * number + 16, 1 if each["named"] else 0.35
        parts.append(
            f'<text x="0" y="{y + 4}">{text(each["a"])} - {text(each["b"])}</text>'
            f'<line x1="{x(each["low"]):.1f}" x2="{x(each["high"]):.1f}" y1="{y}" y2="{y}" '
            f'stroke="currentColor" stroke-opacity="{opacity}" stroke-width="2"/>'
            f'<circle cx="{x(each["mean"]):.1f}" cy="{y}" r="4" fill="currentColor" '
            f'fill-opacity="{opacity}"/>'
        )
    return svg(720, bottom + 38, parts, "differences with their intervals")


def curves(systems: Json) -> str:
    """Plots the training loss over FLOPs, a line for each run."""
    lines = [
        (number, np.array(one["curve"]) * (one["train_flops"] / one["steps"], 1))
        for number, runs in enumerate(systems.values())
        for one in runs.values()
        if one["curve"]
    ]
    return (
        legend(systems) + chart("training loss", "training FLOPs", lines)
        if lines
        else "<p>not run</p>"
    )


def colour(number: int) -> str:
    """Returns the colour of a system, a run or a cause of time, by its number."""
    return COLOURS[number % len(COLOURS)]


def legend(names: Iterable[str]) -> str:
    """Returns the names with their colours, for all charts below."""
    keys = (
        (
            '<span class="key"><span class="colour" '
            f'style="background:{colour(number)}"></span>{text(name)}</span>'
        )
        for number, name in enumerate(names)
    )
    return f"<p>{''.join(keys)}</p>"


def ticks(low: float, high: float) -> list[float]:
    """Returns three to eight round numbers within a range; `low` alone if the range is empty."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = power * max(each for each in (1, 2, 5) if power * each <= (high - low) / 3)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def format_number(value: float) -> str:
    """Formats a number for an axis or a table."""
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"


def chart(
    title: str, xlabel: str, lines: Sequence[tuple[int, np.ndarray]], dashed: Sequence[Any] = ()
) -> str:
    """Draws lines of points [n, 2], each with the number of its colour, from x = 0. Lines of
    `dashed` have a circle at each point.
    """
    points = np.concatenate([line for _, line in [*lines, *dashed]])
    (_, least), (last, most) = points.min(axis=0), points.max(axis=0)
    x, y = scale([0, last], 70, 420), scale([least, most], 210, 8)
    parts = ['<path d="M70 8V210H420" fill="none" stroke="currentColor" stroke-opacity=".4"/>']
    parts += [
        f'<text x="64" y="{y(value) + 4:.1f}" text-anchor="end">{format_number(value)}</text>'
        f'<path d="M70 {y(value):.1f}H420" stroke="currentColor" stroke-opacity=".12"/>'
        for value in ticks(least, most)
    ]
    parts += [
        f'<text x="{x(value):.1f}" y="228" text-anchor="middle">{format_number(value)}</text>'
        for value in ticks(0, last)
    ]
    parts.append(f'<text x="245" y="246" text-anchor="middle">{text(xlabel)}</text>')
    for kind, extra in ((lines, ""), (dashed, ' stroke-dasharray="5 3"')):
        for number, line in kind:
            at = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
            parts.append(
                f'<polyline points="{at}" fill="none" stroke="{colour(number)}" '
                f'stroke-opacity=".8"{extra}/>'
            )
            parts += [
                (
                    f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" '
                    f'fill="{colour(number)}" stroke="var(--back)"/>'
                )
                for a, b in line
                if extra
            ]
    return f"<figure><figcaption>{text(title)}</figcaption>{svg(440, 252, parts, title)}</figure>"
