"""Where the special pieces of an example stand, as `data/layouts.py` puts them: XLNet and BERT side
by side.
"""

import numpy as np
from _svg import DARK, LIGHT, MIDDLE, inside, picture, word

from xlnet_jax.data import layouts
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.members import MEMBERS

CELL, ROW, LEFT, TOP, LENGTH = 24, 34, 140, 30, 11
A1, B1 = 100, 200
"""The first piece of the first text, and of the second."""


def pieces(first: int, count: int) -> np.ndarray:
    """Of a text."""
    return np.arange(first, first + count, dtype=np.int32)


def rows(layout: layouts.Layout) -> dict[str, np.ndarray]:
    """Pieces of an example of each task."""
    a, b = pieces(A1, 4), pieces(B1, 2)
    return {
        "a text": layouts.sentences(layout, LENGTH, a).tokens,
        "a pair A, B": layouts.sentences(layout, LENGTH, a, b).tokens,
        "context A, option B": layouts.choice(layout, LENGTH, a, b, 2).tokens,
        "context A, question B": layouts.windows(layout, LENGTH, a, b, 4, 2)[0].sequence.tokens,
    }


def draw() -> str:
    """The figure."""
    special = SpecialIds(*range(9))
    parts = []
    for column, (family, title) in enumerate((("xlnet", "XLNet"), ("bert", "BERT, ALBERT"))):
        layout = layouts.Layout(special, MEMBERS[family])
        x0 = LEFT + column * (LENGTH * CELL + 30)
        parts.append(word(x0, 18, title, "start"))
        for number, (task, tokens) in enumerate(rows(layout).items()):
            y = TOP + ROW * number
            if not column:
                parts.append(word(LEFT - 10, y + CELL / 2 + 4, task, "end"))
            first = LENGTH - len(tokens) if MEMBERS[family].cls == "last" else 0
            for n in range(LENGTH):
                token = int(tokens[n - first]) if 0 <= n - first < len(tokens) else special.pad
                names = {
                    special.pad: ("none", "pad"),
                    special.sep: ("none", "SEP"),
                    special.cls: (DARK, "CLS"),
                }
                text = (
                    (MIDDLE, f"B{token - B1 + 1}") if token >= B1 else (LIGHT, f"A{token - A1 + 1}")
                )
                parts += inside(
                    x0 + n * CELL, y, CELL, CELL, *names.get(token, text), ' font-size="9"'
                )
    return picture(LEFT + 2 * LENGTH * CELL + 40, TOP + 4 * ROW, parts)
