"""Runs the work units of `prepare`: in processes of this machine, or on the workers of an Apache
Beam pipeline.

Both call the same pure function once for every missing unit. So both write the same bytes, and each
can resume what the other started.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from xlnet_jax.data.prepare import work_unit
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.sources import Part, Unit
from xlnet_jax.data.prepare.text import Request
from xlnet_jax.data.prepare.work_unit import Numbered
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.workers import cores, die_with_parent
from xlnet_jax.errors import BadInput, RestartMe, XLNetError, error_of, summary
from xlnet_jax.messages import progress_bar, quantity
from xlnet_jax.storage import files

_LOG_SECONDS = 5.0  # shortest time between two log lines
# Suffix of the file with a unit's error, for the process that started the pipeline.
_ERROR = "error"
_UNITS = "units"  # suffix of the file with the units of a pipeline

_log = logging.getLogger("xlnet_jax")
Make = Callable[[Numbered], int]
"""Function that makes or counts a unit in any process and returns its number of tokens."""


def run_units(
    output: str,
    units: Sequence[Unit],
    tokenizer: Tokenizer | None,
    request: Request,
    options: PrepareOptions,
) -> None:
    """Makes the units of a corpus that have no note yet, or counts them if there is no tokenizer.

    A pipeline of Beam reports its progress itself. Raises BadInput: as `work_unit.prepare_unit`, or
    the pipeline cannot run. RestartMe: a process was killed, or the pipeline failed.
    """
    if tokenizer:
        make = functools.partial(work_unit.prepare_unit, output, tokenizer, request)
    else:
        make = functools.partial(work_unit.count_unit, output, request)
    folder = os.path.join(output, work_unit.FOLDER)
    files.make_folder(folder)
    suffix = "json" if tokenizer else work_unit.COUNTS
    notes = list(map(os.path.basename, work_unit.file_names(output, units, suffix)))
    finished = files.listing(folder)
    missing = [
        unit for unit, note in zip(enumerate(units), notes, strict=True) if note not in finished
    ]
    if done := len(units) - len(missing):
        _log.info("%s: going on after %d of %s", output, done, quantity(len(units), "unit"))
    if missing and options.engine == "beam":
        pipeline = make_pipeline(options.beam_options, output)
        add_units(pipeline, output, missing, make)
        _run_beam(folder, pipeline)
        if gone := sorted(set(notes) - files.listing(folder).keys()):
            raise BadInput(
                f"{output}: the pipeline wrote no {gone[0]}; "
                "workers on other machines need --output=gs://..."
            )
    elif missing:
        with _progress(len(units), done) as add:
            _run_local(output, missing, make, options.workers, add)


@contextlib.contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that reports a finished unit with its tokens, on a bar or, without a
    terminal, in the log.

    Shows the rate of tokens but not their sum, which the manifest has: the sum would lack the
    tokens of an earlier call and, while a vocabulary is counted, the ends of documents.
    """
    began = logged = time.monotonic()
    tokens, bar = 0, progress_bar("units", total, done)

    def add(of_unit: int) -> None:
        nonlocal tokens, logged
        tokens, now = tokens + of_unit, time.monotonic()
        rate = f"{tokens / max(now - began, 1e-6):,.0f} tokens/s"
        bar.update(bar.task_ids[0], advance=1, note=rate)
        if bar.disable and (now - logged >= _LOG_SECONDS or bar.finished):
            logged = now
            _log.info("%s", f"{bar.tasks[0].completed:,.0f} of {quantity(total, 'unit')}, {rate}")

    with bar:
        yield add


def _run_local(
    output: str, units: list[Numbered], make: Make, workers: int | None, add: Callable[[int], None]
) -> None:
    workers = min(workers or cores(), len(units))
    # Starting a process takes seconds, too long for a single unit.
    if workers == 1:
        for unit in units:
            add(make(unit))
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), die_with_parent)

    def start() -> list[Future[int]]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return [pool.submit(make, unit) for unit in units]

    try:
        # Ctrl-C interrupts only the main thread. So another thread starts every process completely,
        # and the processes inherit the blocked signal.
        with ThreadPoolExecutor(1) as thread:
            futures = thread.submit(start).result()
        for future in as_completed(futures):
            add(future.result())
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            worker.kill()  # the next call makes an interrupted unit again
        raise
    except BrokenProcessPool as error:
        raise RestartMe(
            f"{output}: a worker process was killed (out of memory?); rerun the "
            f"same command to resume, with fewer than --workers={workers} if memory "
            "is short"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def make_pipeline(options: Sequence[str], output: str) -> Any:
    """Makes an empty Beam pipeline. Raises BadInput: Beam is missing or refuses these options, or
    Dataflow's workers would lack this package or cannot reach the folder.
    """
    try:
        beam: Any = importlib.import_module("apache_beam")
        parser: Any = importlib.import_module("apache_beam.options.pipeline_options")
    except ImportError as error:
        raise BadInput(
            f"--engine=beam needs Apache Beam ({error}); install the extra `beam`"
        ) from error
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed = parser.PipelineOptions(
                [f"--{option.removeprefix('--')}" for option in options]
            )
            given = parsed.get_all_options()
            # Beam itself ignores unknown options.
            unknown = parsed.get_all_options(retain_unknown_options=True).keys() - given.keys()
        if unknown:
            raise BadInput(f"--beam_options: Apache Beam has no option {min(unknown)}")
        pipeline = beam.Pipeline(options=parsed)
    except (SystemExit, ValueError, ImportError) as error:
        reason = stderr.getvalue().strip().rpartition("error: ")[2] or summary(error)
        raise BadInput(f"--beam_options: {reason}") from error
    if type(pipeline.runner).__name__ == "DataflowRunner":
        if "://" not in output:
            raise BadInput(
                f"--output={output} is a local path, which Dataflow's workers cannot reach; use gs://..."
            )
        if not any(given[name] for name in ("sdk_container_image", "setup_file", "extra_packages")):
            raise BadInput(
                "--beam_options: workers of Dataflow need this package; add sdk_container_image=..."
            )
    return pipeline


def add_units(pipeline: Any, output: str, units: Sequence[Numbered], make: Make) -> None:
    """Adds the units to a pipeline. Workers read them from a file, so that the pipeline has the
    same size for any number of units.

    Dataflow takes jobs of at most 20 MB; the units of a large text, each with its file names, may
    exceed this limit.
    """
    beam: Any = importlib.import_module("apache_beam")
    data = files.to_json(list(units), indent=None)
    # A rerun of the same command may have other missing units, and then writes another file.
    path = os.path.join(
        output, work_unit.FOLDER, f"{hashlib.sha256(data).hexdigest()[:16]}.{_UNITS}"
    )
    files.write(path, data)
    _ = (
        pipeline
        | beam.Create([path])
        | beam.FlatMap(_read_units)
        | beam.Reshuffle()
        | beam.Map(_report_errors, output, make)
    )


def _read_units(path: str) -> list[Numbered]:
    """Reads the units of a pipeline. Returns none if the worker cannot reach the folder, which
    `run_units` reports.
    """
    return [
        (index, tuple(Part(*part) for part in parts))
        for index, parts in json.loads(files.read_if_there(path) or "[]")
    ]


def _run_beam(folder: str, pipeline: Any) -> None:
    dataflow: Any = importlib.import_module("apache_beam.runners.dataflow.dataflow_runner")
    for path in _error_files(folder):
        files.remove(path)
    try:
        state = pipeline.run().wait_until_finish()
    except ImportError as error:
        raise BadInput(f"--beam_options: {error}; Dataflow needs apache-beam[gcp]") from error
    except dataflow.DataflowRuntimeException as error:
        state = summary(error)
    if errors := _error_files(folder):
        raise error_of(*files.read_json(errors[0]))
    if state != "DONE":
        raise RestartMe(
            f"{folder}: the pipeline ended as {state}; rerun the same command to resume"
        )


def _error_files(folder: str) -> list[str]:
    return [
        os.path.join(folder, name)
        for name in sorted(files.listing(folder))
        if name.endswith(f".{_ERROR}")
    ]


def _report_errors(unit: Numbered, output: str, make: Make) -> None:
    """Makes a unit in a pipeline and writes its error to a file: a Beam runner would retry the unit
    and wrap the error in another exception.
    """
    try:
        make(unit)
    except XLNetError as error:
        files.write(
            work_unit.file_name(output, unit[0], _ERROR),
            files.to_json([error.exit_code, str(error)]),
        )
