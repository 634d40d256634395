"""A branch: a new run that starts from the whole state of a checkpoint of another run, such as one
whose rate decays.

That checkpoint is only read. The branch saves it as its own first one before it trains, and does
not need the other run afterwards. A second start before that reads it again.
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
    """Where a branch starts; as text RUN or RUN@STEP."""

    path: str
    """The work directory of the other run, absolute."""
    step: int | None
    """None = its newest checkpoint."""

    def __str__(self) -> str:
        return self.path if self.step is None else f"{self.path}@{self.step}"


def parsed(text: str) -> Origin:
    """The inverse of `str`; the path may be relative."""
    parts = re.fullmatch(r"(.+)@([0-9]{1,18})", text, re.DOTALL)
    return Origin(files.resolve(parts[1] if parts else text), int(parts[2]) if parts else None)


def origin_of(config: Config, workdir: str, given: str | None) -> Origin | None:
    """Where the run in `workdir` starts or has started: as its `config.json` says, or the option
    `given`; None = it is no branch. Raises BadInput if the two differ, or if there is no such run.
    """
    started = workdirs.read_config(workdir) or {}
    files.check_types(started, {"branch": str}, f"{workdir}/config.json")
    recorded = parsed(started["branch"]) if started.get("branch") else None
    wanted = parsed(given) if given else None
    if wanted and started and (recorded is None or wanted not in (recorded, (recorded.path, None))):
        what = "a branch of " + str(recorded) if recorded else "no branch"
        raise BadInput(
            f"--branch={given}: the run in {workdir} is {what}; "
            "leave it out, or give another --workdir"
        )
    origin = recorded or wanted
    if origin and config.checkpoint.init_from:
        raise BadInput(
            f"checkpoint.init_from={config.checkpoint.init_from} beside the branch of {origin}, "
            "which has the parameters of that run; leave it empty"
        )
    if origin and not started and workdirs.read_config(origin.path) is None:
        check_link("--branch", origin.path)
        raise BadInput(
            f"--branch={given}: {origin.path} has no config.json; "
            "give the --workdir of a training run"
        )
    return origin


def restored(
    origin: Origin, config: Config, wanted: TreesOf, processes: Session, arrays: bool
) -> Restored:
    """The state of the other run; `wanted` and `arrays` as for `restore.resume`.

    Raises BadInput if it does not belong to this configuration, or is from the decay of the other
    run's schedule.
    """
    try:
        with Checkpoints(origin.path) as checkpoints:
            found = restore.newest(
                checkpoints, restore.same_arrays(wanted), processes, origin.step, arrays
            )
    except BadInput as error:
        raise type(error)(f"--branch={origin}: {error}") from error
    name = f"--branch={Origin(origin.path, found.step)}"
    theirs, _, rate = _before(found)
    if rate is not None:
        raise BadInput(
            f"{name}: the learning rate has decayed there, from "
            f"{theirs.optimizer.learning_rate:.3g} to {rate:.3g} "
            f"(optimizer.schedule={theirs.optimizer.schedule}); "
            "name an earlier step, from before the decay"
        )
    if found.step >= config.train.steps:
        raise BadInput(
            f"{name}: train.steps={config.train.steps} leaves no step to train; give more"
        )
    return found


def _before(found: Restored) -> tuple[Config, int, float | None]:
    """The configuration that a checkpoint was trained with, its updates, which without its arrays
    are all of its steps, and `rate_left`.
    """
    config = configs.from_dict(configs.nested(found.record["config"]))
    updates = found.step - int(found.trees.get("counters", {}).get("skipped", 0))
    return config, updates, rate_left(config, updates)


def warn_of_rise(found: Restored, config: Config, workdir: str) -> None:
    """A warning, with both rates, if a run goes on at a higher rate than the one to which its
    schedule has fallen.
    """
    theirs, updates, left = _before(found)
    next_one: Any = schedule(config.optimizer, config.train.steps)(updates)
    if left is None or next_one < 1.1 * left or updates >= config.train.steps:
        return
    log.warning(
        "the learning rate rises from %.3g, to which it has decayed at step %d of train.steps=%d, "
        "to %.3g with train.steps=%d: the loss will rise, too, and the first decay is lost. To "
        "train for longer, start from a checkpoint before the decay: --branch=%s@STEP with "
        "another --workdir. optimizer.schedule=wsd decays in the last steps only, "
        "so that it has such a checkpoint",
        left,
        found.step,
        theirs.train.steps,
        float(next_one),
        config.train.steps,
        workdir,
    )


def rate_left(config: Config, updates: int) -> float | None:
    """The rate of the last of so many updates, if it is below the peak because the end of the run
    comes nearer: neither in the warm-up nor with a schedule without an end.
    """
    optimizer, last = config.optimizer, updates - 1
    if optimizer.schedule == "inverse_sqrt" or last <= optimizer.warmup_steps:
        return None
    rate: Any = schedule(optimizer, config.train.steps)(last)
    return float(rate) if np.float32(rate) < np.float32(optimizer.learning_rate) else None
