"""Draws docs/orders.svg: what each unknown position sees, in three orders, by the ranks that the model gets.

python docs/orders.py
"""

import os

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from xlnet_jax.infer.orders import Order, places, segments

WORDS = ["We", "the", "people", "of", "the", "United", "States"]
KNOWN = np.array([True, False, False, True, True, False, False])
ORDERS: list[tuple[str, Order]] = [
    ("order left", "left"),
    ("order reversed", "reversed"),
    ("order [5, 1, 6, 2]", [5, 1, 6, 2]),
]


def main() -> None:
    """Rewrites the picture."""
    with matplotlib.rc_context({"svg.hashsalt": "xlnet_jax", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 2.7), layout="constrained")
        for axes, (title, order) in zip(figure.subplots(1, 3), ORDERS, strict=True):
            place_N = places(1, KNOWN, order, (0,), len(WORDS))
            (segment,) = segments(np.full(len(WORDS), 9), KNOWN, place_N, len(WORDS))
            predicted_U = segment.position_U[np.argsort(segment.rank_N[segment.position_U])]
            sees_UN = segment.rank_N < segment.rank_N[predicted_U][:, None]
            # Known tokens, tokens that were predicted before, what is not seen.
            shade_UN = np.where(sees_UN, np.where(KNOWN, 1.0, 0.6), 0.0)
            axes.pcolormesh(shade_UN, cmap="Blues", vmin=0, vmax=1.3, edgecolors="lightgray", linewidth=0.5)
            axes.set_xticks(np.arange(len(WORDS)) + 0.5, WORDS, rotation=60)
            axes.set_yticks(np.arange(len(predicted_U)) + 0.5, [WORDS[position] for position in predicted_U])
            axes.tick_params(length=0)
            axes.invert_yaxis()
            axes.set_title(title, fontsize=10)
        path = os.path.join(os.path.dirname(__file__), "orders.svg")
        figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
