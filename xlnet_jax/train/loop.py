"""The training loop: sends batches to the devices in dispatches; between two dispatches it saves,
evaluates, profiles and handles signals.

The device never waits for the host: the next dispatch is sent before the metrics of the previous
dispatch are read, Grain builds batches ahead, and Orbax writes checkpoints in the background.
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
from jax.sharding import Mesh

from xlnet_jax.checkpoint.store import Checkpoints, Trees, sums_of
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.stream import Plan, to_json
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import Diverged, RestartMe, Stopped, XLNetError, summary
from xlnet_jax.messages import progress_bar, quantity
from xlnet_jax.model import flops
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.goodput import DEVICE, Goodput, StepTimes
from xlnet_jax.run.metrics import MetricsWriter, read_jsonl
from xlnet_jax.run.programs import refusals
from xlnet_jax.run.progress import TRAINING, Reporter
from xlnet_jax.run.retries import until_it_works, verdict
from xlnet_jax.run.signals import StopRequest
from xlnet_jax.run.watchdog import Watchdog
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train import branch, evaluation, own_batches
from xlnet_jax.train.evaluation import Evaluator
from xlnet_jax.train.own_batches import BatchIterator
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.state import MUST_BE_FINITE, State
from xlnet_jax.train.step import BuiltStep

log = logging.getLogger("xlnet_jax")


def compile_step(built: BuiltStep, state: State, batch: Any) -> Any:
    """Compiles the step for these shapes; logs the seconds and whether the compilation cache had
    the program.
    """
    events: set[str] = set()

    def listen(event: str, **_: Any) -> None:
        events.add(event)

    jax.monitoring.register_event_listener(listen)
    began = time.perf_counter()
    with refusals(built.recipe.config.train.compiler_options):
        executable = built.jitted.lower(state, batch, built.dropout_seed).compile()
    jax.monitoring.unregister_event_listener(listen)
    spent = time.perf_counter() - began
    steps = jax.tree.leaves(batch)[0].shape[0]
    enabled = jax.config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
    cache = (
        "off" if not enabled else "hit" if "/jax/compilation_cache/cache_hits" in events else "miss"
    )
    log.info("compiled %s in %.1f s (compilation cache: %s)", quantity(steps, "step"), spent, cache)
    return executable


def shapes(tree: Any) -> list[tuple[int, ...]]:
    """The shapes of all arrays of a tree."""
    return [x.shape for x in jax.tree.leaves(tree)]


@contextlib.contextmanager
def profiled(config: Config, workdir: str, steps: range) -> Iterator[bool]:
    """Profiles the dispatch of `steps` if it contains one of the configured steps; yields whether
    it is profiled.
    """
    first = config.log.profile_start
    last = first + config.log.profile_steps - 1
    if first < 0 or steps[-1] < first or steps[0] > last:
        return (yield False)
    folder = os.path.join(workdir, "profile")
    with (
        files.on_disk(os.path.join(folder, f"step_{steps[0]}")) as local_path,
        jax.profiler.trace(local_path),
    ):
        yield True
    log.info("profile of steps %d to %d in %s", steps[0], steps[-1], folder)


@dataclasses.dataclass(frozen=True)
class Job:
    """Model, data, work directory and last step of a training run, all checked."""

    config: Config
    workdir: str
    data: TrainingData
    make_recipe: Callable[[Config], Recipe]
    """Builds the recipe of a configuration without `auto` (`choice.resolve_attention`)."""
    make_evaluator: Callable[[Recipe, Mesh], Evaluator] | None
    """Builds the evaluator; None = nothing is evaluated."""
    stop: int
    """The step at which the run saves and stops."""
    origin: branch.Origin | None = None
    """The checkpoint of another run from which this run starts; see `branch`."""
    sample: Callable[[Recipe, Any], list[Json]] | None = None
    """Fills held-out texts for `samples.jsonl`. All processes call it with the parameters."""
    batches: BatchIterator | None = None
    """Batches in place of those of the corpus."""


@dataclasses.dataclass
class Run:
    """The training loop, and everything that it uses between dispatches. It never keeps the State,
    because the step donates its buffers.
    """

    job: Job
    built: BuiltStep
    checkpoints: Checkpoints
    writer: MetricsWriter
    plan: Plan
    record: Json
    """The record of each checkpoint without the plan: `workdir.identity`, and `rebuilt`, the steps
    at which this run has rebuilt its memory.
    """
    processes: Session
    request: StopRequest
    goodput: Goodput
    watchdog: Watchdog
    evaluator: Evaluator | None
    executables: dict[tuple[int, ...], Any]
    """The compiled steps by the shape of their batch."""
    sent: tuple[range, Any] | None = None
    """The dispatch in flight and its unread metrics."""
    saved: int = -1
    """The step of the last save."""
    warned: bool = False
    """Whether `_check_grace` has warned."""

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.processes.watch is None

    def loop(
        self, state: State, start: int, stop: int, unscored: bool, unsaved: bool
    ) -> tuple[State, int, bool]:
        """Trains from step `start` to `stop`. Before that it writes the checkpoint of `start` if
        `unsaved`, and then evaluates `start` if `unscored`.

        Returns the state, its step, and whether the evaluations so far end the run.
        """
        config, goodput = self.built.recipe.config, self.goodput
        seed = self.built.dropout_seed
        rows = meshes.rows_here(self.built.rows, self.built.mesh)
        dispatches = loader.TrainDispatches(self.job.data, config, self.plan, rows, start, stop)
        batches, stream = own_batches.source(self.job.batches, dispatches, self.built)
        self.saved = start
        self.writer.write("time", goodput.line(start))
        times = StepTimes(goodput, self.processes, config.watchdog.report_every, start)
        with progress_bar(TRAINING, config.train.steps, start, "loss -", transient=False) as bar:
            peak = flops.seconds_at_peak(self.built.recipe.flops_per_step)
            self.report = Reporter(
                config, self.job.data, stream, self.plan, peak, self.writer, goodput, bar
            )
            if unsaved:
                self._save(start, state, wait=True)
            at, ended = start, unscored and self._evaluate(start, state)
            for index in range(0 if ended else len(dispatches)):
                steps = dispatches.steps(index)
                batch = self._next(batches, steps[0], state)
                # This shape has the number of steps, and in a task the length of the examples.
                shape = max(shapes(batch), key=len)
                if shape not in self.executables:
                    # Without this the dispatch in flight would run during the compilation, and its
                    # measured time would be near 0.
                    self._report()
                    self.executables[shape] = self._compile(state, batch)
                if not self.report.clock:
                    goodput.work()
                    # `training` leaves out later compilations, so rates need no correction.
                    self.report.clock = goodput.training()
                    # From here on a hard stop would lose work.
                    self.request.working()
                with (
                    profiled(config, self.job.workdir, steps) as capturing,
                    goodput.measure(DEVICE),
                ):
                    state, metrics = meshes.settled(self.executables[shape](state, batch, seed))
                    if capturing:
                        # The profile must contain the work of the device, not only its dispatch.
                        jax.block_until_ready(metrics)
                # Read the metrics of the previous dispatch while this one runs.
                self._report()
                self.sent = (steps, metrics)
                at = steps[-1] + 1
                times.at(at)
                # A signal to one process stops all processes at the same step.
                stopping = self.processes.stop(self.request.name)
                if at % config.checkpoint.every == 0 or at == stop or stopping:
                    self._save(at, state, wait=at == stop or bool(stopping))
                if stopping:
                    self._stopped(stopping, at, state)
                if self.evaluator and evaluation.due(config, at) and self._evaluate(at, state):
                    if self.saved != at:
                        self._save(at, state, wait=True)
                    ended = True
                    break
        return state, at, ended

    def finish(self, step: int) -> Json:
        """The result of a run that ends at this step (`goodput.result`)."""
        with self.goodput.measure("save"):
            self.checkpoints.wait()
        self._check_grace()
        line = self._write_time(step, ended=True)
        # If only an evaluation was missing, this process trained no step.
        last = self.report.last or workdirs.line_of(self.job.workdir, "metrics", step)
        if self.report.rates:
            last = last | {"tokens_per_second": statistics.median(self.report.rates)}
        return goodputs.result(self.job.workdir, step, last, line)

    def _write_time(self, step: int, **how: bool) -> Json:
        line = self.goodput.line(step, **how)
        self.writer.write("time", line)
        log.info("time: %s", goodputs.time_line(line))
        return line

    def _next(self, batches: Iterator[Any], at: int, state: State) -> Any:
        """Returns the batches of the next dispatch. In a run of one process, a signal during the
        wait for them ends the run here.
        """
        try:
            with self.goodput.measure("data"):
                batch = self.request.take(batches, self.alone)
            if self.job.batches is not None:
                # Not earlier: a save without these batches needs the position before them.
                batch, self.record["batches"] = batch
        except Stopped as stopped:
            self._stopped(f"{stopped} while waiting for data", at, state)
        return meshes.place(batch, self.built.mesh, self.built.rows)

    def _compile(self, state: State, batch: Any) -> Any:
        with (
            self.goodput.measure("compile"),
            self.watchdog.suspended(),
            self.report.busy("compiling the step"),
        ):
            executable = compile_step(self.built, state, batch)
            # Compiling may take longer than a collective operation waits for a late process.
            self.processes.barrier("compiling the step")
            # Compiles the checksums, so that the first save does not wait for them.
            sums_of(self._trees(state), {"plan": self.plan})
        return executable

    def _stopped(self, why: str, at: int, state: State) -> NoReturn:
        """Saves unsaved work in all processes, then raises RestartMe to end the run."""
        if self.saved != at or (self.alone and not self._complete()):
            self._save(at, state, wait=True)
        self._write_time(at, stopped=True)
        self._all_saved()
        what = "saved" if at else "nothing to save yet"
        raise RestartMe(f"{why} at step {at}: {what}; rerun the same command to resume")

    def _save(self, step: int, state: State, wait: bool = False) -> None:
        """Starts a save; with `wait`, also waits until it is complete. If the disk refuses this
        save or has refused the previous save, retries until a save is complete: only a complete
        save shows that the disk accepts writes again.
        """

        def flush() -> None:
            nonlocal wait
            try:
                self.writer.flush()
            except XLNetError:
                # The save in flight may have filled the disk. If that save fails, `_complete`
                # removes its files.
                wait = (self.alone and not self._complete()) or wait
                raise

        def write() -> None:
            nonlocal wait
            complete, wait = wait, True  # the next attempt waits for its save
            record = {"plan": to_json(self.plan), **self.record}
            try:
                self.checkpoints.save(step, self._trees(state), record, MUST_BE_FINITE)
            except Diverged:
                self._complete()
                self._all_saved()
                raise
            if complete:
                self.checkpoints.wait()

        self._report()
        with self.goodput.measure("save"):
            self.writer.write("time", self.goodput.line(step))
            self._persist(flush, f"the metrics up to step {step}")
            # All processes take part in a save, so one of several processes cannot retry alone.
            self._persist(write, f"the checkpoint of step {step}", retry=self.alone)
        self.saved = step
        self.watchdog.progress(step)

    def _trees(self, state: State) -> Trees:
        """The trees of a checkpoint."""
        return meshes.like(state, self.built.logical).split(
            memory=self.built.recipe.config.checkpoint.memory == "all"
        )

    def _complete(self) -> bool:
        """Waits for the save in flight. Returns False if the disk or bucket refused it; a later
        save may succeed.
        """
        try:
            self.checkpoints.wait()
        except Exception as error:
            if verdict(error) is None:
                raise
            log.warning("the checkpoint of step %d is not complete: %s", self.saved, summary(error))
            return False
        return True

    def _persist(self, action: Callable[[], None], what: str, retry: bool = True) -> None:
        seconds = self.built.recipe.config.checkpoint.io_deadline_seconds if retry else 0.0
        until_it_works(action, what, seconds, self.watchdog.progress)

    def _all_saved(self) -> None:
        """Waits until all processes have saved. All processes call it before they raise the same
        error: the end of the first process would interrupt saves of the others.
        """
        with self.goodput.measure("save"):
            self.checkpoints.wait()
            self.processes.barrier("saving")

    def _evaluate(self, step: int, state: State) -> bool:
        """Scores the state and adds a line to `evaluations.jsonl`; a signal ends the run instead.

        Returns whether the evaluations so far end the run. Process 0, which writes the file,
        decides.
        """
        assert self.evaluator is not None
        self._report()
        recipe = self.built.recipe
        began = time.perf_counter()

        def between() -> None:
            self.watchdog.progress()
            if stopping := self.processes.stop(self.request.name):
                raise Stopped(stopping)

        take = functools.partial(self.request.take, alone=self.alone)
        try:
            with self.report.busy("evaluating"), self.goodput.measure("evaluation"):
                params = meshes.like(
                    state.evaluated(recipe.config.evaluation.averaged), self.built.logical.params
                )
                scores = self.evaluator(
                    params, evaluation.Hooks(between, take, self.watchdog.suspended)
                )
                if self.job.sample:
                    with self.watchdog.suspended():  # it may compile
                        self.writer.write_samples(step, self.job.sample(recipe, params))
        except Stopped as stopped:
            self._stopped(
                f"{stopped} in the evaluation, which the next start repeats,", step, state
            )
        self.writer.write(
            "evaluations", {"step": step, **scores, "seconds": time.perf_counter() - began}
        )
        log.info("step %d: %s", step, self.evaluator.described(scores))
        self._persist(self.writer.flush, f"the evaluation of step {step}")
        ends = evaluation.ends(recipe.config, read_jsonl(self.job.workdir, "evaluations.jsonl"))
        return self.processes.broadcast(str(ends), "evaluating") == "True"

    def _report(self) -> None:
        """Waits for the metrics of the dispatch in flight and reports them."""
        if self.sent is None:
            return
        (steps, metrics), self.sent = self.sent, None
        with self.goodput.measure(DEVICE):
            values = jax.device_get(metrics)
        self.watchdog.progress(steps[-1] + 1)
        try:
            self.report(steps, values)
        except Diverged:
            self._persist(self.writer.flush, f"the metrics up to step {steps[-1] + 1}")
            # A save that the disk refused must not hide that the run diverged.
            self._complete()
            self._all_saved()
            raise
        self._check_grace()

    def _check_grace(self) -> None:
        """Warns, once, if two dispatches and a save take longer than `checkpoint.grace_seconds`,
        the time between SIGTERM and the end of the machine.

        When the signal comes, one dispatch may be running and the next about to be sent; the save
        starts after both.
        """
        config = self.built.recipe.config
        save = self.checkpoints.seconds
        rates = self.report.rates
        grace = config.checkpoint.grace_seconds
        if self.warned or not (grace and save and rates) or jax.process_index():
            return
        tokens = config.train.steps_per_dispatch * config.train.batch_size * config.data.segment_len
        dispatch = tokens / statistics.median(rates[-100:])
        if 2 * dispatch + save > grace:
            self.warned = True
            log.warning(
                "two dispatches of %.1f s and a save of %.1f s take longer than "
                "checkpoint.grace_seconds=%g: a stop signal may come too late for a save; use a "
                "smaller train.steps_per_dispatch, checkpoint.memory=rebuild, "
                "or a machine that gives more time",
                dispatch,
                save,
                grace,
            )
