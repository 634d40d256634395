"""Draws docs/sights.svg: who sees whom in each member of the family, by the ranks of real examples.

python docs/sights.py
"""

import html
import os
import tempfile
from collections.abc import Iterator

import numpy as np

from xlnet_jax.batch import MEMORY_RANK
from xlnet_jax.commands.inspect import example, visible
from xlnet_jax.config import Config, usual
from xlnet_jax.data.prepare.pipeline import prepare

TEXT = """we the people of the states want peace
we want peace
the states want the laws of the people
the laws give peace
the people of the union want the laws
"""
VOCABULARIES = {"wordpiece": 53, "words": 20, "bytebpe": 298}
M, T, CELL, LEFT, TOP = 3, 12, 13, 48, 24
WHOLE = {"reuse_len": T, "num_predict": T, "objective": "clm", "bidirectional": False}
XLNET = {"reuse_len": 5, "num_predict": 3, "max_span": 2, "mask_group_size": 3, "bidirectional": False}
BERT = {"short_rate": 1.0, "target_rate": 0.2, "num_predict": 3}
PANELS = [  # title, vocabulary, family, data, seed of the data, whether it is the query stream
    ("XLNet, content stream", "wordpiece", "xlnet", XLNET, 4, False),
    ("XLNet, query stream", "wordpiece", "xlnet", XLNET, 4, True),
    (
        "BERT, RoBERTa, ALBERT",
        "wordpiece",
        "bert",
        {"short_rate": 1.0, "target_rate": 0.2, "num_predict": 3},
        32,
        False,
    ),
    ("Transformer-XL", "words", "xlnet", WHOLE, 1, False),
    ("GPT-2", "bytebpe", "gpt2", {}, 10, False),
]


def panel(corpus: str, title: str, family: str, data: dict[str, object], seed: int, query: bool) -> Iterator[str]:
    """The elements of one mask: a row for each position, keys from left to right, dark where something is predicted."""
    keys = {"model": {"memory_len": M}, "data": {"segment_len": T}} if family == "xlnet" else usual(family, T)
    model = keys["model"] | {"vocab_size": VOCABULARIES[os.path.basename(corpus)]}
    config = Config().changed(model=model, data=keys["data"] | data | {"corpus": corpus}, seeds={"data": seed})
    shown, memory = example(config.changed(train={"batch_size": 2}), 1, 0), config.model.memory_len
    rank, targets = [MEMORY_RANK] * memory + shown["rank"], [memory + target for target in shown["targets"]]
    sees_TK = visible(rank, targets)[query][memory:]
    predicts_T = np.isin(np.arange(T), shown["targets"])
    right = LEFT + CELL * len(rank)
    yield f'<text x="{(LEFT + right) / 2}" y="{TOP - 8}" text-anchor="middle" font-size="11">{title}</text>'
    for color, chosen_TK in (("#eef1f5", ~sees_TK), ("#a9c8e6", sees_TK & ~predicts_T[:, None]),
                             ("#1f5f9e", sees_TK & predicts_T[:, None])):  # fmt: skip
        cells = "".join(
            f"M{LEFT + CELL * x} {TOP + CELL * y}h{CELL}v{CELL}h-{CELL}z" for y, x in np.argwhere(chosen_TK)
        )
        yield f'<path d="{cells}" fill="{color}" stroke="white"/>'
    words = [html.escape(piece.replace("Ġ", "")) for piece in shown["pieces"]]
    for y, word in enumerate(words):
        yield f'<text x="{LEFT - 4}" y="{TOP + CELL * y + 10}" text-anchor="end">{word}</text>'
    for x, word in enumerate(["memory"] * memory + words):
        at = f"{LEFT + CELL * x + 4} {TOP + CELL * T + 4}"
        yield f'<text transform="translate({at}) rotate(90)">{word}</text>'


def main() -> None:
    """Rewrites the picture."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write((TEXT + "\n") * 60)
        for vocabulary, size in VOCABULARIES.items():
            prepare([text], os.path.join(folder, vocabulary), vocabulary=vocabulary, vocab_size=size, heldout=0.0)
        lines, left = [], 0
        for title, vocabulary, *others in PANELS:
            lines += [f'<g transform="translate({left} 0)">', *panel(f"{folder}/{vocabulary}", title, *others), "</g>"]
            left += LEFT + CELL * (T + M * (others[0] == "xlnet")) + 12
    size = f'width="{left}" height="{TOP + CELL * T + 48}"'
    path = os.path.join(os.path.dirname(__file__), "sights.svg")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="9">\n')
        file.write("\n".join([f'<rect {size} fill="white"/>', *lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
