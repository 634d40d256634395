"""Sections from `optimizer` to `seeds`, with their rules."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from xlnet_jax.keys import ELASTIC, FREE, Rule, key

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config

REST = {-1: "all remaining devices"}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Update rule and learning rate."""

    name: str = key(
        "adamw",
        "update rule; lamb is for large batches, muon has orthogonal updates",
        "adamw lamb muon",
    )
    learning_rate: float = key(4e-4, "peak learning rate", "(0, inf)", FREE, phased=True)
    warmup_steps: int = key(40_000, "steps from 0 to the peak", resume=FREE)
    schedule: str = key(
        "polynomial",
        "decay after the warm-up: polynomial is linear, wsd is constant before it decays, "
        "inverse_sqrt falls without an end",
        "polynomial cosine wsd inverse_sqrt",
        FREE,
    )
    decay_fraction: float = key(
        0.1, "wsd: last share of train.steps, in which the rate falls", "(0, 1]", FREE
    )
    decay_shape: str = key(
        "linear", "wsd: the rate falls as 1 - x or as 1 - sqrt(x)", "linear sqrt", FREE
    )
    min_lr_ratio: float = key(0.0, "final learning rate as a share of the peak", "[0, 1]", FREE)
    weight_decay: float = key(
        0.01, "decoupled weight decay; not on LayerNorm and biases, except u, v, w", resume=FREE
    )
    adam_b1: float = key(0.9, "decay of the first moment", "[0, 1)", FREE)
    adam_b2: float = key(0.999, "decay of the second moment", "[0, 1)", FREE)
    adam_epsilon: float = key(1e-6, "added outside the square root", "(0, inf)", FREE)
    clip: float = key(1.0, "bound on the global gradient norm; 0 = off", resume=FREE)
    layer_decay: float = key(
        1.0,
        "rate of a layer as a share of the rate of the layer above; the head has the full rate, "
        "embeddings the lowest",
        "(0, 1]",
        FREE,
    )
    average: float = key(
        0.0, "decay of an exponential average of the parameters, such as 0.999; 0 = none", "[0, 1)"
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length and shape of the run."""

    steps: int = key(
        500_000, "optimizer steps of the run, at which the schedule ends", "[1, inf)", FREE
    )
    batch_size: int = key(
        2048, "rows over all devices and hosts", "[1, 4_194_304]", ELASTIC, phased=True
    )
    gradient_accumulation_steps: int = key(
        1,
        "sequential micro-batches per step; devices sum their gradients once per step",
        "[1, 65_536]",
        ELASTIC,
    )
    elastic: bool = key(
        False,
        "pads batches that do not divide over the devices with rows of weight 0",
        resume=ELASTIC,
    )
    steps_per_dispatch: int = key(
        10, "steps K that the device runs without the host", "[1, 65_536]", ELASTIC
    )
    max_bad_steps: int = key(
        5, "consecutive non-finite steps or spikes that end the run (exit code 3)", "[1, inf)", FREE
    )
    label_smoothing: float = key(
        0.0, "share of each target spread over the vocabulary, in training only", "[0, 1)", FREE
    )
    spike_zscore: float = key(
        0.0,
        "skips steps whose loss is this many standard deviations above the mean; 0 = off",
        resume=FREE,
    )
    spike_window: int = key(
        100,
        "length, in good steps, of the averages that give mean and deviation of the loss",
        "[2, 1_048_576]",
        FREE,
    )
    compiler_options: str = key(
        "",
        "XLA options of the step: NAME=VALUE, with commas; chip = the options that other "
        "projects use on the chip",
        resume=FREE,
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices per axis; one axis may be -1 (all remaining devices)."""

    data: int = key(-1, "splits the rows of the batch", "[1, inf)", ELASTIC, special=REST)
    fsdp: int = key(
        1,
        "splits the rows, parameters, optimizer state and update",
        "[1, inf)",
        ELASTIC,
        special=REST,
    )
    tensor: int = key(
        1, "splits heads, feed-forward and vocabulary", "[1, inf)", ELASTIC, special=REST
    )
    slices: int = key(
        0,
        "number of TPU slices; each computes a part of the batch",
        "[1, inf)",
        ELASTIC,
        special={0: "taken from the devices"},
    )
    zero1: bool = key(
        False, "splits parameters, optimizer state and update over `data` as well", resume=ELASTIC
    )


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Several processes of one run; TPU VMs, GKE and SLURM need no settings."""

    coordinator: str = key(
        "", "HOST:PORT of process 0; empty = JAX_COORDINATOR_ADDRESS or the cluster's", resume=FREE
    )
    processes: int = key(
        0, "number of processes; 0 = JAX_NUM_PROCESSES or the cluster's", "[0, 1_048_576]", FREE
    )
    process_id: int = key(
        -1,
        "number of this process, from 0",
        resume=FREE,
        special={-1: "JAX_PROCESS_ID, or from the cluster"},
    )
    detect: bool = key(True, "asks the cluster; false = only the values set here", resume=FREE)
    rendezvous_port: int = key(
        0, "port on the host of process 0; 0 = next to the coordinator's", "[0, 65_536)", FREE
    )
    rendezvous_seconds: float = key(
        600.0, "wait for missing processes, before exit code 42", "(0, 1_000_000_000]", FREE
    )
    report_seconds: float = key(
        30.0, "interval of log lines about missing processes", "(0, 1_000_000_000]", FREE
    )
    # With a shorter time a busy host would count as lost.
    heartbeat_seconds: float = key(
        60.0, "silence after which a process is lost and all exit with 42", "[2, 100_000_000]", FREE
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the whole state is saved, asynchronously, and which checkpoints are kept."""

    every: int = key(
        1000, "steps between checkpoints; the last step is always saved", "[1, inf)", FREE
    )
    keep: int = key(3, "newest checkpoints kept", "[1, inf)", FREE)
    keep_every: int = key(
        0, "steps between checkpoints that are kept besides `keep`; 0 = none", resume=FREE
    )
    keep_best: int = key(
        0,
        "number of checkpoints with the lowest held-out loss that are kept besides `keep`",
        resume=FREE,
    )
    memory: str = key(
        "all",
        "memory of the model: all = saved; rebuild = computed from the text on resume",
        "all rebuild",
        FREE,
    )
    init_from: str = key(
        "",
        "work directory or checkpoint that gives a new run its parameters; empty = none",
        resume=FREE,
    )
    io_deadline_seconds: float = key(
        300.0, "time for retries of a failed save before the run ends", "[0, 1_000_000_000]", FREE
    )
    grace_seconds: float = key(
        30.0,
        "time from SIGTERM to SIGKILL; warns if two dispatches and a save take longer; 0 = unknown",
        resume=FREE,
    )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Held-out loss, with the memory carried. A permutation LM is evaluated in fixed orders."""

    every: int = key(0, "steps between evaluations in training; 0 = none", resume=FREE)
    blocks: int = key(0, "held-out blocks scored in training, evenly spread; 0 = all", resume=FREE)
    batch_size: int = key(
        0,
        "rows per step, without effect on the result; 0 = train.batch_size",
        "[0, 4_194_304]",
        FREE,
    )
    final: bool = key(
        True,
        "evaluates after the last step if there is a held-out split, and plots the losses",
        resume=FREE,
    )
    averaged: bool = key(
        False,
        "commands that read parameters, such as evaluate and export, use the averaged parameters "
        "of optimizer.average",
        resume=FREE,
    )


@dataclasses.dataclass(frozen=True)
class WatchdogConfig:
    """Checks of the progress of a run."""

    seconds: float = key(
        1800.0,
        "time without a dispatch, evaluation or save until all stacks are printed and the "
        "run exits with 42; 0 = off",
        "[0, 1_000_000_000]",
        FREE,
    )
    report_every: int = key(1000, "steps between reports of step times; 0 = none", resume=FREE)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Logs written in addition to the checkpoints."""

    tensorboard: bool = key(True, "writes TensorBoard events beside metrics.jsonl", resume=FREE)
    samples: int = key(
        0,
        "held-out texts that each evaluation fills, in samples.jsonl and TensorBoard",
        "[0, 100]",
        FREE,
    )
    wandb: str = key(
        "", "Weights & Biases project that also gets the metrics; empty = none", resume=FREE
    )
    profile_start: int = key(
        -1, "first step of a profiler capture, from 0", resume=FREE, special={-1: "none"}
    )
    profile_steps: int = key(
        5, "steps in the capture, rounded up to whole dispatches", "[1, inf)", FREE
    )
    compilation_cache: str = key(
        "",
        "folder; empty = <workdir>/compilation_cache in training, else ~/.cache/xlnet_jax; "
        "none = no cache",
        resume=FREE,
    )


@dataclasses.dataclass(frozen=True)
class SeedsConfig:
    """Seeds."""

    init: int = key(0, "parameters", "[0, 4_294_967_296)")
    data: int = key(1, "order of the blocks, spans, permutations, segments", "[0, 4_294_967_296)")
    dropout: int = key(2, "dropout masks", "[0, 4_294_967_296)")


def rules(config: Config) -> list[Rule]:
    """Returns the rules for the optimizer, saves and evaluations, the mesh and the step."""
    return [*_optimizer_rules(config), *_saving_rules(config), *_step_rules(config)]


def _optimizer_rules(config: Config) -> list[Rule]:
    train = config.train
    optimizer = config.optimizer
    endless = optimizer.schedule == "inverse_sqrt"
    return [
        (
            "optimizer.warmup_steps",
            optimizer.warmup_steps < train.steps,
            f"must lie in [0, train.steps={train.steps})",
        ),
        (
            "optimizer.warmup_steps",
            optimizer.warmup_steps or not endless,
            "must be at least 1 with optimizer.schedule=inverse_sqrt",
        ),
        (
            "optimizer.decay_fraction",
            optimizer.schedule != "wsd"
            or optimizer.warmup_steps + round(optimizer.decay_fraction * train.steps)
            <= train.steps,
            (
                f"leaves no room for optimizer.warmup_steps={optimizer.warmup_steps} in "
                f"train.steps={train.steps}"
            ),
        ),
        (
            "optimizer.min_lr_ratio",
            not (optimizer.min_lr_ratio and endless),
            "must be 0 with optimizer.schedule=inverse_sqrt, which has no end",
        ),
        (
            "optimizer.layer_decay",
            optimizer.layer_decay == 1 or optimizer.name != "muon",
            "is not supported with optimizer.name=muon; use 1",
        ),
    ]


def _saving_rules(config: Config) -> list[Rule]:
    """Returns the rules for checkpoints, evaluations and samples."""
    checkpoint = config.checkpoint
    every = config.evaluation.every
    # Steps of text_to_text differ in length, so a dispatch has a single step.
    K = config.train.steps_per_dispatch if config.finetune.task != "text_to_text" else 1
    of_dispatches = f"must be a multiple of train.steps_per_dispatch={K}"
    return [
        ("checkpoint.every", checkpoint.every % K == 0, of_dispatches),
        (
            "checkpoint.keep_every",
            checkpoint.keep_every % checkpoint.every == 0,
            f"must be a multiple of checkpoint.every={checkpoint.every}",
        ),
        (
            "checkpoint.keep_best",
            every or not checkpoint.keep_best,
            "needs held-out losses; set evaluation.every",
        ),
        (
            "evaluation.averaged",
            config.optimizer.average or not config.evaluation.averaged,
            "needs a run that keeps an average; set optimizer.average from its first step on",
        ),
        ("evaluation.every", every % K == 0, of_dispatches),
        (
            "log.samples",
            config.pretrains or not config.log.samples,
            f"is for pretraining; use 0 with finetune.task={config.finetune.task}",
        ),
        (
            "log.samples",
            every or config.evaluation.final or not config.log.samples,
            "needs evaluations; set evaluation.every",
        ),
    ]


def _step_rules(config: Config) -> list[Rule]:
    """Returns the rules for the mesh and the step."""
    train = config.train
    mesh = config.mesh
    return [
        (
            "mesh.data",
            [mesh.data, mesh.fsdp, mesh.tensor].count(-1) <= 1,
            "and another axis are both -1; only one axis can take the devices that are left",
        ),
        (
            "train.compiler_options",
            re.fullmatch(r"((chip|\w+=[^,=]+)(,(?!$)|$))*", train.compiler_options),
            "must be chip, or NAME=VALUE, or several of them separated by commas",
        ),
        (
            "train.label_smoothing",
            not train.label_smoothing or config.finetune.task in ("none", "text_to_text"),
            f"is for losses of tokens; use 0 with finetune.task={config.finetune.task}",
        ),
        (
            "train.label_smoothing",
            not (train.label_smoothing and config.model.cutoffs),
            "is not for the clusters of model.cutoffs; use 0",
        ),
    ]
