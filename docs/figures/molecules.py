"""Bits per character of a random half of a molecule by the number of orders, and the share of
linkers that give a molecule, from molecules.json.

`python benchmarks/molecules.py runs/molecules --trained=molecules --json` prints the figures.
"""

import json
import pathlib

from _svg import DARK, GREY, picture, word

LEFT, TOP, WIDTH, HEIGHT, GAP = 50, 40, 250, 150, 70
OTHER = "#c2702a"


def draw() -> str:
    """The figure."""
    found = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return picture(
        LEFT + 2 * WIDTH + GAP, TOP + HEIGHT + 38, [*halves(found["half"]), *shares(found)]
    )


def halves(found: dict) -> list[str]:
    """The left panel: a point for each K, with its standard error, and the line of the masks."""
    bits = {name: row["bits_per_character"] for name, row in found["rows"].items()}
    low, high = min(bits.values()) - 0.02, max(bits.values()) + 0.02
    orders = [name for name in bits if name != "mlm"]
    step = WIDTH / (len(orders) - 0.5)

    def y(value: float) -> float:
        return TOP + HEIGHT * (high - value) / (high - low)

    parts = [
        word(LEFT, 14, "a random half: bits per character by orders K", "start"),
        word(LEFT, 30, "plm: mean of K orders", "start", DARK),
        word(LEFT + WIDTH, 30, "mlm: a chain of masks", "end", OTHER),
        f'<path d="M{LEFT} {y(bits["mlm"]):.1f}h{WIDTH}" stroke="{OTHER}" stroke-width="2"/>',
        f'<path d="M{LEFT} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>',
    ]
    for number, name in enumerate(orders):
        x, error = LEFT + step * (number + 0.5), found["rows"][name]["error"] or 0
        top, bottom = y(bits[name] + error), y(bits[name] - error)
        parts += [
            f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{DARK}" stroke-width="2"/>',
            f'<circle cx="{x:.1f}" cy="{y(bits[name]):.1f}" r="4" fill="{DARK}"/>',
            word(round(x, 1), TOP + HEIGHT + 16, name.partition("=")[2]),
        ]
    ticks = sorted({round(value, 2) for value in (low + 0.02, (low + high) / 2, high - 0.02)})
    return parts + [word(LEFT - 6, round(y(tick) + 4, 1), f"{tick:.2f}", "end") for tick in ticks]


def shares(found: dict) -> list[str]:
    """The right panel: a circle for each seed."""
    left, valid = LEFT + WIDTH + GAP, found["linker"]["valid"]
    parts = [
        word(left, 14, "a linker between two fragments: share of valid molecules", "start"),
        f'<path d="M{left} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(word(left - 6, TOP + HEIGHT * (1 - share) + 4, f"{share:.0%}", "end"))
    labels = {"plm": "plm, both sides known", "clm": "clm, the left known"}
    for number, (name, label) in enumerate(labels.items()):
        x, color = left + WIDTH * (0.25 + 0.5 * number), (DARK, OTHER)[number]
        parts.append(word(x, TOP + HEIGHT + 16, label, fill=color))
        parts += [
            f'<circle cx="{x:g}" cy="{TOP + HEIGHT * (1 - share):.1f}" r="4" fill="none" '
            f'stroke="{color}"/>'
            for share in valid[name].values()
        ]
    return parts
