"""The whole configuration: all sections, values by dotted key, and checks of every value."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from typing import Any

from xlnet_jax import compat
from xlnet_jax.compat import CORRECT, CompatConfig
from xlnet_jax.config import data as examples
from xlnet_jax.config import model as architecture
from xlnet_jax.config import phases, run
from xlnet_jax.errors import BadInput
from xlnet_jax.keys import mistake, mistyped
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.objectives.objective import Objective


@dataclasses.dataclass(frozen=True)
class Config:
    """The sections and phases of a configuration."""

    model: architecture.ModelConfig = architecture.ModelConfig()
    data: examples.DataConfig = examples.DataConfig()
    optimizer: run.OptimizerConfig = run.OptimizerConfig()
    train: run.TrainConfig = run.TrainConfig()
    mesh: run.MeshConfig = run.MeshConfig()
    distributed: run.DistributedConfig = run.DistributedConfig()
    checkpoint: run.CheckpointConfig = run.CheckpointConfig()
    evaluation: run.EvaluationConfig = run.EvaluationConfig()
    watchdog: run.WatchdogConfig = run.WatchdogConfig()
    log: run.LogConfig = run.LogConfig()
    compat: CompatConfig = CORRECT
    finetune: examples.FinetuneConfig = examples.FinetuneConfig()
    seeds: run.SeedsConfig = run.SeedsConfig()
    phases: tuple[dict[str, Any], ...] = ()
    """Phases of the run (see `config.phases`), whose steps add up to `train.steps`."""

    @property
    def sections(self) -> dict[str, Any]:
        """Sections by name, without the phases."""
        return {name: section for name, section in vars(self).items() if name != "phases"}

    @property
    def objective(self) -> Objective:
        """The objective that `data.objective` names."""
        return OBJECTIVES[self.data.objective]

    @property
    def reads_streams(self) -> bool:
        """Whether held-out text is read in long streams from left to right."""
        return self.objective.causal and not self.data.whole_documents

    @property
    def pretrains(self) -> bool:
        """Whether the run trains an objective, not a task."""
        return self.finetune.task == "none"

    @property
    def ends(self) -> list[int]:
        """The number of steps up to the end of each phase; a run without phases is one phase."""
        return list(itertools.accumulate(phase["steps"] for phase in self.phases)) or [
            self.train.steps
        ]

    def phase_before(self, step: int) -> int:
        """Returns the number of the phase of a checkpoint's last step."""
        return min(bisect.bisect_left(self.ends, step), len(self.ends) - 1)

    @property
    def parts(self) -> list[Config]:
        """The configuration of each phase, with the `train.steps` of the whole run; a run without
        phases is one phase.
        """
        return phases.parts(self) if self.phases else [self]

    def changed(self, **sections: dict[str, Any]) -> Config:
        """Returns a copy with changed keys, unchecked: `config.changed(train={"steps": 10})`."""
        return dataclasses.replace(
            self,
            **{
                name: dataclasses.replace(getattr(self, name), **keys)
                for name, keys in sections.items()
            },
        )


def flat(config: Config) -> dict[str, Any]:
    """Returns all values by dotted key, in order: `{'model.vocab_size': 32000, ...}`."""
    return {
        f"{name}.{key}": value
        for name, section in config.sections.items()
        for key, value in vars(section).items()
    }


def fields() -> dict[str, dataclasses.Field[Any]]:
    """Returns the field of every dotted key, with default and the metadata of `keys.key`."""
    return {
        f"{name}.{field.name}": field
        for name, section in Config().sections.items()
        for field in dataclasses.fields(section)
    }


def check(config: Config) -> None:
    """Checks every value, alone and against the others, without device or corpus.

    Raises BadInput with all values that are not allowed, or else all conflicts between values, each
    with key, value and fix.
    """
    conflicts = _conflicts(config) or (_phase_conflicts(config) if config.phases else [])
    if len(conflicts) == 1:
        raise BadInput(conflicts[0])
    if conflicts:
        numbered = "; ".join(
            f"({number}) {conflict}" for number, conflict in enumerate(conflicts, 1)
        )
        raise BadInput(f"{len(conflicts)} conflicts in the configuration: {numbered}")


def _conflicts(config: Config) -> list[str]:
    values = flat(config)
    every = fields()
    wrong = [
        f"{name}={values[name]!r} {what}"
        for name, field in every.items()
        if (what := mistyped(field, values[name]) or mistake(field, values[name]))
    ]
    if wrong:
        return wrong  # rules compute only with allowed values
    if config.phases:  # rules hold in each phase; no phase need have the values of the whole run
        phased = [name for name, field in every.items() if field.metadata["phased"]]
        return [*phases.conflicts(config, phased)]
    return [
        f"{name}={values[name]} {what}"
        for section in (architecture, examples, run, compat)
        for name, holds, what in section.rules(config)
        if not holds
    ]


def _phase_conflicts(config: Config) -> list[str]:
    """Returns the conflicts in phases, each once, with the phases that have it."""
    where: dict[str, list[str]] = {}
    for number, part in enumerate(config.parts):
        for line in _conflicts(part):
            where.setdefault(line, []).append(f"phases[{number}]")
    return [f"in {', '.join(numbers)}: {line}" for line, numbers in where.items()]


def changed_keys(config: Config, saved: dict[str, Any], resume: str) -> list[str]:
    """Returns a line `key: saved -> now` for each key whose rule is `resume` and whose value
    differs from `saved`, an earlier `flat(config)`.
    """
    keys = fields()
    return [
        f"{name}: {saved[name]!r} -> {now!r}"
        for name, now in flat(config).items()
        if keys[name].metadata["resume"] == resume and name in saved and saved[name] != now
    ]
