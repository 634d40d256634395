"""Rules for the values of a configuration, alone and together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlnet_jax.config import Config, DataConfig, ModelConfig

Rule = tuple[str, bool, str]
"""Key, whether its value is good, and the message if it is not."""

OF_EXAMPLES = ("piece_spans", "fill_functional", "static_targets", "both_directions")
"""The compat switches that change what is in an example or in a batch."""

LARGEST_INT = 2**31 - 1
"""Of every whole number that has no entry in `LARGEST`: steps, rows and positions are int32 on the device."""

_LARGEST: dict[float, str] = {
    16: "data.multi_token_prediction",
    1000: "model.layers",
    2**10: "data.read_threads data.prefetch data.workers finetune.segments finetune.beam",
    2**12: "model.heads model.head_dim",
    2**16: "model.d_model model.d_embed model.div_val data.max_span data.mask_group_size "
    "train.gradient_accumulation_steps train.steps_per_dispatch",
    2**18: "model.d_ff",
    2**20: "model.memory_len data.segment_len data.windows_per_block train.spike_window distributed.processes",
    2**22: "train.batch_size evaluation.batch_size",
    2**24: "model.vocab_size",
    10**8: "distributed.heartbeat_seconds",
    10**9: "distributed.rendezvous_seconds distributed.report_seconds checkpoint.io_deadline_seconds watchdog.seconds",
    math.inf: "seeds.init seeds.data seeds.dropout",  # see `_RANGES`
}
LARGEST = {name: largest for largest, names in _LARGEST.items() for name in names.split()}
"""Far above any run, and below the size at which a typing error takes all memory or an hour before it fails."""

_NAMES = {
    "model.layers": "n_layer n_layers num_layers num_hidden_layers depth",
    "model.d_model": "dim hidden_size hidden_dim n_embd width",
    "model.heads": "n_head n_heads num_heads num_attention_heads",
    "model.head_dim": "d_head",
    "model.d_ff": "d_inner intermediate_size ffn_dim mlp_dim",
    "model.memory_len": "mem_len",
    "model.compute_dtype": "dtype precision",
    "data.corpus": "data_dir data_path",
    "data.segment_len": "seq_len seq_length max_seq_length max_length sequence_length context_length block_size",
    "optimizer.learning_rate": "lr peak_lr",
    "optimizer.warmup_steps": "warmup num_warmup_steps",
    "optimizer.weight_decay": "wd decay",
    "optimizer.clip": "grad_clip clip_norm max_grad_norm gradient_clip",
    "optimizer.adam_b1": "b1 beta1 adam_beta1",
    "optimizer.adam_b2": "b2 beta2 adam_beta2",
    "optimizer.adam_epsilon": "eps epsilon",
    "train.steps": "max_steps num_steps train_steps num_train_steps iterations",
    "train.batch_size": "bs train_batch_size global_batch_size",
    "train.gradient_accumulation_steps": "accumulation grad_accum",
    "checkpoint.every": "save_every save_steps checkpoint_every",
    "evaluation.every": "eval_every eval_steps",
    "seeds.init": "seed random_seed",
}
NAMES = {name: [key] for key, names in _NAMES.items() for name in names.split()}
"""The key that is meant, by the names that people know from other programs."""

_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("must be at least 1", lambda value: value >= 1,
     "model.layers model.d_model model.div_val model.heads model.head_dim model.d_ff data.reuse_len "
     "data.windows_per_block data.max_span data.multi_token_prediction data.read_threads data.prefetch train.steps "
     "train.batch_size train.gradient_accumulation_steps train.steps_per_dispatch train.max_bad_steps checkpoint.every "
     "checkpoint.keep log.profile_steps finetune.segments finetune.stride finetune.max_question finetune.max_answer "
     "finetune.beam"),
    # With a shorter heartbeat a host that is only busy is taken for lost.
    ("must be at least 2", lambda value: value >= 2, "train.spike_window distributed.heartbeat_seconds"),
    ("must not be negative", lambda value: value >= 0,
     "model.memory_len model.d_embed train.spike_zscore optimizer.weight_decay optimizer.clip checkpoint.keep_every "
     "checkpoint.keep_best checkpoint.io_deadline_seconds checkpoint.grace_seconds watchdog.seconds "
     "watchdog.report_every watchdog.sdc_every "
     "evaluation.every evaluation.blocks evaluation.batch_size finetune.patience"),
    ("must be positive", lambda value: value > 0,
     "model.init_std model.layer_norm_epsilon optimizer.learning_rate optimizer.adam_epsilon "
     "distributed.rendezvous_seconds distributed.report_seconds finetune.temperature"),
    ("must lie in [0, 1)", lambda value: 0 <= value < 1,
     "model.dropout model.attention_dropout model.activation_dropout optimizer.adam_b1 optimizer.adam_b2"),
    ("must lie in [0, 1]", lambda value: 0 <= value <= 1, "data.positive_pair_rate optimizer.min_lr_ratio"),
    ("must lie in (0, 1]", lambda value: 0 < value <= 1, "optimizer.layer_decay"),
    ("must lie in [0, 65536)", lambda value: 0 <= value < 65536, "distributed.rendezvous_port"),
    ("must lie in [0, 2**32)", lambda value: 0 <= value < 2**32, "seeds.init seeds.data seeds.dropout"),
    ("must be -1 (off) or positive", lambda value: value == -1 or value > 0, "model.clamp_len"),
    ("must be -1 (all that are left) or at least 1", lambda value: value == -1 or value >= 1,
     "mesh.data mesh.fsdp mesh.tensor"),
    ("must be -1 (chosen from the machine), 0 (threads) or a number", lambda value: value >= -1, "data.workers"),
    ("must be 0 (taken from the devices) or at least 1", lambda value: value >= 0, "mesh.slices"),
    ("must be 0 (detected) or at least 1", lambda value: value >= 0, "distributed.processes"),
    ("must be -1 (detected) or at least 0", lambda value: value >= -1, "distributed.process_id"),
)  # fmt: skip
"""Of one value: the message, the test, and its keys."""


def rules(config: Config) -> list[Rule]:
    """All of them. They need neither a device nor the corpus."""
    model, data, train, compat = config.model, config.data, config.train, config.compat
    every, optimizer = config.checkpoint.every, config.optimizer
    of_dispatches = f"must be a multiple of train.steps_per_dispatch={train.steps_per_dispatch}"
    return [
        *((name, holds(attrgetter(name)(config)), text) for text, holds, names in _RANGES for name in names.split()),
        ("model.vocab_size", model.vocab_size > 9, "must hold the nine special pieces and some text"),
        ("model.d_model", model.d_model % 2 == 0, "must be even: the position table is half sine, half cosine"),
        ("model.same_length", model.memory_len > 0 or not model.same_length,
         "needs a memory: a query would see nothing with model.memory_len=0"),
        ("model.cutoffs", _rising(model),
         f"must be rising numbers between 0 and model.vocab_size={model.vocab_size}, with commas: 20000,40000"),
        ("model.div_val", model.div_val == 1 or bool(model.cutoffs), "must be 1 without model.cutoffs"),
        ("model.div_val", (model.d_embed or model.d_model) >= model.div_val ** (model.cutoffs.count(",") + 1),
         "leaves no width for the last cluster; use a smaller one or fewer model.cutoffs"),
        ("model.same_length", data.objective == "clm" or not model.same_length, "needs data.objective=clm"),
        ("data.factorization_order", data.factorization_order == "spans"
         or (data.objective == "plm" and config.finetune.task == "none"),
         "is for pretraining with data.objective=plm; use spans"),
        *(_layout_rules(config) if config.finetune.task == "none" else _task_rules(config)),
        *_vanilla_rules(config),
        ("data.weights", _positive(data), "must be positive numbers separated by commas"),
        ("data.mask_group_size", data.mask_group_size >= data.masks_per_group >= 1,
         f"must be at least data.masks_per_group={data.masks_per_group}, and that at least 1"),
        ("train.gradient_accumulation_steps", train.gradient_accumulation_steps == 1 or not compat.on("core_clip"),
         "must be 1 with compat switch core_clip, which has parts of its own"),
        ("train.elastic", not train.elastic or not compat.on("core_clip"),
         "must be off with compat switch core_clip, which divides the batch over its own number of cores"),
        ("train.batch_size", not compat.on("both_directions") or train.batch_size % 2 == 0,
         "must be even with compat switch both_directions"),
        ("compat.cores", compat.cores >= 1 and train.batch_size % compat.cores == 0,
         f"must divide train.batch_size={train.batch_size}"),
        ("optimizer.warmup_steps", 0 <= optimizer.warmup_steps < train.steps,
         f"must lie in [0, train.steps={train.steps})"),
        ("checkpoint.every", _divides(train.steps_per_dispatch, every), of_dispatches),
        ("checkpoint.keep_every", _divides(every, config.checkpoint.keep_every),
         f"must be a multiple of checkpoint.every={every}"),
        ("checkpoint.keep_best", config.checkpoint.keep_best == 0 or config.evaluation.every > 0,
         "needs held-out losses; set evaluation.every"),
        ("evaluation.every", _divides(train.steps_per_dispatch, config.evaluation.every), of_dispatches),
        ("mesh.data", [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) <= 1,
         "and another axis are both -1; only one can take what is left"),
    ]  # fmt: skip


def _divides(part: int, whole: int) -> bool:
    # A part below 1 breaks another rule.
    return part < 1 or whole % part == 0


def _layout_rules(config: Config) -> list[Rule]:
    """Rules for the lengths of an example, by objective; see `data.batches.examples`."""
    model, data = config.model, config.data
    T, R, P = data.segment_len, data.reuse_len, data.num_predict
    few_targets = ("data.num_predict", P <= (T - 3) // 2,
                   f"leaves too little context in data.segment_len={T}; use at most {(T - 3) // 2}")  # fmt: skip
    if data.objective == "plm" and data.factorization_order != "spans":
        return _order_rules(config)
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


def _order_rules(config: Config) -> list[Rule]:
    """Rules for a law that ranks an example as a whole; see `data.batches.orders`."""
    data, law = config.data, f"with data.factorization_order={config.data.factorization_order}"
    T, R, P = data.segment_len, data.reuse_len, data.num_predict
    of_2019 = [name for name in OF_EXAMPLES if config.compat.on(name)]
    return [
        ("data.reuse_len", R == T, f"must be data.segment_len={T} {law}: all of it is fresh"),
        ("data.num_predict", P == T, f"must be data.segment_len={T} {law}: all of it may be unknown"),
        ("compat.switches", not of_2019, f"must leave out {', '.join(of_2019)} {law}: 2019 had no such examples"),
    ]  # fmt: skip


def _vanilla_rules(config: Config) -> list[Rule]:
    """Rules for the keys of the Vanilla Transformer."""
    model, data = config.model, config.data
    left_to_right = data.objective == "clm" and config.finetune.task == "none"
    absolute = model.position_scheme == "absolute"
    return [
        ("model.position_scheme", not absolute or left_to_right,
         "is for pretraining with data.objective=clm; all else needs relative"),
        ("model.memory_len", not (absolute and left_to_right) or model.memory_len == 0,
         "must be 0 with model.position_scheme=absolute: a position in the memory would have two meanings"),
        ("model.biases_per_layer", not absolute or model.biases_per_layer,
         "must be True with model.position_scheme=absolute, which has no such biases"),
        ("model.layer_losses", not model.layer_losses or model.norm == "post",
         "needs model.norm=post: the sums of pre-norm layers are not normalised"),
        ("model.layer_losses", not model.layer_losses or left_to_right,
         "is for pretraining with data.objective=clm; use False"),
        ("model.layer_losses", not model.layer_losses or model.layers > 1, "needs layers below the last; use False"),
        ("data.multi_token_prediction", data.multi_token_prediction == 1 or left_to_right,
         "is for pretraining with data.objective=clm; use 1"),
    ]  # fmt: skip


def _task_rules(config: Config) -> list[Rule]:
    """Rules of `xlnet-jax finetune`."""
    task, every = config.finetune, config.evaluation.every
    return [
        ("data.segment_len", config.data.segment_len >= 8, "must be at least 8"),
        ("evaluation.every", not every or bool(task.dev), "needs examples to score; set finetune.dev"),
        ("evaluation.every", _divides(config.checkpoint.every, every),
         f"must be a multiple of checkpoint.every={config.checkpoint.every}: the best checkpoint is kept"),
        ("finetune.patience", not task.patience or every > 0, "needs scores; set evaluation.every"),
    ]  # fmt: skip


def _rising(model: ModelConfig) -> bool:
    try:
        ends = [0, *model.cutoff_list(), model.vocab_size]
    except ValueError:
        return False
    return all(a < b for a, b in itertools.pairwise(ends))


def _positive(data: DataConfig) -> bool:
    try:
        return all(0 < weight < math.inf for weight in data.weight_list())
    except ValueError:
        return False
