"""Draws three orders of the same unknown words, by the ranks that the model gets.

python docs/orders.py

docs/orders.svg shows what each unknown position sees; docs/filled.svg the sentence after each prediction.
"""

import os

import matplotlib.patches
import numpy as np
from matplotlib.figure import Figure

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.infer.orders import Order, places, segments

WORDS = ["We", "the", "people", "of", "the", "United", "States"]
KNOWN = np.array([True, False, False, True, True, False, False])
ORDERS: list[tuple[str, Order]] = [
    ("order left", "left"),
    ("order reversed", "reversed"),
    ("order [5, 1, 6, 2]", [5, 1, 6, 2]),
]


def ranked(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """The U unknown positions as they are predicted, and what each sees, [U, N]."""
    place_N = places(1, KNOWN, order, (0,), len(WORDS))
    (segment,) = segments(np.full(len(WORDS), 9), KNOWN, place_N, len(WORDS), XLNET)
    predicted_U = segment.position_U[np.argsort(segment.rank_N[segment.position_U])]
    return predicted_U, segment.rank_N < segment.rank_N[predicted_U][:, None]


def draw_seen(figure: Figure) -> None:
    """Known words, words that were predicted before, what is not seen."""
    for axes, (title, order) in zip(figure.subplots(1, 3), ORDERS, strict=True):
        predicted_U, sees_UN = ranked(order)
        shade_UN = np.where(sees_UN, np.where(KNOWN, 1.0, 0.6), 0.0)
        axes.pcolormesh(shade_UN, cmap="Blues", vmin=0, vmax=1.3, edgecolors="lightgray", linewidth=0.5)
        axes.set_xticks(np.arange(len(WORDS)) + 0.5, WORDS, rotation=60)
        axes.set_yticks(np.arange(len(predicted_U)) + 0.5, [WORDS[position] for position in predicted_U])
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10)


def draw_filled(figure: Figure) -> None:
    """A line for each prediction: the words that it sees, and in bold the one that it adds."""
    for axes, (title, order) in zip(figure.subplots(1, 3), ORDERS, strict=True):
        for line, (position, sees_N) in enumerate(zip(*ranked(order), strict=True)):
            for at, (word, seen) in enumerate(zip(WORDS, sees_N, strict=True)):
                new = at == position
                fill = "#1f5f9e" if new else "#a9c8e6" if seen and not KNOWN[at] else "#dfe8f1" if seen else "white"
                axes.add_patch(matplotlib.patches.Rectangle((at, line), 1, 0.8, facecolor=fill, edgecolor="lightgray"))
                style = {"color": "white", "weight": "bold"} if new else {"color": "black"}
                axes.text(at + 0.5, line + 0.4, word if seen or new else "?", ha="center", va="center", **style)
        axes.set(xlim=(0, len(WORDS)), ylim=(4, -0.2))
        axes.set_axis_off()
        axes.set_title(title, fontsize=10)


def main(folder: str = os.path.dirname(__file__)) -> None:
    """Writes both pictures."""
    for name, draw, size in (("orders", draw_seen, (8, 2.7)), ("filled", draw_filled, (12, 1.8))):
        with matplotlib.rc_context({"svg.hashsalt": "xlnet_jax", "svg.fonttype": "none", "font.size": 9}):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            figure.patch.set_facecolor("white")
            path = os.path.join(folder, f"{name}.svg")
            figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
