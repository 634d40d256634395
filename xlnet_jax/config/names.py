"""Names of keys and values in older versions, for their runs."""

from __future__ import annotations

from typing import Any

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

GONE = {"watchdog.sdc_every"}
"""Keys that stored runs may have, and that no longer mean anything."""


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """`flat` values of an older version under the names of today, for reading stored runs and exports."""
    return {RENAMED.get(name, name): RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in values.items() if name not in GONE}  # fmt: skip
