"""Other names of keys: those of other programs, for suggestions, and those of older versions, for their runs."""

from __future__ import annotations

from typing import Any

_OF_OTHER_PROGRAMS = {
    "model.layers": "num_hidden_layers depth",
    "model.d_model": "dim hidden_size hidden_dim n_embd width",
    "model.heads": "num_attention_heads",
    "model.head_dim": "d_head",
    "model.d_ff": "d_inner intermediate_size ffn_dim mlp_dim",
    "model.compute_dtype": "dtype precision",
    "data.corpus": "data_dir data_path",
    "data.segment_len": "seq_len seq_length max_seq_length max_length sequence_length context_length block_size",
    "optimizer.learning_rate": "lr peak_lr",
    "optimizer.weight_decay": "wd decay",
    "optimizer.clip": "clip_norm max_grad_norm gradient_clip",
    "optimizer.adam_b1": "b1 beta1",
    "optimizer.adam_b2": "b2 beta2",
    "optimizer.adam_epsilon": "eps",
    "train.steps": "max_steps iterations",
    "train.batch_size": "bs",
    "train.gradient_accumulation_steps": "grad_accum",
    "checkpoint.every": "save_every save_steps checkpoint_every",
    "evaluation.every": "eval_every eval_steps",
    "seeds.init": "seed random_seed",
}
NAMES = {name: key for key, names in _OF_OTHER_PROGRAMS.items() for name in names.split()}
"""The key that is meant, by the names that people know from other programs and that are far from ours."""

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


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """`flat` values of an older version under the names of today, for reading stored runs and exports."""
    return {RENAMED.get(name, name): RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in values.items()}  # fmt: skip
