"""Small synthetic text, a tokenizer trained on it and a corpus made of it; each is made once per
test session.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np
import sentencepiece

from xlnet_jax.data import vocabulary
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.data.prepare.sources import Part, find_sources
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, train_tokenizer

VOCAB_SIZE = 200
PAGE_TOKENS = 64
HELDOUT = 0.2


@functools.cache
def session_folder() -> str:
    """A folder that is removed at the end of the session."""
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
    path = os.path.join(session_folder(), "text")
    os.makedirs(os.path.join(path, "below"))
    for index in range(5):
        name = os.path.join(path, "below" if index == 3 else "", f"{index}.txt")
        with open(name, "w", encoding="utf-8") as file:
            file.write(synthetic_text(index, 10 * (index + 1) ** 2 // 4))
    return path


@functools.cache
def tokenizer_path() -> str:
    """A tokenizer of `VOCAB_SIZE` pieces."""
    path = os.path.join(session_folder(), "spiece.model")
    train_tokenizer(synthetic_text(0, 200).split("\n"), path, VOCAB_SIZE, seed=0, threads=2)
    return path


@functools.cache
def tokenizer() -> Tokenizer:
    """The same, loaded."""
    return Tokenizer(tokenizer_path())


ALPHABET = "Bado kilu, menora. 12\n"


@functools.cache
def tokenizer_of(level: str) -> Tokenizer:
    """A tokenizer of any level that knows the characters of `ALPHABET`, and its words."""
    if level == "sentencepiece":
        return tokenizer()
    path = os.path.join(session_folder(), f"{level}.json")
    pattern = "." * (level == "pattern")
    counts = vocabulary.count([ALPHABET], level, pattern)
    vocabulary.write_counted(path, level, counts, None, verbatim=False, pattern=pattern)
    return vocabulary.open_tokenizer(path)


def encode(texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The pieces of each text."""
    tokens, lengths = tokenizer.encode_normalized(list(map(tokenizer.normalization, texts)))
    return np.split(tokens, np.cumsum(lengths)[:-1])


def make_corpus(output: Any, inputs: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """Prepares text, by default `text_folder` into several shards for each of the two splits."""
    settings = {"heldout": HELDOUT, "page_tokens": PAGE_TOKENS, "shard_bytes": 8000, "workers": 1}
    return prepare(
        inputs or [text_folder()],
        str(output),
        PrepareOptions(**{"tokenizer": tokenizer_path(), **settings, **changes}),
    )


@functools.cache
def corpus_path() -> str:
    """What `make_corpus` makes by default."""
    path = os.path.join(session_folder(), "corpus")
    make_corpus(path)
    return path


def contents(folder: Any) -> dict[str, bytes]:
    """Every byte below a folder, by path; folders too, which end in a slash."""
    paths = sorted(pathlib.Path(folder).rglob("*"))
    return {
        f"{path.relative_to(folder)}{'/' * path.is_dir()}": b""
        if path.is_dir()
        else path.read_bytes()
        for path in paths
    }


def write(folder: pathlib.Path, **contents: str | bytes) -> list[str]:
    """Writes text files, named without their `.txt`; returns their paths."""
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    return [str(folder / f"{name}.txt") for name in contents]


def documents_of(path: str) -> list[list[str]]:
    """The sentences of all documents of a folder, in order, read in one go."""
    reader = TextReader(
        Request("blank_line", "line", Normalization(), HELDOUT, "strict", PAGE_TOKENS, "text")
    )
    parts = [Part(source.path, 0, source.bytes) for source in find_sources([path])]
    documents = (document for part in parts for document in reader.documents(part))
    return [
        [sentence for paragraph in document for sentence in paragraph] for document in documents
    ]


def runs(process: int) -> bool:
    """Whether a process runs; one that has ended may stay in the table, as a zombie, until it is
    waited for.
    """
    try:
        return (
            pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False


def as_gpt2(tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    """The files of a vocabulary of GPT-2 with the pieces of another one."""
    model = json.loads(tokenizer.content)["model"]
    plain = [
        piece
        for piece in model["vocab"]
        if piece not in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ]
    ids = {piece: index for index, piece in enumerate([*plain, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))


def albert(folder: Any, texts: list[str], size: int) -> str:
    """A SentencePiece model with ALBERT's special pieces."""
    path = f"{folder}/spiece.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(Normalization(lower=True), texts),
        model_prefix=path[:-6],
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=0.995,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
        minloglevel=2,
    )
    return path
