"""Checkpoint restore: finds the newest checkpoint that all processes can read and whose arrays have
the saved checksums.

A run that resumes moves newer, damaged checkpoints to `<workdir>/quarantine/` after it finds a good
checkpoint; without a good one it moves and writes nothing. Evaluation and export only read.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import jax
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from xlnet_jax.checkpoint import checksums
from xlnet_jax.checkpoint.store import Checkpoints, Damaged, Trees, operations
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

OF_VOCABULARY = ("params/word_embedding", "params/lm_head/bias")
"""Parameters with a row for each piece."""
TreesOf = Callable[[str, int, Json], Trees]
"""A function of the folder, the step and the record of a checkpoint that returns the abstract trees
to read, or raises BadInput if the checkpoint does not fit.
"""


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that is undamaged."""

    step: int
    record: Json
    trees: Trees
    damaged: dict[int, str]
    """The fault of each newer checkpoint, by step."""


def resume(
    checkpoints: Checkpoints, trees_of: TreesOf, processes: Session, arrays: bool = True
) -> Restored | None:
    """Returns the checkpoint from which a run resumes, or None. Moves newer, damaged checkpoints to
    quarantine; without `arrays` (see `newest`) changes nothing.

    Raises BadInput, and changes nothing, if all checkpoints are damaged or the arrays are not as
    `trees_of` returns them.
    """
    if not arrays:
        return (
            newest(checkpoints, same_arrays(trees_of), processes, arrays=False)
            if checkpoints.steps()
            else None
        )
    restored = _newest_undamaged(checkpoints, same_arrays(trees_of), processes)
    if restored is not None and restored.damaged:
        for step, why in restored.damaged.items():
            folder = f"{checkpoints.workdir}/quarantine"
            log.error(
                "%s; moved to %s/%d*, resuming from step %d", why, folder, step, restored.step
            )
            if jax.process_index() == 0:
                _move_aside(str(checkpoints.path / str(step)), folder)
        counts = processes.collect(str(operations()), "moving damaged checkpoints aside")
        operations(int(processes.broadcast(str(max(map(int, counts), default=0)))))
    return restored


def newest(
    checkpoints: Checkpoints,
    trees_of: TreesOf,
    processes: Session,
    step: int | None = None,
    arrays: bool = True,
) -> Restored:
    """Returns, for a reader, the checkpoint of `step`, or by default the newest good checkpoint.
    Warns of each newer, damaged checkpoint.

    Without `arrays` only the record is read and checked: damaged arrays are not noticed.

    Raises BadInput if there is no checkpoint, or Damaged if the checkpoint of `step` is damaged.
    """
    steps = checkpoints.steps()
    if steps and step not in (None, *steps):
        known = ", ".join(map(str, sorted(steps)))
        raise BadInput(f"{checkpoints.path}: no checkpoint of step {step}; there are {known}")
    restored = _newest_undamaged(checkpoints, trees_of, processes, step, arrays) if steps else None
    if restored is None:
        raise BadInput(
            f"{checkpoints.path}: no checkpoint; give the --workdir of a run that has saved one"
        )
    for why in restored.damaged.values():
        log.warning("%s; taking step %d", why, restored.step)
    return restored


def parameters(
    workdir: str,
    abstract_params: Any,
    processes: Session,
    step: int | None = None,
    averaged: bool = False,
) -> tuple[Any, int]:
    """Returns the parameters in a checkpoint of a run, and its step, for a reader; see `newest`.

    If `averaged`, returns the average of the parameters, which the optimizer keeps
    (`train.optimizer.Average`). The checkpoint of an import has no average, so its parameters are
    returned: they are the average if the average was exported.
    """
    trees_of = same_arrays(lambda *_: {"params": abstract_params}, whole=False)

    def asked(where: str, step: int, record: Json) -> Trees:
        trees = trees_of(where, step, record)
        names = (re.match(r"optimizer/(\d+)/average/", name) for name in record["checksums"])
        number = next((int(found[1]) for found in names if found), None)
        if not averaged or number is None:
            return trees
        # Orbax requires the list of optimizer states as in the checkpoint, up to this entry.
        return {"optimizer": [*[None] * number, {"average": trees["params"]}]}

    with Checkpoints(workdir) as checkpoints:
        restored = newest(checkpoints, asked, processes, step)
    if "params" in restored.trees:
        return restored.trees["params"], restored.step
    log.info("step %d: its average of the parameters (evaluation.averaged)", restored.step)
    return restored.trees["optimizer"][-1]["average"], restored.step


def same_arrays(trees_of: TreesOf, whole: bool = True) -> TreesOf:
    """Returns `trees_of` with a check that the checkpoint has the arrays of these trees. If not,
    the check raises BadInput: the configuration differs, but the checkpoint is not damaged.

    The memory is not compared, because its number of rows of weight 0 may differ. Unless `whole`,
    arrays of other phases are not compared.
    """

    def checked(where: str, step: int, record: Json) -> Trees:
        trees = trees_of(where, step, record)
        for tree in (name for name in trees if name != "memory"):
            forms = {
                name: checksums.form(leaf)
                for name, leaf in checksums.by_path({tree: trees[tree]}).items()
            }
            saved = _forms(record, tree)
            if record.get("phases") and not whole:
                # Without arrays of other phases.
                saved = {name: form for name, form in saved.items() if name in forms}
            if differs := _difference(forms, saved):
                advice = (
                    (
                        "the run used another optimizer; resume with the versions of "
                        "xlnet_jax and optax in runs.jsonl, or start a new run from these "
                        "parameters with checkpoint.init_from"
                    )
                    if tree == "optimizer"
                    else (
                        "config.json or the version of xlnet_jax has changed since the run "
                        "(see runs.jsonl); restore it"
                    )
                )
                raise BadInput(f"{where}: {differs}; {advice}")
        return trees

    return checked


def _difference(forms: dict[str, str], saved: dict[str, str]) -> str:
    """The first difference between the arrays of the program and of a checkpoint, as text; empty if
    they are equal.
    """
    texts = (
        [
            f"{name} is {saved[name]} in the checkpoint, not {form}"
            for name, form in forms.items()
            if saved.get(name, form) != form
        ]
        or [f"{name} is not in the checkpoint" for name in sorted(forms.keys() - saved.keys())]
        or [f"{name} is only in the checkpoint" for name in sorted(saved.keys() - forms.keys())]
    )
    return "".join(texts[:1]) + f" (and {len(texts) - 1} more)" * (len(texts) > 1)


def run_of(path: str) -> tuple[str, int | None]:
    """Returns the work directory and the step of a path. The path is a checkpoint folder, or a work
    directory; for a work directory the step is None.
    """
    workdir = path.rstrip("/")
    above, _, name = workdir.rpartition("/checkpoints/")
    return (above, int(name)) if above and name.isdigit() else (workdir, None)


def foreign_parameters(
    path: str, abstract_params: Any, processes: Session, arrays: bool = True
) -> tuple[Trees, Json]:
    """Initial parameters from another run, as nested dictionaries, and their origin. Without
    `arrays` no parameters are returned, but everything else is checked.

    Returns the parameters that both models have; parameters of `OF_VOCABULARY` keep the number of
    rows of the other run. `path` is a work directory (its newest good checkpoint), or the folder of
    a checkpoint in it. The origin has `path`, `step`, `corpus_sha256`, `tokenizer_sha256`, the
    names of parameters that only this model has (`fresh`), and of parameters that only the other
    run has (`left_over`).

    Raises BadInput with the first array whose shape or dtype differs, or if no parameter is common.
    """
    workdir, step = run_of(path)
    leaves = checksums.by_path({"params": abstract_params})

    def trees_of(where: str, step: int, record: Json) -> Trees:
        del where
        saved = _forms(record)
        common = {
            name: _with_rows(leaf, saved[name]) if name in OF_VOCABULARY else leaf
            for name, leaf in leaves.items()
            if name in saved
        }
        if not common:
            raise BadInput(
                f"{path} has none of this model's parameters; leave checkpoint.init_from empty"
            )
        forms = {name: checksums.form(leaf) for name, leaf in common.items()}
        if differs := _difference(forms, {name: saved[name] for name in common}):
            raise BadInput(
                f"{path} (step {step}): {differs}; set the same `model` keys, or leave "
                "checkpoint.init_from empty"
            )
        return traverse_util.unflatten_dict(common, sep="/")

    try:
        with Checkpoints(workdir) as checkpoints:
            restored = newest(checkpoints, trees_of, processes, step, arrays)
    except BadInput as error:
        raise type(error)(f"checkpoint.init_from={path}: {error}") from error
    saved = _forms(restored.record).keys()
    return restored.trees.get("params", {}), {
        "path": path,
        "step": restored.step,
        **{name: restored.record.get(name) for name in ("corpus_sha256", "tokenizer_sha256")},
        "fresh": sorted(leaves.keys() - saved),
        "left_over": sorted(saved - leaves.keys()),
    }


def _with_rows(leaf: Any, form: str) -> Any:
    """Returns the abstract array. If it differs from the saved array only in the number of rows,
    the result has the rows of the saved array and is whole on each device.
    """
    rows = re.split(r"[][,]", form)[1]
    sharding = NamedSharding(leaf.sharding.mesh, PartitionSpec())
    other = leaf.update(shape=(int(rows), *leaf.shape[1:]), sharding=sharding)
    return other if form == checksums.form(other) != checksums.form(leaf) else leaf


def _forms(record: Json, tree: str = "params") -> dict[str, str]:
    """Dtype and shape (`checksums.form`) of every array of a tree in a checkpoint, by name."""
    return {
        name: text.split(" ")[0]
        for name, text in record["checksums"].items()
        if name.startswith(f"{tree}/")
    }


def _newest_undamaged(
    checkpoints: Checkpoints,
    trees_of: TreesOf,
    processes: Session,
    only: int | None = None,
    arrays: bool = True,
) -> Restored | None:
    damaged: dict[int, str] = {}
    while True:
        # Process 0 lists the checkpoints: another host may see a new folder later, and would report
        # it as damaged. The list is read again in each round: a run that saves may have removed old
        # checkpoints.
        steps = json.loads(
            processes.broadcast(json.dumps(checkpoints.steps() if only is None else [only]))
        )
        damaged = {step: why for step, why in damaged.items() if step in steps}
        step = next((step for step in steps if step not in damaged), None)
        if step is None:
            break
        why = ""
        record = {}
        abstract = {}
        trees = {}
        try:
            record = checkpoints.record(step)
            abstract = trees_of(f"{checkpoints.path}/{step}", step, record)
            trees = checkpoints.read(step, abstract) if arrays else {}
        except Damaged as error:
            why = str(error)
        fault = processes.broadcast(_first_fault(processes.collect(why)))
        if not fault:
            try:
                trees = checkpoints.gather(step, trees, abstract, record) if arrays else {}
                return Restored(
                    step,
                    record,
                    trees,
                    {newer: why for newer, why in damaged.items() if newer > step},
                )
            except Damaged as error:
                fault = str(error)
        trees = {}  # two states do not fit into memory
        damaged[step] = fault
    if not damaged:
        return None
    if only is not None:
        raise Damaged(f"{damaged[only]}; choose another step")
    raise BadInput(
        f"{checkpoints.path}: every checkpoint is damaged, and nothing was changed. "
        f"{'; '.join(damaged.values())}. Restore one from a copy, "
        "or start again in another --workdir"
    )


def _first_fault(faults: list[str]) -> str:
    """The first fault that a process has found in a checkpoint, or "". A single fault is enough:
    all processes must resume from the same checkpoint.
    """
    host, fault = next(((host, fault) for host, fault in enumerate(faults) if fault), (0, ""))
    return fault if all(faults) or not fault else f"{fault} (in process {host})"


def _move_aside(path: str, folder: str) -> None:
    """Moves a checkpoint to a free name in a folder, which may already have a checkpoint of the
    same step.
    """
    name = os.path.basename(path)
    with files.translate_errors(path):
        taken = {there.rstrip("/") for there in files.listing(folder)}
        names = itertools.chain([name], (f"{name}.{n}" for n in itertools.count(2)))
        files.make_folder(folder)
        files.rename(path, f"{folder}/{next(free for free in names if free not in taken)}")
