"""`xlnet-jax export`: writes a checkpoint's parameters and tokenizer for another library."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.convert.formats import Trained, check_output
from xlnet_jax.convert.huggingface import SHARD_BYTES
from xlnet_jax.convert.source import WRITERS
from xlnet_jax.data.batches.stream import from_json
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.infer.opened import Stored, on_host, on_one_device
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")


def export(
    workdir: str,
    output: str,
    *,
    format: str = "huggingface",
    step: int | None = None,
    every: bool = False,
    average: int = 1,
    shard_bytes: int = SHARD_BYTES,
    overrides: Sequence[str] = (),
) -> Json:
    """Writes a checkpoint's model as a folder. With several processes, only number 0 writes.

    Args:
      output: a new or empty folder, also an address of fsspec; `hf://OWNER/NAME` is a model
        repository of the hub, a new one or without files.
      format: `huggingface`; or `orbax`: a folder `params` for Orbax, with `config.json` and
        `tokenizer` as in a work directory.
      step: the checkpoint; None = the newest good one, or the best one of a fine-tuned model.
      every: export all kept checkpoints instead, each into `output`/step_N.
      average: number of checkpoints whose mean is exported: `step` and the saves before it.
      overrides: free config keys to change, such as `--config.evaluation.averaged=true`.
      shard_bytes: size limit of a file of weights in a Hugging Face folder.

    Raises BadInput: no run or good checkpoint, a checkpoint of `average` is not kept, `output` in
    use, or a model that the other library cannot express.
    """
    if every:
        options = dict(format=format, average=average, shard_bytes=shard_bytes, overrides=overrides)
        return _every(workdir, output, step, options)
    config, step = workdirs.config_at(workdir, overrides, step)
    if process := on_host(config):
        return {"output": output, "process": process}
    check_output(output)
    WRITERS[format].check(config)
    tokenizer = workdirs.tokenizer(workdir)
    stored = Stored(workdir, config, tokenizer)
    placed, at = on_one_device(stored, step)
    params = jax.device_get(placed)  # arrays of numpy, so that Orbax stores no devices
    if average > 1:
        params = _mean(params, stored, at, average)
    identity, kept = workdirs.read_config(workdir) or {}, workdirs.source_config(workdir)
    if phases := identity.pop("phases", ()):  # the folder gets the keys of the checkpoint's phase
        identity |= workdirs.identity(
            config, identity["corpus_sha256"], identity["tokenizer_sha256"]
        )
    # An average has neither losses nor scores.
    itself = average == 1 and not config.evaluation.averaged
    trained, evaluated = (
        workdirs.line_of(workdir, name, at) if itself else {} for name in ("metrics", "evaluations")
    )
    share, task = evaluated.get("heldout_share", 1), config.finetune.task
    held_out = "dev" if task != "none" else "held-out" + f", {share:.1%} of the split" * (share < 1)
    losses = {"training": trained.get("loss"), held_out: workdirs.heldout_loss(evaluated)}
    ranking = TASKS[task](config, tokenizer).metrics if task != "none" else ()
    known = {name: loss for name, loss in losses.items() if isinstance(loss, float)}
    scores = {name: evaluated[name] for name in ranking if name in evaluated}
    tokens = None if phases else _tokens(stored, at)
    WRITERS[format].write(
        Trained(config, tokenizer, params, at, identity, kept, known, scores, tokens),
        output,
        shard_bytes,
    )
    return {
        "output": output,
        "step": at,
        "files": sorted(os.path.join(output, x) for x in files.listing(output)),
    }


def _every(workdir: str, output: str, step: int | None, options: Json) -> Json:
    """Exports each checkpoint, the oldest first."""
    if step is not None:
        raise BadInput(
            f"--every exports all checkpoints, and --step={step} one; leave one of them out"
        )
    check_output(output)
    with Checkpoints(workdir) as checkpoints:
        steps = sorted(checkpoints.steps())
    if not steps:
        raise BadInput(
            f"{workdir}/checkpoints has no complete checkpoint; train until the first save"
        )
    for each in steps:  # before the first folder is written
        try:
            WRITERS[options["format"]].check(
                workdirs.load_config(workdir, options["overrides"], each)
            )
        except BadInput as error:
            raise BadInput(
                f"step {each}: {error}; export other steps one by one with --step"
            ) from error
    done = [
        export(workdir, os.path.join(output, f"step_{each}"), step=each, **options)
        for each in steps
    ]
    return {
        "output": output,
        "steps": steps,
        "files": [name for each in done for name in each.get("files", ())],
    }


def _tokens(stored: Stored, at: int) -> int | None:
    """Returns the fresh tokens that a run without phases has read until step `at`; None for a task
    or an import.
    """
    with Checkpoints(stored.path) as checkpoints:
        plan = from_json(checkpoints.record(at).get("plan", ()))
    if not stored.config.pretrains or not plan:
        return None
    ends = [*(entry.step for entry in plan[1:]), at]
    rows = sum(entry.batch_size * (end - entry.step) for entry, end in zip(plan, ends, strict=True))
    return rows * stored.config.data.reuse_len


def _mean(params: Any, stored: Stored, at: int, count: int) -> Any:
    """Averages the parameters of step `at` and of the `count` - 1 saves before it.

    Raises BadInput if one of these saves is not kept, or is of a phase with another objective. An
    older kept checkpoint, such as the best one, is no replacement: its parameters are far from the
    others.
    """
    with Checkpoints(stored.path) as checkpoints:
        kept = checkpoints.steps()
    steps, saves = [step for step in kept if step <= at][:count], stored.config.checkpoint
    if len(steps) < count or any(
        later - step > saves.every for later, step in itertools.pairwise(steps)
    ):
        if at != kept[0]:
            fix = f"give --step={kept[0]}"
        elif count > saves.keep:
            fix = f"train with checkpoint.keep={count} (it was {saves.keep})"
        else:
            fix = "train until there are so many saves, or average fewer"
        raise BadInput(
            f"--average={count} needs the last {count} saves up to step {at}, every {saves.every} "
            f"steps, and {stored.path} has steps {', '.join(map(str, kept))}; {fix}"
        )
    objectives = {workdirs.load_config(stored.path, (), step).data.objective for step in steps}
    if len(objectives) > 1:
        raise BadInput(
            f"--average={count}: the phases of steps {steps[-1]} to {at} have different objectives "
            f"({', '.join(sorted(objectives))}); average fewer checkpoints"
        )
    total = jax.tree.map(np.float64, params)
    for step in steps[1:]:
        total = jax.tree.map(np.add, total, jax.device_get(on_one_device(stored, step)[0]))
    log.info("the mean of the checkpoints of steps %s", ", ".join(map(str, steps)))
    return jax.tree.map(lambda x, like: (x / count).astype(like.dtype), total, params)
