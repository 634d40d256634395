"""`xlnet-jax configure`: writes a configuration file for this corpus, this machine and the time
available.

It chooses the largest model that reads `TOKENS_PER_PARAMETER` tokens per parameter in that time
(Hoffmann et al., arXiv:2203.15556). The estimate uses the speed of the smallest model, which is
measured here; then the speed of the chosen model is measured too. A text is read at most
`MOST_EPOCHS` times, because further epochs help little (Muennighoff et al., arXiv:2305.16264). The
result is a starting point, not an optimum.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import textwrap
import time
from typing import NamedTuple

import jax

from xlnet_jax import config as configs
from xlnet_jax.commands.inspect import count_parameters
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.data.corpus.manifest import read_manifest
from xlnet_jax.data.vocabulary import warn_of_export
from xlnet_jax.data.workers import cores
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import duration, quantity
from xlnet_jax.model import choice, flops
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train.evaluation import open_heldout
from xlnet_jax.train.loop import compile_step
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

TOKENS_PER_PARAMETER = 20
MOST_EPOCHS = 40
_TARGETS_A_PIECE = 18
"""Targets per piece of the vocabulary that give a loss below the unigram cross-entropy. Measured
for the first of `SIZES` and 4000 pieces, each run with its own schedule: 7 targets per piece (80
steps) end 0.15 nat above, 12 (140 steps) 0.09 above, 24 (280 steps) 0.08 below.
"""
_FEWEST_STEPS = 200
"""Steps that reach it with few pieces: with 300 pieces 40 steps end 0.05 nat above, 100 steps 0.02
above, 200 steps at the same loss.
"""

log = logging.getLogger("xlnet_jax")

_PROBE_SECONDS = 5.0  # for measured steps, after compiling
_START_SECONDS = 75.0  # for the start of a run, which compiles the step and the evaluation
_TRAINING_SHARE = 0.95  # share of the remaining time for steps; evaluations and saves get the rest
_DISPATCH_SECONDS, _CHECKPOINT_SECONDS = 5.0, 300.0


class Size(NamedTuple):
    """Size of a model, length T of its examples (half of it fresh), memory M, and rows per
    device.
    """

    layers: int
    d_model: int
    T: int
    M: int
    rows: int
    learning_rate: float
    init_std: float


# The first size is the quick start's, the last XLNet-Base.
SIZES = (
    Size(2, 128, 128, 64, 16, 2e-3, 0.08),
    Size(4, 256, 128, 64, 16, 1e-3, 0.06),
    Size(6, 384, 256, 128, 16, 7e-4, 0.05),
    Size(12, 768, 512, 384, 8, 4e-4, 0.02),
)


def configure(
    corpus: str,
    output: str,
    minutes: float,
    family: str | None = None,
    objective: str | None = None,
) -> Json:
    """Measures the speed of this machine, and writes a configuration for one process on it. Takes
    less than a minute on two idle cores, mostly for compiling.

    Args:
      minutes: duration of the training, with start and evaluations.
      family: None = the family of `prepare --family`, or xlnet.
      objective: None = the usual objective of the family.

    Returns:
      `output`, `command` (to run next), `parameters`, `steps`, `batch_size`; `tokens_per_second`,
      which counts positions as the metrics do; `new_tokens`, the fresh tokens of all steps;
      `epochs`, `new_tokens` over the length of the text; `minutes` (expected). Warns if the steps
      are too few for a loss below the unigram cross-entropy, or read fewer than
      `TOKENS_PER_PARAMETER`.

    Raises BadInput: no corpus, a corpus that is too short, `output` exists, impossible minutes, or
    a family that is not trained by the objective.
    """
    if not 0 < minutes <= 1e6:
        raise BadInput(f"--minutes={minutes} must lie in (0, 1000000]")
    if not output.endswith(".py") or not os.path.isdir(os.path.dirname(output) or "."):
        raise BadInput(f"--output={output}: give a file that ends in .py, in a folder that exists")
    there = BadInput(f"--output={output} exists already; remove it, or give another name")
    if os.path.lexists(output):
        raise there
    config = Config().changed(data={"corpus": workdirs.absolute(corpus)})
    if folders := [folder for folder in config.data.folders() if folder]:
        manifest = read_manifest(folders[0])
        family = family or manifest["options"].get("family")
        config = config.changed(model={"vocab_size": manifest["tokenizer"]["vocab_size"]})
    config = config.changed(model={"architecture": family or "xlnet"})
    config = config.changed(data={"objective": objective or config.model.member.objectives[0]})
    mixture = open_mixture(config)
    warn_of_export(mixture.tokenizer, config)
    config, speed = choose_size(_fitting_sizes(config, mixture), mixture, 60 * minutes)
    config = with_schedule(config, mixture, 60 * minutes, speed)
    configs.check(config)
    result = _result(config, mixture, output, speed)
    with files.translate_errors(output):
        if not files.write_new(output, _source(config, result, minutes).encode()):
            raise there
    assert configs.load(output) == config, "the file differs from the configuration chosen"
    _warn_of_few_steps(config, mixture, result, speed)
    log.info(
        "of %g minutes %s are for steps, %s for the start with its two compilations, and %.0f %% "
        "of the rest for evaluations and saves",
        minutes,
        duration(_training_seconds(60 * minutes)),
        duration(_START_SECONDS),
        100 * (1 - _TRAINING_SHARE),
    )
    log.info("next: %s", result["command"])
    return result


def _fitting_sizes(base: Config, mixture: Mixture) -> list[Config]:
    """Returns the configurations for which the text is long enough, the smallest first. Raises
    BadInput if there is none.

    Each configuration has the longest blocks that fit the text, and then the largest batch, because
    memory helps more than a large batch.
    """
    shares = zip(mixture.corpora, mixture.cycle.shares, strict=True)
    tokens = min(corpus.tokens / share for corpus, share in shares) / jax.device_count()
    found = []
    for size in SIZES:
        data = _laid_out(base, size, 1, 8).data  # a member without a memory has one window
        room = max(1.0, tokens / data.reuse_len)
        windows = _power_of_two(min(room, data.windows_per_block))
        rows = _power_of_two(min(size.rows, max(1.0, room / windows)))
        config = _laid_out(base, size, rows, windows)
        try:
            configs.check(config)
            mixture.stream(config).check(config.train.batch_size, mixture.split_names())
            mixture.check(config)
        except BadInput:
            if not found:
                raise  # the message tells how much text is missing
            break
        found.append(config)
    return found


def _power_of_two(most: float) -> int:
    """Returns the largest power of two up to `most`, which is at least 1."""
    return 1 << int(most).bit_length() - 1


def _laid_out(base: Config, size: Size, rows: int, windows_per_block: int) -> Config:
    # Heads of small models have half the usual width, so that a layer has at least four.
    head_dim = 64 if size.d_model >= 256 else 32
    # Two layers do not overfit, as in the quick start.
    dropout = 0.0 if size.layers < 4 else 0.1
    member, objective = base.model.member, base.objective
    of_family = {"model": member.required | member.usual_model, "data": {}}
    if objective.stream == "content":
        of_family = member.usual(size.T, objective.name)
    if member.segments > 1 and not objective.whole:
        of_family["data"]["sentence_loss"] = True
    if member.parts.projected:
        of_family["model"]["d_embed"] = min(128, size.d_model // 2)
    return base.changed(
        model={
            "layers": size.layers,
            "d_model": size.d_model,
            "heads": size.d_model // head_dim,
            "head_dim": head_dim,
            "d_ff": 4 * size.d_model,
            "memory_len": size.M,
            "init_std": size.init_std,
            "dropout": dropout,
            "attention_dropout": dropout,
            "compute_dtype": "float32" if jax.default_backend() == "cpu" else "bfloat16",
        }
        | of_family["model"],
        data={
            "segment_len": size.T,
            "reuse_len": size.T // 2,
            "num_predict": size.T // 6,
            "windows_per_block": windows_per_block,
        }
        | of_family["data"],
        optimizer={"learning_rate": size.learning_rate, "warmup_steps": 0, "schedule": "cosine"},
        train={"batch_size": rows * jax.device_count()},
    )


def choose_size(fitting: list[Config], mixture: Mixture, seconds: float) -> tuple[Config, float]:
    """Returns the largest configuration that reads enough tokens in the time, or else the smallest;
    and its FLOPs per second.

    The estimate is cautious: larger models usually do more FLOPs per second than the smallest.
    """
    chosen = fitting[0]
    speed = measure_speed(chosen, mixture)
    for config in fitting[1:]:
        steps = _steps(config, mixture, seconds, speed)
        fresh = steps * config.train.batch_size * config.data.reuse_len
        if fresh >= TOKENS_PER_PARAMETER * count_parameters(config)["parameters"]:
            chosen = config
    return chosen, speed if chosen is fitting[0] else measure_speed(chosen, mixture)


def measure_speed(config: Config, mixture: Mixture) -> float:
    """Measures FLOPs per second: repeats two steps on a batch of the corpus for
    `_PROBE_SECONDS`.
    """
    config = choice.resolve_attention(config.changed(train={"steps_per_dispatch": 2}), Session())
    log.info("measuring %d layers of width %d", config.model.layers, config.model.d_model)
    mesh = meshes.make_mesh(config.mesh)
    plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
    rows = meshes.rows_here(config.train.batch_size, mesh)
    with jax.set_mesh(mesh):
        recipe = make_recipe(config)
        built = build_step(recipe, mesh)
        state = create_state(built)
        batch = meshes.place(loader.TrainDispatches(mixture, config, plan, rows, 0, 2)(0), mesh)
        executable, seed = compile_step(built, state, batch), built.dropout_seed
        state, _ = jax.block_until_ready(executable(state, batch, seed))
        began, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - began < _PROBE_SECONDS:
            state, _ = jax.block_until_ready(executable(state, batch, seed))
            steps += 2
    return steps * recipe.flops_per_step / (time.perf_counter() - began)


def _steps(config: Config, mixture: Mixture, seconds: float, speed: float) -> int:
    """Returns the number of steps for which time and text suffice, at least one."""
    left = _training_seconds(seconds)
    return max(
        1,
        min(
            int(left * speed / flops.step_flops(config)),
            int(MOST_EPOCHS / _epochs_a_step(config, mixture)),
        ),
    )


def _training_seconds(seconds: float) -> float:
    return max((seconds - _START_SECONDS) * _TRAINING_SHARE, seconds / 4)


def _epochs_a_step(config: Config, mixture: Mixture) -> float:
    """Returns the share of the text that a step reads; with several corpora the largest of their
    shares.
    """
    plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
    return max(mixture.stream(config).epochs(1000, plan)) / 1000


def with_schedule(config: Config, mixture: Mixture, seconds: float, speed: float) -> Config:
    """Sets steps, warm-up, dispatches, checkpoints and evaluations."""
    steps, rate = _steps(config, mixture, seconds, speed), speed / flops.step_flops(config)
    dispatch = next(
        (size for size in (10, 5, 2) if size <= min(steps // 4, _DISPATCH_SECONDS * rate)), 1
    )
    steps -= steps % dispatch
    save = int(min(_CHECKPOINT_SECONDS * rate, steps / 4))
    # Number of batches of blocks that fit into the time for evaluations, at least one. A window is
    # scored with and without memory; each score takes a third of a step.
    batches = max(1, int((1 - _TRAINING_SHARE) * steps / (config.data.windows_per_block * 2 / 3)))
    times = min(4, batches)
    # Rounded up, so that the last evaluation is after the last step.
    every = -(-steps // (times * dispatch)) * dispatch
    evaluation = {"every": every, "blocks": batches // times * config.train.batch_size}
    return config.changed(
        optimizer={"warmup_steps": min(10_000, -(-steps // 10), steps - 1)},
        train={"steps": steps, "steps_per_dispatch": dispatch},
        checkpoint={"every": max(save - save % dispatch, dispatch)},
        evaluation=evaluation if open_heldout(config, mixture) else {},
    )


def _warn_of_few_steps(config: Config, mixture: Mixture, result: Json, speed: float) -> None:
    """Logs how much the run reads if that is too little, with the remedy."""
    rows, data = config.train.batch_size, config.data
    targets = _TARGETS_A_PIECE * config.model.vocab_size
    least = max(_FEWEST_STEPS, -(-targets // (rows * data.num_predict)))
    usual = -(-TOKENS_PER_PARAMETER * result["parameters"] // (rows * data.reuse_len))
    needed, why = (
        (usual, f"about {TOKENS_PER_PARAMETER} tokens per parameter are usual")
        if result["steps"] >= least
        else (least, "expect a worse loss than that of piece counts (the unigram cross-entropy)")
    )
    if result["steps"] < needed:
        log.warning(
            "the run reads only %s in %s, %.2g per parameter: %s; %s",
            quantity(result["new_tokens"], "token"),
            quantity(result["steps"], "step"),
            result["new_tokens"] / result["parameters"],
            why,
            f"give --minutes={math.ceil(_minutes(config, needed + 10, speed))}"
            if (needed + 10) * _epochs_a_step(config, mixture) <= MOST_EPOCHS
            else "prepare more text",
        )


def _minutes(config: Config, steps: int, speed: float) -> float:
    """Returns the expected minutes of a run; its steps are rounded by up to 10."""
    seconds = steps * flops.step_flops(config) / (_TRAINING_SHARE * speed)
    return (seconds + _START_SECONDS) / 60


def _result(config: Config, mixture: Mixture, output: str, speed: float) -> Json:
    steps, batch_size = config.train.steps, config.train.batch_size
    rate = speed / flops.step_flops(config)
    return {
        "output": output,
        "command": f"xlnet-jax train --config={shlex.quote(output)} --workdir=run",
        "parameters": count_parameters(config)["parameters"],
        "steps": steps,
        "batch_size": batch_size,
        "tokens_per_second": rate * batch_size * config.data.segment_len,
        "new_tokens": steps * batch_size * config.data.reuse_len,
        "epochs": steps * _epochs_a_step(config, mixture),
        "minutes": _minutes(config, steps, speed),
    }


def _source(config: Config, result: Json, minutes: float) -> str:
    """Returns the Python source: a docstring, and every key that differs from its default."""
    batch, T, R = config.train.batch_size, config.data.segment_len, config.data.reuse_len
    about = (
        f"Hardware: {jax.device_count()} x {jax.devices()[0].device_kind}, "
        f"{quantity(cores(), 'core')}. {result['tokens_per_second']:,.0f} tokens a second "
        f"(measured here): all {T} x {batch} positions of a step, of which {R} x {batch} are new "
        f"text. {config.train.steps:,} steps read {result['new_tokens']:,} new tokens, "
        f"{result['epochs']:.2f} times the text (at most {MOST_EPOCHS}), in "
        f"{result['minutes']:.1f} minutes; the start takes {_START_SECONDS:.0f} s of them. "
        "Nothing here is published: sizes and rates are a starting point."
    )
    head = (
        f"{config.model.layers} layers of width {config.model.d_model}, segments of {T}, batch "
        f"{batch}, {result['parameters']:,} parameters: made by `xlnet-jax configure "
        f"--minutes={minutes:g}`.\n\n"
        f"    {result['command']}\n\n"
        f"{textwrap.fill(about, width=118, break_long_words=False)}\n"
    )
    head = head.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    default = configs.flat(Config())
    keys = [
        f"    config.{name} = {value!r}"
        for name, value in configs.flat(config).items()
        if value != default[name]
    ]
    start = [
        "from xlnet_jax import config as base\n\n",
        "def get_config():",
        "    config = base.default()",
    ]
    return "\n".join([f'"""{head}"""\n', *start, *keys, "    return config\n"])
