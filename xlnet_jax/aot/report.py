"""`xlnet-jax compile`: compiles the step of `train` for absent TPUs and analyses it.

Memory, collectives and FLOPs need no chip and are exact. `cost_model` bounds the time of a step,
from libtpu's schedule of every operation and the published bandwidths. Nothing is executed.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

from xlnet_jax.aot import cost_model, hlo, schedule
from xlnet_jax.aot.compile import Trial, attempt
from xlnet_jax.aot.topology import Topology, check_readable, check_topology, describe
from xlnet_jax.config import Config, override
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import tpu
from xlnet_jax.messages import quantity
from xlnet_jax.model import choice
from xlnet_jax.run.programs import kept_for_absent_devices
from xlnet_jax.storage.files import Json
from xlnet_jax.train import gradients
from xlnet_jax.train.recipe import make_recipe, recipes

log = logging.getLogger(__name__)


def compile_for(
    config: Config, name: str, slices: int = 1, budget: bool = False, phase: int = 0
) -> Json:
    """Compiles one training dispatch, of this `phase` of the run, for a topology; returns the keys
    of docs/compile.md.

    Raises BadInput if the phase does not exist, Google Cloud does not rent the topology, libtpu is
    missing, this jaxlib cannot read libtpu's programs, or a mesh, batch or model does not divide
    over the devices.
    """
    chip = check_topology(name, slices)
    check_readable(name, chip)
    if phase >= len(config.ends):
        raise BadInput(
            f"--phase={phase}: the configuration has "
            f"{quantity(len(config.ends), 'phase')}, counted from 0"
        )
    steps = config.phases[phase]["steps"] if config.phases else config.train.steps
    phases = [choice.resolve_attention(part, Session(), absent=chip) for part in config.parts]
    config = phases[phase]
    schedule.request_schedules()
    topology = describe(name, slices)
    with kept_for_absent_devices(config) as kept:
        trial = attempt(recipes(phases)[phase], topology)
    if kept and trial.fits:
        log.info(
            "the program is in the cache %s; train loads it if the cache key is the same",
            config.log.compilation_cache,
        )
    result = report(trial, topology, steps)
    result["advice"] = [] if trial.fits else advise(config, topology, trial)
    if budget:
        found = search(trial, topology)
        result["max_batch_per_core"] = max((each["batch_per_core"] for each in found), default=0)
        result["budget"] = found
    return result


def report(trial: Trial, topology: Topology, total: int) -> Json:
    """Returns the report for `total` steps, without advice and budget. If the program did not
    compile, figures are None and collectives empty.
    """
    config = trial.config
    result: Json = {
        "topology": topology.name,
        "slices": topology.slices,
        "devices": len(topology.devices),
        "chips": topology.chips,
        "mesh": dict(trial.mesh.shape),
        "batch_size": config.train.batch_size,
        "rows": meshes.training_rows(config.train, trial.mesh),
        "attention": config.model.attention,
        "remat": config.model.remat,
        "gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "fits": trial.fits,
        "peak_hbm_bytes": trial.needed,
        "hbm_bytes": topology.hbm_bytes,
        "arguments": trial.arguments,
        "zero1": trial.zero1,
        "temp_bytes": trial.temp,
        "gradient_bytes": gradient_bytes(trial),
        "collectives": [],
        "analytic_flops": trial.recipe.flops_per_step,
        "compile_seconds": round(trial.seconds, 2),
    }
    if trial.executable is None:
        return result | dict.fromkeys(("account", "projected_tokens_per_second", "projected_days"))
    steps = config.train.steps_per_dispatch
    axes = dict(trial.mesh.shape)
    program = hlo.Program(trial.executable.as_text())
    # A kernel for queries at chosen positions loops over at most this many windows.
    blocks = math.ceil(config.data.segment_len / tpu.TpuBlocks.window)
    schedules = cost_model.complete_schedules(program, trial.schedules)
    places = np.array([device.coords for device in trial.mesh.devices.flat])
    at_peak = trial.recipe.flops_per_step / topology.chips / topology.chip.peak_flops
    times = cost_model.CostModel(program, schedules, topology.chip, axes, places, blocks).result(
        steps, at_peak
    )
    seconds = times["upper_ms"] / 1e3
    return result | {
        "collectives": [
            {
                "kind": one.kind,
                "axis": one.axis,
                "network": one.network,
                "dtype": one.dtype,
                "count": _per_step(one.count, steps),
                "bytes": _per_step(one.bytes, steps),
            }
            for one in program.collectives(axes)
        ],
        "account": times,
        # All positions, like the metrics of training.
        "projected_tokens_per_second": config.train.batch_size * config.data.segment_len / seconds,
        "projected_days": seconds * total / 86400,
    }


def gradient_bytes(trial: Trial) -> int:
    """Returns bytes of a device's float32 gradients in the backward pass, a part of its
    temporaries.
    """
    abstract = nn.meta.unbox(trial.recipe.abstract_params)
    *_, entry = gradients.layouts(trial.recipe, trial.mesh.shape)
    placed = jax.tree.map(
        lambda x, spec: x.update(sharding=NamedSharding(trial.mesh, spec)), abstract, entry
    )
    return meshes.device_bytes(placed)


def _per_step(total: int, steps: int) -> float | int:
    # A collective that runs once per dispatch counts as a fraction per step.
    return total // steps if total % steps == 0 else total / steps


def advise(config: Config, topology: Topology, refused: Trial) -> list[Json]:
    """Returns settings that were compiled and fit: the first change of remat or mesh that fits,
    else the largest batch found.
    """
    remat = ["--config.model.remat=full"]
    ways = meshes.row_devices(refused.mesh)
    first = [] if refused.config.model.remat == "full" else remat
    for more in [[], *_more_fsdp(refused, topology)]:
        if words := [*first, *more]:
            trial = _try(config, words, topology)
            if trial.fits:
                return [_advice(words, trial)]
            refused = refused if more else trial
    config = override(config, remat)
    rows = config.train.batch_size // ways
    while rows > 1:
        # Each try at least halves the rows, to a power of two.
        rows = 1 << max(1, min(rows // 2, _estimate(refused, rows))).bit_length() - 1
        words = [f"--config.train.batch_size={rows * ways}"]
        trial = _try(config, words, topology)
        if trial.fits:
            return [_advice(remat + words, trial)]
        refused = trial
    return []


def _advice(words: list[str], trial: Trial) -> Json:
    return {
        "set": " ".join(words),
        "peak_hbm_bytes": trial.needed,
        "compile_seconds": round(trial.seconds, 2),
    }


def _try(config: Config, words: list[str], topology: Topology) -> Trial:
    return attempt(make_recipe(override(config, words)), topology)


def _more_fsdp(trial: Trial, topology: Topology) -> list[list[str]]:
    """Returns the words that set the largest mesh.fsdp within a slice that divides the width of the
    model; [] if the mesh has it.
    """
    per_slice = len(topology.devices) // topology.slices
    most = math.gcd(per_slice // trial.mesh.shape["tensor"], trial.config.model.d_model)
    return (
        [["--config.mesh.data=-1", f"--config.mesh.fsdp={most}"]]
        if most > trial.mesh.shape["fsdp"]
        else []
    )


def _estimate(trial: Trial, rows: int) -> int:
    """Estimates rows per device that fit, if all but parameters and optimizer grows with rows."""
    fixed = sum(trial.arguments[name] for name in ("parameters", "optimizer"))
    return int(0.98 * rows * (trial.available - fixed) / max(trial.needed - fixed, 1))


def search(first: Trial, topology: Topology) -> list[Json]:
    """Finds the largest batch per device that fits, for each remat, with the mesh as it is and with
    the largest fsdp.
    """
    found = []
    ways = meshes.row_devices(first.mesh)
    for words in [[], *_more_fsdp(first, topology)]:
        for remat in ("none", "dots", "full"):
            best = largest_batch(
                override(first.config, [*words, f"--config.model.remat={remat}"]), topology, ways
            )
            if best is not None:
                rows = best.config.train.batch_size // ways
                mesh = dict(best.mesh.shape)
                found.append(
                    {
                        "batch_per_core": rows,
                        "remat": remat,
                        "mesh": mesh,
                        "peak_hbm_bytes": best.needed,
                    }
                )
    return sorted(found, key=lambda each: -each["batch_per_core"])


def largest_batch(config: Config, topology: Topology, ways: int) -> Trial | None:
    """Finds the Trial with the most rows per device that fits, within 1/16; None if one row does
    not fit.
    """
    low, high, tries = 0, 0, 0
    best: Trial | None = None
    guess = max(config.train.batch_size // ways, 1)
    while not high or high - low > max(low // 16, 1):
        trial = _try(config, [f"--config.train.batch_size={guess * ways}"], topology)
        if trial.fits:
            low = guess
            best = trial
        else:
            high = guess
        # Memory grows almost linearly with the batch; where it does not, bisection ends the search.
        tries += 1
        guess = _estimate(trial, guess) if tries < 3 else (low + high) // 2
        guess = max(guess, low + max(low // 16, 1))
        guess = min(guess, high - 1) if high else guess
    return best


def print_report(result: Json) -> None:
    """Prints the result of `compile_for` as a table of its keys, which docs/compile.md explains."""
    table = Table("", "", show_header=False, box=None)
    times = dict(result["account"] or {})
    units = [{"kernel": name, **each} for name, each in times.pop("units", {}).items()]
    apart = {f"account {name}": times.pop(name, []) for name in ("upper_by_kind_ms", "operations")}
    for name, value in (result | {"account": times} | apart | {"units": units}).items():
        # Only times and speeds are projections; all other figures come from the compiler.
        label = f"PROJECTION {name}" if name.startswith(("account", "projected")) else name
        for row in value if isinstance(value, list) else [value]:
            table.add_row(label, _shown(name, row))
    if not result["fits"] and not result["advice"]:
        table.add_row("advice", "nothing tried fits; use a larger topology or a smaller model")
    Console(width=160).print(table)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, dict):
        unit = "bytes" if name == "arguments" else ""
        return ", ".join(f"{key} {_shown(key + unit, part)}" for key, part in value.items())
    if isinstance(value, int) and name.endswith("bytes"):
        return f"{value / 2**30:.3f} GiB"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
