"""The pairs of benchmarks/translation.py: what a message catalogue gives, and that no source stands
on two sides.
"""

import importlib
import struct

import pytest
import tiny


@pytest.fixture
def translation(monkeypatch):
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    return importlib.import_module("translation")


def catalogue(messages):
    """A .mo file (GNU gettext, section 10.3)."""
    sides = [
        [text.encode() for text in each] for each in zip(*sorted(messages.items()), strict=True)
    ]
    at, tables, data = 28 + 16 * len(messages), b"", b""
    for texts in sides:
        for text in texts:
            tables += struct.pack("<2I", len(text), at + len(data))
            data += text + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(messages), 28, 28 + 8 * len(messages), 0, 0)
    return head + tables + data


def test_a_catalogue_gives_singulars_without_their_context(translation):
    messages = {
        "": "Language: es\n",
        "menu\4Open %s": "Abrir %s",
        "%d file\0%d files": "%d archivo\0%d archivos",
    }
    found = list(translation.catalogue(catalogue(messages)))
    assert found == [("", "Language: es"), ("%d file", "%d archivo"), ("Open %s", "Abrir %s")]
    usable = [
        ("Open %s", "Abrir %s"),
        ("", "x"),
        ("same", "same"),
        ("two\nlines", "dos"),
        ("x" * 121, "y"),
        ("no", ""),
    ]
    assert list(map(translation.usable, usable)) == [True, *[False] * 5]


def test_no_message_stands_on_two_sides(translation, tmp_path):
    """Also in another case; the fault: a score of what was trained on."""
    folder = tmp_path / "es" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    common = {f"message {n}": f"mensaje {n}" for n in range(100)}
    for name, messages in (
        ("git", common),
        ("tar", common | {"Only %s": "Solo %s", "MESSAGE 7": "MENSAJE 7"}),
        ("iso_3166", {"Spain": "España"}),
        *((name, {f"{name} alone": f"{name} solo"}) for name in ("bash", "wget")),
    ):
        (folder / f"{name}.mo").write_bytes(catalogue(messages))
    sides = translation.split(translation.read_packages(str(tmp_path), "es"))
    sources = {name: {source.casefold() for source, _ in pairs} for name, pairs in sides.items()}
    assert sources["heldout"] == {"only %s", "bash alone", "wget alone"}
    assert len(sources["dev"]) == 3 and len(sources["train"]) == 97
    assert (
        not (sources["dev"] | sources["train"]) & sources["heldout"]
        and not sources["dev"] & sources["train"]
    )
    train = [("open the file", "abrir el archivo"), ("close the window", "cerrar la ventana")]
    assert translation.nearest(train, ["close a window", "open that file"]) == [
        "cerrar la ventana",
        "abrir el archivo",
    ]
