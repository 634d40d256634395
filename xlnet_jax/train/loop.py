"""The training loop: data in, dispatches out, and between two of them saves, evaluations, profiles and signals.

The device never waits for the host: a dispatch is sent before the metrics of the one before are read, batches are built
ahead by Grain, and checkpoints are written by Orbax in the background.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax

from xlnet_jax import buckets, checkpoint, files
from xlnet_jax.batch import Batch
from xlnet_jax.checkpoint import Checkpoints, Keep
from xlnet_jax.config import Config
from xlnet_jax.data import loader
from xlnet_jax.data.mixture import Mixture, open_mixture
from xlnet_jax.data.stream import Plan, plan_to_json
from xlnet_jax.errors import BadInput, Diverged, RestartMe, Stopped, uncovered
from xlnet_jax.parallel import distributed
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train import accounting, evaluations, lock
from xlnet_jax.train import workdir as workdirs
from xlnet_jax.train.accounting import DEVICE, Account
from xlnet_jax.train.corruption import CorruptionCheck
from xlnet_jax.train.dispatch import compile_step, dry_run_of, profiled
from xlnet_jax.train.evaluations import CutOff, Evaluations
from xlnet_jax.train.heldout import Heldout
from xlnet_jax.train.metrics import MetricsWriter
from xlnet_jax.train.progress import Reporter, progress_bar
from xlnet_jax.train.retries import until_it_works
from xlnet_jax.train.signals import StopRequest, stop_request
from xlnet_jax.train.start import begin
from xlnet_jax.train.state import State, check_precision
from xlnet_jax.train.step import BuiltStep, build_step
from xlnet_jax.train.stragglers import StepTimes
from xlnet_jax.train.watchdog import Watchdog

log = logging.getLogger("xlnet_jax")


def train(config: Config, workdir: str, *, stop_at: int | None = None, dry_run: bool = False) -> dict[str, Any]:
    """Trains until `config.train.steps`, from the newest checkpoint in `workdir` if there is one.

    Args:
      stop_at: save and end in order after this step; a later call goes on to the end.
      dry_run: check everything up to the first batch and the shapes of the step, then return; nothing is written.

    Returns:
      `step`, `loss`, `tokens_per_second`, `workdir`; `seconds` by cause and `goodput`, see `accounting.summary`.

    Raises:
      BadInput: a configuration, corpus or work directory that does not fit.
      Diverged: `train.max_bad_steps` non-finite steps or spikes in a row.
      RestartMe: a signal came; everything is saved.
    """
    with stop_request() as request:
        return _together(config, workdir, stop_at, dry_run, request, Account())


def _together(
    config: Config, workdir: str, stop_at: int | None, dry_run: bool, request: StopRequest, account: Account
) -> dict[str, Any]:
    """Checks what can be checked without a device, then brings the processes of the run together."""
    if stop_at is not None and stop_at < 1:
        raise BadInput(f"--stop_at={stop_at} must be at least 1")
    if files.in_bucket(workdir):
        buckets.use(workdir)
    check_precision(config)
    # The run remembers its corpus, and may be evaluated from another folder.
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, corpus=workdirs.absolute(config.data.corpus))
    )
    mixture = open_mixture(config)
    stop = config.train.steps if stop_at is None else min(stop_at, config.train.steps)
    found = workdirs.read_config(workdir)
    if found is not None:
        workdirs.check_resume(found, config, mixture, workdir)
    mixture.stream(config).check(config.train.batch_size, mixture.described())
    mixture.check(config)
    heldout = open_mixture(config, "heldout") if config.evaluation.every else None
    # Nothing has touched a device yet, and no process writes before all have read what is in the work directory.
    equal = {"the corpus (sha256)": mixture.sha256, "--stop_at": stop_at, "--dry_run": dry_run}
    with distributed.session(config, equal) as processes:
        request.end = processes.end
        return _train(config, workdir, mixture, heldout, stop, dry_run, processes, request, account)


def _train(
    config: Config, workdir: str, mixture: Mixture, heldout: Mixture | None, stop: int, dry_run: bool,
    processes: distributed.Session, request: StopRequest, account: Account,
) -> dict[str, Any]:  # fmt: skip
    """What `train` does once all processes of the run are together."""
    mesh = meshes.make_mesh(config.mesh)
    meshes.check_batch_size(config.train.batch_size, mesh, parts=config.train.accumulation)
    meshes.check_model(config.model, mesh)
    with jax.set_mesh(mesh):
        built = build_step(config, mesh)
        if dry_run:
            return dry_run_of(config, workdir, mixture, built, mesh)
        workdirs.use_compilation_cache(config, workdir)
        check = None
        with contextlib.ExitStack() as stack:
            if jax.process_index() == 0:
                files.make_folder(workdir)
                check = stack.enter_context(lock.held(workdir))
            workdirs.check_shared(workdir, processes)
            keep = Keep.of(config.checkpoint, functools.partial(workdirs.losses, workdir))
            checkpoints = stack.enter_context(Checkpoints(workdir, keep))
            with account.of("restore"):
                state, plan, start, origin = begin(config, mixture, built, checkpoints, processes)
            unscored = evaluations.missing(config, workdir, start, processes)
            if start >= stop and not unscored:
                log.info("%s is at step %d already, and was to stop at %d", workdir, start, stop)
                last = workdirs.metrics_of(workdir, start)
                return accounting.result(
                    workdir, start, last.get("loss"), last.get("tokens_per_second"), workdirs.times_of(workdir)
                )
            workdirs.write_start(workdir, config, mixture, start, origin)
            writer = MetricsWriter(workdir, start, config.log.tensorboard, check)
            stack.enter_context(contextlib.closing(writer))
            account.go_on(writer.earlier)
            stacks = os.path.join(workdir, "stacks", f"process_{jax.process_index()}.txt")
            watchdog = Watchdog(config.watchdog.seconds, stacks, lambda: account.cause, processes.end)
            run = Run(config, workdir, mixture, mesh, built, checkpoints, writer, plan, processes, request, account,
                      stack.enter_context(watchdog))  # fmt: skip
            if heldout:
                score = Heldout(config, mesh, heldout, config.evaluation.blocks)
                run.evaluations = Evaluations(score, writer, processes, request, account, watchdog)
            run.corruption = CorruptionCheck(config, mesh) if config.watchdog.sdc_every else None
            return run.loop(state, start, stop, unscored)


@dataclasses.dataclass
class Run:
    """What the loop uses between dispatches; the State is handed along, never kept."""

    config: Config
    workdir: str
    mixture: Mixture
    mesh: Any
    built: BuiltStep
    checkpoints: Checkpoints
    writer: MetricsWriter
    plan: Plan
    processes: distributed.Session
    request: StopRequest
    account: Account
    watchdog: Watchdog
    evaluations: Evaluations | None = None
    corruption: CorruptionCheck | None = None
    sent: tuple[range, Any] | None = None
    """The dispatch whose metrics have not been read, and they."""
    saved: int = -1
    """The step of the last save."""

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.processes.watch is None

    def loop(self, state: State, start: int, stop: int, unscored: bool) -> dict[str, Any]:
        """Steps `start` to `stop`. `unscored`: the evaluation of `start` is yet to be made."""
        config, account = self.config, self.account
        rows, _ = meshes.rows_here(config.train.batch_size, self.mesh)
        dispatches = loader.TrainDispatches(self.mixture, config, self.plan, rows, start, stop)
        batches = loader.prefetched(dispatches, config)
        executables: dict[int, Any] = {}
        self.saved = start
        self.writer.times(account.line(start))
        times = StepTimes(account, self.processes, config.watchdog.report_every, start)
        with progress_bar(config.train.steps, start) as bar:
            self.report = Reporter(config, self.mixture, self.plan, self.writer, bar)
            if unscored:
                self._evaluate(start, state)
            for index in range(len(dispatches)):
                steps = dispatches.steps(index)
                batch = self._next(batches, steps[0], state)
                if len(steps) not in executables:
                    executables[len(steps)] = self._compile(state, batch)
                self._check(steps, state, batch)
                with profiled(config, self.workdir, steps) as capturing, account.of(DEVICE):
                    state, metrics = executables[len(steps)](state, batch)
                    if capturing:
                        # The capture must hold the device's work, not only its dispatch.
                        jax.block_until_ready(metrics)
                # Read what the dispatch before returned while this one runs.
                self._report()
                self.sent = (steps, metrics)
                at = steps[-1] + 1
                times.at(at)
                # A signal that came to one process stops all of them, at the same step.
                stopping = self.processes.stop(self.request.name)
                if at % config.checkpoint.every == 0 or at == stop or stopping:
                    self._report()
                    self._save(at, state, wait=at == stop or bool(stopping))
                if stopping:
                    self._stopped(stopping, at, state)
                if self.evaluations and at % config.evaluation.every == 0:
                    self._report()
                    self._evaluate(at, state)
            times.close()
        return self._finish(max(start, stop))

    def _finish(self, step: int) -> dict[str, Any]:
        with self.account.of("save"):
            self.checkpoints.wait()
        line = self.account.line(step, ended=True)
        self.writer.times(line)
        log.info("time: %s", accounting.described(line))
        # Where only an evaluation was missing, no step was made.
        last = self.report.last or workdirs.metrics_of(self.workdir, step)
        rate = statistics.median(self.report.rates) if self.report.rates else last.get("tokens_per_second")
        return accounting.result(self.workdir, step, last.get("loss"), rate, line)

    def _next(self, batches: Iterator[Batch], at: int, state: State) -> Batch:
        """The next dispatch's batches. A signal while data does not come ends the run here."""
        # Of several processes others have begun the step, and this state is gone there.
        try:
            with self.account.of("data"), self.request.waiting("waiting for data", raises=self.alone), uncovered():
                batch = next(batches)
        except Stopped as stopped:
            if not self.alone:
                raise
            self._stopped(f"{self.request.name} while waiting for data", at, state, stopped)
        return meshes.place(batch, self.mesh, self.config.train.batch_size)

    def _compile(self, state: State, batch: Batch) -> Any:
        with self.account.of("compile"), self.watchdog.suspended():
            executable = compile_step(self.built, state, batch)
            # Compiling takes longer than a collective operation waits for a process that comes late.
            self.processes.barrier("compiling the step")
            self.checkpoints.prepare(checkpoint.split(state))
        self.report.clock = time.perf_counter()
        self.account.work()
        # From the first dispatch on there is something to lose.
        self.request.working()
        return executable

    def _check(self, steps: range, state: State, batch: Batch) -> None:
        """Looks for corrupted data, where it is due."""
        if self.corruption is not None and self.corruption.due(steps):
            self._report()
            # The first one compiles.
            with self._beside("check"), self.watchdog.suspended():
                self.corruption(state, batch, steps[0])

    @contextlib.contextmanager
    def _beside(self, cause: str) -> Iterator[None]:
        """Time that rates leave out."""
        began = time.perf_counter()
        with self.account.of(cause):
            yield
        self.report.clock += time.perf_counter() - began

    def _stopped(self, why: str, at: int, state: State, cause: BaseException | None = None) -> NoReturn:
        """Saves what is not saved, in all processes, and ends the run."""
        self._report()
        if self.saved != at:
            self._save(at, state, wait=True)
        self.writer.times(self.account.line(at))
        self._all_saved()
        log.info("time: %s", accounting.described(self.account.line(at)))
        what = "saved" if at else "nothing to save yet"
        raise RestartMe(f"{why} at step {at}: {what}; run the same command to go on") from cause

    def _save(self, step: int, state: State, wait: bool = False) -> None:
        """Starts saving; with `wait`, until it is done. What a disk refuses is tried again, with the newest state."""

        def write() -> None:
            record = {**workdirs.identity(self.config, self.mixture), "plan": plan_to_json(self.plan)}
            try:
                self.checkpoints.save(step, checkpoint.split(state), record)
            except Diverged:
                self._all_saved()
                raise
            if wait:
                self.checkpoints.wait()

        with self.account.of("save"):
            self.writer.times(self.account.line(step))
            self._persist(self.writer.flush, f"the metrics up to step {step}")
            # Of several processes all take part in a save: one alone cannot begin again.
            if self.alone:
                self._persist(write, f"the checkpoint of step {step}")
            else:
                write()
        self.saved = step
        self.watchdog.progress(step)

    def _persist(self, action: Callable[[], None], what: str) -> None:
        until_it_works(action, what, self.config.checkpoint.io_deadline_seconds, self.watchdog.progress)

    def _all_saved(self) -> None:
        """Before an error that all processes come to: the first that ends soon takes those with it that still save."""
        with self.account.of("save"):
            self.checkpoints.wait()
            self.processes.barrier("saving")

    def _evaluate(self, step: int, state: State) -> None:
        assert self.evaluations is not None
        try:
            self.report.clock += self.evaluations(step, state.params)
        except CutOff as cut:
            self._stopped(f"{cut} in the evaluation, which the next start makes again,", step, state, cut)
        self._persist(self.writer.flush, f"the evaluation of step {step}")

    def _report(self) -> None:
        """Waits for the metrics of the dispatch that was sent, and tells them."""
        if self.sent is None:
            return
        (steps, metrics), self.sent = self.sent, None
        with self.account.of(DEVICE):
            values = jax.device_get(metrics)
        self.watchdog.progress(steps[-1] + 1)
        try:
            self.report(steps, values)
        except Diverged:
            self._persist(self.writer.flush, f"the metrics up to step {steps[-1] + 1}")
            self._all_saved()
            raise
