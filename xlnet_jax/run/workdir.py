"""The work directory of a run: its configuration, its tokenizer, and the check of a resume.

`config.json` is the identity of the run; with `tokenizer/` a checkpoint is usable without the
corpus. docs/metrics.md lists all files.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Sequence

import jax

import xlnet_jax
from xlnet_jax import config as configs
from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config, DataConfig
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.corpus.manifest import TOKENIZERS
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput, check_link
from xlnet_jax.messages import suggest_file
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run.metrics import STARTS, read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

OURS = {"config.json", "checkpoints", "lock.json"}
"""Files of a work directory: apart from the compilation cache, a run writes one of them first."""
ALLOWED = {"lost+found", "compilation_cache"}
TOKENIZER = "tokenizer"
"""Folder of the tokenizer."""
IDENTITY = {"config": dict, "corpus_sha256": str, "tokenizer_sha256": str}
_KERNEL = ("model.attention", "fused")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")
FLAGS = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
)
SOURCE_CONFIG = "source_config"
"""Key of `config.json`, in an import and in runs that start from it: the values of the source for
which this program has no key; a later export needs them.
"""


def identity(
    config: Config, data_sha256: str, tokenizer_sha256: str, phases: Sequence[Json] = ()
) -> Json:
    """The content of `config.json`, also in every checkpoint: all keys, the hashes of data and
    tokenizer, and the phases. In a checkpoint the keys are the keys of its phase.

    `distributed` is left out, since other processes may resume or evaluate a run.
    """
    return {
        "config": {
            name: value
            for name, value in configs.flat(config).items()
            if not name.startswith("distributed.")
        },
        "corpus_sha256": data_sha256,
        "tokenizer_sha256": tokenizer_sha256,
        **({"phases": [*phases]} if phases else {}),
    }


def check_resume(
    started: Json, config: Config, data: TrainingData, where: str, told: bool = False
) -> None:
    """Compares the identity with which a run `started` with the configuration of this start.

    Raises BadInput, with both values, if frozen keys differ; logs changed elastic and free keys,
    unless they were `told`.
    """
    if not started["corpus_sha256"]:
        raise BadInput(
            f"{where} holds imported parameters, not a run; give another --workdir, "
            "and this folder as --config.checkpoint.init_from"
        )
    # A key that did not exist when the run started has its default.
    saved = configs.flat(Config()) | started["config"]
    frozen = configs.changed_keys(config, saved, configs.FROZEN)
    if started["corpus_sha256"] != data.sha256:
        frozen.append(
            f"corpus: {started['corpus_sha256'][:12]} -> {data.sha256[:12]} ({data.path})"
        )
    if frozen:
        raise BadInput(
            f"{where} belongs to a run with other frozen keys: {'; '.join(frozen)}; "
            "restore them, or start a new run in another --workdir"
        )
    for rule in () if told else (configs.ELASTIC, configs.FREE):
        for line in configs.changed_keys(config, saved, rule):
            log.info("resuming with another %s key: %s", rule, line)


def check_folder(workdir: str, ours: Collection[str] = OURS, what: str = "run") -> None:
    """Raises BadInput unless the folder is new, empty, or the folder of a `what`, such as a
    run; writes nothing.

    The folder of a `what` has a file of `ours`. Hidden files and the names `lost+found`,
    `compilation_cache` and `*.log` do not count.
    """
    if not workdir:
        raise BadInput(f"--workdir is empty; name a new folder, or that of a {what}")
    files.check_writable(workdir, "--workdir")
    with files.translate_errors(workdir):
        names = [name.rstrip("/") for name in files.listing(workdir)]
    strange = [
        name
        for name in names
        if name not in ALLOWED and not name.startswith(".") and not name.endswith(".log")
    ]
    if strange and not {*ours} & {*names}:
        some = ", ".join(sorted(strange)[:2]) + (", ..." if len(strange) > 2 else "")
        raise BadInput(
            f"--workdir={workdir} holds other files ({some}) and no {what}; "
            f"name a new folder, or that of a {what}"
        )


def read_config(workdir: str) -> Json | None:
    """The identity in `config.json`, or None in a new work directory."""
    path = os.path.join(workdir, "config.json")
    with files.translate_errors(path):
        data = files.read_if_there(path)
    if data is None:
        return None
    try:
        identity = files.json_object(data, path)
        lacks = [name for name in IDENTITY if identity.get(name) is None]
        if lacks and "model_type" not in identity:
            raise BadInput(f"{path}: it lacks {', '.join(lacks)}")
        files.check_types(identity, IDENTITY, path)
    except BadInput as error:
        raise BadInput(f"{error}; restore it, or give another --workdir") from error
    if lacks:
        raise BadInput(
            f"{workdir} is a folder of Hugging Face, not of a run; make a work directory of it: "
            f"`xlnet-jax import {workdir} --workdir=NEW`"
        )
    if unknown := sorted(identity.keys() - {*IDENTITY, "phases", "branch", SOURCE_CONFIG}):
        raise BadInput(
            f"{path}: use the version that wrote it; this version has no entry {unknown[0]!r}"
        )
    if unknown := sorted(identity["config"].keys() - configs.fields().keys()):
        raise BadInput(
            f"{path}: use the version that wrote it; this version has no config key {unknown[0]!r}"
            f"{configs.suggest_key(unknown[0])}"
        )
    return identity


def source_config(workdir: str) -> Json:
    """The `SOURCE_CONFIG` of `config.json`; {} without. Raises BadInput."""
    source = (read_config(workdir) or {}).get(SOURCE_CONFIG, {})
    if not isinstance(source, dict):
        raise BadInput(
            f"{workdir}/config.json: {SOURCE_CONFIG}={str(source)[:60]!r} "
            "is no JSON object; leave it out"
        )
    return source


def load_config(workdir: str, overrides: Sequence[str] = (), step: int | None = None) -> Config:
    """The configuration of a run, or of the phase of its checkpoint of `step`, with `overrides`.

    Drops keys that describe the machine of the training: its processes, its folder of compiled
    programs (another user may own it), and its kernel (this machine may lack it).

    Raises BadInput if the folder holds no run, or if a frozen key differs from the trained model.
    """
    trained = read_config(workdir)
    if trained is None:
        check_link("--workdir", workdir)
        # A quick start and `finetune --seeds` have runs in folders below.
        below = (os.path.join(workdir, name) for name in ("run", "seed_0"))
        run = next((f", such as {path}" for path in below if read_config(path)), "")
        raise BadInput(
            f"{workdir}: no config.json; give the --workdir of a training "
            f"run{run or suggest_file(workdir)}"
        )
    values = {
        name: value
        for name, value in trained["config"].items()
        if not name.startswith("distributed.")
        and name != "log.compilation_cache"
        and (name, value) != _KERNEL
    }
    try:
        config = configs.from_dict(configs.nested(values) | {"phases": trained.get("phases", ())})
    except BadInput as error:
        raise BadInput(f"{workdir}/config.json: {error}") from error
    if step is not None:
        config = config.parts[config.phase_before(step)]
    saved = configs.flat(config)
    config = configs.override(config, overrides) if overrides else config
    frozen = configs.changed_keys(config, saved, configs.FROZEN)
    if frozen:
        raise BadInput(
            f"{workdir} was trained with other frozen keys: "
            f"{'; '.join(frozen)}; leave them as they are"
        )
    return config


def config_at(
    workdir: str, overrides: Sequence[str] = (), step: int | None = None
) -> tuple[Config, int | None]:
    """Returns `load_config` for a reader of a checkpoint, and the step. The step None = any
    checkpoint; a run with phases takes the newest, because each phase may have another model.
    """
    if step is None and (read_config(workdir) or {}).get("phases"):
        with Checkpoints(workdir) as checkpoints:
            step = max(checkpoints.steps(), default=0)
    return load_config(workdir, overrides, step), step


def tokenizer(workdir: str) -> Tokenizer:
    """The tokenizer of a run with its normalization, from the copy in the work directory.

    Raises BadInput if the copy is missing, damaged, or not the tokenizer of the training.
    """
    folder = os.path.join(workdir, TOKENIZER)
    where = f"{folder}/normalization.json"
    types = {field.name: bool for field in dataclasses.fields(Normalization)}
    try:
        switches = files.read_json_object(where)
        files.check_types(switches, types, where)
        if unknown := sorted(switches.keys() - types.keys()):
            raise BadInput(f"{where}: unknown key {unknown[0]!r}")
    except BadInput as error:
        raise BadInput(f"{error}; restore it from a copy") from error
    listed = files.listing(folder)
    name = next((name for name in TOKENIZERS if name in listed), TOKENIZERS[0])
    copy = open_tokenizer(os.path.join(folder, name), Normalization(**switches))
    trained = read_config(workdir)
    if trained is not None and trained["tokenizer_sha256"] != copy.sha256:
        raise BadInput(
            f"{copy.path} is not the tokenizer that {workdir} was trained "
            "with; restore it from a copy"
        )
    return copy


def write_tokenizer(workdir: str, tokenizer: Tokenizer) -> None:
    """Copies a tokenizer into a work directory that has none."""
    folder = os.path.join(workdir, TOKENIZER)
    files.make_folder(folder)
    files.write_new(os.path.join(folder, tokenizer.file_name), tokenizer.content)
    # The last file: it marks a complete copy.
    rules = files.to_json(dataclasses.asdict(tokenizer.normalization))
    files.write_new(os.path.join(folder, "normalization.json"), rules)


def check_tokenizer(workdir: str, mixture: Mixture) -> None:
    """Raises BadInput if a corpus has another tokenizer than the run; logs a warning if it has
    another text.
    """
    trained = read_config(workdir) or {}
    if trained["tokenizer_sha256"] != mixture.tokenizer.sha256:
        raise BadInput(
            f"{mixture.path}: its tokenizer ({mixture.tokenizer.sha256[:12]}) is not the one that "
            f"{workdir} was trained with ({trained['tokenizer_sha256'][:12]}); give the run's own "
            "corpus: --config.data.corpus=DIR"
        )
    # The corpus of imported parameters is unknown.
    if trained["corpus_sha256"] not in ("", mixture.sha256):
        log.warning(
            "%s is another corpus than the one that %s was trained on", mixture.path, workdir
        )


def check_shared(workdir: str, processes: Session) -> None:
    """Raises BadInput unless this name is the same folder in all processes. Process 0 has made the
    folder.
    """
    if processes.watch is None:
        return
    path = os.path.join(workdir, ".shared")
    mark = uuid.uuid4().hex
    if jax.process_index() == 0:
        files.write(path, mark.encode())
    mark = processes.broadcast(mark, "marking the work directory")
    found = (files.read_if_there(path) or b"").decode()
    processes.barrier("reading the work directory")
    if found != mark:
        raise BadInput(
            f"--workdir={workdir} is another folder in process {jax.process_index()} than in "
            "process 0; give all hosts one folder of a shared file system"
        )
    if jax.process_index() == 0:
        files.remove(path)


def environment() -> Json:
    """Versions, git commit, devices, cores and flags of this start, for `runs.jsonl`."""
    device = jax.devices()[0]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "xlnet_jax": xlnet_jax.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cores": os.cpu_count(),
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def _git_commit() -> str | None:
    """The commit of this package's checkout, with + if it was changed; None outside a checkout."""
    folder = os.path.dirname(os.path.abspath(xlnet_jax.__file__))
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_start(workdir: str, config: Config, data: TrainingData, step: int, origin: Json) -> None:
    """Writes `config.json` and `tokenizer`, and appends this start to `runs.jsonl`, with the
    `origin` of its state.

    The key `before` says how the previous start ended (`goodput.end_of`); `repeated` is the number
    of its steps that this start repeats.
    """
    if jax.process_index() != 0:
        return
    # Only the first start reads the source: later the source may no longer exist.
    before = read_config(workdir)
    branch = origin.get("branch", "")
    source = branch.rpartition("@")[0] or restore.run_of(config.checkpoint.init_from)[0]
    source = source if before is None else workdir
    content = identity(config, data.sha256, data.tokenizer.sha256, config.phases)
    if source and (kept := source_config(source)):
        content[SOURCE_CONFIG] = kept
    if branch := branch or (before or {}).get("branch"):
        content["branch"] = branch
    with files.translate_errors(workdir):
        last = (read_jsonl(workdir, "metrics.jsonl") or [{"step": step}])[-1]
        times = goodputs.last_complete(read_jsonl(workdir, "time.jsonl"))
        origin = origin | {
            "before": goodputs.end_of(times, last, config.train.max_bad_steps),
            "repeated": max(last["step"] - step, 0),
        }
        files.write(os.path.join(workdir, "config.json"), files.to_json(content))
        write_tokenizer(workdir, data.tokenizer)
        line = json.dumps({"step": step, **origin, **environment()}) + "\n"
        starts = files.read_if_there(path := os.path.join(workdir, STARTS)) or b""
        # A killed process may have left an incomplete line.
        files.write(path, starts[: starts.rfind(b"\n") + 1] + line.encode())


def line_of(workdir: str, name: str, step: int) -> Json:
    """The line of a step in `metrics.jsonl` or `evaluations.jsonl`; {} without."""
    lines = read_jsonl(workdir, f"{name}.jsonl")
    return next((line for line in lines if line["step"] == step), {})


def heldout_loss(line: Json) -> float | None:
    """The held-out loss in a line of `evaluations.jsonl`; a task calls it `loss`."""
    return line.get("heldout_loss", line.get("loss"))


def losses(workdir: str) -> dict[int, float]:
    """The finite numbers that rank checkpoints, by step: the held-out loss or a task's rank. The
    lowest number is the best.
    """
    lines = read_jsonl(workdir, "evaluations.jsonl")
    ranks = {line["step"]: line.get("rank", heldout_loss(line)) for line in lines}
    return {
        step: loss
        for step, loss in ranks.items()
        if isinstance(loss, float) and math.isfinite(loss)
    }


def absolute(corpus: str) -> str:
    """`data.corpus` with absolute paths; bucket addresses stay as they are."""
    return ",".join(path and files.resolve(path) for path in DataConfig(corpus=corpus).folders())
