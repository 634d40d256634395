"""Differences in bits per byte to XLNet with spans, with their intervals, from
docs/comparison/objectives.html.
"""

import pathlib
import re

from _svg import DARK, GREY, picture, word

PAGE = pathlib.Path(__file__).parent.parent / "comparison" / "objectives.html"
MEASURES = {
    "Left to right": "left to right",
    "A random half, given the other": "half, given the other",
    "Each token, given all others": "each, given all others",
}
ROW = r"<tr><th>(\w+) - (\w+)</th><td>[^<]+</td><td>\[([-+.\d]+), ([-+.\d]+)\]"
LEFT, SCALE, ZERO, STEP = 112, 300, 260, 20


def intervals() -> dict[str, list[tuple[str, float, float]]]:
    """By measure: each other system, and the ends of the interval of its bits per byte minus those
    of XLNet.
    """
    sections = dict(
        re.findall(r"<h2>([^<]+)</h2>(.*?)(?=<h2>|\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    )
    found: dict[str, list[tuple[str, float, float]]] = {}
    for heading, measure in MEASURES.items():
        found[measure] = []
        for a, b, low, high in re.findall(ROW, sections[heading]):
            if b == "plm_spans":
                found[measure].append((a, float(low), float(high)))
            elif a == "plm_spans":
                found[measure].append((b, -float(high), -float(low)))
    return found


def draw() -> str:
    """The figure."""
    parts, y = [], 14.0
    for measure, rows in intervals().items():
        parts.append(word(2, y, measure, "start", more=' font-weight="bold"'))
        for name, low, high in rows:
            y += STEP
            color = GREY if low < 0 < high else DARK
            x0, x1 = ZERO + SCALE * low, ZERO + SCALE * high
            parts += [
                word(LEFT - 8, y, name, "end"),
                f'<path d="M{x0:g} {y - 4:g}H{x1:g}" stroke="{color}" stroke-width="3"/>',
                f'<circle cx="{(x0 + x1) / 2:g}" cy="{y - 4:g}" r="4" fill="{color}"/>',
            ]
        y += 1.6 * STEP
    parts.append(f'<path d="M{ZERO} 18V{y - 16:g}" stroke="{GREY}" stroke-dasharray="3"/>')
    parts.append(word(ZERO, y, "bits per byte more than XLNet with spans"))
    for tick in (-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8):
        parts.append(word(ZERO + SCALE * tick, y + 16, f"{tick:g}"))
    return picture(ZERO + SCALE * 0.95, y + 22, parts)
