"""Starts a run of pretraining or of a task: builds mesh and step, opens the work directory, creates
or restores the state, and calls the loop.

The state is new, new with the parameters of another run, restored from the newest good checkpoint,
or the state of another run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from xlnet_jax.batch import Batch, stack
from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.restore import Restored
from xlnet_jax.checkpoint.store import Checkpoints, Trees
from xlnet_jax.config import ARCHITECTURE, FROZEN, Config, changed_keys, check, flat
from xlnet_jax.config.phases import check_past
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import Plan, enter_phase, extend_plan, from_json
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.messages import quantity
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run import lock
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.metrics import MetricsWriter, open_wandb, read_jsonl
from xlnet_jax.run.programs import use_compilation_cache
from xlnet_jax.run.signals import StopRequest
from xlnet_jax.run.watchdog import Watchdog
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train import branch, evaluation, own_batches
from xlnet_jax.train.evaluation import Evaluator
from xlnet_jax.train.loop import Job, Run
from xlnet_jax.train.phases import (
    build,
    check_parameters,
    compile_later,
    empty_memory,
    enter,
    memory_since,
)
from xlnet_jax.train.state import State
from xlnet_jax.train.step import BuiltStep, create_state, next_memory

log = logging.getLogger("xlnet_jax")


def run(job: Job, processes: Session, request: StopRequest, goodput: Goodput) -> tuple[Json, bool]:
    """Trains from the newest checkpoint in the work directory, or from step 0. All processes of the
    run call this function.

    Returns the result (`goodput.result`), and whether the run trained or evaluated anything.
    """
    workdir, config = job.workdir, job.config
    phases = build(config, job.make_recipe, processes)
    with jax.set_mesh(phases[0].mesh), contextlib.ExitStack() as stack:
        use_compilation_cache(config, workdir)
        check = _hold_workdir(workdir, processes, stack)
        losses = functools.partial(workdirs.losses, workdir)
        checkpoints = stack.enter_context(Checkpoints(workdir, config.checkpoint, losses))
        with goodput.measure("restore" if checkpoints.steps() or job.origin else "start"):
            state, plan, start, origin = restore_or_init(job, phases, checkpoints, processes)
        now = config.phase_before(start)
        make_evaluator = job.make_evaluator or (lambda *_: None)
        evaluators = [make_evaluator(each.recipe, each.mesh) for each in phases]
        unscored, ended = _missing_evaluation(config, workdir, evaluators[now], start, processes)
        if ended or (start >= job.stop and not unscored):
            return _nothing_to_train(workdir, start, start if ended else job.stop), False
        origin |= {"attention": phases[now].recipe.config.model.attention}
        workdirs.write_start(workdir, config, job.data, start, origin)
        wandb = open_wandb(config.log.wandb, workdir, flat(config))
        writer = MetricsWriter(workdir, start, config.log.tensorboard, check, wandb)
        stack.enter_context(contextlib.closing(writer))
        unsaved = "branch" in origin
        goodput.resume_from(read_jsonl(workdir, "time.jsonl"))
        executables = compile_later(phases[now + 1 :], now + 1, goodput, processes)
        watchdog = Watchdog(config.watchdog.seconds, lambda: goodput.cause)
        stack.callback(watchdog.cancel)
        for number, built in enumerate(phases[now:], now):
            if number > now:
                plan = _enter_phase(job.data, config, number, plan, start)
                state = enter(state, built)
                log.info(
                    "phase %d of %d from step %d on, with batches of %d",
                    number + 1,
                    len(phases),
                    start,
                    plan[-1].batch_size,
                )
            identity = workdirs.identity(
                built.recipe.config, job.data.sha256, job.data.tokenizer.sha256, config.phases
            )
            loop = Run(
                job,
                built,
                checkpoints,
                writer,
                plan,
                {"rebuilt": origin["rebuilt"], **own_batches.record(job.batches), **identity},
                processes,
                request,
                goodput,
                watchdog,
                evaluators[number],
                executables[number],
            )
            stop = min(job.stop, config.ends[number])
            state, start, ended = loop.loop(state, start, stop, unscored, unsaved)
            unscored = unsaved = False
            if ended or start >= job.stop:
                return loop.finish(start), True
        raise AssertionError("a run stops in one of its phases")


def _hold_workdir(
    workdir: str, processes: Session, stack: contextlib.ExitStack
) -> Callable[[], None] | None:
    """Makes the work directory; process 0 holds its lock until `stack` closes. In process 0,
    returns a function that raises if the lock is lost; in other processes, returns None.
    """
    check = None
    if jax.process_index() == 0:
        with files.translate_errors(workdir):
            files.make_folder(workdir)
        check = stack.enter_context(lock.held(workdir))
    with files.translate_errors(workdir):
        workdirs.check_shared(workdir, processes)
    return check


def _nothing_to_train(workdir: str, step: int, stop: int) -> Json:
    """Logs that the run has already ended; returns its result."""
    log.info(
        "%s is already at step %d and was to stop at step %d: nothing to train", workdir, step, stop
    )
    last = workdirs.line_of(workdir, "metrics", step)
    times = goodputs.last_complete(read_jsonl(workdir, "time.jsonl"))
    return goodputs.result(workdir, step, last, times)


def dry_run(job: Job, processes: Session) -> Json:
    """Builds the first batch, traces the step, and checks the checkpoint from which the run starts,
    without reading its arrays. Compiles and writes nothing.
    """
    config = job.config
    phases = build(config, job.make_recipe, processes)
    built = phases[0]
    recipe = built.recipe
    mesh = built.mesh
    with jax.set_mesh(mesh):
        rows = meshes.rows_here(built.rows, mesh)
        plan = plan_until(job.data, config, 0)
        batch = loader.TrainDispatches(job.data, recipe.config, plan, rows, 0, config.ends[0])(0)
        _, metrics = [
            jax.eval_shape(each.jitted, each.abstract_state, each.abstract_batch, each.dropout_seed)
            for each in phases
        ][0]
        with Checkpoints(job.workdir, config.checkpoint) as checkpoints:
            found, _ = _checkpoint_of_start(job, phases, checkpoints, processes, arrays=False)
        if found is None:
            _initial_parameters(built, processes, arrays=False)
        else:
            log.info("dry run: it would start at step %d", found.step)
    parameters = sum(x.size for x in jax.tree.leaves(built.logical.params))
    stream = job.data.stream(phases[-1].recipe.config)
    read = stream.epochs(config.ends[-1], plan_until(job.data, config, config.ends[-1] - 1))
    for name, corpus, epochs in zip(job.data.names, stream.corpora, read, strict=True):
        log.info(
            "dry run: %s has %s an epoch, the run reads %.2f epochs",
            name,
            quantity(corpus.blocks, "block"),
            epochs,
        )
    log.info(
        "dry run: %s, mesh %s, first batch with %s, %s",
        quantity(parameters, "parameter"),
        dict(mesh.shape),
        quantity(int(recipe.model.divisors(batch)[recipe.first_loss]), "target"),
        quantity(len(metrics), "metric"),
    )
    return {
        "step": found.step if found else 0,
        "loss": None,
        "tokens_per_second": None,
        "workdir": job.workdir,
        "parameters": parameters,
    }


def plan_until(data: TrainingData, config: Config, step: int) -> Plan:
    """The data plan at a step of a run whose batch size changes only between phases."""
    first = config.parts[0]
    plan = extend_plan((), 0, first.train.batch_size, first.data.windows_per_block)
    for number in range(1, config.phase_before(step + 1) + 1):
        plan = _enter_phase(data, config, number, plan, config.ends[number - 1])
    return plan


def _enter_phase(data: TrainingData, config: Config, number: int, plan: Plan, step: int) -> Plan:
    """The data plan with the phase of this number, which begins at `step`."""
    before, after = config.parts[number - 1 : number + 1]
    return enter_phase(plan, step, after.train.batch_size, data.stream(before), data.stream(after))


def batches(config: Config, start: int = 0) -> Iterator[Batch]:
    """Yields the batches of a run as numpy arrays, in order, from step `start` to the last step.

    Raises BadInput if a corpus does not fit the configuration.
    """
    check(config)
    mixture = open_mixture(config)
    for part, end in zip(config.parts, config.ends, strict=True):
        mixture.check(part)
        mixture.stream(part).check(part.train.batch_size, mixture.split_names())
        if start < end:
            rows = np.arange(part.train.batch_size)
            plan = plan_until(mixture, config, start)
            yield from map(
                loader.TrainDispatches(mixture, part, plan, rows, start, end).batch,
                range(start, end),
            )
        start = max(start, end)


def _missing_evaluation(
    config: Config, workdir: str, evaluator: Evaluator | None, start: int, processes: Session
) -> tuple[bool, bool]:
    """Returns whether the evaluation of the step `start` is missing, and whether the evaluations so
    far end the run.

    An evaluation is missing if the run stopped after its checkpoint and before the end of the
    evaluation. Process 0, which writes the file, decides: other processes may see new lines later.
    """
    if evaluator is None:
        return False, False
    lines = [line for line in read_jsonl(workdir, "evaluations.jsonl") if line["step"] <= start]
    unscored = evaluation.due(config, start) and start not in (line["step"] for line in lines)
    ended = not unscored and evaluation.ends(config, lines)
    unscored, ended = json.loads(processes.broadcast(json.dumps([unscored, ended])))
    return unscored, ended


def _trees_to_read(
    job: Job, phases: Sequence[BuiltStep], where: str, step: int, record: Json
) -> Trees:
    """The trees to read from a checkpoint (`restore.TreesOf`). Raises BadInput if it does not fit
    the run.
    """
    config = job.config
    built = phases[config.phase_before(step)]
    phases_there = (*record.get("phases", ()),)
    check_past(config, phases_there, step, where)
    if config.phases != phases_there:
        check_parameters(built, record, where)
    workdirs.check_resume(record, built.recipe.config, job.data, where, told=True)
    own_batches.set_position(job.batches, record, where)
    # With another batch size a row continues with other text: the saved memory is useless.
    same_rows = from_json(record["plan"])[-1].batch_size == built.recipe.config.train.batch_size
    usable = same_rows and any(name.startswith("memory/") for name in record["checksums"])
    return {
        name: tree for name, tree in built.logical.split().items() if name != "memory" or usable
    }


def _checkpoint_of_start(
    job: Job,
    phases: Sequence[BuiltStep],
    checkpoints: Checkpoints,
    processes: Session,
    arrays: bool = True,
) -> tuple[Restored | None, branch.Origin | None]:
    """Returns the checkpoint from which a run starts, or None. Also returns the origin at the first
    start of a branch, otherwise None. Without `arrays` only the record is checked.
    """
    wanted = functools.partial(_trees_to_read, job, phases)
    config = job.config
    found = restore.resume(checkpoints, wanted, processes, arrays)
    if found is not None:
        branch.warn_of_rise(
            found, config.parts[config.phase_before(found.step)], checkpoints.workdir
        )
        return found, None
    if job.origin is None:
        return None, None
    return branch.restore_origin(job.origin, config, wanted, processes, arrays), job.origin


def restore_or_init(
    job: Job, phases: Sequence[BuiltStep], checkpoints: Checkpoints, processes: Session
) -> tuple[State, Plan, int, Json]:
    """Returns the fresh or restored state to start from, its data plan, its step, and its origin
    for `runs.jsonl`.

    The origin has `rebuilt`, the steps at which the run has rebuilt its memory. A fresh state with
    the parameters of another run adds `init_from`; the first start of a branch adds `branch`.
    """
    restored, begins = _checkpoint_of_start(job, phases, checkpoints, processes)
    if restored is None:
        if read_jsonl(checkpoints.workdir, "metrics.jsonl"):
            log.warning(
                "%s has metrics and no checkpoint: metrics dropped, starting at step 0",
                checkpoints.workdir,
            )
        state, origin = _fresh_state(phases[0], job.data.tokenizer, processes)
        return state, plan_until(job.data, job.config, 0), 0, origin
    number = job.config.phase_before(restored.step)
    built = phases[number]
    config = built.recipe.config
    batch_size = config.train.batch_size
    old = from_json(restored.record["plan"])
    stored = built.abstract_state.split()
    trees = {name: meshes.like(tree, stored[name]) for name, tree in restored.trees.items()}
    W = config.data.windows_per_block
    stream = job.data.stream(config)
    plan = extend_plan(old, restored.step, batch_size, W, stream.rows_per_block)
    rebuilt = restored.record.get("rebuilt") or []
    if "memory" not in trees:
        first = max(
            _first_in_memory(config, plan, restored.step), memory_since(job.config, phases, number)
        )
        memory = _rebuild(
            job.data, built, plan, range(first, restored.step), trees["params"], processes
        )
        trees = trees | {"memory": memory}
        rebuilt = rebuilt + [restored.step] * (
            first < restored.step and restored.step not in rebuilt
        )
    if plan != old and restored.step < job.config.ends[number]:
        log.info(
            "batch size %d -> %d at step %d: memory emptied",
            old[-1].batch_size,
            batch_size,
            restored.step,
        )
    log.info(
        "%s at step %d from %s",
        "branching" if begins else "resuming",
        restored.step,
        begins.path if begins else checkpoints.path,
    )
    record = {"branch": str(branch.Origin(begins.path, restored.step))} if begins else {}
    return State.join(trees), plan, restored.step, {"rebuilt": rebuilt} | record


def _first_in_memory(config: Config, plan: Plan, step: int) -> int:
    """The first step whose segment affects the memory before `step`; `step` itself if no segment
    affects it.

    The memory of a row never reaches into an earlier block, and all rows start their blocks at the
    same steps. If n segments fill the memory, the inputs of layer l, counted from 0, depend on
    (l + 1) n earlier segments.
    """
    in_block = (step - plan[-1].step) % config.data.windows_per_block
    in_reach = config.model.layers * -(-config.model.memory_len // config.data.reuse_len)
    return step - min(in_block, in_reach)


def _rebuild(
    data: TrainingData, built: BuiltStep, plan: Plan, steps: range, params: Any, processes: Session
) -> Any:
    """Returns the memory after the segments of `steps`: forward passes with constant parameters
    fill an empty memory. All processes call this function.
    """
    recipe = built.recipe
    mesh = built.mesh
    began = time.perf_counter()
    memory = empty_memory(built)
    if not steps:
        return memory

    def after(memory: Any, params: Any, step: jax.Array, batches: Any) -> Any:
        with meshes.RULES.applied():
            batch = jax.tree.map(lambda x: x[0], batches)
            return next_memory(recipe, built.dropout_seed, params, memory, step, batch)

    rows = meshes.rows_here(built.rows, mesh)
    dispatches = loader.TrainDispatches(data, recipe.config, plan, rows, steps.start, steps.stop)

    def inputs(step: int) -> tuple[Any, np.int32, Any]:
        return (
            params,
            np.int32(step),
            meshes.place(stack([dispatches.batch(step)]), mesh, built.rows),
        )

    # One program serves any number of segments.
    out_shardings = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
    jitted: Any = jax.jit(after, donate_argnums=0, out_shardings=out_shardings)
    compiled = jitted.lower(memory, *inputs(steps[0])).compile()
    # Compiling may take longer than a collective operation waits for a late process.
    processes.barrier("rebuilding the memory")
    for step in steps:
        memory = meshes.settled(compiled(memory, *inputs(step)))
    jax.block_until_ready(memory)
    seconds = time.perf_counter() - began
    log.info("memory rebuilt from steps %d to %d in %.1f s", steps[0] + 1, steps[-1] + 1, seconds)
    return memory


def _rows_by_piece(
    path: str, found: Trees, drawn: Trees, forms: Trees, tokenizer: Tokenizer
) -> Trees:
    """Merges the parameters that have a row for each piece (`restore.OF_VOCABULARY`) when the other
    run has another vocabulary. Pieces of both vocabularies get their row of `found`; other pieces
    get their row of `drawn`. Drawn parameters may be packed.
    """
    place = {
        piece: row for row, piece in enumerate(workdirs.tokenizer(restore.run_of(path)[0]).pieces)
    }
    both = [row for row, piece in enumerate(tokenizer.pieces) if piece in place]
    log.warning(
        "checkpoint.init_from=%s has another vocabulary: the rows of %d pieces are taken from "
        "there, and those of %d other pieces are drawn",
        path,
        len(both),
        tokenizer.vocab_size - len(both),
    )
    merged: Trees = {}
    for name in found.keys() & {name.removeprefix("params/") for name in restore.OF_VOCABULARY}:
        # `row_V` indexes the rows of the other run, followed by the drawn rows.
        form = forms[name]
        row_V = len(found[name]) + np.arange(form.shape[0])
        row_V[both] = [place[tokenizer.pieces[row]] for row in both]
        taken = jax.jit(
            lambda old, new, row_V: jnp.concatenate([old, new])[row_V], out_shardings=form.sharding
        )
        merged[name] = taken(found[name], meshes.like(drawn[name], form), row_V)
    return merged


def _fresh_state(built: BuiltStep, tokenizer: Tokenizer, processes: Session) -> tuple[State, Json]:
    """The state of step 0 and its origin. Takes the parameters of another run if
    `checkpoint.init_from` is set.
    """
    params, origin = _initial_parameters(built, processes)
    state = create_state(built)
    if not params:
        return state, {"rebuilt": []}
    # Some heads have no parameters.
    flattened: Any = functools.partial(traverse_util.flatten_dict, keep_empty_nodes=True, sep="/")
    found, drawn, forms = map(flattened, (params, state.params, built.logical.params))
    # Loaded parameters replace drawn parameters; the other run may lack some parameters.
    merged = drawn | found
    other_rows = any(array.shape != forms[name].shape for name, array in found.items())
    if other_rows or origin["tokenizer_sha256"] != tokenizer.sha256:
        merged |= _rows_by_piece(
            built.recipe.config.checkpoint.init_from, found, drawn, forms, tokenizer
        )
    nested = traverse_util.unflatten_dict(merged, sep="/")
    state = dataclasses.replace(state, params=meshes.like(nested, built.abstract_state.params))
    return state, {"init_from": origin, "rebuilt": []}


def _initial_parameters(
    built: BuiltStep, processes: Session, arrays: bool = True
) -> tuple[Trees, Json]:
    """The parameters of `checkpoint.init_from` and their origin (`restore.foreign_parameters`);
    both are empty if the key is empty. Logs which parameters are new and which are not used.
    """
    config = built.recipe.config
    path = config.checkpoint.init_from
    if not path:
        return {}, {}
    # The head of another task has other outputs, even if its shapes are equal.
    fresh = built.logical.params
    wanted = {name: tree for name, tree in fresh.items() if name != "head"}
    # Exception: pretraining may have trained the first layers of a head, with a sentence loss as
    # `pooler`.
    summary = fresh.get("head", {}).get("summary", {})
    begin = "lm_head" if "transform" in summary else "pooler"
    if summary:
        wanted[begin] = summary
    params, origin = restore.foreign_parameters(path, wanted, processes, arrays)
    if summary:
        origin["fresh"] = [
            name for name in origin["fresh"] if not name.startswith(f"params/{begin}/")
        ]
        params |= {"head": {"summary": params.pop(begin)}} if begin in params else {}
    run = restore.run_of(path)[0]
    theirs = (
        flat(workdirs.load_config(run, step=origin["step"])) if workdirs.read_config(run) else {}
    )
    names = [f"model.{key}" for key in ARCHITECTURE if key not in ("vocab_size", "spare_rows")]
    architecture = {name: theirs[name] for name in names if name in theirs}
    if other := changed_keys(config, architecture, FROZEN):
        log.warning(
            "checkpoint.init_from=%s has another architecture, "
            "so the same parameters give other outputs here: %s",
            path,
            "; ".join(other),
        )
    # A new head is intended; other new parameters may be a mistake in the configuration.
    say = log.warning if origin["fresh"] else log.info
    head = ["params/head/logits" if "head" in params else "params/head"] if "head" in fresh else []
    lists = (("new", origin["fresh"] + head), ("not used", origin["left_over"]))
    say(
        "starting with the parameters of step %d of %s%s",
        origin["step"],
        path,
        "".join(f"; {what}: {', '.join(names)}" for what, names in lists if names),
    )
    return params, origin
