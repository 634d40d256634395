"""Checks of the folder of `prepare`, which may be new, begun by this or another request, finished,
or not a corpus.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus.corpus import Corpus, read_lengths
from xlnet_jax.data.prepare import work_unit
from xlnet_jax.data.prepare.sources import Part, Source
from xlnet_jax.data.prepare.text import TextReader
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json


def claim(output: str, options: Json, sources: Sequence[Source]) -> None:
    """Writes the request with the modification time of each source, or checks that the same request
    began the folder. Raises BadInput: the folder holds something else, or another request began it.
    """
    path = os.path.join(output, manifests.REQUEST)
    now = {
        "options": json.loads(files.to_json(options)),
        "sources": {source.path: source.bytes for source in sources},
        "mtime_ns": {source.path: source.mtime_ns for source in sources},
    }
    names = files.listing(output)
    results = sorted(name for name in names if not name.startswith(manifests.REQUEST))
    if manifests.REQUEST not in names and results:
        raise BadInput(f"{output} holds other files ({results[0]}, ...); choose a new folder")
    # If the folder holds only a request, an attempt failed before it wrote anything else. Other
    # options may be the remedy, so they replace the request. But not in a bucket: it has no lock,
    # and another process may have just started.
    if not results and files.at(output).locks:
        files.write(path, files.to_json(now))
    elif manifests.REQUEST in names or not files.write_new(path, files.to_json(now)):
        _compare(output, now, finished=manifests.MANIFEST in names)


def keeps_accents(output: str) -> bool:
    """Returns whether the vocabulary of a folder that was begun keeps accents; True for any other
    folder, and if the record is damaged.
    """
    if any(not name.startswith(manifests.REQUEST) for name in files.listing(output)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            options = files.read_json(os.path.join(output, manifests.REQUEST))["options"]
            return options.get("keep_accents", options["normalization"]["keep_accents"])
    return True


def _compare(output: str, now: Json, finished: bool) -> None:
    path = os.path.join(output, manifests.REQUEST)
    try:
        first = files.read_json(path)
        options, sources, _ = (dict(first[name]) for name in ("options", "sources", "mtime_ns"))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({error!r}); put it back, or choose another folder"
        ) from error
    was, is_now = options | sources, now["options"] | now["sources"]
    for name in {**was, **is_now}:
        # `replace` does not change text that `strict` accepts, so `errors` may change from
        # `strict`.
        if was.get(name) != is_now.get(name) and (name, was.get(name)) != ("errors", "strict"):
            size = " bytes" if name in sources | now["sources"] else ""
            raise BadInput(
                f"{output} was begun with {name}={was.get(name)}{size}, not "
                f"{is_now.get(name)}; use the same options and text, or another "
                "folder"
            )
    if options != now["options"] and not finished:
        # From `strict` to `replace`, which cannot be undone.
        files.write(path, files.to_json(first | {"options": now["options"]}))


def check_unchanged(output: str, sources: Sequence[Source], reader: TextReader) -> None:
    """Checks that text already used is unchanged; reads only files whose modification time has
    changed. Raises BadInput.
    """
    times = files.read_json(os.path.join(output, manifests.REQUEST))["mtime_ns"]
    touched = {source.path for source in sources if source.mtime_ns != times.get(source.path)}
    if not touched:
        return
    if manifests.MANIFEST in files.listing(output):
        used = manifests.read_manifest(output)["sources"]
    else:
        folder = os.path.join(output, work_unit.FOLDER)
        used = [
            part
            for name in sorted(files.listing(folder))
            if name.endswith((".json", work_unit.COUNTS))
            for part in read_note(os.path.join(folder, name))["sources"]
        ]
    for entry in used:
        part = Part(entry["path"], entry["start"], entry["end"])
        if part.path in touched and reader.digest(part) != entry["sha256"]:
            raise BadInput(f"{part.path} was changed after {output} was begun; use another folder")


def read_note(path: str) -> Json:
    """Reads a unit's note. Raises BadInput if it is damaged, FileNotFoundError if it is missing."""
    try:
        note = files.read_json(path)
        if "sources" not in note:
            raise ValueError("no sources")
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({error!r}); remove it and rerun the same command"
        ) from error
    return note


def check_finished(output: str) -> Json:
    """Returns the manifest of a finished corpus. Raises BadInput if a file is missing or
    damaged.
    """
    try:
        manifest = manifests.read_manifest(output)
        for split in manifest["splits"]:
            Corpus(output, split)
            read_lengths(output, manifest, split)
    except BadInput as error:
        raise BadInput(f"{error}, or remove {output} and prepare again") from error
    return manifest
