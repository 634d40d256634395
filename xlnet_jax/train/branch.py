"""A branch: a new run that starts from the whole state of a checkpoint of another run, for example
to decay the learning rate from this step on.

The branch only reads that checkpoint. Before it trains, the branch saves the state as its first
checkpoint, and does not need the other run afterwards. If a start is killed before this save, the
next start reads the other run again.
"""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.restore import Restored, TreesOf
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput, check_link
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.optimizer import schedule

log = logging.getLogger("xlnet_jax")


class Origin(NamedTuple):
    """The checkpoint where a branch starts; as text RUN or RUN@STEP."""

    path: str
    """The work directory of the other run, absolute."""
    step: int | None
    """None = the newest checkpoint of that run."""

    def __str__(self) -> str:
        return self.path if self.step is None else f"{self.path}@{self.step}"


def parse_origin(text: str) -> Origin:
    """The origin of a text RUN or RUN@STEP; the path may be relative."""
    parts = re.fullmatch(r"(.+)@([0-9]{1,18})", text, re.DOTALL)
    return Origin(files.resolve(parts[1] if parts else text), int(parts[2]) if parts else None)


def origin_of(config: Config, workdir: str, given: str | None) -> Origin | None:
    """Returns the origin of the run in `workdir`, from its `config.json` or else from the option
    `given`; None if the run is no branch. Raises BadInput if `config.json` and `given` differ, or
    if the other run does not exist.
    """
    started = workdirs.read_config(workdir) or {}
    files.check_types(started, {"branch": str}, f"{workdir}/config.json")
    recorded = parse_origin(started["branch"]) if started.get("branch") else None
    wanted = parse_origin(given) if given else None
    if wanted and started and (recorded is None or wanted not in (recorded, (recorded.path, None))):
        what = "a branch of " + str(recorded) if recorded else "no branch"
        raise BadInput(
            f"--branch={given}: the run in {workdir} is {what}; "
            "leave it out, or give another --workdir"
        )
    origin = recorded or wanted
    if origin and config.checkpoint.init_from:
        raise BadInput(
            f"checkpoint.init_from={config.checkpoint.init_from} must be empty in the branch of "
            f"{origin}, which has the parameters of that run"
        )
    if origin and not started and workdirs.read_config(origin.path) is None:
        check_link("--branch", origin.path)
        raise BadInput(
            f"--branch={given}: {origin.path} has no config.json; "
            "give the --workdir of a training run"
        )
    return origin


def restore_origin(
    origin: Origin, config: Config, wanted: TreesOf, processes: Session, arrays: bool
) -> Restored:
    """The state of the other run; `wanted` and `arrays` are arguments of `restore.newest`.

    Raises BadInput if the state does not fit this configuration, or if the learning rate of the
    other run had begun to decay.
    """
    try:
        with Checkpoints(origin.path) as checkpoints:
            found = restore.newest(
                checkpoints, restore.same_arrays(wanted), processes, origin.step, arrays
            )
    except BadInput as error:
        raise type(error)(f"--branch={origin}: {error}") from error
    name = f"--branch={Origin(origin.path, found.step)}"
    theirs, _, rate = _training_of(found)
    if rate is not None:
        raise BadInput(
            f"{name}: the learning rate of that run has decayed from "
            f"{theirs.optimizer.learning_rate:.3g} to {rate:.3g} "
            f"(optimizer.schedule={theirs.optimizer.schedule}); "
            "name an earlier step, from before the decay"
        )
    if found.step >= config.train.steps:
        raise BadInput(
            f"{name}: train.steps={config.train.steps} leaves no step to train; give more"
        )
    return found


def _training_of(found: Restored) -> tuple[Config, int, float | None]:
    """The configuration that a checkpoint was trained with, its number of updates (its number of
    steps, if its arrays were not read), and `rate_left`.
    """
    config = configs.from_dict(configs.nested(found.record["config"]))
    updates = found.step - int(found.trees.get("counters", {}).get("skipped", 0))
    return config, updates, rate_left(config, updates)


def warn_of_rise(found: Restored, config: Config, workdir: str) -> None:
    """Warns if a resumed run trains at a higher learning rate than the decayed rate of its
    checkpoint.
    """
    theirs, updates, left = _training_of(found)
    next_one: Any = schedule(config.optimizer, config.train.steps)(updates)
    if left is None or next_one < 1.1 * left or updates >= config.train.steps:
        return
    log.warning(
        "the learning rate rises from %.3g, to which it has decayed at step %d of train.steps=%d, "
        "to %.3g with train.steps=%d: the loss will also rise, and the first decay is lost. To "
        "train for longer, start from a checkpoint before the decay: --branch=%s@STEP with "
        "another --workdir. optimizer.schedule=wsd decays in the last steps only, "
        "so its earlier checkpoints are before the decay",
        left,
        found.step,
        theirs.train.steps,
        float(next_one),
        config.train.steps,
        workdir,
    )


def rate_left(config: Config, updates: int) -> float | None:
    """Returns the learning rate of the last of these updates if the schedule has begun to decay.
    Returns None in the warm-up, at the peak, or if the schedule does not depend on the end of the
    run.
    """
    optimizer = config.optimizer
    last = updates - 1
    if optimizer.schedule == "inverse_sqrt" or last <= optimizer.warmup_steps:
        return None
    rate: Any = schedule(optimizer, config.train.steps)(last)
    return float(rate) if np.float32(rate) < np.float32(optimizer.learning_rate) else None
