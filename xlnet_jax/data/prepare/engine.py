"""Who makes the work units of `prepare`: processes of this machine, or the workers of an Apache Beam pipeline.

Either calls the same pure function once for every missing unit, so either writes the same bytes, and what one has begun
the other may go on with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from xlnet_jax.data.prepare import work_unit
from xlnet_jax.data.prepare.progress import Progress
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.workers import cores, die_with_parent
from xlnet_jax.errors import BadInput, RestartMe, XLNetError, summary
from xlnet_jax.storage import files

ENGINES = ("local", "beam")

_WATCH_SECONDS = 5.0  # between two looks for units that a pipeline has finished
_ERROR = "error"  # what a unit's error is written to, for the process that began the pipeline


@dataclasses.dataclass(frozen=True)
class Job:
    """One call of `unit.prepare_unit`. It names the tokenizer; every process loads that once."""

    output: str
    index: int
    parts: tuple[Part, ...]
    tokenizer: str
    tokenizer_sha256: str
    request: work_unit.Request

    def __call__(self) -> int:
        """Makes the unit; returns the number of tokens."""
        tokenizer = _load(self.tokenizer, self.tokenizer_sha256, self.request.normalization)
        return work_unit.prepare_unit(self.output, self.index, self.parts, tokenizer, self.request)


@functools.lru_cache(1)
def _load(path: str, sha256: str, normalization: Normalization) -> Tokenizer:
    # The hash is not for show: the same path may hold another tokenizer the next time.
    tokenizer = Tokenizer(path, normalization)
    if tokenizer.sha256 != sha256:
        raise BadInput(f"tokenizer {path} was changed meanwhile; choose another folder")
    return tokenizer


def run(jobs: Sequence[Job], engine: str, workers: int | None, beam_options: Sequence[str], units: int) -> None:
    """Makes the missing units, and tells how far it is.

    Args:
      jobs: the missing units.
      engine: `local` or `beam`.
      workers: processes of the local engine; None = one per core.
      beam_options: of the pipeline, such as `runner=DataflowRunner`.
      units: all there are, for the reports.

    Raises:
      BadInput: as `unit.prepare_unit`, or the pipeline cannot be built.
      RestartMe: a process was killed, or the pipeline failed.
    """
    if not jobs:
        return
    with Progress(units, units - len(jobs)) as progress:
        if engine == "beam":
            _run_beam(jobs, beam_options, progress)
        else:
            _run_local(jobs, workers, progress)


def _run_local(jobs: Sequence[Job], workers: int | None, progress: Progress) -> None:
    workers = min(workers or cores(), len(jobs))
    # Starting a process takes seconds: not for the sake of one unit.
    if workers <= 1:
        for job in jobs:
            progress.add(job())
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        with _uninterrupted():
            futures = [pool.submit(job) for job in jobs]
        for future in as_completed(futures):
            progress.add(future.result())
    except BrokenProcessPool as error:
        raise RestartMe(
            f"{jobs[0].output}: a worker process was killed (out of memory?); rerun the same command to go "
            f"on, with fewer than --workers={workers} if memory is short"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts Ctrl-C off to the end. What is started meanwhile starts with it blocked; see `_begin_worker`.

    To block it is not enough: a thread of a library may take the signal, and Python then interrupts the main thread.
    """
    came: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if in_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
        if came:
            # Whatever else went wrong: workers that had begun were interrupted too, and that breaks the pool.
            raise KeyboardInterrupt


def _begin_worker() -> None:
    # Ctrl-C reaches every process of a terminal. A worker ends without a traceback, even while it is starting.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent()


def make_pipeline(options: Sequence[str]) -> Any:
    """Returns an empty Beam pipeline; BadInput if Beam is missing or cannot make one by these options."""
    try:
        beam: Any = importlib.import_module("apache_beam")
        parser: Any = importlib.import_module("apache_beam.options.pipeline_options")
    except ImportError as error:
        raise BadInput(f"--engine=beam needs Apache Beam ({error}); install the extra `beam`") from error
    flags = [option if option.startswith("--") else f"--{option}" for option in options]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.PipelineOptions(flags)
            # Beam itself ignores what it does not know.
            unknown = parsed.get_all_options(retain_unknown_options=True).keys() - parsed.get_all_options().keys()
    except SystemExit as error:
        raise BadInput(f"--beam_options: {said.getvalue().strip().rpartition('error: ')[2]}") from error
    if unknown:
        raise BadInput(f"--beam_options: Apache Beam has no option {min(unknown)}")
    try:
        return beam.Pipeline(options=parsed)
    except (ValueError, ImportError) as error:
        raise BadInput(f"--beam_options: {summary(error)}") from error


def _run_beam(jobs: Sequence[Job], options: Sequence[str], progress: Progress) -> None:
    pipeline = make_pipeline(options)
    beam: Any = importlib.import_module("apache_beam")
    dataflow: Any = importlib.import_module("apache_beam.runners.dataflow.dataflow_runner")
    _ = pipeline | beam.Create(list(jobs)) | beam.Reshuffle() | beam.Map(_report_errors)
    output = jobs[0].output
    _errors(output, forget=True)
    try:
        with _watched(jobs, progress):
            state = pipeline.run().wait_until_finish()
    except ImportError as error:
        raise BadInput(f"--beam_options: {error}; Dataflow needs apache-beam[gcp]") from error
    except dataflow.DataflowRuntimeException as error:
        state = " ".join(str(error).split())
    if errors := _errors(output):
        code, message = files.read_json(errors[0])
        raise (RestartMe if code == RestartMe.exit_code else BadInput)(message)
    if state != "DONE":
        raise RestartMe(f"{output}: the pipeline ended as {state}; rerun the same command to go on")
    if missing := _notes(jobs) - files.listing(os.path.join(output, work_unit.FOLDER)).keys():
        raise BadInput(
            f"{output}: the pipeline wrote no {min(missing)} here; workers on other machines need --output=gs://..."
        )


def _errors(output: str, forget: bool = False) -> list[str]:
    folder = os.path.join(output, work_unit.FOLDER)
    found = [os.path.join(folder, name) for name in sorted(files.listing(folder)) if name.endswith(f".{_ERROR}")]
    for path in found:
        if forget:
            files.remove(path)
    return found


def _notes(jobs: Sequence[Job]) -> set[str]:
    return {os.path.basename(work_unit.file_name(job.output, job.index, "json")) for job in jobs}


def _report_errors(job: Job) -> None:
    """What a pipeline does with a job. An error goes to a file: the runners would retry it and wrap it up in theirs."""
    try:
        job()
    except XLNetError as error:
        files.write(work_unit.file_name(job.output, job.index, _ERROR), files.to_json([error.exit_code, str(error)]))


@contextlib.contextmanager
def _watched(jobs: Sequence[Job], progress: Progress) -> Iterator[None]:
    """Meanwhile looks for the notes of finished units: a pipeline tells nothing of how far it is."""
    missing = _notes(jobs)
    folder = os.path.join(jobs[0].output, work_unit.FOLDER)
    end = threading.Event()

    def look() -> None:
        for name in sorted(files.listing(folder).keys() & missing):
            missing.remove(name)
            note = files.read_json(os.path.join(folder, name))
            progress.add(sum(split["tokens"] for split in note["splits"].values()))

    def watch() -> None:
        while not end.wait(_WATCH_SECONDS):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    look()
