"""Four masks of one sentence, by ranks: left to right, masked, and both streams of a
permutation.
"""

import numpy as np
from _svg import DARK, LIGHT, cell, picture, upright, word

from xlnet_jax.commands.inspect import visible

WORDS = ["The", "laws", "of", "trade", "are", "good"]
N, CELL, LEFT, TOP = len(WORDS), 22, 46, 36
TARGETS, ORDER = [1, 3, 5], {5: 0, 1: 1, 3: 2}
PERMUTED = [ORDER.get(position, -1) for position in range(N)]


def panel(
    left: float, titles: tuple[str, str], sees_NN: np.ndarray, predicts: list[int], masked: bool
) -> list[str]:
    """One mask: a row for each position, what it sees from left to right."""
    parts = [word(left + N * CELL / 2, 12 + 14 * line, title) for line, title in enumerate(titles)]
    for row, sees_N in enumerate(sees_NN):
        for column, seen in enumerate(sees_N):
            fill = "none" if not seen else DARK if row in predicts else LIGHT
            parts.append(cell(left + column * CELL, TOP + row * CELL, CELL, CELL, fill))
    shown = ["[MASK]" if masked and at in predicts else text for at, text in enumerate(WORDS)]
    return parts + [
        upright(left + at * CELL + 8, TOP + N * CELL + 5, text) for at, text in enumerate(shown)
    ]


def draw() -> str:
    """The figure."""
    content_NN, query_NN = visible(PERMUTED, TARGETS)
    panels = [
        (
            ("left to right", "predicts the next"),
            visible(list(range(N)), [])[0],
            list(range(N)),
            False,
        ),
        (("masked", "each mask alone"), visible([0] * N, [])[0], TARGETS, True),
        (("permutation", "content: knows itself"), content_NN, [], False),
        (("permutation", "query: good, laws, trade"), query_NN, TARGETS, False),
    ]
    parts = [word(LEFT - 5, TOP + row * CELL + 15, text, "end") for row, text in enumerate(WORDS)]
    for number, one in enumerate(panels):
        parts += panel(LEFT + number * (N * CELL + 18), *one)
    return picture(LEFT + 4 * (N * CELL + 18), TOP + N * CELL + 54, parts)
