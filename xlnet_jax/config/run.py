"""How a run goes, from the optimizer to the seeds, with the rules for it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from xlnet_jax.keys import ELASTIC, FREE, Rule, divides, key

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config

REST = {-1: "all that are left"}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """A clipped gradient, linear warm-up, then decay to `min_lr_ratio`."""

    name: str = key(
        "adamw",
        "the update rule: lamb for large batches, muon with orthogonal updates",
        choices="adamw lamb muon",
    )
    learning_rate: float = key(4e-4, "peak learning rate", FREE, gt=0, phased=True)
    warmup_steps: int = key(40_000, "steps from 0 to the peak", FREE)
    schedule: str = key(
        "polynomial",
        "decay after the warm-up (polynomial is linear; "
        "wsd is constant before it decays; inverse_sqrt never ends)",
        FREE,
        "polynomial cosine wsd inverse_sqrt",
    )
    decay_fraction: float = key(
        0.1, "wsd: share of train.steps, at the end, in which the rate falls", FREE, gt=0, le=1
    )
    decay_shape: str = key(
        "linear", "wsd: the rate falls as 1 - x, or as 1 - sqrt(x)", FREE, "linear sqrt"
    )
    min_lr_ratio: float = key(0.0, "the learning rate ends at this share of its peak", FREE, le=1)
    weight_decay: float = key(0.01, "decoupled; not on LayerNorm and dense biases", FREE)
    adam_b1: float = key(0.9, "decay of the first moment", FREE, lt=1)
    adam_b2: float = key(0.999, "decay of the second moment", FREE, lt=1)
    adam_epsilon: float = key(1e-6, "added outside the square root", FREE, gt=0)
    clip: float = key(1.0, "bound on the norm of the global averaged gradient; 0 = off", FREE)
    layer_decay: float = key(
        1.0,
        "rate of a layer as a share of the one above it; embeddings are lowest",
        FREE,
        gt=0,
        le=1,
    )
    average: float = key(
        0.0,
        "decay of an exponential average of the parameters, kept beside them: 0.999; 0 = none",
        lt=1,
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length and shape of the run."""

    steps: int = key(
        500_000, "optimizer steps of the whole run; the schedule ends here", FREE, ge=1
    )
    batch_size: int = key(
        2048, "rows over all devices and hosts", ELASTIC, ge=1, le=2**22, phased=True
    )
    gradient_accumulation_steps: int = key(
        1,
        "sequential micro-batches per step; one gradient sum crosses the network",
        ELASTIC,
        ge=1,
        le=2**16,
    )
    elastic: bool = key(
        False, "fill up batches that do not divide over the devices with rows of weight 0", ELASTIC
    )
    steps_per_dispatch: int = key(
        10, "segments K that the device runs without the host", ELASTIC, ge=1, le=2**16
    )
    max_bad_steps: int = key(
        5, "non-finite steps or spikes in a row that end the run (exit code 3)", FREE, ge=1
    )
    label_smoothing: float = key(
        0.0,
        "share of each target that is spread over the vocabulary, in training alone",
        FREE,
        lt=1,
    )
    spike_zscore: float = key(
        0.0, "skip steps with a loss this many standard deviations above the mean; 0 = off", FREE
    )
    spike_window: int = key(
        100, "number of good steps in the mean and deviation of the loss", FREE, ge=2, le=2**20
    )
    compiler_options: str = key(
        "", "of XLA for the step: NAME=VALUE, or chip for those that others set on it", FREE
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices on each axis; one axis may be -1: all that are left."""

    data: int = key(-1, "rows of the batch", ELASTIC, ge=1, special=REST)
    fsdp: int = key(
        1,
        "rows of the batch, and parameters, optimizer state and update",
        ELASTIC,
        ge=1,
        special=REST,
    )
    tensor: int = key(1, "heads, feed-forward and vocabulary", ELASTIC, ge=1, special=REST)
    slices: int = key(
        0, "TPU slices, which share the batch", ELASTIC, ge=1, special={0: "taken from the devices"}
    )
    zero1: bool = key(
        False, "parameters, optimizer state and update are split over `data` as well", ELASTIC
    )


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Several processes in one run. TPU VMs, GKE and SLURM need no settings."""

    coordinator: str = key(
        "", "HOST:PORT of process 0; empty = JAX_COORDINATOR_ADDRESS, or from the cluster", FREE
    )
    processes: int = key(
        0, "number of processes; 0 = JAX_NUM_PROCESSES, or from the cluster", FREE, le=2**20
    )
    process_id: int = key(
        -1, "of this process, from 0", FREE, special={-1: "JAX_PROCESS_ID, or from the cluster"}
    )
    detect: bool = key(True, "ask the cluster; false = use only the values set here", FREE)
    rendezvous_port: int = key(
        0, "on the host of process 0; 0 = next to the coordinator's port", FREE, lt=65536
    )
    rendezvous_seconds: float = key(
        600.0, "how long all wait for a missing process (code 42)", FREE, gt=0, le=1e9
    )
    report_seconds: float = key(
        30.0, "between two log lines about missing processes", FREE, gt=0, le=1e9
    )
    # With a shorter one a host that is only busy is taken for lost.
    heartbeat_seconds: float = key(
        60.0, "silence after which a process is lost: all exit with 42", FREE, ge=2, le=1e8
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the whole state is saved (asynchronously), and which checkpoints are kept."""

    every: int = key(1000, "steps between checkpoints; the last step is always saved", FREE, ge=1)
    keep: int = key(3, "number of newest checkpoints kept", FREE, ge=1)
    keep_every: int = key(0, "also keep a checkpoint every this many steps; 0 = none", FREE)
    keep_best: int = key(
        0, "also keep this many checkpoints of the lowest held-out loss; 0 = none", FREE
    )
    memory: str = key(
        "all", "saved (all), or left out and computed from the text on resume", FREE, "all rebuild"
    )
    init_from: str = key(
        "", "work directory or checkpoint with the parameters of a new run; empty = none", FREE
    )
    io_deadline_seconds: float = key(
        300.0, "how long failed saves are retried; then the run ends", FREE, le=1e9
    )
    grace_seconds: float = key(
        30.0,
        "from SIGTERM to SIGKILL; a warning if two dispatches and a save take longer; 0 = unknown",
        FREE,
    )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Held-out loss: of a permutation LM with fixed orders, of a left-to-right model with carried
    memory.
    """

    every: int = key(0, "steps between evaluations during training; 0 = none", FREE)
    blocks: int = key(
        0, "blocks of the held-out split scored in training, evenly spread; 0 = all", FREE
    )
    batch_size: int = key(
        0, "rows per step; 0 = train.batch_size (never changes the result)", FREE, le=2**22
    )
    final: bool = key(
        True,
        "after the last step, evaluate if there is a held-out split, and plot the losses",
        FREE,
    )
    averaged: bool = key(
        False,
        "what scores or reads parameters, such as evaluate and export, "
        "takes the average of optimizer.average",
        FREE,
    )


@dataclasses.dataclass(frozen=True)
class WatchdogConfig:
    """Checks of a run from outside the step."""

    seconds: float = key(
        1800.0,
        "without progress (dispatch, evaluation, save): print all stacks, exit with 42; 0 = off",
        FREE,
        le=1e9,
    )
    report_every: int = key(1000, "steps between two reports of step times; 0 = none", FREE)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Logs written in addition to the checkpoints."""

    tensorboard: bool = key(True, "write TensorBoard events beside metrics.jsonl", FREE)
    samples: int = key(
        0,
        "held-out texts that each evaluation fills, for samples.jsonl and TensorBoard",
        FREE,
        le=100,
    )
    wandb: str = key(
        "", "project of Weights & Biases that gets the metrics too; empty = none", FREE
    )
    profile_start: int = key(-1, "first step of a profiler capture", FREE, special={-1: "none"})
    profile_steps: int = key(5, "steps in the capture (rounded up to whole dispatches)", FREE, ge=1)
    compilation_cache: str = key(
        "",
        "folder; empty = <workdir>/compilation_cache in training, "
        "else ~/.cache/xlnet_jax; none = no cache",
        FREE,
    )


@dataclasses.dataclass(frozen=True)
class SeedsConfig:
    """Separate seeds, for example for the same data with another initialisation."""

    init: int = key(0, "parameters", lt=2**32)
    data: int = key(1, "order of the blocks, spans, permutations, segments", lt=2**32)
    dropout: int = key(2, "dropout masks", lt=2**32)


def rules(config: Config) -> list[Rule]:
    """Rules for the length of a run, its saves and evaluations, and the mesh."""
    train, checkpoint, every = config.train, config.checkpoint, config.evaluation.every
    mesh, optimizer, endless = (
        config.mesh,
        config.optimizer,
        config.optimizer.schedule == "inverse_sqrt",
    )
    # Its steps have several lengths.
    K = train.steps_per_dispatch if config.finetune.task != "text_to_text" else 1
    of_dispatches = f"must be a multiple of train.steps_per_dispatch={K}"
    return [
        (
            "optimizer.warmup_steps",
            0 <= optimizer.warmup_steps < train.steps,
            f"must lie in [0, train.steps={train.steps})",
        ),
        (
            "optimizer.warmup_steps",
            optimizer.warmup_steps > 0 or not endless,
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
            optimizer.min_lr_ratio == 0 or not endless,
            "must be 0 with optimizer.schedule=inverse_sqrt, which has no end",
        ),
        (
            "optimizer.layer_decay",
            optimizer.layer_decay == 1 or optimizer.name != "muon",
            "must be 1 with optimizer.name=muon: nobody knows what it would do",
        ),
        ("checkpoint.every", divides(K, checkpoint.every), of_dispatches),
        (
            "checkpoint.keep_every",
            divides(checkpoint.every, checkpoint.keep_every),
            f"must be a multiple of checkpoint.every={checkpoint.every}",
        ),
        (
            "checkpoint.keep_best",
            checkpoint.keep_best == 0 or every > 0,
            "needs held-out losses; set evaluation.every",
        ),
        (
            "evaluation.averaged",
            optimizer.average > 0 or not config.evaluation.averaged,
            "needs a run that keeps an average; set optimizer.average from its first step on",
        ),
        ("evaluation.every", divides(K, every), of_dispatches),
        (
            "log.samples",
            not config.log.samples or config.pretrains,
            f"is for pretraining; use 0 with finetune.task={config.finetune.task}",
        ),
        (
            "log.samples",
            not config.log.samples or every > 0 or config.evaluation.final,
            "needs evaluations; set evaluation.every",
        ),
        (
            "mesh.data",
            [mesh.data, mesh.fsdp, mesh.tensor].count(-1) <= 1,
            "and another axis are both -1; only one can take what is left",
        ),
        (
            "train.compiler_options",
            re.fullmatch(r"((chip|\w+=[^,=]+)(,(?!$)|$))*", train.compiler_options) is not None,
            "must be chip, or NAME=VALUE, or several of them separated by commas",
        ),
        (
            "train.label_smoothing",
            not train.label_smoothing or config.finetune.task in ("none", "text_to_text"),
            f"is for losses of tokens; use 0 with finetune.task={config.finetune.task}",
        ),
        (
            "train.label_smoothing",
            not train.label_smoothing or not config.model.cutoffs,
            "is not for the clusters of model.cutoffs; use 0",
        ),
    ]
