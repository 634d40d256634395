"""Phases: consecutive parts of a run, each with its own values of some keys.

    config.phases = (
        dict(steps=90_000, data=dict(segment_len=128, reuse_len=126, num_predict=19)),
        dict(steps=10_000, optimizer=dict(learning_rate=5e-5)),
    )

Data, state and schedule continue from phase to phase; a key that a phase does not set has the value
of the whole run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xlnet_jax.config.run import TrainConfig
from xlnet_jax.errors import BadInput

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config

LONGEST = 8
"""Maximum default length that the shuffle keeps together, in units of the longest block."""


def with_steps(config: Config) -> Config:
    """Sets `train.steps` to the steps of all phases. Raises BadInput if another number is given."""
    total = config.ends[-1]
    given = config.train.steps
    if given not in (total, TrainConfig().steps):
        raise BadInput(
            f"train.steps={given} beside phases, "
            f"which have {total} steps together; leave train.steps out"
        )
    return config.changed(train={"steps": total})


def conflicts(config: Config, phased: list[str]) -> Iterator[str]:
    """Yields messages about wrong phases; `phased` are the keys that phases may change."""
    fixed = [
        f"phases[{number}].{section}.{name}"
        for number, phase in enumerate(config.phases)
        for section, values in changes(phase).items()
        for name in values
        if f"{section}.{name}" not in phased
    ]
    if fixed:
        yield (
            f"{', '.join(fixed)} must be the same in all phases; "
            f"phases may change {', '.join(phased)}"
        )
    if not config.pretrains:
        yield (
            f"phases are for pretraining; leave them out with finetune.task={config.finetune.task}"
        )
    if config.train.spike_zscore and len({part.data.objective for part in config.parts}) > 1:
        yield (
            f"train.spike_zscore={config.train.spike_zscore} "
            "compares losses of phases with other objectives; use 0"
        )


def check_past(config: Config, saved: Sequence[dict[str, Any]], step: int, where: str) -> None:
    """Raises BadInput unless the phases that ended before the checkpoint of `step` are as in its
    training.
    """
    number = config.phase_before(step)
    then = dataclasses.replace(config, phases=tuple(saved)).phase_before(step)
    if number != then or [*config.phases[:number]] != [*saved[:number]]:
        raise BadInput(
            f"{where} was trained with phases={[*saved]}, and now they are {[*config.phases]}: "
            "a phase that is over must not change; restore it, "
            "or start a new run in another --workdir"
        )


def keep_shuffle(config: Config, started: Mapping[str, Any] | None, where: str) -> Config:
    """Sets `data.shuffle_len` to the value of the first start, whatever phases come later.

    `started` is the identity of the last start; None = this start is the first. Raises BadInput if
    the block of a phase does not divide the value, because text would be read again.
    """
    if config.data.shuffle_len or not (config.phases or (started or {}).get("phases")):
        return config
    parts = [part.data for part in config.parts]
    kept = parts[0].shuffle_len if started is None else started["config"].get("data.shuffle_len", 0)
    config = config.changed(data={"shuffle_len": kept})
    needs = math.lcm(*(part.reuse_len * part.windows_per_block for part in parts))
    if config.parts[0].data.shuffle_len != kept or kept % needs:
        raise BadInput(
            f"{where} shuffles with data.shuffle_len={kept}, and phases that come later need a "
            f"multiple of {needs}: give them the data.reuse_len and data.windows_per_block of "
            f"earlier ones, or start a new run with data.shuffle_len={needs} in another --workdir"
        )
    return config


def parts(config: Config) -> list[Config]:
    """Returns the configuration of each phase. The default of `data.shuffle_len` is the least
    common multiple of the blocks of all phases, if this is at most `LONGEST` longest blocks. Then
    no phase reads text again that an earlier phase has read.
    """
    every = [config.changed(**changes(phase)) for phase in config.phases]
    blocks = {one.data.reuse_len * one.data.windows_per_block for one in every}
    shuffle_len = config.data.shuffle_len
    common = math.lcm(*blocks)
    fits = len(blocks) > 1 and common <= LONGEST * max(blocks)
    if not shuffle_len and fits and not config.data.whole_documents:
        shuffle_len = common
    return [
        dataclasses.replace(one.changed(data={"shuffle_len": shuffle_len}), phases=())
        for one in every
    ]


def changes(phase: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the keys of a phase, by section."""
    return {section: dict(values) for section, values in phase.items() if section != "steps"}
