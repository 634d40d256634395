"""A small labelled data set that can be learned, and the configuration of a tiny run on it."""

import os
import pathlib
import random

import data_fixtures
import pytest
import tiny

WORDS = [
    first + second
    for first in ("ba", "do", "ki", "lu")
    for second in ("me", "no", "ra", "si", "tu")
]
STEPS = 16


def write_examples(path: pathlib.Path, count: int, seed: int) -> None:
    """Sentences with or without one word, which is the class."""
    draw = random.Random(seed)
    with open(path, "w") as file:
        print("sentence\tlabel", file=file)
        for number in range(count):
            words = [draw.choice(WORDS) for _ in range(draw.randint(2, 5))]
            words.insert(draw.randrange(len(words)), "veve" if number % 2 else "kiki")
            print(" ".join(words), "yes" if number % 2 else "no", sep="\t", file=file)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The keys `finetune.train` and `finetune.dev`."""
    folder = tmp_path_factory.mktemp("examples")
    paths = {"train": folder / "train.tsv", "dev": folder / "dev.tsv"}
    write_examples(paths["train"], 48, 0)
    write_examples(paths["dev"], 19, 1)
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def settings(pytestconfig: pytest.Config, examples: dict[str, str]):
    """Makes the configuration of a run from scratch, with changed sections."""

    def make(**changes):
        sections = {
            "data": {"segment_len": 16, "prefetch": 1, "read_threads": 1},
            "optimizer": {"learning_rate": 5e-3},
            "train": {"steps": STEPS, "steps_per_dispatch": 4},
            "evaluation": {"every": 4, "final": True, "batch_size": 8},
            "log": {
                "compilation_cache": str(pytestconfig.cache.mkdir("xla")),
                "tensorboard": False,
            },
            "finetune": {
                "task": "classification",
                "tokenizer": os.path.join(data_fixtures.corpus_path(), "spiece.model"),
                **examples,
            },
        }
        for name, values in changes.items():
            sections[name] = sections.get(name, {}) | values
        return tiny.config(**sections)

    return make
