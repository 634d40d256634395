"""Held-out loss of two texts while a model goes on with one of them, from domain.json.

`python benchmarks/domain.py runs/quickstart --json > docs/figures/domain.json` makes the figures.
"""

import json
import pathlib

from _svg import DARK, GREY, picture, word

LEFT, TOP, WIDTH, HEIGHT, GAP = 40, 40, 250, 150, 50
PANELS = {"domain": "film reviews, the domain", "corpus": "messages, the general text"}
COLORS = {"reviews alone": DARK, "3 to 1 with messages": "#c2702a"}


def draw() -> str:
    """The figure."""
    found = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    ways = {
        way: {name: found["before"][name] + found[way][name] for name in PANELS} for way in COLORS
    }
    every = [point for curves in ways.values() for points in curves.values() for point in points]
    steps, low, high = (
        max(step for step, _ in every),
        min(y for _, y in every) - 0.04,
        max(y for _, y in every) + 0.04,
    )

    def y(loss: float) -> float:
        return TOP + HEIGHT * (high - loss) / (high - low)

    parts = []
    for panel, (name, title) in enumerate(PANELS.items()):
        left = LEFT + panel * (WIDTH + GAP)
        parts.append(word(left, 14, f"held-out loss by step: {title}", "start"))
        for way, curves in ways.items():
            at = "L".join(
                f"{left + WIDTH * step / steps:.1f} {y(loss):.1f}" for step, loss in curves[name]
            )
            parts.append(f'<path d="M{at}" fill="none" stroke="{COLORS[way]}" stroke-width="2"/>')
        new = found["a new model"][name][-1][1]
        parts.append(
            word(left + WIDTH, TOP + 12, f"a new model on reviews ends at {new:.2f}", "end")
        )
        parts.append(f'<path d="M{left} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>')
        parts += [
            word(left + WIDTH * step / steps, TOP + HEIGHT + 16, step)
            for step in range(0, steps + 1, 20)
        ]
        parts += [
            word(left - 6, y(loss) + 4, loss, "end")
            for loss in (4.5, 4.6, 4.7, 4.8)
            if low < loss < high
        ]
    parts += [
        word(LEFT + 90 * n, 30, way, "start", color)
        for n, (way, color) in enumerate(COLORS.items())
    ]
    return picture(LEFT + 2 * WIDTH + GAP + 20, TOP + HEIGHT + 24, parts)
