"""`xlnet-jax import`: turns a model of another program into a work directory with a checkpoint of
step 0.

The checkpoint has only the parameters. A new run starts from it with `checkpoint.init_from`;
`evaluate`, `export` and `inspect` read the work directory directly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import jax

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import CheckpointConfig, Config
from xlnet_jax.convert.source import open_source
from xlnet_jax.distributed.mesh import available_devices
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.setup import any_recipe
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")


def import_(
    source: str, workdir: str, *, tokenizer: str | None = None, overrides: Sequence[str] = ()
) -> Json:
    """Writes the work directory, a new folder.

    Args:
      source: a Hugging Face folder; a TensorFlow checkpoint of the original (its folder, or the
        common prefix of its files); or a folder of `export --format=orbax`.
      tokenizer: a SentencePiece model, if the source has none; for a Transformer-XL the file of its
        symbols.
      overrides: config keys that the source does not set, such as `--config.data.segment_len=128`.

    Returns `arrays`, the number of arrays read, and `workdir`.

    Raises BadInput if the source cannot be read, lacks an array or has an unknown array, or its
    tokenizer is of another model.
    """
    workdirs.check_folder(workdir)
    if workdirs.read_config(workdir) is not None:
        raise BadInput(f"--workdir={workdir} holds a run; name a new folder")
    with open_source(source, tokenizer, overrides) as foreign:
        config = foreign.config
        params = foreign.params(any_recipe(config, foreign.tokenizer))
        available_devices()
        # Orbax copies a numpy array twice when it saves; a JAX array on a CPU shares memory with
        # the numpy array.
        params = jax.device_put(params)
        no_corpus = config.changed(data={"corpus": ""})
        identity = workdirs.identity(no_corpus, "", foreign.tokenizer.sha256)
        with files.translate_errors(workdir):
            files.make_folder(workdir)
            with Checkpoints(workdir, CheckpointConfig()) as checkpoints:
                if any(checkpoints.steps()):
                    raise BadInput(
                        f"--workdir={workdir} holds checkpoints of a run; name a new folder"
                    )
                # A killed import of another source may have left these.
                files.remove(str(checkpoints.path / "0"))
                files.remove(os.path.join(workdir, workdirs.TOKENIZER))
                checkpoints.save(0, {"params": params}, identity | {"imported_from": foreign.path})
            workdirs.write_tokenizer(workdir, foreign.tokenizer)
            kept = {workdirs.SOURCE_CONFIG: foreign.kept} if foreign.kept else {}
            # Written last, so that a killed import leaves no run.
            files.write(os.path.join(workdir, "config.json"), files.to_json(identity | kept))
        log.info(
            "imported %d arrays of %s (%s); model.activation=%s",
            len(foreign.arrays.forms),
            foreign.path,
            foreign.format,
            config.model.activation,
        )
        if foreign.assumed:
            log.info(
                "%s does not say how its model was trained; assumed: %s; if that is wrong, import "
                "it again with --config.KEY=VALUE",
                foreign.path,
                " ".join(foreign.assumed),
            )
        if foreign.lost:
            log.info(
                "these settings have no key, so a later export will lack them: %s",
                ", ".join(foreign.lost),
            )
        log.info(
            "train it further in a new work directory with --config.checkpoint.init_from=%s %s",
            workdir,
            " ".join(_changed(config)),
        )
        return {"arrays": len(foreign.arrays.forms), "workdir": workdir}


def _changed(config: Config) -> list[str]:
    """Returns words of the command line for the keys of `model` and the objective that differ from
    their defaults; with `Member.bounded` also for the other keys of `data`.
    """
    sections = ("model.", "data." if config.model.member.bounded else "data.objective")
    defaults = configs.flat(Config())
    return [
        f"--config.{name}={value}"
        for name, value in configs.flat(config).items()
        if name.startswith(sections) and value != defaults[name]
    ]
