"""`xlnet-jax export`: a checkpoint's parameters and tokenizer into a folder for another library."""

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
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, on_host, on_one_device
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")


def export(
    workdir: str, output: str, *, format: str = "huggingface", step: int | None = None, average: int = 1,
    shard_bytes: int = SHARD_BYTES, overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Writes a checkpoint's model as a folder. With several processes, only number 0 writes.

    Args:
      output: a new or empty folder, also `gs://`.
      format: `huggingface`; or `orbax`: `params`, which Orbax reads, `config.json` and `tokenizer` as in a work
        directory.
      step: the checkpoint; None = the newest good one, or of a fine-tuned model the best one.
      average: with more than one the mean of the parameters of so many checkpoints, that one and the saves before it.
      overrides: free config keys to change, such as `--config.evaluation.averaged=true`.
      shard_bytes: largest file with weights of a Hugging Face folder.

    Raises BadInput: no run or good checkpoint, one of `average` is not kept, `output` in use, or a model the other
    library cannot express.
    """
    step = workdirs.newest_in_phases(workdir, step)
    config = workdirs.load_config(workdir, overrides, step)
    if process := on_host(config):
        return {"output": output, "process": process}
    check_output(output)
    WRITERS[format].check(config)
    tokenizer = workdirs.tokenizer(workdir)
    stored = Stored(workdir, config, tokenizer)
    placed, at = on_one_device(stored, step)
    params = jax.device_get(placed)  # so that Orbax stores no devices, which another machine lacks
    if average > 1:
        params = _mean(params, stored, at, average)
    identity, kept = workdirs.read_config(workdir) or {}, workdirs.source_config(workdir)
    if identity.pop("phases", ()):  # the keys of the phase
        identity |= workdirs.identity(config, identity["corpus_sha256"], identity["tokenizer_sha256"])
    losses = {
        "training": workdirs.line_of(workdir, "metrics", at).get("loss"),
        "held-out": workdirs.heldout_loss(workdirs.line_of(workdir, "evaluations", at)),
    }
    itself = average == 1 and not config.evaluation.averaged
    known = {name: loss for name, loss in losses.items() if isinstance(loss, float) and itself}
    WRITERS[format].write(Trained(config, tokenizer, params, at, identity, kept, known), output, shard_bytes)
    return {"output": output, "step": at, "files": sorted(os.path.join(output, x) for x in files.listing(output))}


def _mean(params: Any, stored: Stored, at: int, count: int) -> Any:
    """The mean of the parameters of step `at` and of the `count` - 1 saves before it.

    Raises BadInput if one of them is not kept: the best of long ago, which is, is far from the others.
    """
    with Checkpoints(stored.path) as checkpoints:
        kept = checkpoints.steps()
    steps, saves = [step for step in kept if step <= at][:count], stored.config.checkpoint
    if len(steps) < count or any(later - step > saves.every for later, step in itertools.pairwise(steps)):
        fix = f"train with checkpoint.keep={count} (it was {saves.keep})" if at == kept[0] else f"give --step={kept[0]}"
        raise BadInput(f"--average={count} needs the last {count} saves up to step {at}, every {saves.every} steps, "
                       f"and {stored.path} has steps {', '.join(map(str, kept))}; {fix}")  # fmt: skip
    total = jax.tree.map(np.float64, params)
    for step in steps[1:]:
        other = jax.device_get(on_one_device(stored, step)[0])
        total = jax.tree.map(np.add, total, other)
    log.info("the mean of the checkpoints of steps %s", ", ".join(map(str, steps)))
    return jax.tree.map(lambda x, like: (x / count).astype(like.dtype), total, params)
