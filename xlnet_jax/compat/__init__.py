"""Behaviour of the original code of XLNet (2019) and of Google's BERT. docs/compat.md has the
reasons.

This module has the switches, their rules, and the hooks in `data/`; it needs no jax. The module
`hooks` has the hooks in the model, the step, the gradient and the optimizer.

A hook is named after its place. It returns the default unless its switch is on, so no other code
asks for a switch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from xlnet_jax.keys import Rule, key
from xlnet_jax.members.bert import BERT
from xlnet_jax.messages import suggest

SWITCHES = {
    "piece_spans": "spans are n pieces, not n words",
    "fill_functional": (
        "spans and single pieces may cover SEP and CLS; these are not predicted, so a row has "
        "fewer than `data.num_predict` targets"
    ),
    "static_targets": "windows, their targets and their texts A and B are the same in every epoch",
    "both_directions": (
        "every text is read forward and reversed in the same step, by rows r and r + B/2"
    ),
    "zero_memory": (
        "empty memory slots are zeros that every position sees, "
        "and all slots are emptied every 1000 steps"
    ),
    "position_dropout_per_row": "every row has its own dropout mask on the position table",
    "glorot_mask_embedding": (
        "the query stream's first vector is drawn uniformly, by Glorot's bound"
    ),
    "core_clip": (
        "each of `compat.cores` cores clips its share of the mean gradient, before the sum"
    ),
    "no_bias_correction": (
        "AdamW does not correct the bias; with weight decay 0 TensorFlow's Adam is used, which does"
    ),
    "layer_decay_on_gradients": (
        "layer-wise decay scales gradients, not rates, and skips embeddings and relative biases"
    ),
    "static_copies": "a window has the same text and targets in epochs n and n + 10",
}
"""Descriptions of the switches by name."""

SETS = {
    "2019": tuple(name for name in SWITCHES if name != "static_copies"),
    BERT.name: ("static_copies", "core_clip", "no_bias_correction"),
}
"""Names that stand for several switches: 2019 for XLNet's code, bert for Google's BERT."""

COPIES = 10
"""Number of copies of a window with `static_copies` (`dupe_factor` of Google's BERT)."""


@dataclasses.dataclass(frozen=True)
class CompatConfig:
    """Behaviour of original code, to reproduce published numbers; docs/compat.md has the table."""

    switches: str = key(
        "",
        "2019 = all switches of XLNet's code, bert = all of Google's BERT, or names, with commas",
    )
    cores: int = key(1, "TPU cores that core_clip imitates", "[1, inf)")

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return any(name in SETS.get(each, (each,)) for each in self.switches.split(","))


CORRECT = CompatConfig()
"""The default: no switch is on."""


def rules(config: Any) -> list[Rule]:
    """Returns the conflicts of the switches with other keys."""
    names = config.compat.switches
    return [
        *[
            (
                "compat.switches",
                name in SWITCHES or name in SETS,
                f"has no {name!r}{suggest(name, SWITCHES)}",
            )
            for name in names.split(",")
            if names
        ],
        *_example_rules(config),
        *_step_rules(config),
    ]


def _example_rules(config: Any) -> list[Rule]:
    """Returns the rule that a switch changes something in this model and its examples."""
    data, objective, member = config.data, config.objective, config.model.member
    parts = member.parts_of(objective) if config.pretrains else member.parts
    of_2019 = not config.pretrains or not (
        member.bounded
        or data.whole_documents
        or data.factorization_order != "spans"
        or (objective.whole and not objective.causal)
    )
    masked = member.bounded and not objective.whole and not data.whole_documents
    acts = {
        "piece_spans": of_2019 and not objective.causal,
        "fill_functional": of_2019 and not objective.causal,
        "static_targets": of_2019,
        "both_directions": of_2019,
        "zero_memory": "memory_len" not in member.required,
        # The masks of whole documents belong to documents, not to rows.
        "position_dropout_per_row": parts.positions == "relative" and not data.whole_documents,
        "glorot_mask_embedding": parts.streams == 2,
        "static_copies": masked and config.pretrains,
    }
    vain = ", ".join(name for name in acts if config.compat.on(name) and not acts[name])
    return [
        (
            "compat.switches",
            not vain,
            f"must leave out {vain} with model.architecture={member.name}, "
            f"data.objective={data.objective}, "
            f"data.factorization_order={data.factorization_order} and "
            f"data.documents={data.documents}: docs/compat.md says what each switch is for",
        )
    ]


def _step_rules(config: Any) -> list[Rule]:
    """Returns the conflicts of switches that change the step."""
    train, optimizer, on = config.train, config.optimizer.name, config.compat.on
    return [
        (
            "compat.switches",
            optimizer == "adamw"
            or not (on("no_bias_correction") or on("layer_decay_on_gradients")),
            (
                "must leave out no_bias_correction and layer_decay_on_gradients with "
                f"optimizer.name={optimizer}"
            ),
        ),
        (
            "train.gradient_accumulation_steps",
            not on("core_clip") or train.gradient_accumulation_steps == 1,
            "must be 1 with compat switch core_clip, which cuts the batch by compat.cores",
        ),
        (
            "train.elastic",
            not (train.elastic and on("core_clip")),
            "must be off with compat switch core_clip, which divides the batch by compat.cores",
        ),
        (
            "train.batch_size",
            not on("both_directions") or train.batch_size % 2 == 0,
            "must be even with compat switch both_directions",
        ),
        (
            "compat.cores",
            train.batch_size % config.compat.cores == 0,
            f"must divide train.batch_size={train.batch_size}",
        ),
    ]


def blocks(compat: CompatConfig) -> tuple[bool, int]:
    """Returns whether the blocks of a corpus are the same in every epoch (`static_targets`,
    `static_copies`), and how many rows read a block in the same step: with `both_directions` two,
    the second reversed.
    """
    return compat.on("static_targets") or compat.on("static_copies"), 1 + compat.on(
        "both_directions"
    )


def repeated(compat: CompatConfig, where: Any) -> np.ndarray | None:
    """Returns numbers, int64 [B], that determine the draws of an example together with the number
    of its window; None if every draw is new. `where` is a `data.batches.stream.Windows`.
    """
    if compat.on("static_copies"):
        return COPIES * where.block_B + where.epoch_B % COPIES
    return 2 * where.block_B + (where.direction_B < 0) if compat.on("static_targets") else None


def spans(compat: CompatConfig, eligible_BN: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Returns the positions that spans may cover, bool [B, N], and the kind of spans. With
    `fill_functional` spans may cover all positions, but only eligible positions are targets;
    `piece_spans` makes spans of pieces.
    """
    return eligible_BN | compat.on("fill_functional"), "pieces" if compat.on(
        "piece_spans"
    ) else kind
