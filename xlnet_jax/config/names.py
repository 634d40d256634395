"""Other names of keys: those of other programs, for suggestions, and those of older versions, for their runs."""

from __future__ import annotations

from typing import Any

NAMES = {
    "n_layer": "model.layers",
    "dim": "model.d_model",
    "hidden_size": "model.d_model",
    "intermediate_size": "model.d_ff",
    "dtype": "model.compute_dtype",
    "seq_len": "data.segment_len",
    "max_length": "data.segment_len",
    "lr": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.clip",
    "max_steps": "train.steps",
    "bs": "train.batch_size",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluation.every",
    "seed": "seeds.init",
    "position_scheme": "model.architecture",
}
"""The key that is meant, by names that are far from it: the most usual ones of other programs, and an old one."""

RENAMED = {
    "model.untie_biases": "model.biases_per_layer",
    "data.orders": "data.factorization_order",
    "data.targets_ahead": "data.multi_token_prediction",
    "data.mask_alpha": "data.mask_group_size",
    "data.mask_beta": "data.masks_per_group",
    "data.follow_probability": "data.positive_pair_rate",
    "train.accumulation": "train.gradient_accumulation_steps",
}
"""Keys by the old name that stored runs and exports may have."""

RENAMED_VALUES = {
    "finetune.task": {
        "tokens": "token_classification", "spans": "question_answering", "choice": "multiple_choice",
    },
}  # fmt: skip
"""Values by key, in the same way."""

RENAMED_OPTIONS = {"parallel": "tokens_per_step", "unknown": "target_share", "law": "factorization_order"}
"""Options of the command line, in the same way."""

GONE = {"watchdog.sdc_every", "model.position_scheme"}
"""Keys that stored runs may have, and that no longer mean anything by themselves."""


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """`flat` values of an older version under the names of today, for reading stored runs and exports."""
    moved = {"model.architecture": "vanilla"} if values.get("model.position_scheme") == "absolute" else {}
    now = {RENAMED.get(name, name): RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
           for name, value in values.items() if name not in GONE}  # fmt: skip
    return now | moved
