"""Who sees whom in each member of the family, by the ranks of real examples."""

import os
import tempfile
from collections.abc import Iterator

import numpy as np
from _svg import DARK, LIGHT, cell, picture, upright, word

from xlnet_jax.batch import MEMORY_RANK
from xlnet_jax.commands.inspect import example, visible
from xlnet_jax.config import Config
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.members import MEMBERS

TEXT = """we the people of the states want peace
we want peace
the states want the laws of the people
the laws give peace
the people of the union want the laws
"""
VOCABULARIES = {"wordpiece": 53, "words": 20, "bytebpe": 298}
M, T, CELL, LEFT, TOP = 3, 12, 15, 52, 24
WIDTH, HEIGHT, SMALL = 300, 256, ' font-size="10"'
XLNET = {
    "reuse_len": 5,
    "num_predict": 3,
    "max_span": 2,
    "mask_group_size": 3,
    "bidirectional": False,
}
BERT = {"short_rate": 1.0, "target_rate": 0.2, "num_predict": 3}
PANELS = [  # title, vocabulary, family, data, seed of the data, whether it is the query stream
    ("XLNet, content stream", "wordpiece", "xlnet", XLNET, 4, False),
    ("XLNet, query stream", "wordpiece", "xlnet", XLNET, 4, True),
    ("BERT, RoBERTa, ALBERT", "wordpiece", "bert", BERT, 32, False),
    ("Transformer-XL", "words", "transformer_xl", {}, 1, False),
    ("GPT-2", "bytebpe", "gpt2", {}, 10, False),
]


def panel(
    corpus: str, title: str, family: str, data: dict[str, object], seed: int, query: bool
) -> Iterator[str]:
    """The elements of one mask: a row for each position, keys from left to right, dark where
    something is predicted.
    """
    keys = (
        {"model": {}, "data": {"segment_len": T}} if family == "xlnet" else MEMBERS[family].usual(T)
    )
    model = (
        {"memory_len": M} | keys["model"] | {"vocab_size": VOCABULARIES[os.path.basename(corpus)]}
    )
    config = Config().changed(
        model=model, data=keys["data"] | data | {"corpus": corpus}, seeds={"data": seed}
    )
    shown, memory = example(config.changed(train={"batch_size": 2}), 1, 0), config.model.memory_len
    rank, targets = (
        [MEMORY_RANK] * memory + shown["rank"],
        [memory + target for target in shown["targets"]],
    )
    sees_TK = visible(rank, targets)[query][memory:]
    predicts_T = np.isin(np.arange(T), shown["targets"])
    right = LEFT + CELL * len(rank)
    yield word((LEFT + right) / 2, TOP - 8, title)
    for y, x in np.ndindex(sees_TK.shape):
        fill = "none" if not sees_TK[y, x] else DARK if predicts_T[y] else LIGHT
        yield cell(LEFT + CELL * x, TOP + CELL * y, CELL, CELL, fill)
    words = [piece.replace("\u0120", "") for piece in shown["pieces"]]
    for y, text in enumerate(words):
        yield word(LEFT - 4, TOP + CELL * y + 11, text, "end", more=SMALL)
    for x, text in enumerate(["memory"] * memory + words):
        yield upright(LEFT + CELL * x + 4, TOP + CELL * T + 4, text, SMALL)


def draw() -> str:
    """The figure: two lines of panels."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write((TEXT + "\n") * 60)
        for vocabulary, size in VOCABULARIES.items():
            prepare(
                [text],
                os.path.join(folder, vocabulary),
                PrepareOptions(vocabulary=vocabulary, vocab_size=size, heldout=0.0),
            )
        parts = []
        for number, (title, vocabulary, *others) in enumerate(PANELS):
            x, y = number % 3 * WIDTH, number // 3 * HEIGHT
            parts += [
                f'<g transform="translate({x} {y})">',
                *panel(f"{folder}/{vocabulary}", title, *others),
                "</g>",
            ]
    return picture(3 * WIDTH, 2 * HEIGHT, parts)
