"""`xlnet-jax export`: a checkpoint's parameters and tokenizer into a folder for another library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from xlnet_jax.convert.formats import Trained, check_output
from xlnet_jax.convert.huggingface import SHARD_BYTES
from xlnet_jax.convert.source import WRITERS
from xlnet_jax.infer.opened import Stored, on_host, on_one_device
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files


def export(
    workdir: str, output: str, *, format: str = "huggingface", step: int | None = None, shard_bytes: int = SHARD_BYTES,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Writes a checkpoint's model as a folder. With several processes, only number 0 writes.

    Args:
      output: a new or empty folder, also `gs://`.
      format: `huggingface`; or `orbax`: `params`, which Orbax reads, `config.json` and `tokenizer` as in a work
        directory.
      step: the checkpoint; None = the newest good one, or of a fine-tuned model the best one.
      shard_bytes: largest file with weights of a Hugging Face folder.

    Raises BadInput: no run or good checkpoint, `output` in use, or a model the other library cannot express.
    """
    config = workdirs.load_config(workdir, list(overrides))
    if process := on_host(config):
        return {"output": output, "process": process}
    check_output(output)
    WRITERS[format].check(config)
    tokenizer = workdirs.tokenizer(workdir)
    placed, at = on_one_device(Stored(workdir, config, tokenizer), step)
    params = jax.device_get(placed)  # so that Orbax stores no devices, which another machine lacks
    identity, kept = workdirs.read_config(workdir) or {}, workdirs.source_config(workdir)
    losses = {
        "training": workdirs.line_of(workdir, "metrics", at).get("loss"),
        "held-out": workdirs.heldout_loss(workdirs.line_of(workdir, "evaluations", at)),
    }
    known = {name: loss for name, loss in losses.items() if isinstance(loss, float)}
    WRITERS[format].write(Trained(config, tokenizer, params, at, identity, kept, known), output, shard_bytes)
    return {"output": output, "step": at, "files": sorted(os.path.join(output, x) for x in files.listing(output))}
