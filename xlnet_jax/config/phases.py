"""Phases: parts of a run, one after the other, each with its own values of some keys.

    config.phases = (
        dict(steps=90_000, data=dict(segment_len=128, reuse_len=126, num_predict=19)),
        dict(steps=10_000, optimizer=dict(learning_rate=5e-5)),
    )

Data, state and schedule go on from one to the next; a key that a phase does not name has the value of the whole run.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xlnet_jax.config.keys import mistyped
from xlnet_jax.config.run import TrainConfig
from xlnet_jax.errors import BadInput

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config

LONGEST = 8
"""Blocks of the longest kind that the shuffle keeps together by default."""


def checked(
    given: Any, check_section: Callable[[Any, Any], None], fields: Mapping[str, dataclasses.Field[Any]]
) -> tuple[dict[str, Any], ...]:
    """A copy of the phases, if they have the form above, and keys that exist with values of their type. Raises
    BadInput."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise BadInput("phases must be a tuple of dicts, such as dict(steps=1000, data=dict(segment_len=512)), not "
                       f"of type {type(given).__name__}")  # fmt: skip
    for number, phase in enumerate(given):
        steps = phase.get("steps") if isinstance(phase, Mapping) else None
        if type(steps) is not int or steps < 1:
            raise BadInput(f"phases[{number}] must be a dict with `steps`, a whole number of at least 1, and sections")
        for section, values in phase.items():
            if section == "steps":
                continue
            try:
                check_section(section, values)
            except BadInput as error:
                raise BadInput(f"phases[{number}]: {error}") from error
            for name, value in values.items():
                if what := mistyped(fields[f"{section}.{name}"], value):
                    raise BadInput(f"phases[{number}].{section}.{name}={value!r} {what}")
    return tuple({"steps": phase["steps"], **_changes(phase)} for phase in given)


def with_steps(config: Config) -> Config:
    """The same with `train.steps` of all phases together. Raises BadInput if another number is given."""
    total, given = config.ends[-1], config.train.steps
    if given not in (total, TrainConfig().steps):
        raise BadInput(f"train.steps={given} beside phases, which have {total} steps together; leave train.steps out")
    return config.changed(train={"steps": total})


def conflicts(config: Config, fields: Mapping[str, dataclasses.Field[Any]]) -> Iterator[str]:
    """What is wrong with the phases themselves."""
    phased = [key for key, field in fields.items() if field.metadata["phased"]]
    fixed = [f"phases[{number}].{section}.{name}" for number, phase in enumerate(config.phases)
             for section, values in _changes(phase).items() for name in values
             if f"{section}.{name}" not in phased]  # fmt: skip
    if fixed:
        yield f"{', '.join(fixed)} must be the same in all phases; they may change {', '.join(phased)}"
    if config.phases and config.finetune.task != "none":
        yield f"phases are for pretraining; leave them out with finetune.task={config.finetune.task}"
    objectives = {phase.get("data", {}).get("objective", config.data.objective) for phase in config.phases}
    if config.train.spike_zscore and len(objectives) > 1:
        yield f"train.spike_zscore={config.train.spike_zscore} compares losses of phases with other objectives; use 0"


def check_past(config: Config, saved: Sequence[dict[str, Any]], step: int, where: str) -> None:
    """Raises BadInput unless the phases before the checkpoint of `step` are those that it was trained with."""
    number, ends = config.phase_before(step), [*itertools.accumulate(phase["steps"] for phase in saved)]
    then = min(bisect.bisect_left(ends, step), max(len(ends) - 1, 0))
    if number != then or [*config.phases[:number]] != [*saved[:number]]:
        raise BadInput(f"{where} was trained with phases={[*saved]}, and now they are {[*config.phases]}: one that is "
                       "over must stay as it was; restore it, or start a new run in another --workdir")  # fmt: skip


def keep_shuffle(config: Config, started: Mapping[str, Any] | None, where: str) -> Config:
    """The same with a `data.shuffle_len` that stays whatever phases come later: that with which the run has started.

    `started` is the identity of its last start; None = this is the first one. Raises BadInput unless the blocks of all
    phases divide it: what has been read would be read again.
    """
    if config.data.shuffle_len or not (config.phases or (started or {}).get("phases")):
        return config
    parts = [part.data for part in config.parts]
    kept = parts[0].shuffle_len if started is None else started["config"].get("data.shuffle_len", 0)
    config = config.changed(data={"shuffle_len": kept})
    needs = math.lcm(*(part.reuse_len * part.windows_per_block for part in parts))
    if config.in_phase(0).data.shuffle_len != kept or kept % needs:
        raise BadInput(f"{where} shuffles with data.shuffle_len={kept}, and phases that come later need a multiple of "
                       f"{needs}: give them the data.reuse_len and data.windows_per_block of earlier ones, or start a "
                       f"new run with data.shuffle_len={needs} in another --workdir")  # fmt: skip
    return config


def apply(config: Config, number: int) -> Config:
    """The configuration of one phase. The shuffle keeps text together that is whole blocks in every phase, if there is
    a length that is not much longer than the blocks: what one phase has read the next does not read again.
    """
    every = [config.changed(**_changes(phase)) for phase in config.phases]
    blocks = {one.data.reuse_len * one.data.windows_per_block for one in every}
    shuffle_len, common = config.data.shuffle_len, math.lcm(*blocks)
    if not shuffle_len and len(blocks) > 1 and common <= LONGEST * max(blocks):
        shuffle_len = common
    return dataclasses.replace(every[number].changed(data={"shuffle_len": shuffle_len}), phases=())


def _changes(phase: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {section: dict(values) for section, values in phase.items() if section != "steps"}
