"""What each unknown word sees in three orders, by the ranks that the model gets: known words, and
words before it.
"""

import numpy as np
from _svg import DARK, LIGHT, cell, picture, upright, word

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.infer.orders import Order, TextModel, places, segments

WORDS = ["We", "the", "people", "of", "the", "United", "States"]
KNOWN = np.array([True, False, False, True, True, False, False])
ORDERS: list[tuple[str, Order]] = [
    ("order left", "left"),
    ("order reversed", "reversed"),
    ("order [5, 1, 6, 2]", [5, 1, 6, 2]),
]
N, CELL, LEFT, TOP, PANEL = len(WORDS), 22, 48, 24, 220


def ranked(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """The U unknown positions as they are predicted, and what each sees, [U, N]."""
    place_N = places(1, KNOWN, order, (0,), N)
    reads = TextModel(None, None, XLNET, N)
    (segment,) = segments(reads, np.full(N, 9), KNOWN, place_N)
    predicted_U = segment.position_U[np.argsort(segment.rank_N[segment.position_U])]
    return predicted_U, segment.rank_N < segment.rank_N[predicted_U][:, None]


def draw() -> str:
    """The figure."""
    parts = []
    for number, (title, order) in enumerate(ORDERS):
        left = LEFT + number * PANEL
        parts.append(word(left + N * CELL / 2, TOP - 8, title))
        for row, (position, sees_N) in enumerate(zip(*ranked(order), strict=True)):
            parts.append(word(left - 6, TOP + row * CELL + 15, WORDS[position], "end"))
            for column, seen in enumerate(sees_N):
                fill = "none" if not seen else DARK if KNOWN[column] else LIGHT
                parts.append(cell(left + column * CELL, TOP + row * CELL, CELL, CELL, fill))
        parts += [
            upright(left + at * CELL + 8, TOP + 4 * CELL + 5, text) for at, text in enumerate(WORDS)
        ]
    return picture(LEFT + 2 * PANEL + N * CELL + 2, TOP + 4 * CELL + 48, parts)
