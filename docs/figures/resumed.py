"""The loss of a run that was killed three times over that of one that was not, from resumed.json.

`python benchmarks/interrupted.py --json > docs/figures/resumed.json` makes the figures.
"""

import json
import pathlib

from _svg import DARK, GREY, LIGHT, picture, word

LEFT, TOP, WIDTH, HEIGHT = 40, 20, 560, 200
COLORS = [DARK, "#c2702a", "#4d9a4d", "#9a5fb0"]


def draw() -> str:
    """The figure."""
    found = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    whole, killed, steps = found["whole"], found["killed"], len(found["whole"])
    low, high = min(whole), max(whole)

    def path(losses: list[float], first: int) -> str:
        at = [
            (
                f"{LEFT + WIDTH * (first + n) / steps:.1f} "
                f"{TOP + HEIGHT * (high - loss) / (high - low):.1f}"
            )
            for n, loss in enumerate(losses)
        ]
        return "M" + "L".join(at)

    parts = [f'<path d="{path(whole, 1)}" fill="none" stroke="{LIGHT}" stroke-width="8"/>']
    starts = [0, *found["starts"], steps]
    for turn, (first, last) in enumerate(zip(starts, starts[1:], strict=False)):
        line = path(killed[max(first - 1, 0) : last], max(first, 1))
        parts.append(f'<path d="{line}" fill="none" stroke="{COLORS[turn]}" stroke-width="1.5"/>')
    for turn, done in enumerate(found["done"]):
        x = LEFT + WIDTH * done / steps
        parts.append(
            f'<path d="M{x:g} {TOP}v{HEIGHT}" stroke="{COLORS[turn]}" stroke-dasharray="3"/>'
        )
        text = f"killed after {done}, goes on from {found['starts'][turn]}"
        side = "start" if x < WIDTH / 2 else "end"
        parts.append(
            word(x + (3 if side == "start" else -3), TOP + 10 + 14 * turn, text, side, COLORS[turn])
        )
    parts.append(f'<path d="M{LEFT} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>')
    parts += [
        word(LEFT + WIDTH * tick / steps, TOP + HEIGHT + 16, tick)
        for tick in range(0, steps + 1, 20)
    ]
    parts += [
        word(LEFT - 6, TOP + HEIGHT * (high - loss) / (high - low) + 4, loss, "end")
        for loss in (6, 7, 8)
        if low < loss < high
    ]
    parts.append(
        word(
            LEFT,
            12,
            "loss by step: wide, never stopped; thin, killed three times, a color for each start",
            "start",
        )
    )
    return picture(LEFT + WIDTH + 20, TOP + HEIGHT + 24, parts)
