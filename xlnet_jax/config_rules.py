"""What the values of a configuration must satisfy, one by one and together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xlnet_jax.config import Config, DataConfig

Rule = tuple[str, bool, str]
"""Key, whether its value is good, and what to say if it is not."""


LARGEST_INT = 2**31 - 1
"""Of every whole number that has no entry in `LARGEST`: steps, rows and positions are int32 on the device."""

LARGEST = {
    "model.layers": 1000,
    "model.d_model": 2**16,
    "model.heads": 2**12,
    "model.head_dim": 2**12,
    "model.d_ff": 2**18,
    "model.vocab_size": 2**24,
    "model.memory_len": 2**20,
    "data.segment_len": 2**20,
    "data.windows_per_block": 2**20,
    "data.max_span": 2**16,
    "data.mask_alpha": 2**16,
    "data.read_threads": 2**10,
    "data.prefetch": 2**10,
    "data.workers": 2**10,
    "train.batch_size": 2**22,
    "train.accumulation": 2**16,
    "train.steps_per_dispatch": 2**16,
    "train.spike_window": 2**20,
    "evaluation.batch_size": 2**22,
    "distributed.processes": 2**20,
    "distributed.rendezvous_seconds": 10**9,
    "distributed.report_seconds": 10**9,
    "distributed.heartbeat_seconds": 10**8,
    "checkpoint.io_deadline_seconds": 10**9,
    "watchdog.seconds": 10**9,
    # They have a rule of their own.
    **{f"seeds.{name}": math.inf for name in ("init", "data", "dropout")},
}
"""Far above any run, and below the size at which a typing mistake takes all memory or an hour before it fails."""


def rules(config: Config) -> list[Rule]:
    """All of them. They need neither a device nor the corpus."""
    model, data, train = config.model, config.data, config.train
    return [
        *((f"model.{name}", getattr(model, name) >= 1, "must be at least 1")
          for name in ("layers", "d_model", "heads", "head_dim", "d_ff")),
        *((f"model.{name}", 0 <= getattr(model, name) < 1, "must lie in [0, 1)")
          for name in ("dropout", "attention_dropout", "activation_dropout")),
        ("model.vocab_size", model.vocab_size > 9, "must hold the nine special pieces and some text"),
        ("model.d_model", model.d_model % 2 == 0, "must be even: the position table is half sine, half cosine"),
        ("model.memory_len", model.memory_len >= 0, "must not be negative"),
        ("model.clamp_len", model.clamp_len == -1 or model.clamp_len > 0, "must be -1 (off) or positive"),
        ("data.reuse_len", data.reuse_len >= 1, "must be at least 1"),
        *_layout_rules(config),
        ("data.windows_per_block", data.windows_per_block >= 1, "must be at least 1"),
        ("data.weights", _positive(data), "must be positive numbers separated by commas"),
        ("data.max_span", data.max_span >= 1, "must be at least 1"),
        ("data.mask_alpha", data.mask_alpha >= data.mask_beta >= 1,
         f"must be at least data.mask_beta={data.mask_beta}, and that at least 1"),
        ("data.follow_probability", 0 <= data.follow_probability <= 1, "must lie in [0, 1]"),
        ("data.read_threads", data.read_threads >= 1, "must be at least 1"),
        ("data.prefetch", data.prefetch >= 1, "must be at least 1"),
        ("data.workers", data.workers >= -1, "must be -1 (chosen from the machine), 0 (threads) or a number"),
        ("train.steps", train.steps >= 1, "must be at least 1"),
        ("train.batch_size", train.batch_size >= 1, "must be at least 1"),
        ("train.accumulation", train.accumulation >= 1, "must be at least 1"),
        ("train.accumulation", train.accumulation == 1 or not config.compat.on("core_clip"),
         "must be 1 with compat switch core_clip, which has parts of its own"),
        ("train.steps_per_dispatch", train.steps_per_dispatch >= 1, "must be at least 1"),
        ("train.max_bad_steps", train.max_bad_steps >= 1, "must be at least 1"),
        ("train.spike_zscore", train.spike_zscore >= 0, "must not be negative"),
        ("train.spike_window", train.spike_window >= 2, "must be at least 2"),
        ("optimizer.learning_rate", config.optimizer.learning_rate > 0, "must be positive"),
        ("optimizer.warmup_steps", 0 <= config.optimizer.warmup_steps < train.steps,
         f"must lie in [0, train.steps={train.steps})"),
        ("optimizer.min_lr_ratio", 0 <= config.optimizer.min_lr_ratio <= 1, "must lie in [0, 1]"),
        ("optimizer.layer_decay", 0 < config.optimizer.layer_decay <= 1, "must lie in (0, 1]"),
        ("compat.cores", config.compat.cores >= 1 and train.batch_size % config.compat.cores == 0,
         f"must divide train.batch_size={train.batch_size}"),
        ("train.batch_size", not config.compat.on("both_directions") or train.batch_size % 2 == 0,
         "must be even with compat switch both_directions"),
        ("optimizer.weight_decay", config.optimizer.weight_decay >= 0, "must not be negative"),
        ("optimizer.adam_b1", 0 <= config.optimizer.adam_b1 < 1, "must lie in [0, 1)"),
        ("optimizer.adam_b2", 0 <= config.optimizer.adam_b2 < 1, "must lie in [0, 1)"),
        ("optimizer.adam_epsilon", config.optimizer.adam_epsilon > 0, "must be positive"),
        ("model.init_std", model.init_std > 0, "must be positive"),
        ("model.layer_norm_epsilon", model.layer_norm_epsilon > 0, "must be positive"),
        ("optimizer.clip", config.optimizer.clip >= 0, "must not be negative"),
        ("checkpoint.every", config.checkpoint.every >= 1, "must be at least 1"),
        ("checkpoint.every", _divides(train.steps_per_dispatch, config.checkpoint.every),
         f"must be a multiple of train.steps_per_dispatch={train.steps_per_dispatch}"),
        ("checkpoint.keep", config.checkpoint.keep >= 1, "must be at least 1"),
        ("checkpoint.keep_every", config.checkpoint.keep_every >= 0, "must not be negative"),
        ("checkpoint.keep_every", _divides(config.checkpoint.every, config.checkpoint.keep_every),
         f"must be a multiple of checkpoint.every={config.checkpoint.every}"),
        ("checkpoint.keep_best", config.checkpoint.keep_best >= 0, "must not be negative"),
        ("checkpoint.keep_best", config.checkpoint.keep_best == 0 or config.evaluation.every > 0,
         "needs held-out losses; set evaluation.every"),
        ("checkpoint.io_deadline_seconds", config.checkpoint.io_deadline_seconds >= 0, "must not be negative"),
        *((f"watchdog.{name}", getattr(config.watchdog, name) >= 0, "must not be negative")
          for name in ("seconds", "report_every", "sdc_every")),
        ("evaluation.every", config.evaluation.every >= 0, "must not be negative"),
        ("evaluation.every", _divides(train.steps_per_dispatch, config.evaluation.every),
         f"must be a multiple of train.steps_per_dispatch={train.steps_per_dispatch}"),
        ("evaluation.blocks", config.evaluation.blocks >= 0, "must not be negative"),
        ("evaluation.batch_size", config.evaluation.batch_size >= 0, "must not be negative"),
        ("log.profile_steps", config.log.profile_steps >= 1, "must be at least 1"),
        *((f"mesh.{name}", getattr(config.mesh, name) == -1 or getattr(config.mesh, name) >= 1,
           "must be -1 (all that are left) or at least 1") for name in ("data", "fsdp", "tensor")),
        ("mesh.data", [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) <= 1,
         "and another axis are both -1; only one can take what is left"),
        ("mesh.slices", config.mesh.slices >= 0, "must be 0 (what the devices say) or at least 1"),
        ("distributed.processes", config.distributed.processes >= 0, "must be 0 (found out) or at least 1"),
        ("distributed.process_id", config.distributed.process_id >= -1, "must be -1 (found out) or at least 0"),
        ("distributed.rendezvous_port", 0 <= config.distributed.rendezvous_port < 65536, "must lie in [0, 65536)"),
        *((f"distributed.{name}", getattr(config.distributed, name) > 0, "must be positive")
          for name in ("rendezvous_seconds", "report_seconds")),
        # Less, and a host that only works hard is taken for lost.
        ("distributed.heartbeat_seconds", config.distributed.heartbeat_seconds >= 2, "must be at least 2"),
        *((f"seeds.{name}", 0 <= getattr(config.seeds, name) < 2**32, "must lie in [0, 2**32)")
          for name in ("init", "data", "dropout")),
    ]  # fmt: skip


def _divides(part: int, whole: int) -> bool:
    # A part below 1 has a rule of its own.
    return part < 1 or whole % part == 0


def _layout_rules(config: Config) -> list[Rule]:
    """What the lengths of an example must satisfy, by objective; see `data.batches.examples`."""
    model, data = config.model, config.data
    T, R, P = data.segment_len, data.reuse_len, data.num_predict
    few_targets = ("data.num_predict", P <= (T - 3) // 2,
                   f"leaves too little context in data.segment_len={T}; use at most {(T - 3) // 2}")  # fmt: skip
    if data.objective == "plm":
        return [
            ("data.segment_len", T - R - 3 >= 2,
             f"is too short for data.reuse_len={R}: A, SEP, B, SEP and CLS need 5 more tokens; use at least {R + 5}"),
            ("data.num_predict", P >= 2, "must be at least 2: one target in each half"),
            few_targets,
        ]  # fmt: skip
    if data.objective == "clm":
        return [
            ("data.reuse_len", R == T, f"must be data.segment_len={T} with data.objective=clm: all of it is fresh"),
            ("data.num_predict", P == T, f"must be data.segment_len={T} with data.objective=clm: all is predicted"),
        ]
    return [
        ("data.segment_len", T >= 5, "must be at least 5"),
        ("data.reuse_len", R == T - 3, f"must be data.segment_len - 3 = {T - 3} with data.objective=mlm"),
        ("data.num_predict", P >= 1, "must be at least 1"),
        few_targets,
        ("model.memory_len", model.memory_len == 0,
         "must be 0 with data.objective=mlm: its examples do not follow each other"),
    ]  # fmt: skip


def _positive(data: DataConfig) -> bool:
    try:
        return all(0 < weight < math.inf for weight in data.weight_list())
    except ValueError:
        return False
