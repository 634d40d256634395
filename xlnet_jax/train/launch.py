"""A start of a run, of pretraining or of a task: mesh, step, work directory, state, and then the
loop.

The state is fresh, from the newest good checkpoint, has the parameters of another run, or is that
of another run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import time
from collections.abc import Iterator, Sequence
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
from xlnet_jax.train import branch, evaluation
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
    run call it.

    Returns the result (`goodput.result`), and whether there was anything to do.
    """
    workdir = job.workdir
    config, phases = job.config, build(job.config, job.make_recipe, processes)
    mesh = phases[0].mesh
    with jax.set_mesh(mesh):
        use_compilation_cache(config, workdir)
        check = None
        with contextlib.ExitStack() as stack:
            if jax.process_index() == 0:
                with files.translate_errors(workdir):
                    files.make_folder(workdir)
                check = stack.enter_context(lock.held(workdir))
            with files.translate_errors(workdir):
                workdirs.check_shared(workdir, processes)
            losses = functools.partial(workdirs.losses, workdir)
            checkpoints = stack.enter_context(Checkpoints(workdir, config.checkpoint, losses))
            with goodput.measure("restore" if checkpoints.steps() or job.origin else "start"):
                state, plan, start, origin = restore_or_init(job, phases, checkpoints, processes)
            now = config.phase_before(start)
            evaluators = [
                job.make_evaluator(each.recipe, mesh) if job.make_evaluator else None
                for each in phases
            ]
            unscored, ended = _evaluated(config, workdir, evaluators[now], start, processes)
            if ended or (start >= job.stop and not unscored):
                log.info(
                    "%s is already at step %d and was to stop at step %d: nothing to train",
                    workdir,
                    start,
                    start if ended else job.stop,
                )
                last = workdirs.line_of(workdir, "metrics", start)
                times = goodputs.last_complete(read_jsonl(workdir, "time.jsonl"))
                return goodputs.result(workdir, start, last, times), False
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
                part = built.recipe.config
                if number > now:
                    plan = enter_phase(
                        plan,
                        start,
                        part.train.batch_size,
                        *(
                            job.data.stream(each.recipe.config)
                            for each in phases[number - 1 : number + 1]
                        ),
                    )
                    state = enter(state, built)
                    log.info(
                        "phase %d of %d from step %d on, with batches of %d",
                        number + 1,
                        len(phases),
                        start,
                        part.train.batch_size,
                    )
                identity = workdirs.identity(
                    part, job.data.sha256, job.data.tokenizer.sha256, config.phases
                )
                loop = Run(
                    job,
                    built,
                    checkpoints,
                    writer,
                    plan,
                    {"rebuilt": origin["rebuilt"], **identity},
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


def dry_run(job: Job, processes: Session) -> Json:
    """Builds the first batch, traces the step, and looks at the checkpoint that the run starts
    from, without its arrays; neither compiles nor writes.
    """
    config = job.config
    phases = build(config, job.make_recipe, processes)
    built = phases[0]
    recipe, mesh = built.recipe, built.mesh
    with jax.set_mesh(mesh):
        rows, plan = meshes.rows_here(built.rows, mesh), plan_until(job.data, config, 0)
        batch = loader.TrainDispatches(job.data, recipe.config, plan, rows, 0, config.ends[0])(0)
        out = [
            jax.eval_shape(each.jitted, each.abstract_state, each.abstract_batch) for each in phases
        ][0]
        with Checkpoints(job.workdir, config.checkpoint) as checkpoints:
            found, _ = _found(job, phases, checkpoints, processes, arrays=False)
        if found is None:
            _initial(built, processes, arrays=False)
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
        quantity(len(out[1]), "metric"),
    )
    return {
        "step": found.step if found else 0,
        "loss": None,
        "tokens_per_second": None,
        "workdir": job.workdir,
        "parameters": parameters,
    }


def plan_until(data: TrainingData, config: Config, step: int) -> Plan:
    """The plan at a step of a run that never changed its batch size by hand."""
    parts = config.parts[: config.phase_before(step + 1) + 1]
    plan = extend_plan((), 0, parts[0].train.batch_size, parts[0].data.windows_per_block)
    for start, (before, after) in zip(config.ends, itertools.pairwise(parts), strict=False):
        plan = enter_phase(
            plan, start, after.train.batch_size, data.stream(before), data.stream(after)
        )
    return plan


def batches(config: Config, start: int = 0) -> Iterator[Batch]:
    """What the steps of a run from `start` on train on, one after the other, until its last: arrays
    of numpy.

    Raises BadInput for a corpus that does not fit.
    """
    check(config)
    mixture = open_mixture(config)
    for part, end in zip(config.parts, config.ends, strict=True):
        mixture.check(part)
        mixture.stream(part).check(part.train.batch_size, mixture.split_names())
        if start < end:
            rows, plan = np.arange(part.train.batch_size), plan_until(mixture, config, start)
            yield from map(
                loader.TrainDispatches(mixture, part, plan, rows, start, end).batch,
                range(start, end),
            )
        start = max(start, end)


def _evaluated(
    config: Config, workdir: str, evaluator: Evaluator | None, start: int, processes: Session
) -> tuple[bool, bool]:
    """Whether the evaluation of the step `start` is missing, and whether the evaluations so far end
    the run.

    The run may have stopped after the checkpoint or in the evaluation. Process 0 decides: another
    process may see the file a little later than the one that writes it.
    """
    if evaluator is None:
        return False, False
    lines = [line for line in read_jsonl(workdir, "evaluations.jsonl") if line["step"] <= start]
    unscored = evaluation.due(config, start) and start not in (line["step"] for line in lines)
    ended = not unscored and evaluation.ends(config, lines)
    unscored, ended = json.loads(processes.broadcast(json.dumps([unscored, ended])))
    return unscored, ended


def _wanted(job: Job, phases: Sequence[BuiltStep], where: str, step: int, record: Json) -> Trees:
    """The trees to read of a checkpoint (`restore.TreesOf`); BadInput if it does not fit."""
    config = job.config
    built = phases[config.phase_before(step)]
    check_past(config, record.get("phases", ()), step, where)
    if config.phases != (*record.get("phases", ()),):
        check_parameters(built, record, where)
    workdirs.check_resume(record, built.recipe.config, job.data, where, told=True)
    # With another batch size the rows are other rows: the saved memory is useless.
    same_rows = from_json(record["plan"])[-1].batch_size == built.recipe.config.train.batch_size
    usable = same_rows and any(name.startswith("memory/") for name in record["checksums"])
    return {
        name: tree for name, tree in built.logical.split().items() if name != "memory" or usable
    }


def _found(
    job: Job,
    phases: Sequence[BuiltStep],
    checkpoints: Checkpoints,
    processes: Session,
    arrays: bool = True,
) -> tuple[Restored | None, branch.Origin | None]:
    """The checkpoint that a run starts from, if there is one, and where it begins as a branch, if
    it does; without the `arrays` of the checkpoint it fits as far as its record says.
    """
    wanted, config = functools.partial(_wanted, job, phases), job.config
    found = restore.resume(checkpoints, wanted, processes, arrays)
    if found is not None:
        branch.warn_of_rise(
            found, config.parts[config.phase_before(found.step)], checkpoints.workdir
        )
        return found, None
    return branch.restored(
        job.origin, config, wanted, processes, arrays
    ) if job.origin else None, job.origin


def restore_or_init(
    job: Job, phases: Sequence[BuiltStep], checkpoints: Checkpoints, processes: Session
) -> tuple[State, Plan, int, Json]:
    """The state to start from, fresh or restored, its data plan and step, and its origin for
    `runs.jsonl`.

    The origin has `rebuilt`, the steps at which the run has rebuilt its memory, of a fresh state
    `init_from`, and at the first step of a branch `branch`.
    """
    restored, begins = _found(job, phases, checkpoints, processes)
    if restored is None:
        if read_jsonl(checkpoints.workdir, "metrics.jsonl"):
            log.warning(
                "%s has metrics and no checkpoint: metrics dropped, starting at step 0",
                checkpoints.workdir,
            )
        state, drawn = _fresh(phases[0], job.data.tokenizer, processes)
        return state, plan_until(job.data, job.config, 0), 0, drawn
    number = job.config.phase_before(restored.step)
    built = phases[number]
    config, batch_size = built.recipe.config, built.recipe.config.train.batch_size
    old, stored = from_json(restored.record["plan"]), built.abstract_state.split()
    trees = {name: meshes.like(tree, stored[name]) for name, tree in restored.trees.items()}
    W, stream = config.data.windows_per_block, job.data.stream(config)
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
    """The first step whose segment has an effect on the memory before `step`; `step` itself if none
    has.

    A row sees nothing from before its block, and all rows start their blocks at the same steps. The
    inputs of layer l, counted from 0, depend on l + 1 times as many earlier segments as fill the
    memory.
    """
    in_block = (step - plan[-1].step) % config.data.windows_per_block
    in_reach = config.model.layers * -(-config.model.memory_len // config.data.reuse_len)
    return step - min(in_block, in_reach)


def _rebuild(
    data: TrainingData, built: BuiltStep, plan: Plan, steps: range, params: Any, processes: Session
) -> Any:
    """An empty memory after the segments of `steps`, forward only, with constant parameters. All
    processes call it.
    """
    recipe, mesh, began = built.recipe, built.mesh, time.perf_counter()
    memory = empty_memory(built)
    if not steps:
        return memory

    def after(memory: Any, params: Any, step: jax.Array, batches: Any) -> Any:
        with meshes.RULES.applied():
            return next_memory(recipe, params, memory, step, jax.tree.map(lambda x: x[0], batches))

    rows = meshes.rows_here(built.rows, mesh)
    dispatches = loader.TrainDispatches(data, recipe.config, plan, rows, steps.start, steps.stop)

    def inputs(step: int) -> tuple[Any, np.int32, Any]:
        return (
            params,
            np.int32(step),
            meshes.place(stack([dispatches.batch(step)]), mesh, built.rows),
        )

    # One program for any number of segments.
    out_shardings = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
    jitted: Any = jax.jit(after, donate_argnums=0, out_shardings=out_shardings)
    compiled = jitted.lower(memory, *inputs(steps[0])).compile()
    # A collective operation waits less time for a late process than compiling takes.
    processes.barrier("rebuilding the memory")
    for step in steps:
        memory = meshes.settled(compiled(memory, *inputs(step)))
    jax.block_until_ready(memory)
    seconds = time.perf_counter() - began
    log.info("memory rebuilt from steps %d to %d in %.1f s", steps[0] + 1, steps[-1] + 1, seconds)
    return memory


def _by_piece(path: str, found: Trees, drawn: Trees, forms: Trees, tokenizer: Tokenizer) -> Trees:
    """Of a run with another vocabulary the parameters with a row for each piece: the rows found
    there, and for pieces that it does not have those `drawn`, which may be packed.
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
        # Of the rows there, and below them the drawn ones.
        form = forms[name]
        row_V = len(found[name]) + np.arange(form.shape[0])
        row_V[both] = [place[tokenizer.pieces[row]] for row in both]
        taken = jax.jit(
            lambda old, new, row_V: jnp.concatenate([old, new])[row_V], out_shardings=form.sharding
        )
        merged[name] = taken(found[name], meshes.like(drawn[name], form), row_V)
    return merged


def _fresh(built: BuiltStep, tokenizer: Tokenizer, processes: Session) -> tuple[State, Json]:
    """The state of step 0, with the parameters of another run if so configured."""
    params, origin = _initial(built, processes)
    state = create_state(built)
    if not params:
        return state, {"rebuilt": []}
    # Some heads have no parameters.
    flattened: Any = functools.partial(traverse_util.flatten_dict, keep_empty_nodes=True, sep="/")
    found, drawn, forms = map(flattened, (params, state.params, built.logical.params))
    # Loaded parameters replace drawn ones; the other run may lack some.
    merged = drawn | found
    other_rows = any(array.shape != forms[name].shape for name, array in found.items())
    if other_rows or origin["tokenizer_sha256"] != tokenizer.sha256:
        merged |= _by_piece(
            built.recipe.config.checkpoint.init_from, found, drawn, forms, tokenizer
        )
    nested = traverse_util.unflatten_dict(merged, sep="/")
    state = dataclasses.replace(state, params=meshes.like(nested, built.abstract_state.params))
    return state, {"init_from": origin, "rebuilt": []}


def _initial(built: BuiltStep, processes: Session, arrays: bool = True) -> tuple[Trees, Json]:
    """The parameters of `checkpoint.init_from` and their origin (`restore.foreign_parameters`),
    with what the log has to say of them; both empty if there is none.
    """
    config = built.recipe.config
    path = config.checkpoint.init_from
    if not path:
        return {}, {}
    # The head of another task predicts something else, even where the shapes agree.
    fresh = built.logical.params
    wanted = {name: tree for name, tree in fresh.items() if name != "head"}
    # But the first layer of a classifier may be pretrained, as the pooler of a loss of sentences.
    if summary := fresh.get("head", {}).get("summary"):
        wanted["pooler"] = summary
    params, origin = restore.foreign_parameters(path, wanted, processes, arrays)
    if summary:
        origin["fresh"] = [
            name for name in origin["fresh"] if not name.startswith("params/pooler/")
        ]
        params |= {"head": {"summary": params.pop("pooler")}} if "pooler" in params else {}
    theirs = (workdirs.read_config(restore.run_of(path)[0]) or {}).get("config", {})
    names = [f"model.{key}" for key in ARCHITECTURE if key not in ("vocab_size", "spare_rows")]
    architecture = {name: theirs[name] for name in names if name in theirs}
    if other := changed_keys(config, architecture, FROZEN):
        log.warning(
            "checkpoint.init_from=%s has another architecture, "
            "so its parameters compute something else here: %s",
            path,
            "; ".join(other),
        )
    # A new head is meant; other new parameters may be a mistake in the configuration.
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
