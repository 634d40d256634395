"""A sentence after each answer, in three orders: its known words, the words that are asked, and the
answers.
"""

import itertools

from _svg import DARK, FAINT, MIDDLE, inside, picture, word
from orders import KNOWN, ORDERS, WORDS, ranked

BOLD = ' font-weight="bold"'
WIDTHS = [8 + 7.5 * len(text) for text in WORDS]
"""A cell fits its word in bold; no common sans-serif font has wider letters on average."""
LEFTS = [0, *itertools.accumulate(WIDTHS)]
HEIGHT, ROW, TOP, GAP = 24, 29, 24, 20
TITLES = ("from left to right", "from right to left", "in another order")
LEGEND = [
    ("We", FAINT, "", "known"),
    ("?", "none", "", "asked, not yet answered"),
    ("people", DARK, BOLD, "answered in this row"),
    ("people", MIDDLE, "", "answered in a row above"),
]


def draw() -> str:
    """The figure."""
    parts = []
    for number, (title, (_, order)) in enumerate(zip(TITLES, ORDERS, strict=True)):
        left = 1 + number * (LEFTS[-1] + GAP)
        parts.append(word(left + LEFTS[-1] / 2, TOP - 9, title))
        for row, (position, sees_N) in enumerate(zip(*ranked(order), strict=True)):
            for at, (text, seen) in enumerate(zip(WORDS, sees_N, strict=True)):
                if KNOWN[at]:
                    shown, fill, more = text, FAINT, ""
                elif at == position:
                    shown, fill, more = text, DARK, BOLD
                else:
                    shown, fill, more = (text, MIDDLE, "") if seen else ("?", "none", "")
                box = left + LEFTS[at], TOP + row * ROW, WIDTHS[at], HEIGHT
                parts += inside(*box, fill, shown, more)
    below, right = TOP + 4 * ROW + 8, 1.0
    for shown, fill, more, meaning in LEGEND:
        width = 8 + 7.5 * len(shown)
        parts += inside(right, below, width, HEIGHT, fill, shown, more)
        parts.append(word(right + width + 6, below + 16, meaning, "start"))
        right += width + 30 + 6.5 * len(meaning)
    return picture(2 * (LEFTS[-1] + GAP) + LEFTS[-1] + 2, below + HEIGHT + 2, parts)
