"""Small synthetic text, a tokenizer trained on it and a corpus made of it; each is made once per test session."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile

import numpy as np

from xlnet_jax.data import text
from xlnet_jax.data.prepare import prepare
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, train_tokenizer

VOCAB_SIZE = 200
PAGE_TOKENS = 64
HELDOUT = 0.2


@functools.cache
def _folder() -> str:
    path = tempfile.mkdtemp(prefix="xlnet_jax_test_")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def synthetic_text(seed: int, documents: int) -> str:
    """Documents of a few short sentences, one a line, with a blank line after each document."""
    generator = np.random.Generator(np.random.Philox(seed))
    syllables = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve"]
    words = [first + second for first in syllables for second in syllables]
    lines = []
    for _ in range(documents):
        for _ in range(generator.integers(1, 8)):
            sentence = " ".join(generator.choice(words, generator.integers(2, 12)))
            lines.append(f"{sentence.capitalize()}, {generator.integers(10, 5000)}.")
        lines.append("")
    return "\n".join(lines) + "\n"


@functools.cache
def text_folder() -> str:
    """A folder with five text files, about 50 kB in all."""
    path = os.path.join(_folder(), "text")
    os.makedirs(os.path.join(path, "below"))
    for index in range(5):
        name = os.path.join(path, "below" if index == 3 else "", f"{index}.txt")
        with open(name, "w", encoding="utf-8") as file:
            file.write(synthetic_text(index, 10 * (index + 1) ** 2 // 4))
    return path


@functools.cache
def tokenizer_path() -> str:
    """A tokenizer of `VOCAB_SIZE` pieces."""
    path = os.path.join(_folder(), "spiece.model")
    train_tokenizer(synthetic_text(0, 200).split("\n"), path, VOCAB_SIZE, seed=0, threads=2)
    return path


@functools.cache
def tokenizer() -> Tokenizer:
    """The same, loaded."""
    return Tokenizer(tokenizer_path())


@functools.cache
def corpus_path() -> str:
    """A corpus of `text_folder` with several shards in each of its two splits."""
    path = os.path.join(_folder(), "corpus")
    prepare(
        [text_folder()],
        path,
        tokenizer=tokenizer_path(),
        heldout=HELDOUT,
        page_tokens=PAGE_TOKENS,
        shard_bytes=8000,
        workers=1,
    )
    return path


def documents_of(path: str) -> list[list[str]]:
    """All documents of a folder, in order, read in one go."""
    sources = text.find_sources([path])
    reader = text.TextReader("blank_line", "line", Normalization(), "strict")
    return [document for source in sources for document in reader.documents(text.Part(source.path, 0, source.bytes))]
