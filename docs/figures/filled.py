"""A sentence after each prediction, in three orders: the word that is added, those before it, and
what is known.
"""

from _svg import DARK, MIDDLE, inside, picture, word
from orders import KNOWN, ORDERS, WORDS, ranked

WIDTH, HEIGHT, TOP, PANEL = 39, 24, 24, 285


def draw() -> str:
    """The figure."""
    parts = []
    for number, (title, order) in enumerate(ORDERS):
        left = 1 + number * PANEL
        parts.append(word(left + len(WORDS) * WIDTH / 2, TOP - 9, title))
        for row, (position, sees_N) in enumerate(zip(*ranked(order), strict=True)):
            for at, (text, seen) in enumerate(zip(WORDS, sees_N, strict=True)):
                new = at == position
                fill = DARK if new else MIDDLE if seen and not KNOWN[at] else "none"
                shown, more = (text, ' font-weight="bold"' * int(new)) if seen or new else ("?", "")
                parts += inside(
                    left + at * WIDTH, TOP + row * (HEIGHT + 5), WIDTH, HEIGHT, fill, shown, more
                )
    return picture(2 * PANEL + len(WORDS) * WIDTH + 2, TOP + 4 * (HEIGHT + 5), parts)
