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
    """The right panel: a circle for each network."""
    left, linker = LEFT + WIDTH + GAP, found["linker"]
    columns = {
        ("clm", "left side"): (OTHER, [*linker["valid"]["clm"].values()]),
        ("plm", "both sides"): (DARK, [*linker["valid"]["plm"].values()]),
        ("trained plm", "left side"): (DARK, [linker["trained"]["left"]]),
        ("trained plm", "both sides"): (DARK, [linker["trained"]["both"]]),
    }
    most = max(share for _, values in columns.values() for share in values) * 1.1
    parts = [
        word(left, 14, "linkers: share of valid molecules", "start"),
        f'<path d="M{left} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>',
    ]
    for share in (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        if share < most:
            y = TOP + HEIGHT * (1 - share / most)
            parts.append(word(left - 6, round(y + 4, 1), f"{share:.0%}", "end"))
    for number, (label, (color, values)) in enumerate(columns.items()):
        x = left + WIDTH * (number + 0.5) / len(columns)
        parts += [
            word(x, TOP + HEIGHT + 16 + 14 * line, text, fill=color)
            for line, text in enumerate(label)
        ]
        parts += [
            f'<circle cx="{x:g}" cy="{TOP + HEIGHT * (1 - share / most):.1f}" r="4" fill="none" '
            f'stroke="{color}"/>'
            for share in values
        ]
    return parts
