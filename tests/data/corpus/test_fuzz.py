"""Whatever the bytes of a corpus are, reading it succeeds or says in one line what is wrong.

Three readers: of pages, of shards, of the manifest. Every case follows from its number, which is
printed where one fails: `python tests/data/corpus/test_fuzz.py shards 17 1` does number 17 alone.
"""

import copy
import json
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # a program, too
from data_fixtures import VOCAB_SIZE, corpus_path

from xlnet_jax.data.corpus import pages, verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import MANIFEST, parse, read_manifest
from xlnet_jax.errors import BadInput

CORPUS = pathlib.Path(corpus_path())
# Of the process that reads shards: a damaged length must not make it ask for more.
MEMORY = 3_000_000_000


def mutated(data, draw):
    """The data with a few of its bits, bytes or stretches changed, or cut."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place, other = draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)
        length = min(draw.choice((1, 2, 4, 16, 500)), len(data))
        kind = draw.randrange(8)
        if kind <= 1 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind <= 4:
            data[place : place + length] = (b"\0" * length, draw.randbytes(length), b"")[kind - 2]
        elif kind == 5:
            data[place:place] = data[other : other + length]
        elif kind == 6:
            low, high = sorted((place, other))
            data[low : low + length], data[high : high + length] = (
                data[high : high + length],
                data[low : low + length],
            )
        elif kind == 7 and draw.randrange(4) == 0:
            del data[place:]
    return bytes(data)


def one_line(error):
    text = str(error)
    assert text and "\n" not in text and text.isprintable() and len(text) < 1000, text


def fuzz_page(number):
    draw = random.Random(number)
    page_tokens = draw.choice((1, 2, 5, 64, 64, 130))
    tokens = np.array([draw.randrange(VOCAB_SIZE) for _ in range(page_tokens)], np.int32)
    record = pages.encode(tokens, np.zeros(page_tokens, np.uint8))
    size = draw.choice((0, 1, len(record), draw.randrange(2 * len(record))))
    # The first bytes of a record say what it is; random bytes never get past them.
    head = draw.choice((0, 0, 6, 20))
    case = draw.choice(
        (record[:head] + draw.randbytes(max(0, size - head)), mutated(record, draw), record)
    )
    try:
        found, starts = pages.decode(case, page_tokens, VOCAB_SIZE)
    except BadInput as error:
        one_line(error)
        assert case != record
        return False
    assert (
        found.shape == starts.shape == (page_tokens,)
        and found.dtype == np.int32
        and starts.dtype == np.uint8
    )
    assert found.min() >= 0 and found.max() < VOCAB_SIZE and starts.max() < 8
    assert len(case) == len(record)
    return True


def shards():
    """The shards of the corpus, where their bytes that are not zero end, and their entries."""
    for split in read_manifest(str(CORPUS))["splits"].values():
        for entry in split["shards"]:
            data = (CORPUS / entry["file"]).read_bytes()
            yield data, len(data[:65536].rstrip(b"\0")), entry


def fuzz_shard(number, path):
    draw = random.Random(number)
    data, end, entry = draw.choice(SHARDS)
    part = draw.randrange(6)
    if part == 0:
        case = mutated(data, draw)
    elif part == 1:
        case = data[: draw.randrange(len(data))] + draw.choice(
            (b"", draw.randbytes(draw.randrange(5000)))
        )
    elif part <= 3:
        case = mutated(data[:end], draw).ljust(65536, b"\0") + data[65536:]
    else:  # the index behind the pages
        case = data[:65536] + mutated(data[65536:66000], draw) + data[66000:]
    path.write_bytes(case)
    try:
        # The size would be looked at first; a corpus may be damaged without changing it.
        list(pages.scan(str(path), entry | {"bytes": len(case)}, 64, VOCAB_SIZE))
    except BadInput as error:
        one_line(error)
        assert case != data and str(path) in str(error)
    else:
        assert case == data
    # A reader of single pages sees no hash of the whole; what it gives must be right all the same.
    wanted = [draw.randrange(entry["pages"]) for _ in range(3)]
    try:
        reader = pages.open_shard(str(path), entry["pages"])
        found = [pages.read_page(reader, str(path), page, 64, VOCAB_SIZE) for page in wanted]
    except BadInput as error:
        one_line(error)
        return False
    reader = pages.open_shard(str(CORPUS / entry["file"]), entry["pages"])
    for mine, page in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, pages.read_page(reader, "", page, 64, VOCAB_SIZE))
    return True


NUMBERS = (0, 1, -1, 64, 2**31, 2**63, 10**40, 1.5, float("nan"), True, False, None)
VALUES = (*NUMBERS, "", "x\ny", "../x", "a" * 5000, "\ud800", "0" * 64, [], [[]], {}, {"a": 1})


def fuzz_manifest(number, folder):
    draw = random.Random(number)
    whole = json.dumps(WHOLE)
    manifest = json.loads(whole)
    if draw.randrange(3) == 0:
        case = mutated(whole.encode(), draw)
    else:
        for _ in range(draw.choice((1, 1, 2, 6))):
            change(manifest, draw)
        case = json.dumps(manifest).encode()
    try:
        found = parse(case, "folder/manifest.json")
    except BadInput as error:
        one_line(error)
        assert case != whole.encode()
        return False
    # It is used as read: see that nothing it is used for can fail.
    for split in found["splits"].values():
        assert split["tokens"] == sum(shard["tokens"] for shard in split["shards"]) < 2**63
        for shard in split["shards"]:
            assert (
                "/" not in shard["file"]
                and shard["pages"] * found["page_tokens"] >= shard["tokens"]
            )
    if number % 10:  # this takes a while
        return True
    (folder / MANIFEST).write_bytes(case)
    for split in found["splits"]:
        try:
            corpus = Corpus(str(folder), split)
            assert corpus.read(np.array([0]), 500)[0].max() < VOCAB_SIZE
        except BadInput as error:
            one_line(error)
    json.dumps(verify.info(str(folder)), ensure_ascii=False, allow_nan=False).encode()
    return True


def change(manifest, draw):
    """Changes a value, a name or the length of something at a place of its own choice."""
    below, place = manifest, manifest
    while (
        isinstance(below, dict | list) and len(below) and (below is manifest or draw.randrange(4))
    ):
        place = below
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        below = place[key]
    if not len(place):
        return
    kind = draw.randrange(6)
    if kind <= 2:
        place[key] = copy.deepcopy(draw.choice(VALUES))
    elif kind == 3 and type(below) is int:
        place[key] = below + draw.choice((-1, 1, 64, -below, 2**32))
    elif kind == 3 and isinstance(below, str):
        place[key] = mutated(below.encode(errors="replace") + b"x", draw).decode(errors="replace")
    elif kind == 4:
        del place[key]
    elif isinstance(place, dict):
        place[draw.choice((str(key) + "x", "train", "heldout", "tokens", "", "\n"))] = (
            copy.deepcopy(below)
        )
    else:
        place.append(copy.deepcopy(below))


SHARDS = list(shards())
WHOLE = read_manifest(str(CORPUS))
for source in WHOLE["sources"]:
    source["path"] = pathlib.Path(source["path"]).name  # else every session has other cases


def fuzz(what, first, count, tell=False):
    """Does cases; returns how many of them were read without complaint.

    An error names its case. Where the process may die, `tell` prints the number of each before it
    is done.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(CORPUS, folder, dirs_exist_ok=True)
        cases = {
            "pages": fuzz_page,
            "shards": lambda number: fuzz_shard(number, folder / "shard"),
            "manifests": lambda number: fuzz_manifest(number, folder),
        }
        good = 0
        for number in range(first, first + count):
            if tell:
                print(number, flush=True)
            try:
                good += cases[what](number)
            except Exception as error:
                error.add_note(f"case {number} of {what}")
                raise
    return good


@pytest.mark.parametrize(
    ("what", "first", "count"),
    [
        ("pages", 0, 15_000),
        ("manifests", 0, 4000),
        ("shards", 0, 700),
        pytest.param("pages", 10**6, 600_000, marks=pytest.mark.prove),
        pytest.param("manifests", 10**6, 150_000, marks=pytest.mark.prove),
        pytest.param("shards", 10**6, 50_000, marks=pytest.mark.prove),
    ],
)
def test_fuzz(what, first, count):
    good = fuzz_shards_apart(first, count) if what == "shards" else fuzz(what, first, count)
    assert count // 50 < good < count * 9 // 10, (
        "cases that are all refused, or none, would test little"
    )


def fuzz_shards_apart(first, count):
    """In another process: ArrayRecord is C++, and might end it."""
    command = [sys.executable, __file__, "shards", str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (
        f"case {lines[-1:]} of shards: exit code {done.returncode}\n{done.stderr[-3000:]}"
    )
    return int(lines[-1])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), tell=True))
