"""Groups of bars as an SVG file: the pictures of docs/any_order.md. Equal figures give equal
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INK = "#7d8792"
"""Readable on white and on black."""


def draw(
    path: str,
    groups: Sequence[str],
    heights: Mapping[str, Sequence[float]],
    errors: Mapping[str, Any],
    label: str,
    title: str,
    lines: Mapping[str, Sequence[float | None]] | None = None,
) -> None:
    """Writes one bar for each group and series.

    Args:
      heights: of each series, by its name: one for each group.
      errors: the length of each bar's error line on both sides, or a pair of sequences: below and
        above.
      label: of the vertical axis.
      lines: levels across all bars of a group, by their name; None in a group: no line there.
    """
    import matplotlib
    from matplotlib.figure import Figure

    inks = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    )
    papers = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none")
    known = {"svg.hashsalt": "xlnet_jax", "svg.fonttype": "none", "font.size": 10}
    with matplotlib.rc_context(known | inks | papers):
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(heights)
        for turn, (name, height) in enumerate(heights.items()):
            places = [group - 0.4 + width * (turn + 0.5) for group in range(len(groups))]
            axes.bar(
                places,
                height,
                0.9 * width,
                yerr=errors[name],
                capsize=2,
                label=name,
                error_kw={"linewidth": 1, "ecolor": INK},
            )
        for name, levels in (lines or {}).items():
            there = [(group, level) for group, level in enumerate(levels) if level is not None]
            axes.hlines(
                [level for _, level in there],
                [group - 0.45 for group, _ in there],
                [group + 0.45 for group, _ in there],
                colors=INK,
                linestyles=":",
                label=name,
            )
        axes.set_xticks(range(len(groups)), groups)
        axes.set(ylabel=label, title=title)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
