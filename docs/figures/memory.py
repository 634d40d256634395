"""A row over four steps: memory, window and look-ahead; and the distances that each query takes
from the table.
"""

from _svg import DARK, GREY, LIGHT, MIDDLE, inside, picture, word

R, T, M, STEPS = 4, 6, 6, 4
CELL, LEFT, WINDOW = 26, 58, "#3d87cc"
SHORT_T, SHORT_M = 3, 2
"""Of the second part, as on the page."""


def segments(top: float) -> list[str]:
    """A line for each step; a number is that of a token of the text."""
    parts = [
        word(LEFT, top - 8, "memory", "start", MIDDLE, ' font-weight="bold"'),
        word(LEFT + 60, top - 8, "window, R new tokens", "start", WINDOW, ' font-weight="bold"'),
        word(LEFT + 200, top - 8, "look-ahead, read again later", "start", GREY),
    ]
    for step in range(STEPS):
        y, first = top + step * 30, step * R
        parts.append(word(LEFT - 8, y + 17, f"step {step}", "end"))
        for token in range(max(0, first - M), first + T):
            fill = MIDDLE if token < first else DARK if token < first + R else "none"
            parts += inside(LEFT + token * CELL, y, CELL, 24, fill, token)
    return parts


def distances(top: float) -> list[str]:
    """The rows of the position table, and below those of each query with the key that they are
    for.
    """
    rows, keys = SHORT_M + 2 * SHORT_T - 1, SHORT_M + SHORT_T
    parts = [word(LEFT, top - 8, "rows of the position table: distances", "start")]
    for row in range(rows):
        parts += inside(
            LEFT + row * 2 * CELL, top, 2 * CELL, 24, "none", SHORT_M + SHORT_T - 1 - row
        )
    for query in range(SHORT_T):
        y = top + 32 + query * 28
        parts.append(word(LEFT - 8, y + 17, f"query {query}", "end"))
        for key in range(keys):
            x = LEFT + (SHORT_T - 1 - query + key) * 2 * CELL
            text = f"memory {key}" if key < SHORT_M else f"key {key}"
            parts += inside(
                x, y, 2 * CELL, 24, MIDDLE if key < SHORT_M else LIGHT, text, ' font-size="10"'
            )
    return parts


def draw() -> str:
    """The figure."""
    return picture(LEFT + ((STEPS - 1) * R + T) * CELL + 2, 300, segments(24) + distances(178))
