"""The training loop: data in, dispatches out, and between two of them saves, evaluations, profiles and signals.

The device never waits for the host: a dispatch is sent before the metrics of the one before are read, batches are built
ahead by Grain, and checkpoints are written by Orbax in the background.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from xlnet_jax import buckets, checkpoint, files, ladder
from xlnet_jax.batch import Batch
from xlnet_jax.checkpoint import Checkpoints, Keep
from xlnet_jax.config import Config, DataConfig
from xlnet_jax.data import loader
from xlnet_jax.data.mixture import Mixture, open_mixture
from xlnet_jax.data.stream import Plan, Stream, extend_plan, plan_from_json, plan_to_json
from xlnet_jax.errors import BadInput, Diverged, RestartMe
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import distributed
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train import lock
from xlnet_jax.train import workdir as workdirs
from xlnet_jax.train.heldout import Heldout
from xlnet_jax.train.metrics import MetricsWriter, read_lines, utilisation
from xlnet_jax.train.signals import StopRequest
from xlnet_jax.train.state import State, check_precision
from xlnet_jax.train.step import BuiltStep, build_step, create_state

log = logging.getLogger("xlnet_jax")

LOG_EVERY = 100
"""Steps between two lines of the log where there is no progress bar."""


def train(config: Config, workdir: str, *, stop_at: int | None = None, dry_run: bool = False) -> dict[str, Any]:
    """Trains until `config.train.steps`, from the newest checkpoint in `workdir` if there is one.

    Args:
      stop_at: save and end in order after this step; a later call goes on to the end.
      dry_run: check everything up to the first batch and the shapes of the step, then return; nothing is written.

    Returns:
      `step`, `loss`, `tokens_per_second`, `workdir`.

    Raises:
      BadInput: a configuration, corpus or work directory that does not fit.
      Diverged: `train.max_bad_steps` non-finite steps in a row.
      RestartMe: a signal came; everything is saved.
    """
    if stop_at is not None and stop_at < 1:
        raise BadInput(f"--stop_at={stop_at} must be at least 1")
    if files.in_bucket(workdir):
        buckets.use(workdir)
    check_precision(config)
    # The run remembers its corpus, and may be evaluated from another folder.
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, corpus=absolute(config.data.corpus)))
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
        return _train(config, workdir, mixture, heldout, stop, dry_run, processes)


def _train(
    config: Config, workdir: str, mixture: Mixture, heldout: Mixture | None, stop: int, dry_run: bool,
    processes: distributed.Session,
) -> dict[str, Any]:  # fmt: skip
    """What `train` does once all processes of the run are together."""
    mesh = meshes.make_mesh(config.mesh)
    meshes.check_batch_size(config.train.batch_size, mesh, parts=config.train.accumulation)
    meshes.check_model(config.model, mesh)
    with jax.set_mesh(mesh):
        built = build_step(config, mesh)
        if dry_run:
            return _dry_run(config, workdir, mixture, built, mesh)
        workdirs.use_compilation_cache(config, workdir)
        check = None
        with contextlib.ExitStack() as stack:
            if jax.process_index() == 0:
                files.make_folder(workdir)
                check = stack.enter_context(lock.held(workdir))
            workdirs.check_shared(workdir, processes)
            keep = Keep.of(config.checkpoint, functools.partial(workdirs.losses, workdir))
            checkpoints = stack.enter_context(Checkpoints(workdir, keep))
            state, plan, start, origin = _start(config, mixture, built, checkpoints, processes)
            if start >= stop:
                log.info("%s is at step %d already, and was to stop at %d", workdir, start, stop)
                last = workdirs.metrics_of(workdir, start)
                return _summary(workdir, start, last.get("loss"), last.get("tokens_per_second"))
            workdirs.write_start(workdir, config, mixture, start, origin)
            writer = MetricsWriter(workdir, start, config.log.tensorboard, check)
            stack.enter_context(contextlib.closing(writer))
            run = Run(config, workdir, mixture, mesh, built, checkpoints, writer, plan, processes)
            run.heldout = Heldout(config, mesh, heldout, config.evaluation.blocks) if heldout else None
            return run.loop(state, start, stop)


def absolute(corpus: str) -> str:
    """`data.corpus` with paths that hold from any working directory; bucket addresses stay as they are."""
    folders = DataConfig(corpus=corpus).folders()
    return ",".join(path if "://" in path or not path else os.path.abspath(path) for path in folders)


def _start(
    config: Config, mixture: Mixture, built: BuiltStep, checkpoints: Checkpoints, processes: distributed.Session
) -> tuple[State, Plan, int, dict[str, Any]]:
    """The state to begin with: fresh, or restored with its data plan; and what `runs.jsonl` shall say of it."""
    W, batch_size = config.data.windows_per_block, config.train.batch_size
    abstract = checkpoint.split(built.abstract_state)

    def plans(step: int, record: dict[str, Any]) -> tuple[Plan, Plan]:
        old = plan_from_json(record["plan"])
        return old, extend_plan(old, step, batch_size, W, mixture.stream(config).rows_per_block)

    def wanted(step: int, record: dict[str, Any]) -> checkpoint.Trees:
        workdirs.check_resume(record, config, mixture, str(checkpoints.path / str(step)))
        old, plan = plans(step, record)
        # The memory of another batch size is of no use: its rows are other rows now.
        return {name: tree for name, tree in abstract.items() if name != "memory" or plan == old}

    found = ladder.resume(checkpoints, wanted, processes)
    if found is None:
        state, origin = _fresh(config, mixture, built, processes)
        return state, extend_plan((), 0, batch_size, W), 0, origin
    old, plan = plans(found.step, found.record)
    trees = found.trees
    if "memory" not in trees:
        memory_sharding = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
        memory = jax.jit(lambda: empty_memory(config.model, batch_size), out_shardings=memory_sharding)()
        trees = trees | {"memory": {"hidden": memory.hidden_LBMD, "valid": memory.valid_B}}
    if plan != old:
        log.info("batch size %d -> %d at step %d: memory emptied", old[-1].batch_size, batch_size, found.step)
    log.info("resuming at step %d from %s", found.step, checkpoints.path)
    return checkpoint.join(trees, State), plan, found.step, {}


def _fresh(
    config: Config, mixture: Mixture, built: BuiltStep, processes: distributed.Session
) -> tuple[State, dict[str, Any]]:
    """The state of step 0, with the parameters of another run if so configured."""
    path = config.checkpoint.init_from
    if not path:
        return create_state(config, built), {}
    params, origin = ladder.foreign_parameters(path, built.abstract_state.params, processes)
    if origin["tokenizer_sha256"] != mixture.tokenizer.sha256:
        log.warning("checkpoint.init_from=%s has another tokenizer: its embeddings stand for other pieces", path)
    log.info("beginning with the parameters of step %d of %s", origin["step"], path)
    return dataclasses.replace(create_state(config, built), params=params), {"init_from": origin}


def _dry_run(config: Config, workdir: str, mixture: Mixture, built: BuiltStep, mesh: Any) -> dict[str, Any]:
    rows, _ = meshes.rows_here(config.train.batch_size, mesh)
    plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
    batch = loader.TrainDispatches(mixture, config, plan, rows, 0, config.train.steps)(0)
    out = jax.eval_shape(built.jitted, built.abstract_state, built.abstract_batch)
    parameters = sum(x.size for x in jax.tree.leaves(built.abstract_state.params))
    stream = mixture.stream(config)
    read = stream.epochs(config.train.steps, plan)
    for name, corpus, epochs in zip(mixture.names, stream.corpora, read, strict=True):
        log.info("dry run: %s has %d blocks an epoch, the run reads %.2f epochs", name, corpus.blocks, epochs)
    log.info(
        "dry run: %d parameters, mesh %s, first batch with %d targets, %d metrics",
        parameters, dict(mesh.shape), int(batch.target_weights.sum()), len(out[1]),
    )  # fmt: skip
    return {"step": 0, "loss": None, "tokens_per_second": None, "workdir": workdir, "parameters": parameters}


def _summary(workdir: str, step: int, loss: float | None, tokens_per_second: float | None) -> dict[str, Any]:
    return {"step": step, "loss": loss, "tokens_per_second": tokens_per_second, "workdir": workdir}


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
    heldout: Heldout | None = None
    last: dict[str, Any] | None = None
    rates: list[float] = dataclasses.field(default_factory=list)
    """Tokens per second of every dispatch."""
    clock: float = 0.0
    """When the device last had nothing to do with anything else but training; rates count from here."""

    def loop(self, state: State, start: int, stop: int) -> dict[str, Any]:
        """Steps `start` to `stop`."""
        config = self.config
        rows, _ = meshes.rows_here(config.train.batch_size, self.mesh)
        dispatches = loader.TrainDispatches(self.mixture, config, self.plan, rows, start, stop)
        batches = loader.prefetched(dispatches, config)
        executables: dict[int, Any] = {}
        sent: tuple[range, Any] | None = None
        self.clock = time.perf_counter()
        with StopRequest() as stop_request, progress_bar(config.train.steps, start) as progress:
            if self.heldout and start and start % config.evaluation.every == 0:
                self._evaluate_if_missing(start, state)
            for index in range(len(dispatches)):
                steps = dispatches.steps(index)
                batch = meshes.place(next(batches), self.mesh, config.train.batch_size)
                if len(steps) not in executables:
                    executables[len(steps)] = compile_step(self.built, state, batch)
                    # Compiling takes longer than a collective operation waits for a process that comes late.
                    self.processes.barrier()
                    self.clock = time.perf_counter()
                with self._profile(steps) as capturing:
                    state, metrics = executables[len(steps)](state, batch)
                    if capturing:
                        # The capture must hold the device's work, not only its dispatch.
                        jax.block_until_ready(metrics)
                # Read what the dispatch before returned while this one runs.
                self._report(sent, progress)
                sent = (steps, metrics)
                at = steps[-1] + 1
                # A signal that came to one process stops all of them, at the same step.
                stopping = self.processes.stop(at, stop_request.name)
                if at % config.checkpoint.every == 0 or at == stop or stopping:
                    self._report(sent, progress)
                    sent = None
                    self._save(at, state)
                if stopping:
                    self._all_saved()
                    raise RestartMe(f"{stopping} at step {at}: saved; run the same command to go on")
                if self.heldout and at % config.evaluation.every == 0:
                    self._report(sent, progress)
                    sent = None
                    self._evaluate(at, state)
            self.checkpoints.wait()
        loss = self.last["loss"] if self.last else None
        return _summary(self.workdir, stop, loss, statistics.median(self.rates))

    def _save(self, step: int, state: State) -> None:
        self.writer.flush()
        record = {**workdirs.identity(self.config, self.mixture), "plan": plan_to_json(self.plan)}
        try:
            self.checkpoints.save(step, checkpoint.split(state), record)
        except Diverged:
            self._all_saved()
            raise

    def _all_saved(self) -> None:
        """Before an error that all processes come to: the first that ends soon takes those with it that still save."""
        self.checkpoints.wait()
        self.processes.barrier()

    def _evaluate_if_missing(self, step: int, state: State) -> None:
        """Redoes the evaluation that a stop right after a checkpoint cut off."""
        done = read_lines(os.path.join(self.workdir, "evaluations.jsonl"))
        # Another process may see the file a little later than the one that writes it.
        if self.processes.of_first(all(line["step"] != step for line in done)):
            self._evaluate(step, state)

    def _evaluate(self, step: int, state: State) -> None:
        assert self.heldout is not None
        began = time.perf_counter()
        result = self.heldout(state.params)
        seconds = time.perf_counter() - began
        self.writer.evaluation(
            {"step": step, "loss": result.loss, "perplexity": result.perplexity,
             "loss_without_memory": result.loss_without_memory, "tokens": result.tokens, "seconds": seconds,
             **{f"loss/{name}": loss for name, loss in result.by_corpus.items()}}
        )  # fmt: skip
        self.writer.flush()
        log.info("step %d: held-out loss %.4f (%.4f without memory)", step, result.loss, result.loss_without_memory)
        self.clock += seconds

    def _report(self, sent: tuple[range, Any] | None, progress: Progress | None) -> None:
        """Waits for a dispatch's metrics, writes K lines, ends the run if it has diverged."""
        if sent is None:
            return
        steps, metrics = sent
        values = jax.device_get(metrics)
        now = time.perf_counter()
        rate = len(steps) / (now - self.clock)
        self.clock = now
        stream = self.mixture.stream(self.config)
        by_row = {name: values.pop(name) for name in ("loss_B", "targets_B") if name in values}
        per_step = self.config.train.batch_size * self.config.data.segment_len
        self.rates.append(rate * per_step)
        row: dict[str, Any] = {}
        for i, step in enumerate(steps):
            row = {"step": step + 1, **{name: _number(column[i]) for name, column in values.items()}}
            loss = row["loss"]
            row["perplexity"] = math.exp(loss) if loss is not None and loss < 700 else None
            row |= self._by_corpus(stream, step, {name: column[i] for name, column in by_row.items()})
            row["tokens_per_second"] = rate * per_step
            row["mfu"] = utilisation(self.config, rate)
            self.writer.step(row)
            self.last = row
            if row["consecutive_bad"] >= self.config.train.max_bad_steps:
                self.writer.flush()
                self._all_saved()
                raise Diverged(
                    f"step {step + 1}: {row['consecutive_bad']} non-finite steps in a row, the first at step "
                    f"{step + 2 - row['consecutive_bad']}; lower optimizer.learning_rate, or look at its data with "
                    f"`xlnet-jax inspect --step={step + 1 - row['consecutive_bad']}` (inspect counts from 0)"
                )
        done = steps[-1] + 1
        shown = f"{row['loss']:.4f}" if row["loss"] is not None else "not finite"
        if progress is not None:
            progress.update(progress.task_ids[0], completed=done, loss=shown)
        elif done // LOG_EVERY != steps[0] // LOG_EVERY:
            log.info("step %d: loss %s, %.0f tokens/s", done, shown, row["tokens_per_second"])

    def _by_corpus(self, stream: Stream, step: int, by_row: dict[str, np.ndarray]) -> dict[str, Any]:
        """Epochs, and of several corpora each one's own and the mean loss over its targets."""
        epochs = stream.epochs(step + 1, self.plan)
        if len(epochs) == 1:
            return {"epoch": epochs[0]}
        row: dict[str, Any] = {}
        corpus_B, _ = stream.deal(step, np.arange(self.config.train.batch_size), self.plan)
        for number, name in enumerate(self.mixture.names):
            mine = corpus_B == number
            targets = by_row["targets_B"][mine].sum(dtype=np.float64)
            loss = by_row["loss_B"][mine].sum(dtype=np.float64) / targets if targets else np.float64(math.nan)
            row |= {f"epoch/{name}": epochs[number], f"loss/{name}": _number(loss)}
        return row

    @contextlib.contextmanager
    def _profile(self, steps: range) -> Iterator[bool]:
        """Captures the whole dispatches that hold the configured steps."""
        first = self.config.log.profile_start
        last = first + self.config.log.profile_steps - 1
        if first < 0 or steps[-1] < first or steps[0] > last:
            yield False
            return
        folder = os.path.join(self.workdir, "profile")
        with files.on_disk(os.path.join(folder, f"step_{steps[0]}")) as here, jax.profiler.trace(here):
            yield True
        log.info("profile of steps %d to %d in %s", steps[0], steps[-1], folder)


def compile_step(built: BuiltStep, state: State, batch: Batch) -> Any:
    """Compiles the step for the shapes at hand, and says how long it took and whether the cache had it."""
    hits: list[str] = []

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    began = time.perf_counter()
    executable = built.jitted.lower(state, batch).compile()
    jax.monitoring.unregister_event_listener(listen)
    enabled = jax.config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
    cache = "off" if not enabled else "hit" if hits else "miss"
    steps = jax.tree.leaves(batch)[0].shape[0]
    log.info("compiled %d steps in %.1f s (compilation cache: %s)", steps, time.perf_counter() - began, cache)
    return executable


@contextlib.contextmanager
def progress_bar(total: int, start: int) -> Iterator[Progress | None]:
    """A bar with loss and time left, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        progress.add_task("training", total=total, completed=start, loss="-")
        yield progress


def _number(value: np.ndarray | np.floating) -> int | float | None:
    """As JSON can hold it: a non-finite loss is null."""
    number = value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number
