"""`xlnet-jax export`: a checkpoint's parameters and tokenizer into a folder for another library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from xlnet_jax.checkpoint.store import save_parameters
from xlnet_jax.config import Config
from xlnet_jax.convert import fields, huggingface
from xlnet_jax.convert.model_card import model_card
from xlnet_jax.convert.source import PARAMS
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, on_host, on_one_device
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files


def export(
    workdir: str, output: str, *, format: str = "huggingface", step: int | None = None,
    shard_bytes: int = huggingface.SHARD_BYTES, overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Writes a checkpoint's model as a folder. With several processes, only number 0 writes.

    Args:
      output: a new or empty folder, also `gs://`.
      format: `huggingface`; or `orbax`: `params`, which Orbax reads, `config.json` and `tokenizer` as in a work
        directory.
      step: the checkpoint; None = the newest good one, or of a fine-tuned model the best one.
      shard_bytes: largest file with weights of a Hugging Face folder.
      overrides: config keys to change. A run of an older version has no copy of its tokenizer and may need
        `--config.data.corpus=DIR`.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, `output` in use, or a model the other library cannot express.
    """
    config = workdirs.load_config(workdir, list(overrides))
    if process := on_host(config):
        return {"output": output, "process": process}
    for_orbax = format == "orbax"
    huggingface.check_output(output) if for_orbax else huggingface.check(config.model, output)
    if not for_orbax and config.data.objective == "clm":
        raise BadInput(
            f"{workdir} was trained with data.objective=clm; Hugging Face's XLNet sees both sides (plm, mlm); "
            "use --format=orbax"
        )
    tokenizer = workdirs.tokenizer(workdir, overrides)
    placed, at = on_one_device(Stored(workdir, config, tokenizer), step)
    params = jax.device_get(placed)  # so that Orbax stores no devices, which another machine lacks
    if for_orbax:
        with files.translate_errors(output), files.new_folder(output) as partial:
            save_parameters(os.path.join(partial, PARAMS), params)
            files.write(os.path.join(partial, "config.json"), files.to_json(workdirs.read_config(workdir)))
            workdirs.write_tokenizer(partial, tokenizer)
        written = [os.path.join(output, name) for name in files.listing(output)]
    else:
        card = _card(config, workdir, at)
        written = huggingface.export(
            params, config.model, tokenizer, output, card=card, max_length=config.data.segment_len,
            shard_bytes=shard_bytes, task=config.finetune, own=fields.own(config),
            kept=workdirs.source_config(workdir),
        )  # fmt: skip
    return {"output": output, "step": at, "files": sorted(written)}


def _card(config: Config, workdir: str, step: int) -> str:
    lines = {
        "training": workdirs.line_of(workdir, "metrics", step).get("loss"),
        "held-out": workdirs.heldout_loss(workdirs.line_of(workdir, "evaluations", step)),
    }
    losses = {name: loss for name, loss in lines.items() if isinstance(loss, float)}
    return model_card(config, step, workdirs.read_config(workdir) or {}, losses)
