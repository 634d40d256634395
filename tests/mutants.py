"""Mutation check: one-line faults that a wrong XLNet would have, each of which the named tests must
catch.

    python tests/mutants.py [--json] [--only NAME] [--jobs 2]

Every fault is a text substitution in a temporary copy of the checkout; the layout of the source
does not matter (`spans`). It is `caught` if an assertion fails or an error that must come does not,
and `escaped` if the tests pass. It is `unfinished` if neither is known: the text is not there, a
crash, an error in collection, a time-out. Ends with 1 if any escaped or is unfinished.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS = 300
"""Limit for the tests of one fault."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`before`, which stands once in `file`, becomes `after`; `tests` are pytest's words for what
    must notice.

    In Python the text that becomes `after` may be laid out in another way than `before`; see
    `spans`.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


def oracle(case: str, attention: str = "xla") -> tuple[str, ...]:
    """The comparison with the recorded independent implementation."""
    return (f"tests/oracle/test_oracle.py::test_equals_the_recording[{case}-float64-{attention}]",)


def family(name: str) -> tuple[str, ...]:
    """The same for BERT, RoBERTa, ALBERT, GPT-2 or ModernBERT."""
    return (f"tests/oracle/test_oracle.py::test_a_family_equals_the_recording[{name}]",)


def recurrence(case: str) -> tuple[str, ...]:
    """The same for Transformer-XL."""
    return (f"tests/oracle/test_oracle.py::test_transformer_xl_equals_the_recording[{case}]",)


def documents(case: str) -> tuple[str, ...]:
    """The comparison of packed documents with the same ones alone."""
    return (f"tests/train/test_documents.py::test_a_packed_row_is_its_documents_alone[{case}]",)


def one(module: str, test: str) -> tuple[str, ...]:
    """One test function; `module` is the folder and the module, such as `model/transformer`."""
    folder, _, name = module.rpartition("/")
    return (os.path.join("tests", folder, f"test_{name}.py") + f"::{test}",)


def rotary(case: str) -> tuple[str, ...]:
    """The comparison of rotary positions and windows with a computation position by position."""
    test = "test_both_streams_and_the_memory_are_those_of_the_formulas"
    return one("model/rotary", f"{test}[{case}]")


FUSED_BACKWARD = "xlnet_jax/kernels/tpu_kernels.py"
CHUNKS = "xlnet_jax/kernels/vocabulary_loss.py"
GPU = "xlnet_jax/kernels/gpu_kernels.py"
ATTENTION, POSITIONS = "xlnet_jax/model/attention.py", "xlnet_jax/model/positions.py"
ATTEND, DROPOUT = "xlnet_jax/kernels/xla.py", "xlnet_jax/kernels/dropout.py"
TRANSFORMER, LAYERS, HEADS = (
    f"xlnet_jax/model/{name}.py" for name in ("transformer", "layers", "heads")
)
EXAMPLES, SEGMENTS, SPANS, STREAM, SENTENCES = (
    f"xlnet_jax/data/batches/{name}.py"
    for name in ("examples", "sentence_pairs", "spans", "stream", "whole_sentences")
)
GRADIENTS, TASK = "xlnet_jax/train/gradients.py", "xlnet_jax/finetune/recipe.py"
FORMATS = "xlnet_jax/finetune/formats.py"
HOOKS = "xlnet_jax/compat/hooks.py"
OBJECTIVE, STEP, OPTIMIZER = (
    "xlnet_jax/train/loss.py",
    "xlnet_jax/train/step.py",
    "xlnet_jax/train/optimizer.py",
)
RESUME = "xlnet_jax/train/launch.py"
COST_MODEL = "xlnet_jax/aot/cost_model.py"
CACHE = "xlnet_jax/model/cache.py"
SCORE = "xlnet_jax/infer/score.py"
DECODE = "xlnet_jax/infer/decode.py"
DECLARED = one("train/optimizer", "test_depth_and_kind_of_every_parameter[bert]")

MUTANTS = (
    Mutant(
        "a_window_is_one_too_narrow",
        ATTEND,
        "jnp.abs(distance_BQK) <= a.near.size",
        "jnp.abs(distance_BQK) < a.near.size",
        rotary("windows-xla"),
    ),
    Mutant(
        "a_rotary_pair_is_of_neighbours",
        POSITIONS,
        "first, second = jnp.split(x_BNHE.astype(cos_BN1F.dtype), 2, axis=-1)",
        "first, second = (x_BNHE.astype(cos_BN1F.dtype)[..., part::2] for part in (0, 1))",
        rotary("windows-xla"),
    ),
    Mutant(
        "a_layer_has_the_base_of_the_other_kind",
        POSITIONS,
        "(x_2BNF[local][:, :, None] for x_2BNF in self)",
        "(x_2BNF[1 - local][:, :, None] for x_2BNF in self)",
        rotary("windows-xla"),
    ),
    Mutant(
        "a_query_is_turned_by_its_slot",
        TRANSFORMER,
        "jnp.concatenate([place_BT, targets.position_BQ], axis=1)\n        position_BS, position_BK",
        "jnp.concatenate([place_BT, jnp.cumsum(targets.position_BQ > -1, axis=1) - 1], axis=1)\n"
        "        position_BS, position_BK",
        rotary("windows-xla"),
    ),
    Mutant(
        "rotary_positions_ignore_the_direction",
        TRANSFORMER,
        "batch.direction[:, None] * place_BN for",
        "place_BN for",
        rotary("windows-xla"),
    ),
    Mutant(
        "the_first_layer_is_normed",
        ATTENTION,
        "y_BND if self.parts.first_norm else jnp.where(number == 0, x_BND, y_BND)",
        "y_BND",
        rotary("windows-xla"),
    ),
    Mutant(
        "a_memory_has_positive_places",
        TRANSFORMER,
        "jnp.broadcast_to(jnp.arange(keys) - slots, (B, keys))",
        "jnp.broadcast_to(jnp.arange(keys), (B, keys))",
        rotary("windows-xla"),
    ),
    Mutant(
        "keys_of_documents_are_turned_by_their_slots",
        TRANSFORMER,
        "place_BK = documents.position\n",
        "pass\n",
        documents("modern-plm-xla"),
    ),
    Mutant(
        "cached_keys_are_turned_twice",
        ATTENTION,
        "local = self._turned(q_BSHE, k_BKHE, inputs.rotary, number)",
        "local = self._turned(q_BSHE, k_BKHE, inputs.rotary, number)\n"
        "        if rows and inputs.rotary:\n"
        "            own = positions.Turns(*(x[:, :, :T] for x in inputs.rotary.turns_S))\n"
        "            rows = (own.turn(rows[0], local), rows[1])",
        one("infer/decoder", "test_cached_equals_uncached_with_turned_keys"),
    ),
    Mutant(
        "the_gate_is_activated",
        LAYERS,
        'inner(name="gate")(y_BSD)',
        'jax.nn.gelu(inner(name="gate")(y_BSD), approximate=False)',
        rotary("windows-xla"),
    ),
    Mutant(
        "the_head_of_modernbert_starts_as_other_kernels",
        HEADS,
        "residual_init(config, parts), parts.layer_biases",
        "None, parts.layer_biases",
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[modernbert]"),
    ),
    Mutant(
        "a_shard_draws_the_dropout_of_the_first",
        "xlnet_jax/kernels/fused.py",
        "a.dropout.first_head + jax.lax.axis_index(heads) * a.q_BQHE.shape[2]",
        "a.dropout.first_head",
        one("kernels/fused", "test_shards_of_rows_and_heads_equal_the_whole[tpu]"),
    ),
    Mutant(
        "a_gh200_is_unknown",
        "xlnet_jax/kernels/fused.py",
        'r"NVIDIA [A-Z]+\\d+"',
        'r"NVIDIA [A-Z]\\d+"',
        one("kernels/fused", "test_gpus_are_known_by_their_family"),
    ),
    Mutant(
        "remat_runs_the_gpu_kernel_again",
        "xlnet_jax/kernels/gpu.py",
        '(o_BQHE, log_BHQ), "fused_attention")',
        '(o_BQHE, log_BHQ), "attention")',
        one(
            "kernels/fused",
            "test_remat_of_all_but_products_keeps_what_the_gradient_needs[gpu]",
        ),
    ),
    Mutant(
        "gpu_interleaves_the_halves",
        "xlnet_jax/kernels/gpu_triton.py",
        "jnp.stack(halves, axis=2).swapaxes(1, 2).reshape(Q, S)",
        "jnp.stack(halves, axis=2).reshape(Q, S)",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel4]"),
    ),
    Mutant(
        "padding_of_keys_is_seen",
        "xlnet_jax/kernels/packing.py",
        "constant_values=_INT.max",
        "constant_values=0",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel1]"),
    ),
    Mutant(
        "reversed_rows_have_forward_distances",
        "xlnet_jax/kernels/packing.py",
        "even_SNHE - odd_SNHE",
        "even_SNHE + odd_SNHE",
        one("kernels/fused", "test_shards_of_rows_and_heads_equal_the_whole[tpu]"),
    ),
    Mutant(
        "tpu_distances_off_by_one",
        "xlnet_jax/kernels/tpu.py",
        "(Tp - T, after)",
        "(Tp - T + 1, after - 1)",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel1]"),
    ),
    Mutant(
        "remat_runs_the_tpu_kernel_again",
        "xlnet_jax/kernels/tpu.py",
        '(o_BQD, log_BG8Q, weight_BHQK), "fused_attention")',
        '(o_BQD, log_BG8Q, weight_BHQK), "attention")',
        one(
            "kernels/fused",
            "test_remat_of_all_but_products_keeps_what_the_gradient_needs[tpu]",
        ),
    ),
    Mutant(
        "the_edge_of_a_tile_is_from_the_wrong_one",
        "xlnet_jax/kernels/tpu_positions.py",
        "to_QL < LANES if sign > 0",
        "to_QL <= LANES if sign > 0",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel1]"),
    ),
    Mutant(
        "the_gradient_of_a_query_is_of_the_last_tile",
        "xlnet_jax/kernels/tpu_positions.py",
        "db_EQ += dot(",
        "db_EQ = dot(",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel1]"),
    ),
    Mutant(
        "the_same_segment_is_the_other_one",
        "xlnet_jax/kernels/tpu_units.py",
        "self.inputs.keys[0, 1:2, part] != self.columns_ref[1]",
        "self.inputs.keys[0, 1:2, part] == self.columns_ref[1]",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries[24-kernel1]"),
    ),
    Mutant(
        "all_rows_have_the_dropout_of_the_first",
        "xlnet_jax/kernels/tpu_units.py",
        "(b * pl.num_programs(0 if self.groups_first else 1) + g) * plan.heads",
        "g * plan.heads",
        one("kernels/fused", "test_shards_of_rows_and_heads_equal_the_whole[tpu]"),
    ),
    Mutant(
        "the_last_block_of_keys_is_skipped",
        "xlnet_jax/kernels/tpu_units.py",
        "first + n, last), first + n <= last",
        "first + n, last), first + n < last",
        one("kernels/fused", "test_no_document_sees_another[tpu-None]"),
    ),
    Mutant(
        "fused_has_no_floor",
        "xlnet_jax/kernels/tpu_units.py",
        "part] >= self.columns_ref[4]",
        "part] >= 0 * self.columns_ref[4]",
        one("kernels/fused", "test_no_document_sees_another[tpu-None]"),
    ),
    Mutant(
        "fused_dropout_of_a_query_by_its_slot",
        "xlnet_jax/kernels/tpu_units.py",
        "word, rows_8Q[5:6]",
        "word, rows_8Q[2:3]",
        one("kernels/fused", "test_no_document_sees_another[tpu-40]"),
    ),
    Mutant(
        "fused_dropout_of_a_key_by_its_slot",
        "xlnet_jax/kernels/tpu_units.py",
        "self.inputs.keys[0, 2:3, part] if self.plan.packed else",
        "",
        one("kernels/fused", "test_no_document_sees_another[tpu-None]"),
    ),
    Mutant(
        "gpu_skips_the_last_block",
        GPU,
        "seen[1][b, n] + 1",
        "seen[1][b, n]",
        one("kernels/fused", "test_no_document_sees_another[gpu-None]"),
    ),
    Mutant(
        "gpu_has_no_floor",
        GPU,
        "rank_1S >= self.floor_Q1",
        "rank_1S >= 0 * self.floor_Q1",
        one("kernels/fused", "test_no_document_sees_another[gpu-None]"),
    ),
    Mutant(
        "gpu_dropout_of_a_key_by_its_slot",
        GPU,
        "number_1S = self.inputs.keys_BNK[self.b, 2, keys][None]",
        "number_1S += 0",
        one("kernels/fused", "test_no_document_sees_another[gpu-None]"),
    ),
    Mutant(
        "gpu_reads_blocks_outside_the_window",
        GPU,
        "if self.skips else (0, blocks)",
        "if self.packed else (0, blocks)",
        one("kernels/fused", "test_blocks_outside_the_window_are_not_read[gpu-text]"),
    ),
    Mutant(
        "gpu_has_half_a_window",
        GPU,
        "(segment_1S >= self.nearest_Q1) & ",
        "",
        one("kernels/fused", "test_without_relative_positions[gpu-text-window]"),
    ),
    Mutant(
        "a_window_has_no_first_block",
        "xlnet_jax/kernels/packing.py",
        " & (first_BI1 - last_B1J <= a.near.size)",
        "",
        one("kernels/fused", "test_a_window_sees_the_blocks_that_it_touches"),
    ),
    Mutant(
        "padding_of_keys_counts_in_their_block",
        "xlnet_jax/kernels/packing.py",
        "keys[0] != _INT.max",
        "keys[0] != _INT.min",
        one("kernels/fused", "test_blocks_that_no_query_sees_are_not_read[tpu-in_order]"),
    ),
    Mutant(
        "padding_of_queries_counts_in_their_block",
        "xlnet_jax/kernels/packing.py",
        "of_queries &= queries[4] != NEVER",
        "of_queries &= queries[4] >= 0",
        one("kernels/fused", "test_blocks_that_no_query_sees_are_not_read[gpu-in_order]"),
    ),
    Mutant(
        "a_window_one_too_narrow",
        "xlnet_jax/kernels/tpu_units.py",
        "jnp.abs(distance_QK) <= self.inputs.size[0]",
        "jnp.abs(distance_QK) < self.inputs.size[0]",
        one("kernels/fused", "test_without_relative_positions[tpu-text-window]"),
    ),
    Mutant(
        "a_window_skips_a_block_too_many",
        "xlnet_jax/kernels/packing.py",
        "first_BI1 - last_B1J <= a.near.size",
        "first_BI1 - last_B1J < a.near.size",
        one("kernels/fused", "test_a_window_visits_the_blocks_in_its_reach"),
    ),
    Mutant(
        "padding_of_queries_counts_in_a_window",
        "xlnet_jax/kernels/packing.py",
        "queries[0] != _INT.min",
        "queries[0] != _INT.max",
        one("kernels/fused", "test_a_window_visits_the_blocks_in_its_reach"),
    ),
    Mutant(
        "dk_of_skipped_blocks_is_left_over",
        FUSED_BACKWARD,
        "clear, refs.dk_sum, refs.dv_sum",
        "clear, refs.dv_sum",
        one("kernels/fused", "test_no_document_sees_another[tpu-None]"),
    ),
    Mutant(
        "an_open_end_of_an_interval_is_allowed",
        "xlnet_jax/keys.py",
        '"below": operator.lt',
        '"below": operator.le',
        one(
            "config",
            "test_a_mistake_is_one_line_that_names_key_value_and_fix[--config.optimizer.adam_b1=1-must be below 1]",
        ),
    ),
    Mutant(
        "a_public_name_is_another_function",
        "xlnet_jax/__init__.py",
        '"pretrain": "commands.train:train"',
        '"pretrain": "commands.finetune:finetune"',
        one("library", "test_the_names_of_the_package_are_imported_when_they_are_used"),
    ),
    Mutant(
        "the_package_does_not_list_its_version",
        "xlnet_jax/__init__.py",
        '[*__all__, "__version__"]',
        "[*__all__]",
        one("library", "test_the_names_of_the_package_are_imported_when_they_are_used"),
    ),
    Mutant(
        "a_text_with_a_gap_is_counted_from_0",
        "xlnet_jax/library.py",
        "enumerate(self._texts(texts), 1): infill.refuse_gap(",
        "enumerate(self._texts(texts)):\n            infill.refuse_gap(",
        one("library", "test_a_gap_is_one_everywhere_and_where_it_makes_no_sense_one_line"),
    ),
    Mutant(
        "sentences_of_albert_change_places",
        "xlnet_jax/members/albert.py",
        '"sop_classifier.classifier.weight", "swapped"',
        '"sop_classifier.classifier.weight", "transposed"',
        family("albert"),
    ),
    Mutant(
        "gpt2_has_the_epsilon_of_bert",
        "xlnet_jax/members/gpt2.py",
        '("layer_norm_epsilon", 1e-5)',
        '("layer_norm_epsilon", 1e-12)',
        one("convert/fields", "test_a_null_of_config_json_is_the_usual_value"),
    ),
    Mutant(
        "every_objective_predicts_from_the_query_stream",
        "xlnet_jax/members/member.py",
        "self.other_parts.get(objective, self.parts)._replace(targets=objective.stream)",
        "self.other_parts.get(objective, self.parts)",
        one("members", "test_each_objective_is_complete"),
    ),
    Mutant(
        "the_usual_keys_have_no_memory",
        "xlnet_jax/members/member.py",
        '**({} if recurrent else {"memory_len": 0})',
        '"memory_len": 0',
        one("members", "test_the_usual_keys_of_each_objective_go_together[transformer_xl]"),
    ),
    Mutant(
        "xlnet_predicts_without_dropout",
        "xlnet_jax/members/parts.py",
        "output_dropout: bool = True",
        "output_dropout: bool = False",
        one("train/every_family", "test_every_dropout_is_on_in_training_and_off_elsewhere[xlnet]"),
    ),
    Mutant(
        "every_model_starts_as_gpt2",
        "xlnet_jax/members/parts.py",
        "scaled_init: bool = False",
        "scaled_init: bool = True",
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[xlnet]"),
    ),
    Mutant(
        "the_classifier_of_tokens_has_the_name_of_that_of_texts",
        "xlnet_jax/members/peer.py",
        '"ForTokenClassification": {"logits": "classifier"}',
        '"ForTokenClassification": {"logits": logits}',
        one("convert/names", "test_every_task_has_a_class_and_a_head_there"),
    ),
    Mutant(
        "layers_there_count_from_1",
        "xlnet_jax/members/peer.py",
        "self.theirs.format(layer), layer",
        "self.theirs.format(layer + 1), layer",
        one("convert/names", "test_names_shapes_and_counts_are_those_of_the_released_models"),
    ),
    Mutant(
        "the_transformer_has_a_softmax_bias",
        "xlnet_jax/members/transformer.py",
        'head="bare"',
        'head="bias"',
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[transformer]"),
    ),
    Mutant(
        "transformer_xl_is_exported_as_xlnet",
        "xlnet_jax/members/transformer_xl.py",
        "xlnet_ids=False, peer=None",
        "xlnet_ids=False",
        one("convert/fields", "test_each_member_with_a_class_there_is_here"),
    ),
    Mutant(
        "vanilla_may_have_a_memory",
        "xlnet_jax/members/vanilla.py",
        '{"memory_len": 0, "biases_per_layer": True}',
        '{"biases_per_layer": True}',
        one("train/vanilla", "test_what_does_not_fit_absolute_positions_is_refused"),
    ),
    Mutant(
        "sixty_seconds_are_no_minute",
        "xlnet_jax/messages.py",
        "seconds < 59.95",
        "seconds < 60",
        one("commands/cli", "test_numbers_are_for_scripts_and_durations_for_people"),
    ),
    Mutant(
        "all_texts_leave_their_segment_with_the_first",
        CACHE,
        "rank_BK=jnp.where(ended_B[:, None], rank_BK, self.rank_BK)",
        "rank_BK=rank_BK.astype(self.rank_BK.dtype)",
        one("infer/decoder", "test_a_left_to_right_model_continues_past_its_segment"),
    ),
    Mutant(
        "the_memory_has_a_gradient",
        "xlnet_jax/model/flops.py",
        "(per_row - into_memory) + table",
        "per_row + table",
        one("model/flops", "test_one_layer_by_hand"),
    ),
    Mutant(
        "rotary_heads_of_odd_width",
        "xlnet_jax/config/model.py",
        "model.head_dim % 2 == 0",
        "model.head_dim % 1 == 0",
        one("config", "test_rules_of_rotary_positions_and_windows"),
    ),
    Mutant(
        "a_window_without_rotary_positions",
        "xlnet_jax/config/model.py",
        'for key in ("window", ',
        "for key in (",
        one("config", "test_rules_of_rotary_positions_and_windows"),
    ),
    Mutant(
        "flops_of_keys_outside_of_a_window",
        "xlnet_jax/model/flops.py",
        "near if model.window and number % model.global_every else M + T",
        "M + T",
        one("model/flops", "test_a_layer_with_a_window_counts_the_keys_inside_of_it"),
    ),
    Mutant(
        "the_gate_costs_nothing",
        "xlnet_jax/model/flops.py",
        "(2 + parts.gated)",
        "2",
        one("model/flops", "test_a_layer_with_a_window_counts_the_keys_inside_of_it"),
    ),
    Mutant(
        "the_peak_is_that_of_one_device",
        "xlnet_jax/model/flops.py",
        "flops / (peak * jax.device_count())",
        "flops / peak",
        one("model/flops", "test_utilisation_is_needed_flops_over_the_peak_of_all_devices"),
    ),
    Mutant(
        "a_further_target_has_the_weight_of_the_next",
        "xlnet_jax/model/vanilla.py",
        "auxiliary.weights[:, -1, 1:]",
        "auxiliary.weights[:, -1, :-1]",
        one("train/vanilla", "test_the_loss_is_the_weighted_sum_of_all_its_parts"),
    ),
    Mutant(
        "nearly_all_tokens_may_be_targets",
        "xlnet_jax/objectives/__init__.py",
        "(config.data.segment_len - 3) // 2",
        "config.data.segment_len - 3",
        one(
            "config",
            "test_a_mistake_is_one_line_that_names_key_value_and_fix[--config.data.num_predict=100-leaves too little context]",
        ),
    ),
    Mutant(
        "left_to_right_has_a_query_stream",
        "xlnet_jax/objectives/objective.py",
        'stream: str = "content',
        'stream: str = "query',
        one("model/flops", "test_a_left_to_right_model_has_all_clusters_and_no_segment_scores"),
    ),
    Mutant(
        "every_objective_is_causal",
        "xlnet_jax/objectives/objective.py",
        "causal: bool = False",
        "causal: bool = True",
        one("members", "test_each_objective_is_complete"),
    ),
    Mutant(
        "zero_is_in_every_range",
        "xlnet_jax/options.py",
        "self.field is not None and value is not None and",
        "self.field is not None and value and",
        one("commands/cli", "test_every_whole_number_of_every_command_has_a_range"),
    ),
    Mutant(
        "a_declared_default_is_lost",
        "xlnet_jax/options.py",
        "option_help(field), field.default,",
        "option_help(field), None,",
        one("commands/options", "test_the_command_line_has_what_is_declared"),
    ),
    Mutant(
        "a_pause_after_an_end_is_lost_time",
        "xlnet_jax/run/goodput.py",
        'if not last["ended"]:',
        "if last:",
        one("run/watchdog", "test_time_is_counted_once_and_over_restarts"),
    ),
    Mutant(
        "a_late_holder_writes_on",
        "xlnet_jax/run/lock.py",
        "if other or time.monotonic() - self._renewed > STALE_SECONDS:",
        "if other:",
        one(
            "run/bucket_workdir",
            "test_a_stale_lock_is_taken_over_and_its_holder_finds_out",
        ),
    ),
    Mutant(
        "the_lock_of_the_next_run_is_removed",
        "xlnet_jax/run/lock.py",
        "self.check()\n                if over:",
        "if over:",
        one(
            "run/bucket_workdir",
            "test_a_stale_lock_is_taken_over_and_its_holder_finds_out",
        ),
    ),
    Mutant(
        "the_line_of_the_checkpoint_is_cut_off",
        "xlnet_jax/run/metrics.py",
        'read_jsonl(path) if line["step"] <= step',
        'read_jsonl(path) if line["step"] < step',
        one("run/metrics", "test_no_step_appears_twice_after_a_resume"),
    ),
    Mutant(
        "the_bar_is_a_step_behind",
        "xlnet_jax/run/progress.py",
        "completed=steps[-1] + 1",
        "completed=steps[-1]",
        one("run/progress", "test_the_bar_or_the_log_says_compiling_and_then_training"),
    ),
    Mutant(
        "the_bar_compiles_for_ever",
        "xlnet_jax/run/progress.py",
        "description=TRAINING",
        "description=what",
        one("run/progress", "test_the_bar_or_the_log_says_compiling_and_then_training"),
    ),
    Mutant(
        "an_unknown_level_hides_all_others",
        "xlnet_jax/run/progress.py",
        "if level is not None:",
        "if None not in levels.values():",
        one("run/progress", "test_a_level_that_is_not_known_has_no_line"),
    ),
    Mutant(
        "a_full_disk_asks_for_a_restart",
        "xlnet_jax/run/retries.py",
        "((REPAIR, BadInput), (PASSES, RestartMe))",
        "((REPAIR, RestartMe), (PASSES, RestartMe))",
        one("run/retries", "test_whose_error_it_is"),
    ),
    Mutant(
        "a_lost_lock_is_tried_again",
        "xlnet_jax/run/retries.py",
        "isinstance(error, XLNetError) and error.__cause__ is not None",
        "isinstance(error, XLNetError)",
        one("run/retries", "test_whose_error_it_is"),
    ),
    Mutant(
        "nohup_keeps_nothing",
        "xlnet_jax/run/signals.py",
        "handled = SIGNALS if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else SIGNALS[:2]",
        "handled = SIGNALS",
        one(
            "run/signals",
            "test_a_second_control_c_ends_at_once_and_a_repeated_sigterm_does_not[ignored HUP TERM-0]",
        ),
    ),
    Mutant(
        "a_launcher_that_sends_both_loses_the_save",
        "xlnet_jax/run/signals.py",
        "elif interrupts > 1 or",
        "elif interrupts > 0 or",
        one(
            "run/signals",
            "test_a_second_control_c_ends_at_once_and_a_repeated_sigterm_does_not[INT TERM-0]",
        ),
    ),
    Mutant(
        "a_compilation_counts_as_a_hang",
        "xlnet_jax/run/watchdog.py",
        "count + 1 if self._watching and self._progress == seen else 0",
        "count + 1 if self._progress == seen else 0",
        one("run/watchdog", "test_progress_or_a_compilation_keeps_it_quiet[1]"),
    ),
    Mutant(
        "a_watchdog_that_is_off_bites",
        "xlnet_jax/run/watchdog.py",
        "if seconds:",
        "if seconds is not None:",
        one("run/watchdog", "test_progress_or_a_compilation_keeps_it_quiet[0]"),
    ),
    Mutant(
        "a_loss_of_nan_ranks_a_checkpoint",
        "xlnet_jax/run/workdir.py",
        "if isinstance(loss, float) and math.isfinite(loss)",
        "if isinstance(loss, float)",
        one("run/metrics", "test_only_finite_losses_decide_which_checkpoint_is_best"),
    ),
    Mutant(
        "a_later_start_replaces_the_normalization",
        "xlnet_jax/run/workdir.py",
        'files.write_new(os.path.join(folder, "normalization.json"), rules)',
        'files.write(os.path.join(folder, "normalization.json"), rules)',
        one("run/workdir", "test_the_tokenizer_and_its_normalization_come_back"),
    ),
    Mutant(
        "a_bucket_replaces_what_is_there",
        "xlnet_jax/storage/bucket.py",
        'remote.pipe_file(path, data, mode="create")',
        "remote.pipe_file(path, data)",
        one("storage/files", "test_the_same_on_disk_and_in_a_bucket[bucket]"),
    ),
    Mutant(
        "the_hub_gets_a_commit_for_each_file",
        "xlnet_jax/storage/bucket.py",
        'api.create_commit(f"{owner}/{name}", files, commit',
        '[api.create_commit(f"{owner}/{name}", [x], commit_message="x") for x in files], dict(commit',
        one("storage/hub", "test_an_export_is_one_commit"),
    ),
    Mutant(
        "orbax_writes_to_any_store",
        "xlnet_jax/storage/files.py",
        'and not path.startswith("gs://")',
        "and not path",
        one("run/bucket_workdir", "test_other_addresses_and_empty_ones"),
    ),
    Mutant(
        "a_refusal_shows_the_whole_request",
        "xlnet_jax/storage/bucket.py",
        'summary(cause).partition(" [")[0]',
        "summary(cause)",
        one("run/bucket_workdir", "test_what_tensorstore_says"),
    ),
    Mutant(
        "an_error_names_another_file",
        "xlnet_jax/storage/files.py",
        'where = getattr(error, "filename", None) or path',
        "where = path",
        one("storage/files", "test_one_line"),
    ),
    Mutant(
        "a_full_disk_keeps_half_a_file",
        "xlnet_jax/storage/local.py",
        "os.remove(temporary(path))",
        'os.remove(f"{path}.tmp")',
        one("storage/files", "test_a_full_disk_leaves_the_old_file_and_no_other"),
    ),
    Mutant(
        "files_of_the_user_are_swept_away",
        "xlnet_jax/storage/local.py",
        'r"\\.\\d+\\.tmp$"',
        'r"\\.tmp$"',
        one("storage/files", "test_sweep[disk]"),
    ),
    Mutant(
        "the_memory_is_rebuilt_from_the_end_of_its_phase",
        "xlnet_jax/train/phases.py",
        "return [0, *config.ends][number]",
        "return config.ends[number]",
        one("train/phases", "test_the_memory_goes_back_to_where_a_border_has_emptied_it"),
    ),
    Mutant(
        "a_parameter_that_no_phase_needs_is_dropped",
        "xlnet_jax/train/phases.py",
        "sorted(ours ^ {",
        "sorted(ours - {",
        one(
            "train/phases",
            "test_phases_with_parameters_that_the_run_lacks_are_refused_by_name",
        ),
    ),
    Mutant(
        "texts_of_micro_batches_change_their_memories",
        "xlnet_jax/train/recipe.py",
        "jnp.moveaxis(x, 0, axis + which)",
        "jnp.moveaxis(x, 0, axis)",
        one(
            "train/meshes",
            "test_micro_batches_and_rows_of_weight_0_give_the_losses_and_the_gradient_of_the_whole[{'data': 3}-2]",
        ),
    ),
    Mutant(
        "a_long_context_helps_the_easiest_tokens",
        "xlnet_jax/train/sliding.py",
        'np.argsort(-baseline_N, kind="stable")',
        'np.argsort(baseline_N, kind="stable")',
        one("train/evaluation", "test_the_length_is_where_a_longer_context_stops_to_help"),
    ),
    Mutant(
        "the_memory_is_not_saved",
        "xlnet_jax/train/state.py",
        "if memory and sizes and all(sizes):",
        "if not memory and sizes and all(sizes):",
        one("checkpoint/store", "test_everything_comes_back_bit_for_bit"),
    ),
    Mutant(
        "moments_of_nan_are_saved",
        "xlnet_jax/train/state.py",
        '("params", "optimizer")',
        '("params",)',
        one("checkpoint/store", "test_a_state_that_is_not_finite_is_not_saved[optimizer]"),
    ),
    Mutant(
        "samples_of_before_lost",
        "xlnet_jax/run/metrics.py",
        "os.path.join(self._workdir, SAMPLES), self._step)",
        "os.path.join(self._workdir, SAMPLES), 0)",
        one("train/loop", "test_samples_show_what_each_evaluation_fills_and_change_no_bit"),
    ),
    Mutant(
        "a_signal_is_a_loss",
        "xlnet_jax/run/goodput.py",
        '"signal" if line.get("stopped")',
        '"signal" if line.get("stop")',
        one("commands/report", "test_how_a_start_has_ended"),
    ),
    Mutant(
        "a_part_of_the_split_passes_for_all",
        "xlnet_jax/commands/export.py",
        "* (share < 1)",
        "* (share > 1)",
        one("commands/export", "test_every_kept_checkpoint_becomes_a_folder_with_its_card"),
    ),
    Mutant(
        "losses_of_two_vocabularies_in_one_chart",
        "xlnet_jax/comparison/report.py",
        'if key == "loss" else [None]',
        'if key == "losses" else [None]',
        one("commands/report", "test_losses_of_other_tokenizers_have_a_chart_of_their_own"),
    ),
    Mutant(
        "wrapped_lines_pass_for_sentences",
        "xlnet_jax/data/prepare/text.py",
        "if 2 * ended >= len(sentences)",
        "if 9 * ended >= len(sentences)",
        one("data/prepare/text", "test_wrapped_lines_are_told_from_paragraphs_on_one_line"),
    ),
    Mutant(
        "export_of_the_newest_alone",
        "xlnet_jax/commands/export.py",
        "steps = sorted(checkpoints.steps())",
        "steps = checkpoints.steps()[:1]",
        one("commands/export", "test_every_kept_checkpoint_becomes_a_folder_with_its_card"),
    ),
    Mutant(
        "perm_mask_hides_the_context",
        "xlnet_jax/batch.py",
        "key < query, key <= query)",
        "key < query, key < query)",
        one("library", "test_a_batch_as_transformers_takes_it_hides_what_a_rank_does_not_see"),
    ),
    Mutant(
        "batches_start_over",
        "xlnet_jax/train/launch.py",
        "start, end).batch, range(start, end))",
        "start, end).batch, range(end - start))",
        one("library", "test_batches_are_those_of_the_steps_also_in_phases"),
    ),
    Mutant(
        "query_sees_itself",
        TRANSFORMER,
        "AttentionStream(limit_BP, segment_BP",
        "AttentionStream(limit_BP + 1, segment_BP",
        one("model/transformer", "test_a_target_depends_on_exactly_the_lower_ranks"),
    ),
    Mutant(
        "content_blind_to_itself",
        TRANSFORMER,
        "batch.rank + 1, NEVER",
        "batch.rank + 0, NEVER",
        one(
            "model/transformer",
            "test_a_content_position_depends_on_exactly_its_own_and_lower_ranks",
        ),
    ),
    Mutant(
        "query_mask_from_position_0",
        TRANSFORMER,
        "take_along_axis(x, batch.target_positions, axis=1) for",
        "take_along_axis(x, batch.target_positions * 0, axis=1) for",
        one("model/transformer", "test_a_target_depends_on_exactly_the_lower_ranks"),
    ),
    Mutant(
        "a_document_has_no_floor",
        ATTEND,
        "a.packed.floor_BQ[:, :, None]",
        "a.packed.floor_BQ[:, :, None] * 0",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "a_query_has_the_floor_of_the_next_document",
        TRANSFORMER,
        "jnp.take_along_axis(documents.floor, batch.target_positions, axis=1)",
        "jnp.roll(jnp.take_along_axis(documents.floor, batch.target_positions, axis=1), -1, 1)",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "a_token_has_the_floor_of_the_next_one",
        TRANSFORMER,
        "PackedKeys(documents.floor, *tokens",
        "PackedKeys(jnp.roll(documents.floor, -1, 1), *tokens",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "learned_positions_go_on_in_the_next_document",
        "xlnet_jax/model/embeddings.py",
        "jnp.where(padding_BT, -1, at_BT)",
        "jnp.where(padding_BT, -1, jnp.arange(T)[None])",
        documents("roberta-mlm-cpu"),
    ),
    Mutant(
        "sinusoids_go_on_in_the_next_document",
        "xlnet_jax/model/embeddings.py",
        "positions.absolute_sinusoids(at_BT, width",
        "positions.absolute_sinusoids(jnp.arange(T)[None], width",
        documents("transformer-clm-cpu"),
    ),
    Mutant(
        "positions_of_layers_go_on_in_the_next_document",
        ATTENTION,
        "T if content.packed is None else content.packed.position_BQ",
        "T",
        documents("vanilla-clm-cpu"),
    ),
    Mutant(
        "masks_of_keys_depend_on_their_place_in_the_row",
        ATTEND,
        "self.packed.position_BQ, self.packed.position_BK",
        "self.packed.position_BQ, self.packed.position_BK * 0 + jnp.arange(self.rank_BK.shape[1])[None]",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "masks_of_queries_depend_on_the_row",
        ATTEND,
        "return self.packed.document_BQ, self",
        "return self.rows_B[:, None], self",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "masks_of_layers_depend_on_the_row",
        TRANSFORMER,
        "places=Places(rows, position_BS)",
        "places=Places(jnp.arange(B), position_BS)",
        documents("xlnet-plm-cpu"),
    ),
    Mutant(
        "masks_of_all_documents_start_at_their_places",
        TRANSFORMER,
        "Places(documents.number, documents.position)",
        "Places(documents.number, documents.position * 0 + jnp.arange(batch.tokens.shape[1])[None])",
        documents("xlnet-mdm-cpu"),
    ),
    Mutant(
        "a_bound_weighs_rows_of_documents",
        "xlnet_jax/train/loss.py",
        " or batch.documents is not None",
        "",
        documents("xlnet-mdm-cpu"),
    ),
    Mutant(
        "perm_mask_without_floors",
        "xlnet_jax/batch.py",
        "visible_BTT &= key >= self.documents.floor[:, :, None]",
        "visible_BTT &= key >= -2",
        one("train/documents", "test_transformers_gets_the_mask_of_each_document"),
    ),
    Mutant(
        "distance_off_by_one",
        POSITIONS,
        "jnp.arange(keys - 1, -segment_len, -1)",
        "jnp.arange(keys, 1 - segment_len, -1)",
        oracle("plain", "cpu"),
    ),
    Mutant(
        "shift_off_by_one",
        ATTEND,
        "flat[:, :, T - 1 : T - 1 + T * (N - 1)]",
        "flat[:, :, T - 2 : T - 2 + T * (N - 1)]",
        one("kernels/xla", "test_equals_the_formula"),
    ),
    Mutant(
        "shift_gradient_off_by_one",
        ATTEND,
        "jnp.broadcast_to(T - 1 - jnp.arange(T)",
        "jnp.broadcast_to(T - 2 - jnp.arange(T)",
        oracle("plain", "cpu"),
    ),
    Mutant(
        "target_window_off_by_one",
        ATTEND,
        "last - position, keys",
        "last - 1 - position, keys",
        one("kernels/xla", "test_equals_the_formula"),
    ),
    Mutant(
        "sine_and_cosine_swapped",
        POSITIONS,
        "[jnp.sin(angle), jnp.cos(angle)]",
        "[jnp.cos(angle), jnp.sin(angle)]",
        oracle("plain", "cpu"),
    ),
    Mutant(
        "direction_sign",
        POSITIONS,
        "jnp.stack([direction_B, ",
        "jnp.stack([-direction_B, ",
        oracle("reversed", "cpu"),
    ),
    Mutant(
        "direction_ignored",
        POSITIONS,
        "jnp.stack([direction_B, ",
        "jnp.stack([jnp.ones_like(direction_B), ",
        oracle("reversed", "cpu"),
    ),
    Mutant(
        "direction_ignored_by_attend",
        ATTEND,
        "direction_B.astype(r_BHNE.dtype)",
        "jnp.ones_like(r_BHNE[:, 0, 0, 0])",
        one("kernels/xla", "test_equals_the_formula"),
    ),
    Mutant("scale_missing", ATTEND, " *= a.q_BQHE.shape[-1] ** -0.5", " *= 1", oracle("plain")),
    Mutant(
        "softmax_gradient_without_its_mean", ATTEND, "(d_BHQK - mean)", "d_BHQK", oracle("plain")
    ),
    Mutant(
        "kernel_gradient_without_a_row",
        LAYERS,
        "[each.reshape(-1, each.shape[-1]) for",
        "[each.reshape(-1, each.shape[-1])[1:] for",
        oracle("plain", "cpu"),
    ),
    Mutant(
        "bias_on_the_wrong_term",
        ATTEND,
        'content_BHQE = query("content", dtype)',
        'content_BHQE = query("segment", dtype)',
        oracle("plain"),
    ),
    Mutant(
        "segments_inverted",
        ATTEND,
        "segment_BQ[:, :, None] == a.segment_BK",
        "segment_BQ[:, :, None] != a.segment_BK",
        oracle("plain"),
    ),
    Mutant(
        "memory_in_segment_1",
        TRANSFORMER,
        "jnp.zeros((B, M), batch.segments.dtype)",
        "jnp.ones((B, M), batch.segments.dtype)",
        oracle("plain"),
    ),
    Mutant(
        "attention_residual_missing",
        ATTENTION,
        "norm(x_BSD + o_BSD)",
        "norm(o_BSD)",
        oracle("plain"),
    ),
    Mutant(
        "feed_forward_residual_missing",
        LAYERS,
        "norm(x_BSD + y_BSD)",
        "norm(y_BSD)",
        oracle("plain"),
    ),
    Mutant(
        "gelu_of_the_wrong_kind",
        LAYERS,
        '"gelu": functools.partial(jax.nn.gelu, approximate=True)',
        '"gelu": functools.partial(jax.nn.gelu, approximate=False)',
        oracle("plain"),
    ),
    Mutant(
        "biases_of_attention_missing",
        ATTENTION,
        "(y + bias[None, None])",
        "(x + 0 * bias[None, None])",
        family("bert"),
    ),
    Mutant(
        "positions_of_roberta_start_a_row_too_early",
        POSITIONS,
        "(None, None))[first + place_BT]",
        "(None, None))[first - 1 + place_BT]",
        family("roberta"),
    ),
    Mutant(
        "the_head_of_roberta_has_the_gelu_of_its_layers",
        HEADS,
        '"gelu_erf" if parts.head == "dense_erf" else config.activation',
        "config.activation",
        family("roberta"),
    ),
    Mutant(
        "gpt2_is_not_normalised_at_the_end",
        TRANSFORMER,
        'x_BSD = layer_norm("final_norm", config, config.layers)(x_BSD)',
        'x_BSD += 0 * layer_norm("final_norm", config, config.layers)(x_BSD)',
        family("gpt2"),
    ),
    Mutant(
        "the_sentence_head_is_not_dropped",
        HEADS,
        "Dropout(self.parts.sentence_dropout)",
        "Dropout(0.0)",
        one("train/every_family", "test_every_dropout_is_on_in_training_and_off_elsewhere[albert]"),
    ),
    Mutant(
        "chunks_before_the_last_have_no_gradient",
        CHUNKS,
        "sums[0] + d_table_VD",
        "0 * sums[0] + d_table_VD",
        one("kernels/vocabulary_loss", "test_loss_and_gradients_are_those_of_all_logits"),
    ),
    Mutant(
        "filled_slots_have_a_gradient",
        CHUNKS,
        "jnp.where(g_C[:, None] != 0, dz_CV, 0)",
        "dz_CV + 0",
        one("kernels/vocabulary_loss", "test_pieces_of_probability_0"),
    ),
    Mutant(
        "every_device_has_its_own_maximum",
        CHUNKS,
        "self.over_vocabulary(top_BP, jax.lax.pmax)",
        "1 * top_BP",
        one("kernels/vocabulary_loss", "test_any_mesh_gives_the_gradient_of_one_device"),
    ),
    Mutant(
        "every_device_counts_its_pieces_from_0",
        CHUNKS,
        "axis_index(self.vocab) * V",
        "axis_index(self.vocab) * 0",
        one("kernels/vocabulary_loss", "test_any_mesh_gives_the_gradient_of_one_device"),
    ),
    Mutant(
        "softmax_bias_missing",
        HEADS,
        "+ bias_V.astype(high)",
        "+ 0 * bias_V.astype(high)",
        oracle("plain"),
    ),
    Mutant(
        "cached_memory_rolls_a_slot_too_far",
        CACHE,
        "jnp.roll(x_LBHKE, -T, axis=3)",
        "jnp.roll(x_LBHKE, -T - 1, axis=3)",
        one("infer/decoder", "test_a_left_to_right_model_continues_past_its_segment"),
    ),
    Mutant(
        "cached_memory_rolls_a_token_too_late",
        DECODE,
        "position_BQ[:, 0] == 0",
        "position_BQ[:, 0] == 1",
        one("infer/decoder", "test_a_left_to_right_model_continues_past_its_segment"),
    ),
    Mutant(
        "every_order_is_that_of_the_text",
        "xlnet_jax/infer/orders.py",
        "np.argsort(np.argsort(place_N[cut][unknown_U]))",
        "np.arange(len(unknown_U))",
        one("infer/score", "test_equals_the_chain_rule_by_hand"),
    ),
    Mutant(
        "a_segment_does_not_see_the_memory",
        SCORE,
        "B, T, P, turn > 0)",
        "B, T, P, False)",
        one("infer/score", "test_equals_the_chain_rule_by_hand"),
    ),
    Mutant(
        "a_rejected_draft_is_still_seen",
        DECODE,
        "cache = verified.cache.hidden(",
        "cache = verified.cache; (",
        one("infer/decoder", "test_a_draft_starts_with_the_distribution_of_the_chain"),
    ),
    Mutant(
        "the_next_query_sees_too_little",
        DECODE,
        "limit_BP = jnp.full_like(target_BP, NEVER)",
        "limit_BP = jnp.full_like(target_BP, 1)",
        one("infer/decoder", "test_cached_equals_uncached"),
    ),
    Mutant(
        "a_draft_is_verified_by_itself",
        DECODE,
        "limit_BP=rank_BQ)",
        "limit_BP=rank_BQ + 1)",
        one("infer/decoder", "test_cached_equals_uncached"),
    ),
    Mutant(
        "keys_of_the_draws_come_again",
        DECODE,
        "count_BQ = (state.before_B + state.count_B)[:, None] + jnp.arange(Q)",
        "count_BQ = state.count_B[:, None] + jnp.arange(Q)",
        one("infer/decoder", "test_every_draw_has_a_key_of_its_own"),
    ),
    Mutant(
        "what_replaces_a_draft_is_the_chain",
        DECODE,
        "jnp.maximum(jnp.exp(p_BV) - jnp.exp(q_BV), 0)",
        "jnp.exp(p_BV)",
        one(
            "infer/decoder",
            "test_a_draft_that_stays_or_is_replaced_has_the_distribution_of_the_chain",
        ),
    ),
    Mutant(
        "a_draft_stays_by_the_key_of_its_draw",
        DECODE,
        "jax.random.uniform(jax.random.fold_in(key, 1))",
        "jax.random.uniform(key)",
        one("infer/decoder", "test_speculation_has_the_distribution_of_the_chain"),
    ),
    Mutant(
        "drafts_and_chain_are_not_filtered",
        DECODE,
        "logits.shape[2]), sampling, method.sort)",
        "logits.shape[2]), sampling, False)",
        one("infer/decoder", "test_greedy_speculation_equals_the_greedy_chain"),
    ),
    Mutant(
        "lengths_have_the_keys_of_orders",
        "xlnet_jax/infer/infill.py",
        "(seed, number, 1, row)",
        "(seed, number, row)",
        one("infer/gaps", "test_a_drawn_length_depends_on_seed_text_and_sample"),
    ),
    Mutant(
        "context_sees_a_known_sep",
        "xlnet_jax/infer/orders.py",
        "special.cls)), 0, -1)",
        "special.cls)), -1, -1)",
        one("infer/decoder", "test_greedy_tokens_are_the_most_probable_of_single_forwards"),
    ),
    Mutant(
        "parts_around_a_gap_are_encoded_alone",
        "xlnet_jax/infer/infill.py",
        "tokenizer.normalized(mark.join(parts)).split(mark)",
        "map(tokenizer.normalized, parts)",
        one("infer/gaps", "test_pieces_around_a_gap"),
    ),
    Mutant(
        "a_filled_gap_is_always_a_word",
        "xlnet_jax/infer/infill.py",
        """stripped and not new.startswith(" ")""",
        "False",
        one("infer/gaps", "test_the_result_has_the_text_of_each_gap"),
    ),
    Mutant(
        "one_token_too_few_stays",
        "xlnet_jax/infer/sampling.py",
        "jnp.cumsum(p_BV, axis=1) - p_BV",
        "jnp.cumsum(p_BV, axis=1)",
        one("infer/infer_sampling", "test_masses"),
    ),
    Mutant(
        "drafts_are_compared_unfiltered",
        "xlnet_jax/infer/sampling.py",
        "return jnp.take_along_axis(jax.nn.log_softmax(kept_BV), jnp.argsort(token_BV, axis=1), axis=1)",
        "return jax.nn.log_softmax(logits_BV)",
        one("infer/infer_sampling", "test_masses"),
    ),
    Mutant(
        "drafts_are_compared_at_temperature_1",
        "xlnet_jax/infer/sampling.py",
        "jnp.where(greedy, 1, sampling.temperature)",
        "1",
        one("infer/infer_sampling", "test_masses"),
    ),
    Mutant(
        "every_turn_has_the_same_order",
        SCORE,
        "(seed, number, turn)",
        "(seed, number)",
        one("infer/score", "test_equals_the_chain_rule_by_hand"),
    ),
    Mutant(
        "every_text_has_the_same_orders",
        SCORE,
        "(seed, number, turn)",
        "(seed, turn)",
        one("infer/score", "test_equals_the_chain_rule_by_hand"),
    ),
    Mutant(
        "draws_of_every_prompt_are_equal",
        "xlnet_jax/infer/sampling.py",
        "key(sampling.seed), number_B)",
        "key(sampling.seed), 0 * number_B)",
        one("infer/decoder", "test_same_seed_same_tokens_in_any_company"),
    ),
    Mutant(
        "gradient_into_the_memory",
        TRANSFORMER,
        "jax.lax.stop_gradient(fresh_BRD[:, fresh_BRD.shape[1] - slots :])",
        "fresh_BRD[:, fresh_BRD.shape[1] - slots :]",
        one("model/transformer", "test_no_gradient_flows_into_the_memory_it_hands_on"),
    ),
    Mutant(
        "memory_of_outputs",
        TRANSFORMER,
        "return x_BSD, new_memory_BMD",
        "return x_BSD, x_BSD[:, :slots]",
        one("model/transformer", "test_memory_is_the_newest_layer_inputs_right_aligned"),
    ),
    Mutant(
        "memory_of_the_whole_segment",
        TRANSFORMER,
        "x_BSD[:, :reuse]",
        "x_BSD[:, :T]",
        one("model/transformer", "test_memory_is_the_newest_layer_inputs_right_aligned"),
    ),
    Mutant(
        "valid_count_ignored",
        TRANSFORMER,
        ">= M - valid_B[:, None]",
        ">= 0 * valid_B[:, None]",
        one("model/transformer", "test_without_valid_slots_the_memory_is_as_if_there_were_none"),
    ),
    Mutant(
        "valid_count_off",
        TRANSFORMER,
        "jnp.minimum(M, valid_B + reuse)",
        "jnp.minimum(M, valid_B + reuse + 1)",
        one("model/transformer", "test_memory_is_the_newest_layer_inputs_right_aligned"),
    ),
    Mutant(
        "continues_ignored",
        TRANSFORMER,
        "jnp.where(batch.continues, memory.valid_B, 0)",
        "memory.valid_B",
        one(
            "model/transformer",
            "test_a_row_that_does_not_continue_leaves_no_more_than_its_own_text",
        ),
    ),
    Mutant(
        "valid_count_not_reset_by_a_jump",
        TRANSFORMER,
        "jnp.minimum(M, valid_B + reuse)",
        "jnp.minimum(M, memory.valid_B + reuse)",
        one(
            "model/transformer",
            "test_a_row_that_does_not_continue_leaves_no_more_than_its_own_text",
        ),
    ),
    Mutant(
        "memory_hidden_by_a_factor",
        TRANSFORMER,
        "memory = jnp.where((",
        "memory = memory + jnp.where((",
        one("model/transformer", "test_a_nan_in_slots_that_nobody_may_see_reaches_nobody"),
    ),
    Mutant(
        "one_query_shifted",
        ATTEND,
        "        return score_BHTN\n    flat",
        "        return jnp.roll(score_BHTN, 1, -1)\n    flat",
        oracle("one_token"),
    ),
    Mutant(
        "empty_slots_are_seen",
        ATTEND,
        "(a.rank_BK != NEVER)",
        "(a.rank_BK <= NEVER)",
        one("kernels/xla", "test_keys_of_rank_never_or_too_far_are_hidden_whatever_the_limit"),
    ),
    Mutant(
        "largest_distance_off_by_one",
        ATTEND,
        "distance_BQK <= a.max_distance",
        "distance_BQK < a.max_distance",
        one("kernels/xla", "test_keys_of_rank_never_or_too_far_are_hidden_whatever_the_limit"),
    ),
    Mutant(
        "same_length_one_too_long",
        ATTENTION,
        "config.memory_len - 1 if",
        "config.memory_len if",
        recurrence("pre_norm"),
    ),
    Mutant(
        "memory_without_pre_norm",
        ATTENTION,
        "norm(memory) if pre else memory",
        "memory",
        recurrence("pre_norm"),
    ),
    Mutant(
        "memory_normed_before_post_norm",
        ATTENTION,
        "norm(memory) if pre else memory",
        "norm(memory)",
        recurrence("div_4"),
    ),
    Mutant(
        "clusters_reversed",
        HEADS,
        "shortlist.size + i, column",
        "shortlist.size + len(tails) - 1 - i, column",
        recurrence("div_4"),
    ),
    Mutant(
        "first_word_of_a_cluster_left_out",
        "xlnet_jax/model/embeddings.py",
        "(tokens >= self.first)",
        "(tokens > self.first)",
        one("model/adaptive", "test_probabilities_add_up_and_are_those_of_the_loss"),
    ),
    Mutant(
        "projected_back_by_nothing",
        HEADS,
        "vectors_BPD, projection, cpu",
        "vectors_BPD, 0.5 * projection, cpu",
        one(
            "model/adaptive",
            "test_a_factorised_embedding_is_the_full_one_with_the_product_as_its_table",
        ),
    ),
    Mutant(
        "projection_of_the_embedding_everywhere",
        HEADS,
        "if projection is not None and untied:",
        "if False:",
        recurrence("div_4"),
    ),
    Mutant(
        "distance_counts_keys_ahead",
        ATTEND,
        "distance_BQK <= a.max_distance",
        "abs(distance_BQK) <= a.max_distance",
        one("kernels/xla", "test_keys_of_rank_never_or_too_far_are_hidden_whatever_the_limit"),
    ),
    Mutant(
        "distance_of_the_slot",
        ATTEND,
        "a.position_BQ[:, :, None] - jnp",
        "jnp.arange(len(a.limit_BQ[0]))[None, :, None] - jnp",
        one("kernels/xla", "test_keys_of_rank_never_or_too_far_are_hidden_whatever_the_limit"),
    ),
    Mutant(
        "dropout_does_not_scale",
        DROPOUT,
        "indices), scaled, 0)",
        "indices), x, 0)",
        one("kernels/dropout", "test_what_is_kept_is_divided_by_the_exact_share_kept"),
    ),
    Mutant(
        "dropout_scales_by_a_rounded_share",
        DROPOUT,
        "* upscale(rate)",
        "* jnp.asarray(upscale(rate), x.dtype)",
        one("kernels/dropout", "test_what_is_kept_is_divided_by_the_exact_share_kept"),
    ),
    Mutant(
        "dropout_keeps_what_it_should_drop",
        DROPOUT,
        "< np.int32(bound - 2**31)",
        ">= np.int32(bound - 2**31)",
        one("kernels/dropout", "test_rows_heads_positions_keys_streams_and_layers_are_independent"),
    ),
    Mutant(
        "fused_shows_hidden_keys",
        FUSED_BACKWARD,
        "return jnp.where(unit.visible(part), score_QK, -FAR)",
        "return score_QK",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "all_strips_have_the_mask_of_the_first",
        "xlnet_jax/kernels/tpu_units.py",
        "unit = self._fill(s * self.plan.heads, 0)",
        "unit = self(s * self.plan.heads, 0)._replace(columns_ref=self._fill(0, 1).columns_ref)",
        one("kernels/fused", "test_without_relative_positions[strips-text-window]"),
    ),
    Mutant(
        "fused_saves_what_dropout_drops",
        FUSED_BACKWARD,
        "jnp.where(keep_QK, weight_QK, -weight_QK)",
        "weight_QK",
        one("kernels/fused", "test_bfloat16_is_as_exact_as_its_rounding"),
    ),
    Mutant(
        "what_remat_recomputes_is_kept",
        TRANSFORMER,
        "prevent_cse=unrolled",
        "prevent_cse=False",
        one("model/transformer", "test_remat_changes_memory_and_nothing_else"),
    ),
    Mutant(
        "fused_forgets_the_gradient_of_earlier_blocks",
        FUSED_BACKWARD,
        "fresh = (i == 0) & (n < plan.heads)",
        "fresh = n < plan.heads",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "fused_mixes_the_directions",
        FUSED_BACKWARD,
        "inputs.table[b] if plan.relative and not plan.own_tables else 0",
        "0",
        one("kernels/fused", "test_shards_of_rows_and_heads_equal_the_whole"),
    ),
    Mutant(
        "gpu_forgets_the_tile_before",
        GPU,
        "queries.offset_QS == queries.first, ds_QS, before_QS",
        "queries.offset_QS == queries.first, ds_QS, 0",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "gpu_forgets_the_last_block_of_position_keys",
        GPU,
        "queries.last + 2",
        "queries.last + 1",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "gpu_forgets_the_blocks_of_queries_before",
        GPU,
        "dr_GNHE[self.rows(n)] +=",
        "dr_GNHE[self.rows(n)] =",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "gpu_turns_within_a_half",
        "xlnet_jax/kernels/gpu_triton.py",
        "is_low_QC = from_QC < half",
        "is_low_QC = from_QC >= 0",
        one("kernels/fused", "test_tables_of_rows_and_blind_queries"),
    ),
    Mutant(
        "gpu_mixes_the_directions",
        "xlnet_jax/kernels/gpu.py",
        "[:, None] == table_B[None]",
        "[:, None] >= table_B[None]",
        one("kernels/fused", "test_shards_of_rows_and_heads_equal_the_whole"),
    ),
    Mutant(
        "processes_run_different_attention",
        "xlnet_jax/model/choice.py",
        "max(chosen",
        "min(chosen",
        one("model/choice", "test_all_processes_take_xla_if_one_must"),
    ),
    Mutant(
        "every_process_hears_all",
        "xlnet_jax/distributed/processes.py",
        "(folder) if self.watch.process == 0 else []",
        "(folder)",
        one("distributed/processes", "test_what_all_say_and_hear_grows_as_their_number"),
    ),
    Mutant(
        "an_error_of_a_lost_peer_is_a_bug",
        "xlnet_jax/distributed/processes.py",
        'lost = "RESOURCE_EXHAUSTED" not in str(error)',
        "lost = isinstance(error, jax.errors.JaxRuntimeError)",
        one("distributed/processes", "test_an_error_waits_for_news_of_a_lost_process"),
    ),
    Mutant(
        "texts_stay_in_the_service",
        "xlnet_jax/distributed/processes.py",
        "{self._meetings - 1}",
        "{self._meetings - 2}/x",
        one("distributed/processes", "test_what_all_say_and_hear_grows_as_their_number"),
    ),
    Mutant(
        "initialisation_needs_the_device",
        ATTENTION,
        '"xla" if self.is_initializing() else config.attention',
        "config.attention",
        one("commands/cli", "test_inspect_counts_parameters_as_the_original_names_them"),
    ),
    Mutant(
        "fused_unchecked",
        "xlnet_jax/model/choice.py",
        "if difference <= UNITS:",
        "if True:",
        one("model/choice", "test_a_kernel_is_compared_with_xla"),
    ),
    Mutant(
        "an_inner_loop_loses_the_turns_of_stages",
        "xlnet_jax/aot/schedule.py",
        "{index} = [^;]*iteration",
        "iteration",
        one("commands/compile", "test_a_schedule_counts_every_bundle_as_often_as_its_loops_run"),
    ),
    Mutant(
        "hash_without_products",
        DROPOUT,
        "word *= np.uint32(0x7FEB352D)\n        word ^= word >> 15\n        word *= np.uint32(0x846CA68B)",
        "word ^= word >> 15",
        one("kernels/dropout", "test_a_bit_of_any_index_changes_half_of_the_bits_of_the_hash"),
    ),
    Mutant(
        "indices_add_up",
        DROPOUT,
        "word = word ^ fold(index.astype(jnp.uint32) * GOLDEN)",
        "word = word + 0 * fold(index.astype(jnp.uint32) * GOLDEN)",
        one("kernels/dropout", "test_a_bit_of_any_index_changes_half_of_the_bits_of_the_hash"),
    ),
    Mutant(
        "high_half_alone_decides",
        DROPOUT,
        "np.uint32(bound >> 16 | 2**31)",
        "np.uint32(2**31)",
        one("kernels/dropout", "test_the_hash_is_that_of_the_formula"),
    ),
    Mutant(
        "masks_depend_on_x64",
        DROPOUT,
        "jax.random.bits(rng, dtype=jnp.uint32)",
        "jax.random.bits(rng).astype(jnp.uint32)",
        one("model/numerics", "test_masks_are_the_same_with_64_bits"),
    ),
    Mutant(
        "dropout_ignores_the_first_head",
        DROPOUT,
        "self.first_head + jnp",
        "0 * self.first_head + jnp",
        one("kernels/dropout", "test_a_block_has_the_mask_of_its_part_of_the_whole"),
    ),
    Mutant(
        "both_streams_drop_the_same",
        ATTENTION,
        "config.attention_dropout, number)",
        "config.attention_dropout, 0)",
        one("model/numerics", "test_every_site_stream_layer_and_step_has_a_mask_of_its_own"),
    ),
    Mutant(
        "dropout_by_the_target_slot",
        ATTEND,
        "return self.rows_B[:, None], self.position_BQ",
        "return self.rows_B[:, None], self.position_BQ * 0 + jnp.arange(len(self.limit_BQ[0]))[None]",
        one(
            "kernels/xla", "test_dropout_is_on_the_weights_of_the_values_and_keyed_by_the_position"
        ),
    ),
    Mutant(
        "query_and_content_drop_the_same",
        TRANSFORMER,
        "T + targets.position_BQ",
        "targets.position_BQ",
        one("model/numerics", "test_every_site_stream_layer_and_step_has_a_mask_of_its_own"),
    ),
    Mutant(
        "gradient_rounded",
        LAYERS,
        "*factors, preferred_element_type=high",
        "*factors, preferred_element_type=x.dtype",
        one("model/numerics", "test_a_gradient_is_not_rounded_to_the_dtype_of_the_computation"),
    ),
    Mutant(
        "rows_drop_by_the_target_slot",
        TRANSFORMER,
        "T + targets.position_BQ",
        "T + 0 * targets.position_BQ + jnp.arange(targets.position_BQ.shape[1])[None]",
        one("model/numerics", "test_no_mask_depends_on_the_slot_of_a_target"),
    ),
    Mutant(
        "mean_of_means",
        OBJECTIVE,
        "(rows.sums[name][0].sum() / jnp.maximum(divisor[name], 1))",
        "(rows.sums[name][0] / jnp.maximum(rows.sums[name][1], 1)).mean()",
        oracle("fewer_targets"),
    ),
    Mutant(
        "unused_slots_count",
        OBJECTIVE,
        "self.weights(batch)[1].sum()",
        "1.0 * batch.target_weights.size",
        oracle("fewer_targets"),
    ),
    Mutant(
        "head_at_the_rate_of_the_embeddings",
        "xlnet_jax/finetune/heads.py",
        '("embed", None), "kernel", HEAD_DEPTH)',
        '("embed", None), "kernel", 0)',
        one("finetune/recipe", "test_the_head_learns_at_the_full_rate_under_layer_decay"),
    ),
    Mutant(
        "padding_in_the_memory_of_a_text",
        TASK,
        "jnp.minimum(filled.valid_B, real_N)",
        "filled.valid_B",
        one(
            "finetune/recipe",
            "test_earlier_segments_are_read_through_the_memory_and_their_padding_is_not",
        ),
    ),
    Mutant(
        "lamb_has_one_ratio_for_all_layers",
        "xlnet_jax/train/optimizer.py",
        "range(box.stacked, x.ndim)",
        "range(x.ndim)",
        one("train/optimizer", "test_an_update_of_stacked_layers_by_hand"),
    ),
    Mutant(
        "muon_forgets_the_newest_gradient",
        "xlnet_jax/train/optimizer.py",
        "nesterov=True",
        "nesterov=False",
        one("train/optimizer", "test_an_update_of_stacked_layers_by_hand"),
    ),
    Mutant(
        "muon_computes_split_matrices",
        "xlnet_jax/train/optimizer.py",
        "        x_LMN = meshes.by_layer(x_LMN)\n",
        "",
        one("train/optimizer", "test_no_device_waits_for_another_inside_the_iteration_of_muon"),
    ),
    Mutant(
        "an_average_is_a_step_behind",
        OPTIMIZER,
        "optax.apply_updates(params, updates)",
        "params",
        one("train/optimizer", "test_an_average_by_hand_and_the_digits_of_its_first_steps"),
    ),
    Mutant(
        "an_average_has_zeros_in_it",
        OPTIMIZER,
        "(1 - decay) / -jnp.expm1(n * math.log(decay))",
        "jnp.float32(1 - decay)",
        one("train/optimizer", "test_an_average_by_hand_and_the_digits_of_its_first_steps"),
    ),
    Mutant(
        "an_export_takes_the_parameters_for_their_average",
        "xlnet_jax/infer/opened.py",
        "Session(), stored.step(step), config.evaluation.averaged)",
        "Session(), stored.step(step))",
        one("commands/export", "test_the_average_that_a_run_keeps_is_read_where_it_is_asked_for"),
    ),
    Mutant(
        "an_evaluation_is_smoothed",
        "xlnet_jax/train/loss.py",
        "0.0 if dropout_key is None else self.label_smoothing",
        "self.label_smoothing",
        one("train/objectives", "test_labels_are_smoothed_in_training_alone"),
    ),
    Mutant(
        "smoothed_labels_have_the_gradient_of_plain_ones",
        "xlnet_jax/kernels/vocabulary_loss.py",
        "(p_CV - wanted_CV)",
        "(p_CV - self.is_target(len(bias_V), target_C))",
        one("kernels/vocabulary_loss", "test_loss_and_gradients_are_those_of_all_logits"),
    ),
    Mutant(
        "a_position_begins_with_its_cosine",
        "xlnet_jax/model/positions.py",
        "[jnp.sin(angle_BTM), jnp.cos(angle_BTM)]",
        "[jnp.cos(angle_BTM), jnp.sin(angle_BTM)]",
        one("model/left_to_right", "test_sinusoids_at_the_input_are_those_of_the_paper"),
    ),
    Mutant(
        "a_source_sees_its_past_alone",
        "xlnet_jax/finetune/text_to_text.py",
        "jnp.maximum(place_NT - source_N1 + 1, 0)",
        "place_NT",
        one("finetune/text_to_text", "test_the_target_sees_its_past_and_the_source_sees_itself"),
    ),
    Mutant(
        "the_source_is_read_as_a_past_when_it_is_decoded",
        "xlnet_jax/infer/decoder.py",
        " * (not model.prefix)",
        "",
        one("finetune/text_to_text", "test_greedy_pieces_are_the_most_probable_without_a_cache"),
    ),
    Mutant(
        "a_beam_mixes_its_prefixes",
        "xlnet_jax/infer/beam.py",
        "* W + parent_BW).reshape(-1)",
        "* W + jnp.arange(W)[None]).reshape(-1)",
        one("finetune/text_to_text", "test_a_wide_beam_is_an_exhaustive_search"),
    ),
    Mutant(
        "a_beam_ends_when_a_target_is_better_now",
        "xlnet_jax/infer/beam.py",
        "/ _penalty(U, alpha)",
        "/ _penalty(1, alpha)",
        one("finetune/text_to_text", "test_a_search_ends_when_nothing_can_win_and_not_before"),
    ),
    Mutant(
        "a_new_batch_size_starts_over",
        "xlnet_jax/finetune/text_to_text.py",
        "read += entry.batch_size *",
        "read = entry.batch_size *",
        one("finetune/text_to_text", "test_batches_are_by_length_and_a_function_of_the_step"),
    ),
    Mutant(
        "a_short_target_counts_as_much_as_a_long_one",
        "xlnet_jax/finetune/evaluation.py",
        'predictions.get("weight")',
        "None",
        one("finetune/text_to_text", "test_the_loss_of_the_dev_set_weighs_tokens_as_training_does"),
    ),
    Mutant(
        "a_carriage_return_ends_a_target",
        "xlnet_jax/storage/files.py",
        'line.rstrip("\\r")',
        "line",
        one("finetune/text_to_text", "test_two_files_of_lines_are_pairs"),
    ),
    Mutant(
        "a_source_that_is_empty_is_left_out",
        "xlnet_jax/commands/predict.py",
        "every = isinstance(task, TextToText)",
        "every = False",
        one("finetune/text_to_text", "test_each_line_to_predict_has_a_source"),
    ),
    Mutant(
        "later_saves_that_are_there_are_not_named",
        "xlnet_jax/commands/export.py",
        "if at != kept[0]:",
        "if not at:",
        one("commands/export", "test_the_mean_of_checkpoints"),
    ),
    Mutant(
        "ends_of_the_best_start_for_all",
        "xlnet_jax/finetune/question_answering.py",
        "_vectors(h_BTD, start_BK)",
        "_vectors(h_BTD, start_BK[:, :1] + 0 * start_BK)",
        one("finetune/question_answering", "test_the_beam_equals_exhaustive_search"),
    ),
    Mutant(
        "an_answer_ends_in_the_question",
        "xlnet_jax/finetune/question_answering.py",
        "is_it_BT & before_it_BT",
        "hidden.real_BCT[:, 0]",
        one("finetune/question_answering", "test_the_beam_equals_exhaustive_search"),
    ),
    Mutant(
        "a_long_span_hides_a_short_one",
        "xlnet_jax/finetune/question_answering.py",
        " & (length_BKT <= self.longest)",
        "",
        one("finetune/question_answering", "test_one_dense_layer_finds_the_best_span_of_all"),
    ),
    Mutant(
        "no_answer_is_not_compared",
        "xlnet_jax/finetune/question_answering.py",
        'each["no_answer"] -= each["score"]',
        'each["no_answer"] -= 0 * each["score"]',
        one("finetune/question_answering", "test_one_dense_layer_finds_the_best_span_of_all"),
    ),
    Mutant(
        "no_answer_has_an_infinite_score",
        "xlnet_jax/finetune/question_answering.py",
        'each["score"] = None',
        'each["score"] += 0',
        one(
            "finetune/question_answering",
            "test_a_window_points_at_the_answer_or_says_there_is_none",
        ),
    ),
    Mutant(
        "padding_is_the_last_piece",
        "xlnet_jax/finetune/task.py",
        "self.real_BCT.shape[2] - 1 - self.real_BCT[:, :, ::-1].argmax(axis=2)",
        "0 * self.real_BCT.argmax(axis=2) - 1",
        one("finetune/task_families", "test_a_family_learns_a_class_and_padding_changes_nothing"),
    ),
    Mutant(
        "one_sep_between_two",
        "xlnet_jax/data/layouts.py",
        "[member.separators] * last",
        "[min(member.separators, 1)] * last",
        one("data/layouts", "test_the_special_pieces_of_a_family"),
    ),
    Mutant(
        "a_pooler_is_not_used",
        "xlnet_jax/train/launch.py",
        "params.pop(begin)",
        "{name: 0 * x for name, x in params.pop(begin).items()}",
        one("finetune/task_families", "test_the_pooler_of_pretraining_begins_a_head"),
    ),
    Mutant(
        "negatives_of_one_device",
        "xlnet_jax/finetune/embeddings.py",
        "mesh.shape[name] > 1",
        "mesh.shape[name] > 9",
        one(
            "finetune/tasks",
            "test_the_negatives_are_those_of_the_whole_batch_on_any_number_of_devices",
        ),
    ),
    Mutant(
        "answers_by_normalised_characters",
        "xlnet_jax/data/offsets.py",
        "Pieces(np.array(tokens, np.int32), source[start_N]",
        "Pieces(np.array(tokens, np.int32), start_N",
        one("data/offsets", "test_an_answer_is_found_by_its_pieces"),
    ),
    Mutant(
        "the_second_text_is_cut_first",
        "xlnet_jax/data/layouts.py",
        "max(room - b, min(a, (room + 1) // 2))",
        "min(a, room)",
        one("data/layouts", "test_the_longer_text_loses_its_end_piece_by_piece"),
    ),
    Mutant(
        "words_of_an_answer_count_once",
        "xlnet_jax/finetune/metrics.py",
        "(collections.Counter(words) & collections.Counter(predicted_words)).values()",
        "[1 for _ in set(words) & set(predicted_words)]",
        one("finetune/finetune_metrics", "test_answers_are_compared_by_the_official_rules"),
    ),
    Mutant(
        "an_answer_of_articles_is_one",
        "xlnet_jax/finetune/metrics.py",
        "[answer for answer in true if normalized(answer)]",
        "list(true)",
        one("finetune/finetune_metrics", "test_the_nearest_of_several_answers_counts"),
    ),
    Mutant(
        "an_empty_answer_costs",
        "xlnet_jax/finetune/metrics.py",
        "-said_N)",
        "-1.0)",
        one("finetune/finetune_metrics", "test_the_best_threshold_gives_the_answers_that_pay"),
    ),
    Mutant(
        "every_window_is_asked",
        "xlnet_jax/finetune/question_answering.py",
        "inside_K[inside_K] = part.best_N[start_K[inside_K]]",
        "pass",
        one(
            "finetune/question_answering",
            "test_a_window_points_at_the_answer_or_says_there_is_none",
        ),
    ),
    Mutant(
        "a_stride_leaves_pieces_out",
        "xlnet_jax/data/layouts.py",
        "starts[-1] + min(stride, room)",
        "starts[-1] + stride",
        one("data/layouts", "test_windows_cover_a_paragraph_and_every_piece_is_best_in_one"),
    ),
    Mutant(
        "a_short_window_is_as_good",
        "xlnet_jax/data/layouts.py",
        " + 0.01 * len(index)",
        "",
        one("data/layouts", "test_windows_cover_a_paragraph_and_every_piece_is_best_in_one"),
    ),
    Mutant(
        "plausible_answers_are_true",
        "xlnet_jax/finetune/readers.py",
        "label = ()  # SQuAD 2.0 gives plausible answers",
        "pass",
        one("finetune/readers", "test_squad_answers_are_found_again"),
    ),
    Mutant(
        "a_comment_begins_a_sentence",
        FORMATS,
        '"# |#begin',
        '"#begin',
        one("finetune/readers", "test_words_in_lines_as_they_are_published"),
    ),
    Mutant(
        "any_white_space_ends_a_word",
        FORMATS,
        'filter(None, line.split(" "))',
        "line.split()",
        one("finetune/readers", "test_words_in_lines_as_they_are_published"),
    ),
    Mutant(
        "a_range_is_a_word",
        FORMATS,
        "[-.]",
        "[.]",
        one("finetune/readers", "test_words_in_lines_as_they_are_published"),
    ),
    Mutant(
        "texts_beside_the_folders_have_a_label",
        FORMATS,
        '("", "unsup")',
        '("unsup",)',
        one("finetune/readers", "test_a_folder_of_texts_for_each_label"),
    ),
    Mutant(
        "a_third_class_is_none",
        "xlnet_jax/finetune/task.py",
        "len(others) > 2 and ",
        "",
        one(
            "finetune/setup",
            "test_an_example_without_a_label_is_left_out_and_said_and_never_a_class",
        ),
    ),
    Mutant(
        "labels_of_the_dev_set_are_not_looked_at",
        "xlnet_jax/finetune/setup.py",
        "_labelled(kind, config, path, dev)",
        "dev",
        one("finetune/setup", "test_the_dev_set_is_read_by_the_same_rules"),
    ),
    Mutant(
        "a_comma_ends_a_label",
        "xlnet_jax/keys.py",
        "text if plain else",
        "text if True else",
        one("finetune/setup", "test_a_label_with_a_comma_or_spaces_is_kept"),
    ),
    Mutant(
        "classes_that_are_not_there_count",
        "xlnet_jax/finetune/metrics.py",
        "2 * np.diag(table_CC)[size_C > 0] / size_C[size_C > 0]",
        "2 * np.diag(table_CC) / np.maximum(size_C, 1)",
        one("finetune/finetune_metrics", "test_classes_by_hand"),
    ),
    Mutant(
        "several_labels_are_one_class",
        "xlnet_jax/convert/fields.py",
        'given or ("regression"',
        '("regression"',
        one("convert/peers", "test_the_problem_of_a_head_is_what_the_folder_says"),
    ),
    Mutant(
        "a_class_without_a_label_is_perfect",
        "xlnet_jax/finetune/metrics.py",
        "np.mean(both_C / np.maximum(size_C, 1))",
        "np.mean(both_C[size_C > 0] / size_C[size_C > 0])",
        one("finetune/finetune_metrics", "test_several_labels_by_hand"),
    ),
    Mutant(
        "two_dropouts_are_one",
        "xlnet_jax/convert/fields.py",
        "if read and one is not None and one != two:",
        "if False:",
        one("convert/peers", "test_a_head_that_is_another_function_is_refused_in_one_line"),
    ),
    Mutant(
        "the_maximum_sees_padding",
        "xlnet_jax/finetune/heads.py",
        "jnp.where(hidden.real_BCT[:, :, :, None], h_BCTD, -jnp.inf)",
        "h_BCTD",
        one("finetune/tasks", "test_pooling_ignores_padding"),
    ),
    Mutant(
        "the_first_piece_of_xlnet_is_its_cls",
        "xlnet_jax/convert/sentence_transformers.py",
        '"cls" if member.cls == "first" else "lasttoken"',
        '"cls"',
        one("convert/sentence_transformers", "test_every_pooling_comes_back"),
    ),
    Mutant(
        "a_checkpoint_is_guarded_when_it_opens",
        "xlnet_jax/convert/tensorflow.py",
        "functools.partial(guarded, reader.get_tensor)",
        "reader.get_tensor",
        one("commands/import", "test_a_damaged_tensorflow_data_file_is_one_line"),
    ),
    Mutant(
        "predictions_come_by_length",
        "xlnet_jax/commands/predict.py",
        "back = np.argsort(np.concatenate(order))",
        "back = np.arange(len(rows))",
        one(
            "commands/predict", "test_short_rows_are_in_short_batches_and_come_back_in_their_order"
        ),
    ),
    Mutant(
        "a_packaged_model_hides_a_folder",
        "xlnet_jax/infer/opened.py",
        "if path in names and not os.path.lexists(path):",
        "if path in names:",
        one(
            "infer/pretrained",
            "test_a_path_that_exists_is_read_instead_and_an_unknown_name_says_the_names",
        ),
    ),
    Mutant(
        "a_document_has_pieces_that_its_training_had_not",
        "xlnet_jax/library.py",
        "if self._frame and ids:",
        "if self._frame and self.config.objective.masks:",
        one("infer/whole_documents", "test_spans_are_asked_before_sep_and_cls"),
    ),
    Mutant(
        "predictions_of_the_newest",
        "xlnet_jax/infer/opened.py",
        'top["step"] if top else None',
        "max(steps)",
        one(
            "finetune/finetune",
            "test_predict_gives_what_the_evaluation_of_the_best_checkpoint_gave",
        ),
    ),
    Mutant(
        "the_shortest_option_decides",
        "xlnet_jax/commands/predict.py",
        "max(map(len, row.tokens))",
        "min(map(len, row.tokens))",
        one(
            "commands/predict", "test_short_rows_are_in_short_batches_and_come_back_in_their_order"
        ),
    ),
    Mutant(
        "the_sentence_is_the_question",
        "xlnet_jax/finetune/readers.py",
        '("question", "sentence"),',
        '("sentence", "question"),',
        one(
            "commands/predict", "test_a_file_is_read_as_in_training_and_says_which_example_is_which"
        ),
    ),
    Mutant(
        "usual_names_before_those_of_training",
        "xlnet_jax/finetune/readers.py",
        "if not fields.keys() & {*columns[:-1]}:",
        "if True:",
        one(
            "commands/predict", "test_a_file_is_read_as_in_training_and_says_which_example_is_which"
        ),
    ),
    Mutant(
        "a_gold_label_must_be_known",
        "xlnet_jax/commands/predict.py",
        "._replace(label=None)",
        "",
        one(
            "commands/predict", "test_a_file_is_read_as_in_training_and_says_which_example_is_which"
        ),
    ),
    Mutant(
        "a_damaged_row_ends_a_prediction",
        "xlnet_jax/finetune/formats.py",
        "            yield record\n",
        "            yield record.checked()\n",
        one("commands/predict", "test_a_bad_row_does_not_end_a_prediction"),
    ),
    Mutant(
        "the_least_confident_errors",
        "xlnet_jax/comparison/report.py",
        "key=lambda each: -each[3]",
        "key=lambda each: each[3]",
        one(
            "commands/report",
            "test_the_page_of_a_task_has_its_score_its_confusions_and_its_surest_errors",
        ),
    ),
    Mutant(
        "a_context_that_one_model_has",
        "xlnet_jax/commands/evaluate.py",
        "contexts.doubling(min(",
        "contexts.doubling(max(",
        one("commands/evaluate", "test_models_are_compared_on_contexts_that_all_of_them_have"),
    ),
    Mutant(
        "any_tokenizer_is_compared",
        "xlnet_jax/commands/evaluate.py",
        "workdirs.check_tokenizer(name, heldout)",
        "pass",
        one("commands/evaluate", "test_models_are_compared_on_contexts_that_all_of_them_have"),
    ),
    Mutant(
        "kernels_gathered_whole",
        GRADIENTS,
        "x = x.astype(dtype) if rounds else x",
        "pass",
        one("train/meshes", "test_gradients_cross_once_in_float32*"),
    ),
    Mutant(
        "layers_gather_nothing",
        GRADIENTS,
        'spec if axis and box.stacked and box.kind == "matrix" else whole',
        "whole",
        one("train/meshes", "test_a_layer_gathers_its_own_kernels*"),
    ),
    Mutant(
        "a_gradient_has_the_layout_of_its_product",
        LAYERS,
        "if axis == 0 and x is self.zeros:",
        "if False:",
        one("train/meshes", "test_a_layer_gathers_its_own_kernels*"),
    ),
    Mutant(
        "heads_gathered_rounded",
        GRADIENTS,
        'rounds = box.kind == "matrix" and',
        "rounds =",
        one("train/meshes", "test_the_kernel_of_a_head_is_not_rounded"),
    ),
    Mutant(
        "gradients_cross_rounded",
        GRADIENTS,
        "jax.lax.psum_scatter(x, split[1]",
        "jax.lax.psum_scatter(x.astype(jnp.bfloat16), split[1]",
        one("train/meshes", "test_gradients_cross_once_in_float32*"),
    ),
    Mutant(
        "moments_stay_whole",
        STEP,
        "**meshes.shardings(packed, mesh, split)",
        'params=meshes.shardings(packed["params"], mesh, split)',
        one("train/meshes", "test_a_device_holds_its_share_of_parameters_and_moments"),
    ),
    Mutant(
        "non_finite_step_applied",
        STEP,
        "jnp.where(is_good, a, b)",
        "jnp.where(is_good | True, a, b)",
        one("train/step", "test_a_non_finite_step_changes_nothing_but_counters_and_memory"),
    ),
    Mutant(
        "memory_kept_after_a_bad_step",
        STEP,
        "memory=jax.tree.map(jnp.zeros_like, state.memory)",
        "memory=state.memory",
        one("train/step", "test_a_non_finite_step_changes_nothing_but_counters_and_memory"),
    ),
    Mutant(
        "spikes_are_taken",
        STEP,
        "(above > config.train.spike_zscore",
        "(above > 1e9 * config.train.spike_zscore",
        one("run/guards", "test_a_spike_is_skipped_like_a_non_finite_step_and_only_if_asked_for"),
    ),
    Mutant(
        "schedule_counts_skipped_steps",
        STEP,
        "state.step - state.skipped",
        "state.step",
        one("train/step", "test_a_non_finite_step_changes_nothing_but_counters_and_memory"),
    ),
    Mutant(
        "adam_of_2019_is_never_corrected",
        HOOKS,
        "not config.weight_decay",
        "False",
        one("train/compat", "test_no_bias_correction_by_hand"),
    ),
    Mutant(
        "segment_embeddings_had_a_layer_in_2019",
        HOOKS,
        '"segment_bias", "segment_embedding"})',
        '"segment_bias"})',
        one("train/compat", "test_layer_decay_on_gradients_scales_what_has_a_layer_in_its_name"),
    ),
    Mutant(
        "static_windows_move",
        STREAM,
        "0 if self.static else",
        "",
        one("train/compat", "test_static_targets_come_again_in_every_epoch"),
    ),
    Mutant(
        "weight_decay_on_layer_norm",
        LAYERS,
        'nn.initializers.ones, ("norm",), "vector", depth, decays=False',
        'nn.initializers.ones, ("norm",), "vector", depth',
        DECLARED,
    ),
    Mutant(
        "weight_decay_on_the_biases_of_products",
        LAYERS,
        'self.axes[1:], "vector", depth, nn.initializers.zeros, decays=False',
        'self.axes[1:], "vector", depth, nn.initializers.zeros',
        DECLARED,
    ),
    Mutant(
        "kernels_of_attention_are_as_those_of_heads",
        ATTENTION,
        '("embed", "heads", "head_dim"), "matrix", depth, init)',
        '("embed", "heads", "head_dim"), "kernel", depth, init)',
        one("train/meshes", "test_gradients_cross_once_in_float32*"),
    ),
    Mutant(
        "layers_as_deep_as_what_is_below_them",
        LAYERS,
        "tuple(range(1, config.layers + 1))",
        "tuple(range(config.layers))",
        one("train/optimizer", "test_depth_and_kind_of_every_parameter[bert]"),
    ),
    Mutant(
        "shared_layers_as_deep_as_the_lowest",
        LAYERS,
        "return config.layers if config.share_layers",
        "return 1 if config.share_layers",
        one("train/optimizer", "test_depth_and_kind_of_every_parameter[albert]"),
    ),
    Mutant(
        "muon_takes_kernels_of_heads",
        OPTIMIZER,
        '"matrix" if box.kind == "matrix" else "other"',
        '"matrix" if box.kind in ("matrix", "kernel") else "other"',
        one(
            "model/layers",
            "test_muon_has_one_moment_of_the_matrices_and_makes_each_layer_orthogonal",
        ),
    ),
    Mutant(
        "a_parameter_need_not_be_declared",
        "xlnet_jax/train/recipe.py",
        "if not isinstance(box, Declared):",
        "if False:",
        one("model/layers", "test_a_parameter_that_is_not_declared_is_refused_by_its_place"),
    ),
    Mutant(
        "halves_not_ordered",
        EXAMPLES,
        "+= reuse_len + 1",
        "+= 0",
        one(
            "data/batches/examples",
            "test_the_first_half_never_sees_the_second_and_the_second_sees_all_of_the_first",
        ),
    ),
    Mutant(
        "halves_meet",
        EXAMPLES,
        "+= reuse_len + 1",
        "+= reuse_len",
        one("acceptance", "test_ranks_give_the_masks_of_the_original"),
    ),
    Mutant(
        "padding_is_seen",
        EXAMPLES,
        "np.where(used_BT, 0, NEVER)",
        "np.where(used_BT, 0, 1)",
        one(
            "data/batches/whole_sentences",
            "test_cls_is_first_and_padding_last_which_nothing_sees_or_predicts",
        ),
    ),
    Mutant(
        "b_is_from_its_own_document",
        SENTENCES,
        "at_R + own_end_R + beyond_R",
        "at_R + 1 + beyond_R",
        one(
            "data/batches/whole_sentences",
            "test_a_and_b_are_whole_sentences_of_one_document_or_of_two",
        ),
    ),
    Mutant(
        "a_text_goes_on_in_the_next_document",
        SENTENCES,
        "DOCUMENT_START > 0) & (columns > begin_B1)",
        "DOCUMENT_START > 0) & (columns > begin_B1 + wanted_B[:, None])",
        one(
            "data/batches/whole_sentences",
            "test_a_and_b_are_whole_sentences_of_one_document_or_of_two",
        ),
    ),
    Mutant(
        "words_are_masked_twice",
        SPANS,
        "fits_BS &= ~(at(chosen_BW, span_BS)",
        "fits_BS &= ~(at(chosen_BW & False, span_BS)",
        one("data/batches/whole_sentences", "test_n_grams_are_those_of_google"),
    ),
    Mutant(
        "copies_of_one_epoch",
        "xlnet_jax/compat/__init__.py",
        "where.epoch_B % COPIES",
        "0 * where.epoch_B",
        one("data/batches/whole_sentences", "test_static_copies_are_ten"),
    ),
    Mutant(
        "cls_can_be_a_target",
        EXAMPLES,
        "text_only = is_text(natural, self.tokenizer.special)",
        "text_only = (natural != self.tokenizer.special.sep)",
        one(
            "data/batches/examples",
            "test_targets_are_ascending_the_tokens_themselves_and_never_functional",
        ),
    ),
    Mutant(
        "reversed_text_off_by_one",
        SEGMENTS,
        "tokens_BN[:, length - 1 :: -1]",
        "tokens_BN[:, :0:-1]",
        one(
            "data/batches/order_distributions",
            "test_a_batch_is_one_window_and_predicts_what_is_unknown",
        ),
    ),
    Mutant(
        "random_b_overlaps",
        SEGMENTS,
        "distance_R = tot + (draws_R",
        "distance_R = 0 * tot + (draws_R",
        one(
            "data/data_properties",
            "test_a_random_b_shares_nothing_with_its_a_its_window_its_look_ahead_and_its_memory",
        ),
    ),
    Mutant(
        "span_lengths_uniform",
        SPANS,
        "np.cumsum(1.0 / np.arange(1, max_span + 1))",
        "np.cumsum(1.0 + 0 / np.arange(1, max_span + 1))",
        one("data/batches/sampling", "test_spans_are_as_long_as_the_originals"),
    ),
    Mutant(
        "rare_words_first",
        "xlnet_jax/data/vocabulary.py",
        "(-counts[piece], piece)",
        "(counts[piece], piece)",
        one(
            "data/vocabulary",
            "test_the_most_frequent_pieces_come_first_and_equal_counts_give_equal_bytes",
        ),
    ),
    Mutant(
        "held_out_words_are_counted",
        "xlnet_jax/data/prepare/work_unit.py",
        'or request.split_of(document, part) == "train"',
        'or request.split_of(document, part) != ""',
        one("data/prepare/counted", "test_a_corpus_of_counted_pieces_is_the_normalised_lines"),
    ),
    Mutant(
        "a_phase_starts_where_the_block_numbers_do",
        STREAM,
        "return corpus_B, number_B + self._before(entry)[corpus_B]",
        "return corpus_B, number_B",
        (
            "tests/train/test_phases.py::test_the_text_of_an_epoch_is_read_once_whatever_the_lengths",
        ),
    ),
    Mutant(
        "phases_of_equal_blocks_leave_out_other_parts_of_the_text",
        "xlnet_jax/data/batches/stream.py",
        "(self.first_window or self.window)",
        "self.window",
        one(
            "train/phases",
            "test_windows_of_other_lengths_in_equal_blocks_read_the_text_of_the_second_epoch_once",
        ),
    ),
    Mutant(
        "a_signal_after_a_start_at_a_border_ends_at_once",
        "xlnet_jax/train/loop.py",
        "if not self.report.clock:",
        "if start == 0 and not self.report.clock:",
        (
            "tests/train/test_phases.py::test_a_signal_soon_after_a_start_at_a_border_saves_and_the_bits_are_the_same",
        ),
    ),
    Mutant(
        "a_new_phase_does_not_know_how_far_the_text_was_read",
        STREAM,
        "rounds = -(-(step - entry.step) // self.corpora[0].windows_per_block)",
        "rounds = 0",
        (
            "tests/train/test_phases.py::test_the_text_of_an_epoch_is_read_once_whatever_the_lengths",
        ),
    ),
    Mutant(
        "a_later_phase_changes_the_shuffle",
        "xlnet_jax/config/phases.py",
        "kept = parts[0].shuffle_len if started is None else",
        "kept = parts[0].shuffle_len if parts else",
        one("train/phases", "test_a_later_phase_leaves_the_shuffle_of_the_run_as_it_was"),
    ),
    Mutant(
        "inspect_of_a_run_takes_its_newest_phase",
        "xlnet_jax/commands/inspect.py",
        "workdirs.load_config(workdir, overrides)",
        "workdirs.config_at(workdir, overrides)[0]",
        one("train/phases", "test_inspect_takes_the_phase_of_a_step_of_a_run"),
    ),
    Mutant(
        "an_export_of_a_phase_has_the_keys_of_the_run",
        "xlnet_jax/commands/export.py",
        'identity["corpus_sha256"], identity["tokenizer_sha256"])',
        '"", "") and {}',
        one("train/phases", "test_an_export_for_orbax_is_the_phase_of_its_step_and_no_run"),
    ),
    Mutant(
        "an_override_changes_what_phases_share",
        "xlnet_jax/config/loading.py",
        'return tuple({"steps": phase["steps"], **phases.changes(phase)} for phase in given)',
        "return tuple(given)",
        one("train/phases", "test_an_override_leaves_a_dictionary_that_phases_share"),
    ),
    Mutant(
        "unused_moments_decay",
        "xlnet_jax/train/optimizer.py",
        "lambda path, x, y: x if is_frozen(path) else y, state, new",
        "lambda path, x, y: y, state, new",
        (
            "tests/train/test_phases.py::test_parameters_that_a_phase_does_not_use_and_their_moments_stay_and_others_move",
        ),
    ),
    Mutant(
        "a_branch_needs_its_parent_until_it_saves",
        "xlnet_jax/train/launch.py",
        'unsaved = "branch" in origin',
        "unsaved = False",
        one(
            "train/branch",
            "test_a_branch_has_the_bits_of_a_run_that_was_configured_so_from_its_start",
        ),
    ),
    Mutant(
        "a_branch_without_a_checkpoint_starts_at_step_0",
        "xlnet_jax/train/branch.py",
        "origin = recorded or wanted",
        "origin = wanted",
        one("train/branch", "test_a_branch_that_was_killed_before_it_saved_starts_there_again"),
    ),
    Mutant(
        "the_first_decayed_update_is_no_decay",
        "xlnet_jax/train/branch.py",
        "last = updates - 1",
        "last = updates - 2",
        one(
            "train/branch",
            "test_a_rate_has_decayed_from_the_first_update_that_was_lower_because_the_end_comes_nearer",
        ),
    ),
    Mutant(
        "an_extended_run_is_not_warned_of_its_rate",
        "xlnet_jax/train/branch.py",
        "next_one < 1.1 * left",
        "next_one > 1.1 * left",
        one("train/branch", "test_a_finished_run_that_is_extended_is_warned_of_its_rate"),
    ),
    Mutant(
        "targets_at_the_end_of_a_row_are_lost",
        "xlnet_jax/data/batches/documents.py",
        "laid(content.target_BT, dtype=bool)",
        "laid(content.target_BT, dtype=bool) & (column < 24)",
        one("data/batches/packed_documents", "test_an_example_is_the_same_alone_and_in_company"),
    ),
    Mutant(
        "a_row_of_documents_is_read_twice_in_an_epoch",
        "xlnet_jax/data/batches/documents.py",
        "packed.row(block) for block",
        "packed.row(block // 2 * 2) for block",
        one(
            "data/batches/packed_documents",
            "test_an_epoch_reads_every_token_once_with_any_hosts_and_batch_sizes",
        ),
    ),
    Mutant(
        "every_host_reads_the_rows_of_the_first",
        "xlnet_jax/distributed/mesh.py",
        "np.arange(batch_size)[rows] for",
        "np.arange(batch_size)[rows] - (rows.start or 0) for",
        one("multiprocess/every_token_once", "test_every_token_is_read_once_in_an_epoch[31-plm]"),
    ),
    Mutant(
        "flags_of_a_page_may_have_any_bits",
        "xlnet_jax/data/corpus/pages.py",
        "if starts.max() > _ALL_STARTS:",
        "if starts.max() > 255:",
        ("tests/data/corpus/test_fuzz.py::test_fuzz[pages-0-15000]",),
    ),
    Mutant(
        "an_evaluation_leaves_a_row_of_documents_out",
        "xlnet_jax/data/batches/mixture.py",
        "tuple(each.rows for each in self.packed(config))",
        "tuple(each.rows - 1 for each in self.packed(config))",
        one("data/batches/packed_documents", "test_an_evaluation_reads_every_document_once"),
    ),
    Mutant(
        "documents_are_not_packed_at_the_start",
        "xlnet_jax/data/batches/mixture.py",
        "if config.data.whole_documents:\n            self.packed(config)\n            return\n",
        "if config.data.whole_documents:\n            return\n",
        one(
            "data/batches/packed_documents",
            "test_text_that_no_row_can_hold_or_that_fills_too_few_is_refused",
        ),
    ),
    Mutant(
        "a_row_of_documents_is_shown_without_floors",
        "xlnet_jax/commands/inspect.py",
        "content_TT &= rank_T >= np.asarray(floor)[:, None]",
        "content_TT &= rank_T >= 0 * np.asarray(floor)[:, None]",
        one("commands/inspect", "test_a_document_of_a_row_sees_itself_alone"),
    ),
    Mutant(
        "text_of_joined_lines_is_refused_without_its_file",
        "xlnet_jax/data/prepare/work_unit.py",
        'f"{where}: {error}; {advice}"',
        'f"{error}; {advice}"',
        one("data/prepare/counted", "test_an_unseen_character_is_refused_with_its_file"),
    ),
    Mutant(
        "draws_of_a_document_depend_on_its_place",
        "xlnet_jax/data/batches/documents.py",
        "(alone, texts)\n    return pack(",
        "(alone._replace(rows=np.arange(len(row_D))), texts)\n    return pack(",
        one("data/batches/packed_documents", "test_an_example_is_the_same_alone_and_in_company"),
    ),
    Mutant(
        "positions_of_documents_go_on_through_the_row",
        "xlnet_jax/data/batches/documents.py",
        "Documents(floor_BT, position_BT, ",
        "Documents(floor_BT, np.where(filled_BT, column, 0), ",
        one("data/batches/packed_documents", "test_an_example_is_the_same_alone_and_in_company"),
    ),
    Mutant(
        "documents_of_a_row_share_their_ranks",
        "xlnet_jax/data/batches/documents.py",
        "2 * (column - position_BT), NEVER",
        "0 * (column - position_BT), NEVER",
        one("data/batches/packed_documents", "test_an_example_is_the_same_alone_and_in_company"),
    ),
    Mutant(
        "every_piece_of_a_document_predicts_its_end",
        "xlnet_jax/data/batches/documents.py",
        "pieces.part_D == np.where(reversed_D, 0, pieces.parts_D - 1)",
        "pieces.part_D >= 0",
        one(
            "data/batches/packed_documents",
            "test_a_left_to_right_document_reads_eod_first_and_its_last_piece_predicts_it",
        ),
    ),
    Mutant(
        "masked_tokens_of_a_document_weigh_one",
        "xlnet_jax/data/batches/documents.py",
        "batch.target_weights * weight_BP",
        "batch.target_weights * (0 * weight_BP + 1)",
        one("data/batches/packed_documents", "test_masked_tokens_of_a_document_weigh_its_length"),
    ),
    Mutant(
        "a_short_document_has_no_target",
        "xlnet_jax/data/batches/documents.py",
        "np.maximum(length_D * data.num_predict // data.segment_len, 1)",
        "length_D * data.num_predict // data.segment_len",
        one("data/batches/packed_documents", "test_an_example_is_the_same_alone_and_in_company"),
    ),
    Mutant(
        "a_phase_goes_on_in_the_middle_of_an_epoch_of_other_rows",
        "xlnet_jax/data/batches/stream.py",
        "-(-n // old.tokens) * new.tokens",
        "n + 0 * old.tokens",
        one(
            "data/batches/packed_documents",
            "test_a_phase_with_other_rows_starts_an_epoch_and_another_batch_size_does_not",
        ),
    ),
    Mutant(
        "a_share_is_the_start_of_the_split",
        "xlnet_jax/data/batches/stream.py",
        "[(2 * n + 1) * whole // (2 * kept) for n in range(kept)]",
        "list(range(kept))",
        one(
            "data/batches/stream",
            "test_a_share_of_a_single_pass_is_spread_evenly_over_whole_blocks",
        ),
    ),
    Mutant(
        "a_block_of_a_share_has_draws_of_another",
        "xlnet_jax/data/batches/stream.py",
        "block_B=self.number_S[there_B]",
        "block_B=there_B",
        one("data/batches/loader", "test_a_block_of_a_share_is_read_as_in_an_evaluation_of_all"),
    ),
    Mutant(
        "the_only_task_of_a_node_has_one_device",
        "xlnet_jax/distributed/links.py",
        "None if one_per_node or",
        "None if",
        one("multiprocess/rendezvous", "test_a_cluster_is_detected"),
    ),
    Mutant(
        "a_whole_array_goes_back_into_the_queue",
        "launch/slurm.sbatch",
        "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        "job=$SLURM_ARRAY_JOB_ID",
        one("launch/launch_jobs", "test_a_slurm_job_goes_back_into_the_queue_on_42"),
    ),
    Mutant(
        "a_page_leaves_a_node_pool_behind",
        "docs/pods_gke.md",
        "node-pools delete xlnet-0",
        "node-pools list # xlnet-0",
        one(
            "launch/pods_page",
            "test_a_newcomer_runs_the_commands_of_his_route_in_their_order_and_leaves_nothing_that_costs",
        ),
    ),
    Mutant(
        "a_page_leaves_a_cluster_of_the_toolkit_behind",
        "docs/pods_gke.md",
        "gcluster destroy $TOOLKIT/tpus",
        "true $TOOLKIT/tpus",
        one(
            "launch/pods_page",
            "test_a_newcomer_runs_the_commands_of_his_route_in_their_order_and_leaves_nothing_that_costs",
        ),
    ),
    Mutant(
        "an_older_program_makes_the_tables",
        "tests/launch/reference/make.py",
        "if numbers(version[0]) < numbers(row[1])",
        "if version[0] < row[1]",
        one("launch/flag_tables", "test_a_table_is_made_again_from_a_program_that_is_not_older"),
    ),
    Mutant(
        "a_switch_with_a_default_takes_a_value",
        "tests/launch/reference/make.py",
        '("=true", "=false")',
        '("=true",)',
        one("launch/flag_tables", "test_a_table_is_made_again_from_a_program_that_is_not_older"),
    ),
    Mutant(
        "the_trainer_knows_another_grace_time_than_its_pod",
        "launch/lib.sh",
        'pass_grace "$grace"',
        "pass_grace 600",
        one("launch/launch_jobs", "test_one_grace_time_of_spot_nodes_reaches_node_pod_and_trainer"),
    ),
    Mutant(
        "a_pod_that_the_doctor_refuses_trains",
        "launch/lib.sh",
        "|| exit 2; exec",
        "|| true; exec",
        one("launch/launch_jobs", "test_a_pod_is_checked_first_and_then_its_shell_is_the_trainer"),
    ),
    Mutant(
        "flex_start_is_asked_for_again",
        "launch/mig.sh",
        "[[ $capacity != flex-start ]] || time_is_over",
        "true",
        one(
            "launch/launch_tpu",
            "test_a_machine_is_asked_for_waited_for_and_replaced_where_that_is_allowed",
        ),
    ),
    Mutant(
        "a_slice_is_done_when_its_hosts_are_not",
        "launch/mig.sh",
        'wait "$one" || code=$?',
        'wait "$one" || true',
        one("launch/launch_hosts", "test_several_hosts_end_or_go_on_together"),
    ),
    Mutant(
        "a_template_is_of_an_earlier_launch",
        "launch/mig.sh",
        "[[ -n $ours && $answer",
        "[[ $answer",
        one("launch/launch_mig", "test_what_an_earlier_launch_has_left_is_replaced"),
    ),
    Mutant(
        "corpora_begin_again_every_cycle",
        "xlnet_jax/data/batches/cycle.py",
        "return corpus_B, round_B *",
        "return corpus_B, 0 * round_B *",
        one("data/batches/stream", "test_every_corpus_gets_its_blocks_in_order_and_its_share"),
    ),
    Mutant(
        "rows_in_the_order_of_their_corpora",
        "xlnet_jax/data/batches/mixture.py",
        "np.argsort(np.concatenate(order))",
        "np.arange(len(rows))",
        one("data/batches/mixture", "test_rows_are_read_from_their_own_corpus_by_weight"),
    ),
    Mutant(
        "clm_predicts_its_own_token",
        EXAMPLES,
        "tokens_BN[:, :T], tokens_BN[:, 1 : T + 1]",
        "tokens_BN[:, :T], tokens_BN[:, :T]",
        one("train/objectives", "test_a_causal_batch_is_the_text_and_predicts_each_next_token"),
    ),
    Mutant(
        "second_target_is_the_first",
        EXAMPLES,
        "np.arange(2, ahead + 1)",
        "np.arange(1, ahead)",
        one("train/vanilla", "test_the_second_target_is_the_token_two_ahead"),
    ),
    Mutant(
        "lower_losses_stop_late",
        EXAMPLES,
        "builder.step * 2 * n <",
        "builder.step * n <",
        one("train/vanilla", "test_layer_l_of_n_stops_after_l_2nths_of_the_training"),
    ),
    Mutant(
        "absolute_positions_see_ahead",
        TRANSFORMER,
        "batch.rank + 1, NEVER",
        "batch.rank + 2, NEVER",
        one(
            "train/objectives",
            "test_a_prediction_looks_at_what_its_objective_allows_and_no_further[vanilla]",
        ),
    ),
    Mutant(
        "further_targets_of_the_next_layer",
        "xlnet_jax/model/vanilla.py",
        "streams_LBTD[:-1]",
        "streams_LBTD[1:]",
        one("train/vanilla", "test_the_loss_is_the_weighted_sum_of_all_its_parts"),
    ),
    Mutant(
        "mlm_masks_too_much",
        EXAMPLES,
        "kind_BT < data.mask_share",
        "kind_BT < data.mask_share + 0.05",
        one(
            "data/batches/whole_sentences",
            "test_targets_become_a_mask_a_random_piece_or_stay",
        ),
    ),
    Mutant(
        "some_masks_keep_their_token",
        EXAMPLES,
        "np.where(target_BT, builder.tokenizer.special.mask",
        "np.where(target_BT & (texts.tokens_BT % 10 > 0), builder.tokenizer.special.mask",
        one("train/objectives", "test_masked_diffusion_masks_any_number_of_a_window"),
    ),
    Mutant(
        "many_masks_count_more",
        OBJECTIVE,
        "tokens_B = jnp.where(targets_B > 0, weight_BP.shape[-1], jnp.zeros_like(targets_B))",
        "tokens_B = targets_B",
        one("train/objectives", "test_the_loss_of_masked_diffusion_is_the_bound_by_hand"),
    ),
    Mutant(
        "a_document_begins_without_its_end",
        "xlnet_jax/data/batches/frames.py",
        'return ("eod",), ()',
        "return (), ()",
        one("data/batches/frames", "test_each_objective_and_member_has_its_frame"),
    ),
    Mutant(
        "every_order_has_pieces_behind_a_document",
        "xlnet_jax/data/batches/frames.py",
        "objective.masks or DISTRIBUTIONS[config.data.factorization_order].whole",
        "objective.masks",
        one("data/batches/frames", "test_each_objective_and_member_has_its_frame"),
    ),
    Mutant(
        "a_known_start_hides_the_end_of_a_document",
        "xlnet_jax/infer/orders.py",
        "if known_N[0] and model.frame is None:",
        "if known_N[0]:",
        one(
            "infer/whole_documents",
            "test_a_left_to_right_model_scores_a_document_from_its_first_piece_to_its_end",
        ),
    ),
    Mutant(
        "cls_comes_before_sep",
        "xlnet_jax/infer/orders.py",
        "np.array(model.frame[1], np.int32)",
        "np.array(model.frame[1][::-1], np.int32)",
        one("infer/whole_documents", "test_spans_are_asked_before_sep_and_cls"),
    ),
    Mutant(
        "the_surest_token_is_scored",
        DECODE,
        "jnp.take_along_axis(state.given_BU, slot_BQ, axis=1)",
        "_draw(logits_BQV, state, sampling, method.sort)",
        one("infer/confidence", "test_all_texts_sum_to_one_in_orders_of_their_own"),
    ),
    Mutant(
        "the_answer_chooses_the_order",
        DECODE,
        "sure_BU = jax.nn.log_softmax(state.logits_BPV).max(axis=-1)",
        """sure_BU = jax.nn.log_softmax(state.logits_BPV).max(axis=-1)
        if state.given_BU is not None:
            sure_BU = _at_tokens(jax.nn.log_softmax(state.logits_BPV), state.given_BU)""",
        one("infer/confidence", "test_all_texts_sum_to_one_in_orders_of_their_own"),
    ),
    Mutant(
        "mutants_have_one_error_and_no_pairs",
        "xlnet_jax/infer/score.py",
        "_standard_error(mutant_K - wild_K)",
        "_standard_error(mutant_K)",
        one(
            "infer/mutations",
            "test_a_mutant_is_compared_with_the_wild_type_in_the_same_orders",
        ),
    ),
    Mutant(
        "a_mutation_asks_only_for_the_number_of_pieces",
        "xlnet_jax/library.py",
        '[self.tokenizer.level == "bytes" or len(self.tokenizer.pieces[id]) for id in ids] '
        "!= [1] * len(text)",
        "len(ids) != len(text)",
        one("infer/mutations", "test_pieces_that_are_no_characters_are_refused"),
    ),
    Mutant(
        "a_text_is_never_masked_whole",
        SCORE,
        "/ draws * U)",
        "/ draws * (U - 1))",
        one(
            "infer/masked_diffusion", "test_the_bound_is_the_mean_over_all_orders_of_the_chain_rule"
        ),
    ),
    Mutant(
        "a_chain_sees_what_is_later",
        SCORE,
        "known_N | (place_N < place_N[at])",
        "known_N | (place_N != place_N[at])",
        one("infer/estimators", "test_a_masked_model_sees_what_is_earlier_in_the_order_and_masks"),
    ),
    Mutant(
        "fine_tuning_starts_from_scratch",
        "xlnet_jax/commands/compare.py",
        'checkpoint={"init_from": source}',
        "",
        one("commands/compare", "test_every_run_is_fine_tuned_once_and_the_page_has_the_task"),
    ),
    Mutant(
        "every_task_has_one_seed",
        "xlnet_jax/commands/compare.py",
        '{"init": seed, "data": seed, "dropout": seed}\n    found',
        '{"init": 0, "data": 0, "dropout": 0}\n    found',
        one("commands/compare", "test_every_run_is_fine_tuned_once_and_the_page_has_the_task"),
    ),
    Mutant(
        "what_is_known_counts_as_predicted",
        "xlnet_jax/commands/compare.py",
        "(bytes_NT * unknown_places(measure, tokens_NT))",
        "bytes_NT",
        one("commands/compare", "test_a_killed_comparison_goes_on_and_its_page_loads_nothing"),
    ),
    Mutant(
        "padding_behind_a_document_is_asked",
        "xlnet_jax/infer/estimators.py",
        "np.arange(N), T), 1)",
        "np.arange(N), T), 0)",
        one("commands/evaluate", "test_the_same_share_is_unknown_in_every_window_at_other_places"),
    ),
    Mutant(
        "the_end_of_a_document_is_not_scored",
        SCORE,
        "if objective.causal and self.frame:",
        "if False:",
        one(
            "infer/estimators",
            "test_a_document_has_the_likelihood_of_its_text_and_from_left_to_right_of_its_end",
        ),
    ),
    Mutant(
        "a_question_is_a_document_that_is_cut",
        "xlnet_jax/train/sliding.py",
        "& (text_D <= length)",
        "",
        one(
            "commands/evaluate",
            "test_whole_documents_are_evenly_spaced_over_those_that_fit",
        ),
    ),
    Mutant(
        "steps_are_asked_of_none",
        "xlnet_jax/commands/compare.py",
        "later if systems else words",
        "later",
        one("commands/compare", "test_the_steps_that_are_asked_for_are_of_the_first"),
    ),
    Mutant(
        "a_measure_that_is_new_is_not_scored",
        "xlnet_jax/commands/compare.py",
        "if set(MEASURES) - measures.keys()",
        "if not measures",
        one("commands/compare", "test_what_a_folder_lacks_is_scored"),
    ),
    Mutant(
        "no_pair_pays_for_the_others",
        "xlnet_jax/comparison/intervals.py",
        "stats.t.isf(ALPHA / left / 2, pair.seeds - 1)",
        "stats.t.isf(ALPHA / 2, pair.seeds - 1)",
        one(
            "comparison/intervals",
            "test_holm_gives_the_smallest_p_the_hardest_level_and_stops_at_the_first_that_fails",
        ),
    ),
    Mutant(
        "what_is_filled_is_not_read",
        DECODE,
        "put(cache.tokens_BT, tokens_BQ, position_BQ), cache.rank_BT",
        "cache.tokens_BT, cache.rank_BT",
        one("infer/masked_diffusion", "test_filling_reads_the_whole_text_in_each_call"),
    ),
    Mutant(
        "swapped_pairs_are_called_in_order",
        SEGMENTS,
        "~swapped_B1[:, 0], cuts_B",
        "swapped_B1[:, 0], cuts_B",
        one("train/objectives", "test_sentence_order_swaps_half_of_the_pairs_and_says_so"),
    ),
    Mutant(
        "windows_run_backwards",
        STREAM,
        "first_B + last - ahead",
        "first_B + blocks.window - 1 + ahead",
        one("data/batches/stream", "test_windows_of_a_block_follow_each_other_in_reading_order"),
    ),
    Mutant(
        "one_order_for_all_epochs",
        STREAM,
        'f"{seed} epoch {epoch}"',
        'f"{seed} epoch"',
        one("data/batches/stream", "test_blocks_come_in_another_order_in_every_epoch"),
    ),
    Mutant(
        "plan_reads_blocks_again",
        STREAM,
        "begun = -(-(step - last.step) // windows_per_block)",
        "begun = (step - last.step) // windows_per_block",
        one(
            "data/batches/stream",
            "test_a_plan_loses_nothing_at_a_multiple_of_w_and_at_most_the_rest_of_a_block_elsewhere",
        ),
    ),
    Mutant(
        "memory_rebuilt_from_a_segment_too_late",
        RESUME,
        "min(in_block, in_reach)",
        "min(in_block, in_reach - 1)",
        one(
            "train/resume",
            "test_a_rebuilt_memory_is_the_one_that_constant_parameters_would_have_carried",
        ),
    ),
    Mutant(
        "memory_rebuilt_with_another_dropout",
        STEP,
        "_inputs(recipe.config, memory, step)",
        "_inputs(recipe.config, memory, step + 1)",
        one(
            "train/resume",
            "test_a_rebuilt_memory_is_the_one_that_constant_parameters_would_have_carried",
        ),
    ),
    Mutant(
        "rebuilt_steps_are_forgotten",
        RESUME,
        "rebuilt = rebuilt + [restored.step]",
        "rebuilt = [restored.step]",
        one(
            "train/resume",
            "test_a_rebuilt_memory_is_the_one_that_constant_parameters_would_have_carried",
        ),
    ),
    Mutant(
        "the_path_is_in_the_key_of_a_program",
        "xlnet_jax/run/programs.py",
        '_xla_caches", "none")',
        '_xla_caches", "all")',
        one("train/loop", "test_a_run_starts_from_a_program_that_was_compiled_ahead"),
    ),
    Mutant(
        "rebuilt_steps_are_not_recorded",
        "xlnet_jax/train/launch.py",
        '{"rebuilt": origin["rebuilt"], **own_batches',
        '{"rebuilt": [], **own_batches',
        one(
            "train/resume",
            "test_without_its_memory_a_killed_run_ends_as_one_that_stops_at_the_steps_of_its_record",
        ),
    ),
    Mutant(
        "step_without_its_options",
        STEP,
        "recipe.config.train.compiler_options, mesh",
        '"", mesh',
        one("run/programs", "test_the_step_is_compiled_with_them"),
    ),
    Mutant(
        "what_is_split_counts_once",
        "xlnet_jax/distributed/mesh.py",
        "math.prod(sizes[axis] for axis in split[1]) if split else 1",
        "1",
        one("train/meshes", "test_large_arrays_are_split_evenly_over_any_number_of_devices"),
    ),
    Mutant(
        "a_packed_array_loses_its_last_numbers",
        "xlnet_jax/distributed/mesh.py",
        "-(-math.prod(shape[by_layer:]) // ways) * ways",
        "math.prod(shape[by_layer:]) // ways * ways",
        one("train/meshes", "test_large_arrays_are_split_evenly_over_any_number_of_devices"),
    ),
    Mutant(
        "a_packed_array_is_read_from_its_end",
        "xlnet_jax/distributed/mesh.py",
        "-1)[..., :n]",
        "-1)[..., -n:]",
        one(
            "train/meshes",
            "test_a_packed_state_is_stored_as_any_other_and_read_by_any_number_of_devices",
        ),
    ),
    Mutant(
        "matrices_of_muon_are_packed",
        "xlnet_jax/distributed/mesh.py",
        'config.optimizer.name != "muon"',
        "True",
        one("train/meshes", "test_what_stays_whole_is_counted"),
    ),
    Mutant(
        "what_tensor_splits_is_packed",
        "xlnet_jax/distributed/mesh.py",
        "if by_tensor or len(shape)",
        "if len(shape)",
        one("train/meshes", "test_what_stays_whole_is_counted"),
    ),
    Mutant(
        "the_table_overrules_ones_own_options",
        "xlnet_jax/run/programs.py",
        "options[name] = value",
        "options.setdefault(name, value)",
        one("run/programs", "test_options_of_the_chip_and_of_ones_own_the_last_of_two_counts"),
    ),
    Mutant(
        "stages_of_a_kernel_count_as_programs",
        "xlnet_jax/aot/schedule.py",
        "int(bound) - 2 * staged",
        "int(bound)",
        one("commands/compile", "test_a_schedule_counts_every_bundle_as_often_as_its_loops_run"),
    ),
    Mutant(
        "delays_take_no_time",
        "xlnet_jax/aot/schedule.py",
        "1 + sum(map(int, _DELAY.findall(line)))",
        "1",
        one(
            "commands/compile",
            "test_a_schedule_counts_delays_and_how_long_products_keep_a_unit_busy",
        ),
    ),
    Mutant(
        "a_register_of_bfloat16_has_8_rows",
        "xlnet_jax/aot/schedule.py",
        "product else 16)",
        "product else 8)",
        one(
            "commands/compile",
            "test_a_schedule_counts_delays_and_how_long_products_keep_a_unit_busy",
        ),
    ),
    Mutant(
        "masks_wait_for_the_backward_pass",
        DROPOUT,
        "jax.checkpoint(masked, prevent_cse=False)(",
        "masked(",
        one("kernels/dropout", "test_the_backward_pass_draws_the_mask_again"),
    ),
    Mutant(
        "rows_of_a_transposed_product_count_twice",
        "xlnet_jax/aot/schedule.py",
        ' or ".lmr." in product',
        "",
        one(
            "commands/compile",
            "test_a_schedule_counts_delays_and_how_long_products_keep_a_unit_busy",
        ),
    ),
    Mutant(
        "a_joined_iteration_counts_for_each_of_its_parts",
        "xlnet_jax/aot/hlo.py",
        "or 0)) // step)",
        "or 0)))",
        one("commands/compile", "test_a_loop_without_a_constant_bound_is_no_guess"),
    ),
    Mutant(
        "the_ends_of_all_sides_are_joined",
        COST_MODEL,
        " & (whole % self.chip.ring == 0)",
        "",
        one("commands/cost_model", "test_a_ring_has_the_links_along_its_sides_of_the_torus"),
    ),
    Mutant(
        "a_part_of_a_side_is_a_ring",
        COST_MODEL,
        "(along == whole) & ",
        "",
        one("commands/cost_model", "test_a_ring_has_the_links_along_its_sides_of_the_torus"),
    ),
    Mutant(
        "products_queue_without_end",
        COST_MODEL,
        "max(schedule.bundles + further, schedule.products)",
        "(schedule.bundles + further)",
        one(
            "commands/cost_model",
            "test_products_that_libtpu_starts_closer_together_than_a_unit_takes_them_count_in_full",
        ),
    ),
    Mutant(
        "compute_of_the_step_hides_its_memory",
        COST_MODEL,
        "if upper else work.max()",
        "if upper else work[CORE]",
        one(
            "commands/cost_model",
            "test_every_operation_takes_the_longest_of_its_needs_as_often_as_its_loop_turns",
        ),
    ),
    Mutant(
        "a_loop_counts_once_among_the_largest_operations",
        COST_MODEL,
        "self.parts[name] += times * seconds",
        "self.parts[name] += seconds",
        one(
            "commands/cost_model",
            "test_the_upper_time_is_divided_by_kind_and_by_place_in_the_model",
        ),
    ),
    Mutant(
        "a_resumed_run_begins_the_iterator_again",
        "xlnet_jax/train/launch.py",
        "    own_batches.set_position(job.batches, record, where)\n",
        "",
        one(
            "train/own_batches",
            "test_a_run_that_crashes_within_a_dispatch_and_resumes_ends_as_if_it_had_not",
        ),
    ),
    Mutant(
        "glue_counts_a_metric_as_a_task",
        "xlnet_jax/commands/glue.py",
        "statistics.fmean(each.values()) for each in scores.values())",
        "value for each in scores.values() for value in each.values())",
        one("finetune/glue", "test_all_published_formats_are_read_and_the_mean_is_glues"),
    ),
    Mutant(
        "a_collective_runs_beside_what_follows_its_done",
        COST_MODEL,
        'in running and one.opcode.endswith("-done")',
        'in running and one.opcode == "copy-done"',
        one(
            "commands/cost_model",
            "test_a_collective_is_added_and_hidden_only_behind_what_its_start_and_done_enclose",
        ),
    ),
    Mutant(
        "a_loop_that_depends_on_data_turns_once",
        COST_MODEL,
        "(self.blocks - 1) *",
        "0 *",
        one(
            "commands/cost_model",
            "test_a_loop_of_a_kernel_whose_turns_depend_on_data_is_named_and_bounded",
        ),
    ),
    Mutant(
        "arrays_on_the_chip_are_read_from_hbm",
        "xlnet_jax/aot/traffic.py",
        'return "S(" not in kind',
        "return True",
        one("commands/cost_model", "test_bytes_are_those_of_the_parts_that_cross_to_hbm"),
    ),
    Mutant(
        "dense_kernels_are_not_transposed_there",
        "xlnet_jax/members/xlnet.py",
        '"ff.layer_1.weight", "transposed"',
        '"ff.layer_1.weight", ""',
        one("commands/export", "test_tensors"),
    ),
    Mutant(
        "arrays_that_are_left_over_are_dropped",
        "xlnet_jax/convert/names.py",
        "sorted(there.keys() - wanted.keys())",
        "[]",
        one("convert/names", "test_all_that_does_not_fit_is_listed_in_one_line"),
    ),
    Mutant(
        "special_pieces_of_an_import_take_a_share",
        "xlnet_jax/convert/transformer_xl.py",
        " + BIAS_OF_SPECIAL_PIECES",
        "",
        one(
            "convert/transformer_xl",
            "test_special_pieces_take_nothing_from_the_others_whatever_the_text",
        ),
    ),
    Mutant(
        "imported_cutoffs_do_not_move_with_the_symbols",
        "xlnet_jax/convert/transformer_xl.py",
        "str(ids_N[cut])",
        "str(cut)",
        one("convert/transformer_xl", "test_names_and_shapes_of_the_released_models"),
    ),
    Mutant(
        "a_mask_leaves_the_space_before_it",
        "xlnet_jax/convert/tokenizer_json.py",
        '"lstrip": index == mask',
        '"lstrip": False',
        one("convert/tokenizer_json", "test_special_tokens"),
    ),
    Mutant(
        "unused_pieces_are_used",
        "xlnet_jax/convert/tokenizer_json.py",
        " or piece.type == piece.UNUSED",
        "",
        one("convert/tokenizer_json", "test_pieces_with_their_kinds_and_the_prefix_come_back"),
    ),
    Mutant(
        "accents_follow_the_case_of_letters",
        "xlnet_jax/data/tokenizer_fields.py",
        "lower if strip is None else strip",
        "lower",
        one("data/tokenizer_fields", "test_settings_of_wordpiece_are_done_with_either_file"),
    ),
    Mutant(
        "an_unknown_field_is_left_alone",
        "xlnet_jax/data/tokenizer_fields.py",
        "not in rule.split()",
        "not in (rule or text).split()",
        one("data/tokenizer_fields", "test_settings_that_cannot_be_done_are_refused_by_name"),
    ),
    Mutant(
        "lower_case_of_a_unigram_file_is_lost",
        "xlnet_jax/convert/tokenizer_json.py",
        "    return normalization\n",
        "    return Normalization(False, normalization.keep_accents)\n",
        one("data/tokenizer_fields", "test_the_steps_of_a_unigram_file_are_read"),
    ),
    Mutant(
        "cls_is_always_the_first_piece",
        "xlnet_jax/library.py",
        '0 if self.config.model.member.cls == "first" else -1',
        "0",
        one("library", "test_vectors"),
    ),
    Mutant(
        "rows_without_a_piece_are_drawn",
        DECODE,
        "if config.spare_rows else logits_BPV",
        "if False else logits_BPV",
        one("convert/peers", "test_rows_without_a_piece_are_never_predicted"),
    ),
    Mutant(
        "rows_of_a_grown_vocabulary_are_shifted",
        "xlnet_jax/train/launch.py",
        "len(found[name]) + np.arange",
        "np.arange",
        one("checkpoint/restore", "test_a_grown_vocabulary_takes_the_rows_of_known_pieces"),
    ),
    Mutant(
        "every_text_starts_with_a_space",
        "xlnet_jax/convert/tokenizer_json.py",
        'not spaces or _prepends(spaces[0]) != "never"',
        "True",
        one("convert/tokenizer_json", "test_pieces_with_their_kinds_and_the_prefix_come_back"),
    ),
    Mutant(
        "eop_is_found_by_its_score",
        "xlnet_jax/convert/tokenizer_json.py",
        "score == 0 or index == special.eop",
        "score == 0",
        one("convert/tokenizer_json", "test_pieces_with_their_kinds_and_the_prefix_come_back"),
    ),
    Mutant(
        "parts_of_an_array_start_at_the_same_place",
        "xlnet_jax/checkpoint/checksums.py",
        "np.arange(at, at + len(words))",
        "np.arange(1, 1 + len(words))",
        one("checkpoint/store", "test_checksums_in_parts_are_those_of_the_whole"),
    ),
    Mutant(
        "a_split_is_read_past_its_end",
        "xlnet_jax/data/batches/loader.py",
        "batch.target_weights * (batch.target_positions < targets_B[:, None])",
        "batch.target_weights",
        one("train/evaluation", "test_streams_decide_the_loss_and_devices_and_batches_do_not"),
    ),
    Mutant(
        "a_stream_forgets_between_dispatches",
        "xlnet_jax/train/evaluation.py",
        "self._run(params, memory, meshes",
        "self._run(params, self._empty(), meshes",
        one("train/evaluation", "test_streams_decide_the_loss_and_devices_and_batches_do_not"),
    ),
    Mutant(
        "the_baseline_has_the_longer_context",
        "xlnet_jax/train/sliding.py",
        "short_IN.min(axis=0)",
        "long_IN.min(axis=0)",
        one("train/evaluation", "test_the_length_is_where_a_longer_context_stops_to_help"),
    ),
    Mutant(
        "rows_that_fill_up_the_batch_count",
        STREAM,
        "exists_B=rows < entry.batch_size",
        "exists_B=rows >= 0",
        one(
            "data/batches/loader",
            "test_rows_from_the_batch_size_on_weigh_nothing_and_change_no_other",
        ),
    ),
    Mutant(
        "rows_that_fill_up_the_batch_have_further_targets",
        EXAMPLES,
        "weights_LA * builder.where.exists_B.astype(np.float32)[:, None, None]",
        "weights_LA * np.ones(len(tokens_BN), np.float32)[:, None, None]",
        one(
            "data/batches/loader",
            "test_rows_from_the_batch_size_on_weigh_nothing_and_change_no_other",
        ),
    ),
    Mutant(
        "the_memory_of_other_devices_is_damaged",
        "xlnet_jax/checkpoint/store.py",
        "return checksums.of_trees(trees, shapes)",
        "return checksums.of_trees(trees)",
        one(
            "checkpoint/store",
            "test_a_memory_comes_back_without_the_rows_of_weight_0_of_other_devices",
        ),
    ),
    Mutant(
        "law_unknown_off_by_one",
        "xlnet_jax/data/batches/orders.py",
        "unknown_B1 = 1 + ",
        "unknown_B1 = 0 + ",
        one(
            "data/batches/order_distributions",
            "test_the_number_of_unknown_positions_is_uniform_from_one_to_all",
        ),
    ),
    Mutant(
        "law_reads_a_later_step",
        "xlnet_jax/data/batches/examples.py",
        "read_in_order(self.text, self.where.cursor_B, ",
        "read_in_order(self.text, self.where.cursor_B + self.where.direction_B, ",
        one(
            "data/batches/order_distributions",
            "test_nothing_that_enters_the_memory_has_seen_text_of_a_later_step",
        ),
    ),
    Mutant(
        "law_left_within_backwards",
        "xlnet_jax/data/batches/orders.py",
        "np.cumsum(unknown_BT, axis=1) - 1",
        "unknown_BT.sum(axis=1, keepdims=True) - np.cumsum(unknown_BT, axis=1)",
        one(
            "data/batches/order_distributions",
            "test_known_positions_have_rank_minus_one_and_the_others_consecutive_ones",
        ),
    ),
    Mutant(
        "the_tokens_around_a_piece_take_no_room",
        "xlnet_jax/data/batches/packing.py",
        "length_N + frame, goal_N",
        "length_N, goal_N",
        one(
            "data/batches/packing",
            "test_rows_are_those_of_plain_first_fit_and_hold_every_token_once",
        ),
    ),
    Mutant(
        "a_row_has_more_targets_than_slots",
        "xlnet_jax/data/batches/packing.py",
        "[[[segment_len]], [[slots]]]",
        "segment_len",
        one(
            "data/batches/packing",
            "test_rows_are_those_of_plain_first_fit_and_hold_every_token_once",
        ),
    ),
    Mutant(
        "a_token_of_a_cut_document_is_read_twice",
        "xlnet_jax/data/batches/packing.py",
        "np.minimum(part_N, longer_N)",
        "0",
        one(
            "data/batches/packing",
            "test_rows_are_those_of_plain_first_fit_and_hold_every_token_once",
        ),
    ),
    Mutant(
        "a_group_begins_with_a_document",
        "xlnet_jax/data/batches/packing.py",
        "np.cumsum(parts_D) - part",
        "np.cumsum(parts_D)",
        one(
            "data/batches/packing",
            "test_rows_are_those_of_plain_first_fit_and_hold_every_token_once",
        ),
    ),
    Mutant(
        "worst_pieces_of_a_gap",
        "xlnet_jax/infer/sampling.py",
        "jax.lax.top_k(jax.nn.log_softmax(logits_BV), count)",
        "jax.lax.top_k(-jax.nn.log_softmax(logits_BV), count)",
        one("library", "test_the_most_probable_pieces_of_a_gap"),
    ),
    Mutant(
        "name_of_a_configuration_ignored",
        "xlnet_jax/config/loading.py",
        "packaged().get(path, path)",
        'packaged().get("quickstart", path)',
        one("config", "test_a_configuration_of_the_package_is_found_by_its_name"),
    ),
    Mutant(
        "fewest_pieces_first",
        "xlnet_jax/data/prepare/pipeline.py",
        "sizes = _PIECES if",
        "sizes = _PIECES[::-1] if",
        one(
            "data/prepare/prepare_resume",
            "test_by_default_a_tokenizer_has_the_most_pieces_that_the_text_gives",
        ),
    ),
    Mutant(
        "mean_is_a_sum",
        "xlnet_jax/commands/texts.py",
        "float(log_prob_U.mean())",
        "float(log_prob_U.sum())",
        one("commands/texts", "test_scores_from_the_command_line_are_those_of_the_library"),
    ),
    Mutant(
        "one_order_has_a_spread",
        "xlnet_jax/commands/texts.py",
        'if len(score.joint_K) > 1:\n        totals |= {"spread": float(score.joint_K.std(ddof=1))',
        'if len(score.joint_K) > 0:\n        totals |= {"spread": float(score.joint_K.std(ddof=0))',
        one("commands/texts", "test_one_order_has_no_spread"),
    ),
    Mutant(
        "figure_is_not_drawn_anew",
        "docs/figures/streams.py",
        "rank[j] < rank[p]",
        "rank[j] <= rank[p]",
        one("site", "test_a_figure_is_what_its_script_draws[streams]"),
    ),
    Mutant(
        "page_without_navigation",
        "mkdocs.yml",
        "    - Design: design.md\n",
        "",
        one("site", "test_the_navigation_has_four_groups_and_every_page_once"),
    ),
    Mutant(
        "public_name_without_its_page",
        "docs/api.md",
        "::: xlnet_jax.predict\n",
        "",
        one("site", "test_every_public_name_is_on_its_page"),
    ),
    Mutant(
        "option_without_its_line",
        "xlnet_jax/command_list.py",
        'option("--branch", "start from',
        'option("--leaf", "start from',
        one("reference", "test_the_page_of_the_commands_is_the_code"),
    ),
    Mutant(
        "metric_without_its_line",
        STEP,
        '"grad_norm": grad_norm,',
        '"grad_norm": grad_norm, "norm": grad_norm,',
        one(
            "train/loop",
            "test_the_batch_size_may_change_the_memory_is_then_emptied_and_no_block_read_twice",
        ),
    ),
    Mutant(
        "an_evaluation_has_empty_rows",
        "xlnet_jax/train/evaluation.py",
        "batch_size = min(batch_size, -(-self._rows // ways) * ways)",
        "batch_size = -(-batch_size // ways) * ways",
        one("train/loop", "test_evaluation_does_not_depend_on_batch_size_or_devices"),
    ),
    Mutant(
        "two_bars_in_training",
        "xlnet_jax/train/evaluation.py",
        "total if hooks is NO_HOOKS else 0",
        "total",
        one(
            "run/progress",
            "test_an_evaluation_by_itself_has_a_bar_and_one_in_training_has_the_bar_of_the_run",
        ),
    ),
    Mutant(
        "random_share_is_what_stays",
        EXAMPLES,
        "changed = data.mask_share + data.random_share",
        "changed = 1 - data.random_share",
        one("data/batches/whole_sentences", "test_targets_become_a_mask_a_random_piece_or_stay"),
    ),
    Mutant(
        "gradient_norm_after_the_clip",
        STEP,
        "grad_norm = optax.tree.norm(grads)",
        "grad_norm = jnp.minimum(optax.tree.norm(grads), config.optimizer.clip)",
        one("train/step", "test_every_metric_is_what_its_line_in_the_documentation_says"),
    ),
    Mutant(
        "loss_of_a_name_divided_by_targets",
        STEP,
        "jnp.maximum(divisors[name], 1) for",
        "jnp.maximum(divisors[recipe.first_loss], 1) for",
        one("train/step", "test_every_metric_is_what_its_line_in_the_documentation_says"),
    ),
    Mutant(
        "residuals_start_like_all",
        LAYERS,
        "(2 * config.layers) ** -0.5 if parts.scaled_init",
        "1.0 if parts.scaled_init",
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[gpt2]"),
    ),
    Mutant(
        "biases_of_positions_start_at_0",
        ATTENTION,
        '("heads", "head_dim"), "vector", self.depth) for',
        '("heads", "head_dim"), "vector", self.depth, nn.initializers.zeros) for',
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[xlnet]"),
    ),
    Mutant(
        "projections_start_as_wide_as_all",
        "xlnet_jax/model/embeddings.py",
        "PROJECTION_STD = 0.01",
        "PROJECTION_STD = 0.02",
        one("train/every_family", "test_normal_is_cut_off_and_projections_are_small_where_asked"),
    ),
    Mutant(
        "punctuation_outside_of_ascii_is_apart",
        "xlnet_jax/data/subwords.py",
        "in _ATTACHED or (not piece.isascii() and starts_word(piece))",
        "in _ATTACHED",
        one("data/subwords", "test_what_decode_gives_back_of_each_script[Han]"),
    ),
    Mutant(
        "pairs_of_albert_without_their_dropout",
        "xlnet_jax/finetune/heads.py",
        "config.member.parts.sentence_dropout or config.dropout",
        "config.dropout",
        one(
            "finetune/task_families",
            "test_dropout_of_a_head_is_that_of_its_class_in_transformers[albert-classification-*",
        ),
    ),
    Mutant(
        "sentences_are_never_dropped",
        OBJECTIVE,
        "self.sentence_head.apply, variables, rngs=rngs",
        "self.sentence_head.apply, variables",
        one("train/every_family", "test_every_dropout_is_on_in_training_and_off_elsewhere[albert]"),
    ),
    Mutant(
        "activations_dropped_at_another_rate",
        LAYERS,
        "Dropout(config.activation_dropout)",
        "Dropout(config.dropout)",
        one("train/every_family", "test_every_dropout_is_on_in_training_and_off_elsewhere[bert]"),
    ),
    Mutant(
        "positions_are_never_dropped",
        "xlnet_jax/model/embeddings.py",
        "Dropout(self.config.dropout)(table_SND, masks_S)",
        "table_SND",
        one("train/every_family", "test_every_dropout_is_on_in_training_and_off_elsewhere[xlnet]"),
    ),
    Mutant(
        "a_span_of_words_is_dropped_at_the_end",
        SPANS,
        "fits_BS &= ~np.logical_or.accumulate(at(barred_BW, span_BS), axis=1)",
        "fits_BS &= ~(at(barred_BW, span_BS) & fits_BS).any(axis=1, keepdims=True)",
        one("data/batches/whole_sentences", "test_n_grams_are_those_of_google"),
    ),
    Mutant(
        "a_span_of_words_jumps_over_sep",
        SPANS,
        "fits_BS &= ~np.logical_or.accumulate(at(barred_BW, span_BS), axis=1)",
        "fits_BS &= ~at(barred_BW, span_BS)",
        one("data/batches/whole_sentences", "test_spans_of_words_end_before_sep"),
    ),
    Mutant(
        "entities_without_an_end_count",
        "xlnet_jax/finetune/metrics.py",
        "if not strict or marks",
        "if True or marks",
        one("finetune/finetune_metrics", "test_entities_are_counted_by_the_scheme_of_the_labels"),
    ),
    Mutant(
        "any_i_goes_on",
        "xlnet_jax/finetune/metrics.py",
        'marks[end - 1] in "BI" and',
        'marks[end - 1] in "BIES" and',
        one("finetune/finetune_metrics", "test_entities_are_counted_by_the_scheme_of_the_labels"),
    ),
    Mutant(
        "the_scheme_of_one_evaluation",
        "xlnet_jax/finetune/token_classification.py",
        "entity_f1(true, predicted, self.labels)",
        "entity_f1(true, predicted)",
        one("finetune/tasks", "test_only_labels_that_mark_entities_have_f1"),
    ),
    Mutant(
        "ties_have_ranks_of_their_own",
        "xlnet_jax/finetune/metrics.py",
        "pearson(rankdata(label_N), rankdata(predicted_N))",
        'pearson(rankdata(label_N, "ordinal"), rankdata(predicted_N, "ordinal"))',
        one("finetune/finetune_metrics", "test_correlations_by_hand"),
    ),
    Mutant(
        "a_threshold_separates_equal_values",
        "xlnet_jax/finetune/metrics.py",
        "score_M[1:-1][sure_N[1:] == sure_N[:-1]] = -np.inf",
        "pass",
        one("finetune/finetune_metrics", "test_the_best_threshold_gives_the_answers_that_pay"),
    ),
    Mutant(
        "articles_go_before_punctuation",
        "xlnet_jax/finetune/metrics.py",
        '_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION))',
        '_ARTICLES.sub(" ", answer.lower()).translate(_NO_PUNCTUATION)',
        one("finetune/finetune_metrics", "test_answers_are_compared_by_the_official_rules"),
    ),
    Mutant(
        "the_farthest_answer_is_taken",
        "xlnet_jax/finetune/readers.py",
        "return min(found, key=",
        "return max(found, key=",
        one("finetune/readers", "test_squad_answers_are_found_again"),
    ),
    Mutant(
        "tags_are_in_the_second_column",
        "xlnet_jax/finetune/readers.py",
        'else ["0", "-1"]',
        'else ["0", "1"]',
        one("finetune/readers", "test_tags"),
    ),
    Mutant(
        "labels_by_the_letters_of_their_numbers",
        "xlnet_jax/convert/fields.py",
        "for i in range(len(labels))]",
        "for i in sorted(range(len(labels)), key=str)]",
        one("convert/fields", "test_labels_come_back_by_their_numbers"),
    ),
    Mutant(
        "a_feed_forward_part_twice_as_wide",
        "xlnet_jax/convert/fields.py",
        'values["d_ff"] = 4 * width',
        'values["d_ff"] = 2 * width',
        one("convert/fields", "test_a_null_of_config_json_is_the_usual_value"),
    ),
    Mutant(
        "a_null_is_a_value",
        "xlnet_jax/convert/fields.py",
        "default if found.get(theirs) is None else found[theirs]",
        "found.get(theirs, default)",
        one("convert/fields", "test_a_null_of_config_json_is_the_usual_value"),
    ),
    Mutant(
        "padding_on_the_other_side_there",
        "xlnet_jax/convert/tokenizer_files.py",
        '"left" if member.cls == "last" else "right"',
        '"right"',
        one("convert/tokenizer_json", "test_what_is_put_around_the_texts_of_each_family[xlnet]"),
    ),
    Mutant(
        "one_separator_between_two_texts",
        "xlnet_jax/convert/tokenizer_files.py",
        " * member.separators",
        "",
        one("convert/tokenizer_json", "test_what_is_put_around_the_texts_of_each_family[roberta]"),
    ),
    Mutant(
        "types_for_a_family_without_them",
        "xlnet_jax/convert/tokenizer_files.py",
        '["token_type_ids"] * member.types',
        '["token_type_ids"] * (member.cls != "none")',
        one("convert/tokenizer_json", "test_what_is_put_around_the_texts_of_each_family[roberta]"),
    ),
    Mutant(
        "no_final_sigma_there",
        "xlnet_jax/convert/tokenizer_json.py",
        '"ς"), {"type": "Lowercase"}]',
        '"σ"), {"type": "Lowercase"}]',
        one("convert/tokenizer_json", "test_the_steps_there_change_a_text_as_ours_do[True]"),
    ),
    Mutant(
        "spaces_are_always_removed_there",
        "xlnet_jax/convert/tokenizer_json.py",
        "[*spaces] * normalization.remove_space",
        "[*spaces]",
        one("convert/tokenizer_json", "test_spaces_that_are_kept_have_no_step"),
    ),
    Mutant(
        "separators_are_no_space_there",
        "xlnet_jax/convert/tokenizer_json.py",
        "[\\\\s\\u001c-\\u001f]+",
        "[\\\\s]+",
        one("convert/tokenizer_json", "test_the_steps_there_change_a_text_as_ours_do"),
    ),
    Mutant(
        "every_refusal_is_too_little_text",
        "xlnet_jax/data/tokenizer.py",
        'if "size too high" in reason else',
        "if reason else",
        one("data/tokenizer", "test_vocabulary_that_does_not_fit"),
    ),
    Mutant(
        "full_width_marks_become_ascii",
        "xlnet_jax/data/tokenizer.py",
        'new if new in ("", " ") else unicodedata.normalize("NFC", old)',
        "new",
        one("data/prepare/scripts", "test_a_corpus_has_the_text_as_it_was_written"),
    ),
    Mutant(
        "chinese_sentences_begin_with_a_space",
        "xlnet_jax/data/tokenizer.py",
        "add_dummy_prefix=2 * bare < len(letters)",
        "add_dummy_prefix=True",
        one("data/prepare/scripts", "test_a_corpus_has_the_text_as_it_was_written"),
    ),
    Mutant(
        "an_export_without_prefix_loses_spaces",
        "xlnet_jax/convert/tokenizer_json.py",
        '[{"type": "WhitespaceSplit"}] * prefix',
        '[{"type": "WhitespaceSplit"}]',
        one("data/prepare/scripts", "test_the_exported_tokenizer_cuts_alike"),
    ),
    Mutant(
        "a_work_directory_is_called_no_model",
        "xlnet_jax/convert/source.py",
        '"checkpoints/" in listed',
        '"checkpoint/" in listed',
        one("commands/import", "test_an_imported_work_directory_is_no_run"),
    ),
    Mutant(
        "what_the_caller_says_does_not_count",
        "xlnet_jax/convert/source.py",
        "format.read(source, tokenizer, overrides)",
        "format.read(source, tokenizer, ())",
        one(
            "commands/import",
            "test_what_a_folder_does_not_say_is_named_and_what_the_caller_says_counts",
        ),
    ),
    Mutant(
        "the_first_of_two_checkpoints_is_taken",
        "xlnet_jax/convert/tensorflow.py",
        "if len(found) != 1:",
        "if not found:",
        one(
            "commands/import", "test_a_tensorflow_checkpoint_needs_its_configuration_and_tensorflow"
        ),
    ),
    Mutant(
        "a_small_corpus_is_never_read",
        "xlnet_jax/data/batches/cycle.py",
        "np.maximum(1, np.floor(exact))",
        "np.maximum(0, np.floor(exact))",
        one("data/batches/stream", "test_weights_become_the_shortest_cycle_that_meets_them"),
    ),
    Mutant(
        "a_resumed_run_repeats_steps",
        "xlnet_jax/data/batches/loader.py",
        "range(max(first, self.start), min(",
        "range(first, min(",
        one("data/batches/loader", "test_dispatches_are_cut_at_multiples_of_k"),
    ),
    Mutant(
        "another_normalisation_is_mixed_in",
        "xlnet_jax/data/batches/mixture.py",
        "if (mine.sha256, mine.normalization) != (first.sha256, first.normalization):",
        "if mine.sha256 != first.sha256:",
        one("data/batches/mixture", "test_corpora_of_another_normalisation_are_refused"),
    ),
    Mutant(
        "a_shard_that_was_cut_is_whole",
        "xlnet_jax/data/corpus/corpus.py",
        'if size != shard["bytes"]:',
        'if size > shard["bytes"]:',
        one("data/corpus/corpus", "test_missing_cut_and_damaged_shards"),
    ),
    Mutant(
        "counts_need_not_add_up",
        "xlnet_jax/data/corpus/corpus.py",
        "numbers.min() < 0 or numbers.sum() != tokens",
        "numbers.min() < 0",
        one("data/corpus/corpus", "test_other_tokenizer_or_counts"),
    ),
    Mutant(
        "lengths_of_documents_in_another_order",
        "xlnet_jax/data/prepare/work_unit.py",
        "np.diff(ends_D, prepend=0)",
        "np.diff(ends_D, prepend=0)[::-1].copy()",
        one("data/corpus/corpus", "test_read_equals_a_naive_concatenation"),
    ),
    Mutant(
        "a_page_forgets_the_pages_before",
        "xlnet_jax/data/corpus/verify.py",
        "page * page_tokens + np.flatnonzero(begins)",
        "np.flatnonzero(begins)",
        one("data/corpus/verify", "test_info_and_verify"),
    ),
    Mutant(
        "an_older_format_is_read",
        "xlnet_jax/data/corpus/manifest.py",
        "if version != FORMAT_VERSION:",
        "if version > FORMAT_VERSION:",
        one("data/corpus/manifest", "test_other_formats"),
    ),
    Mutant(
        "an_edited_manifest_is_taken",
        "xlnet_jax/data/corpus/manifest.py",
        'if content_hash(manifest) != manifest["sha256"]:',
        'if not manifest["sha256"]:',
        one("data/corpus/manifest", "test_everything_in_it_is_checked"),
    ),
    Mutant(
        "the_first_piece_past_the_vocabulary_is_one",
        "xlnet_jax/data/corpus/pages.py",
        ".max() >= vocab_size",
        ".max() > vocab_size",
        one("data/corpus/pages", "test_other_records"),
    ),
    Mutant(
        "the_hash_of_a_shard_is_not_compared",
        "xlnet_jax/data/corpus/pages.py",
        'if file_hash(path) != entry["sha256"]:',
        "if not file_hash(path):",
        one("data/corpus/pages", "test_scan"),
    ),
    Mutant(
        "a_damaged_shard_without_advice",
        "xlnet_jax/data/corpus/shards.py",
        'raise BadInput(f"{error}; {ADVICE}") from error',
        "raise",
        one("data/corpus/corpus", "test_missing_cut_and_damaged_shards"),
    ),
    Mutant(
        "a_page_is_all_bytes_to_the_end_of_its_shard",
        "xlnet_jax/data/corpus/shards.py",
        "*shards[shard].edges[page : page + 2].tolist()",
        "*shards[shard].edges[[page, -1]].tolist()",
        one("storage/buckets", "test_the_pages_of_a_batch_are_read_at_the_same_time_and_exactly"),
    ),
    Mutant(
        "an_end_of_a_document_may_start_a_sentence",
        "xlnet_jax/data/corpus/verify.py",
        "or (starts[ends] != 0).any()",
        "",
        one("data/corpus/verify", "test_flags_that_make_no_sense"),
    ),
    Mutant(
        "parts_count_as_sources",
        "xlnet_jax/data/corpus/verify.py",
        'len({source["path"] for source in manifest["sources"]})',
        'len(manifest["sources"])',
        one("data/corpus/verify", "test_info_and_verify"),
    ),
    Mutant(
        "an_answer_has_a_piece_more",
        "xlnet_jax/data/offsets.py",
        "int(np.searchsorted(self.start_N, end))",
        'int(np.searchsorted(self.start_N, end, side="right"))',
        one("data/offsets", "test_an_answer_is_found_by_its_pieces"),
    ),
    Mutant(
        "the_test_split_is_never_held_out",
        "xlnet_jax/data/prepare/datasets.py",
        'heldout=split or "valid"',
        'heldout="valid"',
        one(
            "data/prepare/counted",
            "test_enwik8_is_its_bytes_in_the_published_splits_with_one_vocabulary",
        ),
    ),
    Mutant(
        "a_truncated_data_set_is_whole",
        "xlnet_jax/data/prepare/datasets.py",
        "if count != (size :=",
        "if count > (size :=",
        one(
            "data/prepare/counted",
            "test_wikitext_is_its_words_and_line_ends_and_a_truncated_file_is_refused",
        ),
    ),
    Mutant(
        "finished_units_are_made_again",
        "xlnet_jax/data/prepare/engine.py",
        "if note not in finished",
        "",
        one("data/prepare/prepare", "test_interrupted_and_given_again"),
    ),
    Mutant(
        "errors_of_workers_are_lost",
        "xlnet_jax/data/prepare/engine.py",
        "add(future.result())",
        "add(0)",
        one("data/prepare/engine", "test_bad_input_in_a_worker_is_one_line"),
    ),
    Mutant(
        "half_a_percent_of_marks_changes_words",
        "xlnet_jax/data/prepare/marks.py",
        "count > LARGEST_SHARE * letters",
        "count >= LARGEST_SHARE * letters",
        one("data/prepare/marks", "test_all_is_said_and_above_half_a_percent_what_to_do"),
    ),
    Mutant(
        "strip_accents_keeps_them",
        "xlnet_jax/data/prepare/options.py",
        '{name: name != "keep_accents" for',
        "{name: True for",
        one("data/prepare/marks", "test_a_corpus_gives_its_normalisation_to_the_next"),
    ),
    Mutant(
        "bytes_are_replaced_unasked",
        "xlnet_jax/data/prepare/options.py",
        'errors: str = "strict"',
        'errors: str = "replace"',
        one("data/prepare/prepare", "test_bytes_that_are_not_utf8"),
    ),
    Mutant(
        "the_newest_version_by_its_letters",
        "xlnet_jax/data/prepare/records.py",
        'sorted(names, key=lambda name: [*map(int, name.split("."))])',
        "sorted(names)",
        one("data/prepare/tfds_source", "test_configs_and_versions"),
    ),
    Mutant(
        "rows_are_numbered_in_their_part",
        "xlnet_jax/data/prepare/records.py",
        "for index in range(each))",
        "for index in range(start, each))",
        one("data/prepare/sources", "test_parquet_rows_are_numbered_in_the_file"),
    ),
    Mutant(
        "strict_reading_after_replacing",
        "xlnet_jax/data/prepare/resume.py",
        '(name, was.get(name)) != ("errors", "strict")',
        'name != "errors"',
        one("data/prepare/prepare", "test_bytes_that_are_not_utf8"),
    ),
    Mutant(
        "newer_text_is_not_looked_at",
        "xlnet_jax/data/prepare/resume.py",
        "source.mtime_ns != times.get(source.path)",
        "source.mtime_ns < times.get(source.path)",
        one("data/prepare/prepare_resume", "test_other_text_is_refused"),
    ),
    Mutant(
        "a_file_that_became_shorter_is_whole",
        "xlnet_jax/data/prepare/sources.py",
        "if offset < end and not compression:",
        "if offset > end and not compression:",
        one("data/prepare/sources", "test_file_that_became_shorter_or_went_away"),
    ),
    Mutant(
        "text_is_cut_inside_documents",
        "xlnet_jax/data/prepare/sources.py",
        r'"blank_line": rb"\s*\Z"',
        '"blank_line": b""',
        one("data/prepare/sources", "test_every_format_on_disk_and_in_a_bucket[txt]"),
    ),
    Mutant(
        "a_pattern_need_not_match_the_end",
        "xlnet_jax/data/patterns.py",
        '[*found, ("", (len(text), 0))]',
        "found",
        one("data/patterns", "test_the_first_part_that_is_not_matched_is_named"),
    ),
    Mutant(
        "line_ends_are_one_piece",
        "xlnet_jax/data/patterns.py",
        r'LINE_END = r"|\n',
        r'LINE_END = r"|\n+',
        one("data/patterns", "test_a_line_end_is_a_piece_unless_a_match_has_it"),
    ),
    Mutant(
        "a_tsv_has_quotes",
        "xlnet_jax/data/prepare/tables.py",
        r'line.rstrip("\r\n").split',
        r'line.rstrip("\r\n").replace("\"", "").split',
        one("data/prepare/tables", "test_quotes_mean_nothing_in_a_tsv"),
    ),
    Mutant(
        "a_quote_may_stay_open",
        "xlnet_jax/data/prepare/tables.py",
        "csv_rows(lines, strict=True) if is_csv else tabs",
        "csv_rows(lines) if is_csv else tabs",
        one("data/prepare/tables", "test_bad_rows_are_refused_with_their_line"),
    ),
    Mutant(
        "a_line_end_is_a_space_there",
        "xlnet_jax/convert/counted_json.py",
        "&&[^\\\\n]]+",
        "]+",
        one(
            "convert/counted_json",
            "test_the_ids_of_any_text_are_ours_and_what_ours_refuses_is_an_error",
        ),
    ),
    Mutant(
        "unknown_characters_are_read_there",
        "xlnet_jax/convert/counted_json.py",
        '"unk_token": ""',
        '"unk_token": "<unk>"',
        one(
            "convert/counted_json",
            "test_the_ids_of_any_text_are_ours_and_what_ours_refuses_is_an_error",
        ),
    ),
    Mutant(
        "a_sequence_ends_with_a_line_end",
        "xlnet_jax/data/prepare/text.py",
        "sum(map(len, document)) == 1",
        "sum(map(len, document)) == 0",
        one(
            "data/prepare/sequences",
            "test_every_character_of_a_document_and_no_other_is_in_the_corpus",
        ),
    ),
    Mutant(
        "a_fasta_is_never_cut",
        "xlnet_jax/data/prepare/sources.py",
        '"fasta": "name"',
        '"fasta": "file"',
        one("data/prepare/sequences", "test_a_sequence_is_a_document_wherever_the_file_is_cut"),
    ),
    Mutant(
        "a_byte_order_mark_is_text",
        "xlnet_jax/data/prepare/text.py",
        'text if offset else text.removeprefix("\\ufeff")',
        "text",
        one("data/prepare/text", "test_old_mac_lines_and_byte_order_mark"),
    ),
    Mutant(
        "an_old_mac_ends_no_line_of_a_fasta",
        "xlnet_jax/data/prepare/text.py",
        "_ended(self._lines(part, is_text=False)):\n            line, is_name",
        "self._lines(part, is_text=False):\n            line, is_name",
        one("data/prepare/sequences", "test_lines_of_an_old_mac_end_with_a_carriage_return"),
    ),
    Mutant(
        "documents_without_pieces_are_not_counted",
        "xlnet_jax/data/prepare/work_unit.py",
        "reader.empty + sum(writer.empty for writer in writers.values())",
        "reader.empty",
        one("data/prepare/prepare", "test_starts_of_paragraphs"),
    ),
    Mutant(
        "the_frame_around_a_text_is_kept",
        "xlnet_jax/data/subwords.py",
        '("truncation", "padding", "post_processor")',
        '("truncation", "padding")',
        one(
            "data/subwords",
            "test_a_tokenizer_json_with_a_frame_around_a_text_gives_the_same_ids",
        ),
    ),
    Mutant(
        "closing_quotes_are_two_apostrophes",
        "xlnet_jax/data/tokenizer.py",
        ".replace(\"''\", '\"')",
        "",
        one("data/tokenizer", "test_normalization_is_the_originals"),
    ),
    Mutant(
        "the_example_is_of_a_known_text",
        "xlnet_jax/data/unknown.py",
        "np.argmax(of_text)",
        "np.argmin(of_text)",
        one("finetune/setup", "test_examples_that_the_tokenizer_does_not_know_are_told"),
    ),
    Mutant(
        "cores_are_those_of_the_machine",
        "xlnet_jax/data/workers.py",
        "len(os.sched_getaffinity(0))",
        "os.cpu_count() or 1",
        one("data/workers", "test_the_cores_are_those_of_the_scheduler"),
    ),
    Mutant(
        "a_thread_ends_and_not_the_worker",
        "xlnet_jax/data/workers.py",
        "os._exit(1)",
        "raise SystemExit(1)",
        one("data/workers", "test_a_worker_ends_with_its_parent"),
    ),
    Mutant(
        "the_number_after_the_last_process",
        "xlnet_jax/distributed/links.py",
        "if process >= processes and",
        "if process > processes and",
        one("multiprocess/rendezvous", "test_the_place_comes_from_keys_or_the_environment"),
    ),
    Mutant(
        "a_wrong_address_is_asked_for_again",
        "xlnet_jax/distributed/rendezvous.py",
        'BadInput(f"{line}; {cure}") if cure',
        'RestartMe(f"{line}; {cure}") if cure',
        one(
            "multiprocess/rendezvous",
            "test_an_unknown_host_of_process_0_is_asked_for_again_and_ends_all_with_2",
        ),
    ),
    Mutant(
        "a_lost_process_is_bad_input",
        "xlnet_jax/distributed/rendezvous.py",
        'RestartMe.exit_code, f"lost {who}',
        'BadInput.exit_code, f"lost {who}',
        one(
            "multiprocess/rendezvous",
            "test_the_end_of_a_process_is_passed_on_with_its_code_and_a_lost_one_is_named_to_all",
        ),
    ),
    Mutant(
        "the_cause_replaces_what_quotes_it",
        "xlnet_jax/errors.py",
        "if text and (not best or text not in best):",
        "if text:",
        one("errors", "test_summary"),
    ),
    Mutant(
        "a_long_summary_is_longer_than_its_limit",
        "xlnet_jax/errors.py",
        "(SUMMARY_LENGTH - 5) // 2",
        "SUMMARY_LENGTH // 2",
        one("errors", "test_a_long_summary_keeps_both_ends"),
    ),
    Mutant(
        "an_even_chance_is_a_label",
        "xlnet_jax/finetune/classification.py",
        "if share > 0.5]",
        "if share >= 0.5]",
        one("finetune/tasks", "test_a_text_has_any_number_of_labels"),
    ),
    Mutant(
        "each_underscore_is_a_blank",
        "xlnet_jax/finetune/classification.py",
        're.split("_+", question)',
        're.split("_", question)',
        one("finetune/tasks", "test_a_choice_is_one_sequence_for_each_option"),
    ),
    Mutant(
        "a_worse_evaluation_writes_its_predictions",
        "xlnet_jax/finetune/evaluation.py",
        'score > earlier["score"]',
        'score != earlier["score"]',
        one("finetune/tasks", "test_only_a_better_evaluation_writes_its_predictions"),
    ),
    Mutant(
        "the_segment_before_the_last_is_not_read",
        TASK,
        "range(S - 1 if slots else 0)",
        "range(S - 2 if slots else 0)",
        one(
            "finetune/recipe",
            "test_earlier_segments_are_read_through_the_memory_and_their_padding_is_not",
        ),
    ),
    Mutant(
        "a_key_that_is_set_follows_from_the_epochs",
        "xlnet_jax/finetune/setup.py",
        "for name, value in follow.items() if values[name] == usual[name]",
        "for name, value in follow.items()",
        one(
            "finetune/setup",
            "test_settings_of_no_data_set_train_for_three_passes_and_score_a_tenth",
        ),
    ),
    Mutant(
        "embeddings_are_no_task",
        "xlnet_jax/finetune/tasks.py",
        '"embeddings": Embeddings,',
        "",
        one("convert/names", "test_every_task_has_a_class_and_a_head_there"),
    ),
    Mutant(
        "numbers_are_classes",
        "xlnet_jax/finetune/tasks.py",
        '"regression": Regression',
        '"regression": Classification',
        one(
            "finetune/setup",
            "test_an_example_without_a_label_is_left_out_and_said_and_never_a_class[regression]",
        ),
    ),
    Mutant(
        "words_share_their_loss_with_other_pieces",
        "xlnet_jax/finetune/token_classification.py",
        "/ jnp.maximum(is_word_BT.sum(axis=1), 1)",
        "/ is_word_BT.shape[1]",
        one("finetune/tasks", "test_the_loss_of_words_is_their_mean"),
    ),
    Mutant(
        "a_missing_label_in_capitals_is_a_class",
        "xlnet_jax/finetune/unlabelled.py",
        "str(label).strip().lower() in texts",
        "str(label).strip() in texts",
        one(
            "finetune/setup",
            "test_an_example_without_a_label_is_left_out_and_said_and_never_a_class[texts]",
        ),
    ),
    Mutant(
        "a_class_called_minus_is_missing",
        "xlnet_jax/finetune/unlabelled.py",
        '"null", *numbers}.difference(classes)',
        '"null", *numbers}',
        one(
            "finetune/setup",
            "test_an_example_without_a_label_is_left_out_and_said_and_never_a_class[named]",
        ),
    ),
    Mutant(
        "three_quarters_do_not_hold_as_many",
        "xlnet_jax/infer/batching.py",
        "less if number <= less",
        "less if number < less",
        one("infer/decoder", "test_buckets_waste_at_most_a_half"),
    ),
    Mutant(
        "a_power_of_two_is_doubled",
        "xlnet_jax/infer/batching.py",
        "(max(number, 1) - 1).bit_length()",
        "max(number, 1).bit_length()",
        one("infer/decoder", "test_buckets_waste_at_most_a_half"),
    ),
    Mutant(
        "a_text_lacks_its_stop",
        "xlnet_jax/infer/decoder.py",
        "end = last + 1 if self.token_N[last] == stop",
        "end = last if self.token_N[last] == stop",
        one("infer/decoder", "test_listener_hears_every_token_once_and_a_stop_ends_the_text"),
    ),
    Mutant(
        "the_best_order_is_the_mean_of_all",
        "xlnet_jax/infer/estimators.py",
        "one[1].sum(axis=1).mean()",
        "one[1].sum(axis=1).max()",
        one(
            "infer/estimators",
            "test_half_is_asked_in_random_orders_and_a_model_without_memory_reads_each_segment_for_itself",
        ),
    ),
    Mutant(
        "orders_are_no_calls",
        "xlnet_jax/infer/estimators.py",
        "rows *= K",
        "pass",
        one(
            "infer/estimators",
            "test_half_is_asked_in_random_orders_and_a_model_without_memory_reads_each_segment_for_itself",
        ),
    ),
    Mutant(
        "top_k_does_nothing_unsaid",
        "xlnet_jax/infer/options.py",
        "(self.top_k or self.top_p < 1):",
        "(self.top_k and self.top_p < 1):",
        one("commands/options", "test_a_value_out_of_range_is_refused"),
    ),
    Mutant(
        "half_a_token_is_a_number",
        "xlnet_jax/infer/options.py",
        "isinstance(value, numbers.Integral):",
        "isinstance(value, numbers.Real):",
        one("commands/options", "test_a_value_out_of_range_is_refused"),
    ),
    Mutant(
        "a_target_has_the_mean_of_its_pieces",
        "xlnet_jax/infer/text_to_text.py",
        "text.log_prob_U.sum()",
        "text.log_prob_U.mean()",
        one("finetune/text_to_text", "test_greedy_pieces_are_the_most_probable_without_a_cache"),
    ),
    Mutant(
        "targets_in_the_order_of_their_lengths",
        "xlnet_jax/infer/text_to_text.py",
        "tokens_NU[numbers] =",
        "tokens_NU[: len(numbers)] =",
        one(
            "finetune/text_to_text",
            "test_targets_of_a_beam_search_come_in_the_order_of_their_sources",
        ),
    ),
    Mutant(
        "log_glued_to_the_bar",
        "xlnet_jax/messages.py",
        "property(lambda self: sys.stderr,",
        "property(lambda self: sys.__stderr__,",
        one("run/progress", "test_lines_of_the_log_and_of_warnings*"),
    ),
    Mutant(
        "steps_beside_the_compiler",
        "xlnet_jax/train/loop.py",
        "self._report()\n                    self.executables[shape] =",
        "self.executables[shape] =",
        one("finetune/text_to_text", "test_a_run_that_was_stopped_goes_on_with_the_same_bits"),
    ),
    Mutant(
        "next_is_training_for_ever",
        "xlnet_jax/commands/train.py",
        "    if step < config.train.steps:\n        command",
        "    if step <= config.train.steps:\n        command",
        one("commands/cli", "test_training_ends_with_the_command*"),
    ),
    Mutant(
        "a_made_vocabulary_loses_its_accents",
        "xlnet_jax/data/prepare/resume.py",
        "    return True",
        "    return False",
        one("data/prepare/marks", "test_a_vocabulary_that_is_made_here_keeps_accents"),
    ),
    Mutant(
        "shared_accents_are_not_counted",
        "xlnet_jax/data/prepare/marks.py",
        "marks[0] - marks[1]",
        "0 * marks[1]",
        one("data/prepare/marks", "test_what_is_taken_off_is_counted_in_every_script"),
    ),
    Mutant(
        "unknown_pieces_are_few_below_a_twentieth",
        "xlnet_jax/data/unknown.py",
        "LEAST_SHARE = 0.005",
        "LEAST_SHARE = 0.05",
        one("data/unknown", "test_it_begins_at_half_a_percent"),
    ),
    Mutant(
        "padding_may_be_any_piece",
        "xlnet_jax/data/vocabulary.py",
        "None if row in (-1, pad) else",
        "None if row else",
        one("commands/configure", "test_a_vocabulary_whose_models_cannot_be_exported_is_told"),
    ),
    # Members, objectives and declarations: what each must say.
    Mutant(
        "kernels_of_attention_are_no_matrices",
        ATTENTION,
        '(config.d_model, *heads), ("embed", "heads", "head_dim"), "matrix"',
        '(config.d_model, *heads), ("embed", "heads", "head_dim"), "kernel"',
        DECLARED,
    ),
    Mutant(
        "a_segment_embedding_is_a_matrix",
        ATTENTION,
        '(2, *shape), axes, "table"',
        '(2, *shape), axes, "matrix"',
        one("train/optimizer", "test_depth_and_kind_of_every_parameter[xlnet]"),
    ),
    Mutant(
        "a_projection_of_the_embedding_is_a_matrix",
        "xlnet_jax/model/embeddings.py",
        '(None, "embed"), "kernel", depth, init)',
        '(None, "embed"), "matrix", depth, init)',
        one("train/optimizer", "test_depth_and_kind_of_every_parameter[adaptive]"),
    ),
    Mutant(
        "the_word_embedding_is_as_deep_as_a_layer",
        "xlnet_jax/model/embeddings.py",
        '("vocab", "embed"), "table", 0,',
        '("vocab", "embed"), "table", 1,',
        DECLARED,
    ),
    Mutant(
        "layers_count_from_the_input",
        LAYERS,
        "tuple(range(1, config.layers + 1))",
        "tuple(range(config.layers))",
        DECLARED,
    ),
    Mutant(
        "heads_are_as_deep_as_the_input",
        LAYERS,
        "HEAD_DEPTH = math.inf",
        "HEAD_DEPTH = 0.0",
        DECLARED,
    ),
    Mutant(
        "the_bias_of_the_softmax_decays",
        HEADS,
        "HEAD_DEPTH, nn.initializers.zeros, decays=False",
        "HEAD_DEPTH, nn.initializers.zeros",
        DECLARED,
    ),
    Mutant(
        "sentences_are_divided_by_targets",
        OBJECTIVE,
        'labels if name == "sentences" else targets',
        "targets",
        family("bert"),
    ),
    Mutant(
        "masked_diffusion_is_exact",
        "xlnet_jax/objectives/__init__.py",
        'likelihood="bound"',
        'likelihood="exact"',
        one("train/objectives", "test_the_loss_of_masked_diffusion_is_the_bound_by_hand"),
    ),
    Mutant(
        "cls_of_xlnet_is_first",
        "xlnet_jax/members/xlnet.py",
        'cls="last"',
        'cls="first"',
        ("tests/data/test_layouts.py",),
    ),
    Mutant(
        "one_separator_in_roberta",
        "xlnet_jax/members/roberta.py",
        "separators=2",
        "separators=1",
        ("tests/data/test_layouts.py",),
    ),
    Mutant(
        "positions_of_roberta_start_at_zero",
        "xlnet_jax/members/roberta.py",
        "first_position=2",
        "first_position=0",
        family("roberta"),
    ),
    Mutant(
        "padding_of_roberta_is_row_zero",
        "xlnet_jax/members/roberta.py",
        "padding_row=1",
        "padding_row=0",
        one("train/every_family", "test_every_parameter_starts_as_its_source_says[roberta]"),
    ),
    Mutant(
        "norm_and_kernel_names_of_bert_meet",
        "xlnet_jax/members/bert.py",
        '"query": "attention.self.query", "key": "attention.self.key"',
        '"query": "attention.self.key", "key": "attention.self.query"',
        family("bert"),
    ),
    Mutant(
        "classes_of_sentences_are_not_swapped",
        "xlnet_jax/members/bert.py",
        '"cls.seq_relationship.weight", "swapped"',
        '"cls.seq_relationship.weight", "transposed"',
        family("bert"),
    ),
    Mutant(
        "the_norm_of_robertas_head_has_another_name",
        "xlnet_jax/members/roberta.py",
        "lm_head.layer_norm",
        "lm_head.LayerNorm",
        family("roberta"),
    ),
    Mutant(
        "norms_of_albert_change_places",
        "xlnet_jax/members/albert.py",
        '"attention/norm": "attention.LayerNorm"',
        '"attention/norm": "full_layer_norm"',
        family("albert"),
    ),
    Mutant(
        "norms_of_gpt2_change_places",
        "xlnet_jax/members/gpt2.py",
        '"attention/norm": f"{_BLOCK}.ln_1"',
        '"attention/norm": f"{_BLOCK}.ln_2"',
        family("gpt2"),
    ),
    Mutant(
        "biases_of_xlnet_change_places",
        "xlnet_jax/members/xlnet.py",
        '"content_bias": "r_w_bias", "position_bias": "r_r_bias"',
        '"content_bias": "r_r_bias", "position_bias": "r_w_bias"',
        one("convert/names", "test_the_names_there_are_those_that_the_oracle_reads"),
    ),
    Mutant(
        "the_transformer_has_separators",
        "xlnet_jax/members/transformer.py",
        "separators=0",
        "separators=1",
        ("tests/data/test_layouts.py",),
    ),
    Mutant(
        "vanilla_has_relative_positions",
        "xlnet_jax/members/vanilla.py",
        '(positions="per_layer")',
        "()",
        ("tests/model/test_adaptive.py",),
    ),
    Mutant(
        "transformer_xl_has_more_objectives",
        "xlnet_jax/members/transformer_xl.py",
        'objectives=("clm",)',
        'objectives=("clm", "plm")',
        ("tests/model/test_left_to_right.py",),
    ),
    Mutant(
        "a_filled_text_loses_its_segments",
        "xlnet_jax/infer/decoder.py",
        "text_U=part.text_U[order_U]",
        "text_U=part.text_U[order_U], kind_N=0 * part.kind_N",
        one(
            "infer/bounded_texts",
            "test_a_masked_xlnet_fills_by_the_logits_of_the_whole_text_with_cls_in_its_own_segment",
        ),
    ),
    Mutant(
        "half_of_the_pairs_whatever_is_asked",
        "xlnet_jax/data/batches/sentence_pairs.py",
        "< data.positive_pair_rate",
        "< 0.5",
        one(
            "data/batches/examples",
            "test_b_follows_a_and_begins_a_sentence_at_the_rate_that_is_asked_for",
        ),
    ),
    Mutant(
        "gigabytes_are_decimal",
        "xlnet_jax/aot/compile.py",
        '"G": 2**30',
        '"G": 10**9',
        one("commands/compile", "test_what_the_compiler_says_when_memory_is_short"),
    ),
    Mutant(
        "a_donated_state_counts_twice",
        "xlnet_jax/aot/compile.py",
        "- memory.alias_size_in_bytes\n",
        "\n",
        one(
            "commands/compile",
            "test_the_peak_counts_an_aliased_result_once_and_the_arguments_of_a_refused_program",
        ),
    ),
    Mutant(
        "bytes_of_a_gather_are_those_of_a_part",
        "xlnet_jax/aot/hlo.py",
        ' * (group if kind == "all-gather" else 1)',
        "",
        one("commands/compile", "test_collectives_of_a_module_by_hand"),
    ),
    Mutant(
        "days_of_a_phase_are_those_of_the_run",
        "xlnet_jax/aot/report.py",
        'config.phases[phase]["steps"] if config.phases else config.train.steps',
        "config.train.steps",
        one("commands/compile", "test_a_phase_is_compiled_with_the_schedule_of_the_whole_run"),
    ),
    Mutant(
        "an_account_is_no_projection",
        "xlnet_jax/aot/report.py",
        'name.startswith(("account", "projected"))',
        'name.startswith("projected")',
        one("commands/compile", "test_a_report_for_people_says_projection"),
    ),
    Mutant(
        "the_environment_of_the_user_is_overwritten",
        "xlnet_jax/aot/topology.py",
        "os.environ.setdefault(name, value)",
        "os.environ[name] = value",
        one("commands/compile", "test_the_environment_is_set_only_where_it_is_not"),
    ),
    Mutant(
        "the_peak_of_v5e_is_that_of_int8",
        "xlnet_jax/aot/topology.py",
        "197e12, 819e9",
        "394e12, 819e9",
        one("commands/compile", "test_the_account_and_utilisation_agree_on_peaks"),
    ),
    Mutant(
        "the_order_of_dimensions_is_ignored",
        "xlnet_jax/aot/traffic.py",
        "[sizes[axis] for axis in ints(order)]",
        "sizes[::-1]",
        one("commands/cost_model", "test_bytes_are_those_of_the_parts_that_cross_to_hbm"),
    ),
    Mutant(
        "unused_slots_have_labels",
        "xlnet_jax/batch.py",
        "np.where(self.target_weights != 0, self.target_tokens, -100)",
        "self.target_tokens",
        one("library", "test_a_batch_as_transformers_takes_it_hides_what_a_rank_does_not_see"),
    ),
    Mutant(
        "only_the_last_part_must_be_finite",
        "xlnet_jax/checkpoint/checksums.py",
        "finite &= bool(",
        "finite = bool(",
        one("checkpoint/store", "test_checksums_in_parts_are_those_of_the_whole"),
    ),
    Mutant(
        "a_stop_counts_as_a_failed_save",
        "xlnet_jax/checkpoint/chunks.py",
        " and threading.current_thread() is not threading.main_thread()",
        "",
        one("checkpoint/store", "test_a_process_whose_save_failed_waits_for_no_other"),
    ),
    Mutant(
        "other_errors_of_late_calls_are_lost",
        "xlnet_jax/checkpoint/chunks.py",
        ' and str(raised.exc_value) == "Event loop is closed"',
        "",
        one(
            "checkpoint/store",
            "test_late_callbacks_of_a_failed_read_print_nothing_and_other_errors_all",
        ),
    ),
    Mutant(
        "a_step_that_is_not_there_is_damaged",
        "xlnet_jax/checkpoint/restore.py",
        "if steps and step not in (None, *steps):",
        "if not steps and step is not None:",
        one("checkpoint/store", "test_missing_and_foreign_checkpoints_are_refused"),
    ),
    Mutant(
        "damage_of_an_array_has_no_reason",
        "xlnet_jax/checkpoint/restore.py",
        "fault = str(error)",
        'fault = ""',
        one("checkpoint/restore", "test_whatever_bit_is_flipped_the_arrays_are_right[16]"),
    ),
    Mutant(
        "arrays_of_the_checkpoint_alone_fit",
        "xlnet_jax/checkpoint/restore.py",
        "sorted(saved.keys() - forms.keys())",
        "[]",
        one("checkpoint/store", "test_other_arrays_than_those_of_the_run_are_no_damage"),
    ),
    Mutant(
        "a_renamed_folder_is_a_checkpoint",
        "xlnet_jax/checkpoint/store.py",
        " and str(int(name)) == name",
        "",
        one(
            "checkpoint/store",
            "test_a_reader_leaves_unfinished_writing_alone_and_a_writer_clears_it",
        ),
    ),
    Mutant(
        "an_interruption_is_bad_input",
        "xlnet_jax/cli.py",
        '"interrupted", Interrupted.exit_code',
        '"interrupted", BadInput.exit_code',
        one("commands/cli", "test_an_error_is_one_line_and_with_json_an_object_as_well"),
    ),
    Mutant(
        "the_limit_of_open_files_stays",
        "xlnet_jax/cli.py",
        "(most, most)",
        "(_, most)",
        one("commands/cli", "test_the_limit_of_open_files_is_raised_as_far_as_it_goes"),
    ),
    Mutant(
        "a_command_is_not_listed",
        "xlnet_jax/command_list.py",
        '("doctor", "compile", "report")',
        '("doctor", "compile")',
        one("reference", "test_help_lists_every_command_once_by_topic"),
    ),
    Mutant(
        "the_last_evaluation_is_before_the_last_step",
        "xlnet_jax/commands/configure.py",
        "-(-steps // (times * dispatch)) * dispatch",
        "steps // (times * dispatch) * dispatch",
        one("commands/configure", "test_evaluations_take_what_training_leaves"),
    ),
    Mutant(
        "evaluations_without_a_held_out_split",
        "xlnet_jax/commands/configure.py",
        "evaluation=evaluation if open_heldout(config, mixture) else {}",
        "evaluation=evaluation",
        one(
            "commands/configure",
            "test_a_corpus_without_held_out_documents_is_configured_without_evaluations",
        ),
    ),
    Mutant(
        "texts_of_a_corpus_command_a_terminal",
        "xlnet_jax/commands/corpus.py",
        "printable(each['text'])",
        "each['text']",
        one("commands/cli", "test_texts_of_a_corpus_cannot_command_a_terminal"),
    ),
    Mutant(
        "the_next_command_has_a_folder_without_quotes",
        "xlnet_jax/commands/corpus.py",
        "{shlex.quote(output)}",
        "{output}",
        one("commands/cli", "test_prepare_train_evaluate_and_export_from_the_command_line"),
    ),
    Mutant(
        "a_restart_is_a_stop",
        "xlnet_jax/commands/doctor.py",
        '"stop" if isinstance(error, BadInput) else "warning"',
        '"stop"',
        one("commands/doctor", "test_a_fault_ends_with_2_and_the_other_checks_go_on"),
    ),
    Mutant(
        "doctor_leaves_its_file",
        "xlnet_jax/commands/doctor.py",
        "with contextlib.suppress(XLNetError, OSError):\n            files.remove(path)\n        advice",
        "advice",
        one("commands/doctor", "test_a_right_that_a_bucket_refuses"),
    ),
    Mutant(
        "all_seeds_are_alike",
        "xlnet_jax/commands/finetune.py",
        "name: value + seed for",
        "name: value for",
        one(
            "finetune/finetune",
            "test_run_n_of_several_adds_n_to_the_seeds_and_stops_where_it_is_asked",
        ),
    ),
    Mutant(
        "several_seeds_go_into_the_folder_of_a_run",
        "xlnet_jax/commands/finetune.py",
        "seeds > 1 and workdirs.read_config(workdir)",
        "seeds > 1 and workdirs.read_config(folders[0])",
        one("finetune/finetune", "test_several_seeds_do_not_go_into_the_folder_of_one_run"),
    ),
    Mutant(
        "an_import_names_every_key",
        "xlnet_jax/commands/import_.py",
        "name.startswith(sections) and value != defaults[name]",
        "name.startswith(sections)",
        one("commands/import", "test_huggingface_and_back"),
    ),
    Mutant(
        "an_import_forgets_what_its_source_said",
        "xlnet_jax/commands/import_.py",
        "files.to_json(identity | kept)",
        "files.to_json(identity)",
        one(
            "commands/import",
            "test_a_run_that_starts_from_an_import_writes_again_what_its_source_said",
        ),
    ),
    Mutant(
        "padding_sees_itself",
        "xlnet_jax/commands/inspect.py",
        " & (rank_T < NEVER)",
        "",
        one("commands/inspect", "test_an_example_of_every_objective_is_shown_as_it_is[albert]"),
    ),
    Mutant(
        "a_share_of_nan_is_taken",
        "xlnet_jax/commands/joint.py",
        "not 0 < target_share <= 1",
        "target_share <= 0 or target_share > 1",
        one("commands/evaluate", "test_what_is_not_asked_rightly_is_refused_in_one_line"),
    ),
    Mutant(
        "a_loss_is_divided_by_the_vocabulary",
        "xlnet_jax/commands/joint.py",
        "nats / len(unknown_U)",
        "nats / len(counts_V)",
        one("commands/evaluate", "test_a_loss_is_divided_by_the_unknown_tokens_and_by_their_text"),
    ),
    Mutant(
        "a_filled_text_commands_a_terminal",
        "xlnet_jax/commands/quickstart.py",
        "{printable(text)}",
        "{text}",
        one("commands/quickstart", "test_the_filled_texts_are_shown_with_their_probability"),
    ),
    Mutant(
        "a_quick_start_that_only_prepared_is_strange",
        "xlnet_jax/commands/quickstart.py",
        "ours=(CORPUS, RUN)",
        "ours=(RUN,)",
        one("commands/cli", "test_the_quick_start_writes_only_into_a_folder_of_its_own"),
    ),
    Mutant(
        "the_speed_of_a_run_is_a_mean",
        "xlnet_jax/commands/report.py",
        "statistics.median(rates)",
        "statistics.fmean(rates)",
        one(
            "commands/report", "test_the_page_of_two_runs_has_all_that_they_tell_and_loads_nothing"
        ),
    ),
    Mutant(
        "the_name_of_a_run_ends_in_a_slash",
        "xlnet_jax/commands/report.py",
        '[path.rstrip("/") for path in workdirs]',
        "[*workdirs]",
        one(
            "commands/report", "test_the_page_of_two_runs_has_all_that_they_tell_and_loads_nothing"
        ),
    ),
    Mutant(
        "rows_of_texts_count_from_zero",
        "xlnet_jax/commands/texts.py",
        "enumerate(lines, 1)",
        "enumerate(lines)",
        one("commands/texts", "test_bad_input_is_one_line"),
    ),
    Mutant(
        "a_vanilla_model_is_said_to_generate",
        "xlnet_jax/commands/train.py",
        'config.model.member.parts.positions == "per_layer"',
        'config.model.member.parts.positions == "input"',
        one("commands/cli", "test_training_ends_with_the_command_that_goes_on"),
    ),
    Mutant(
        "a_pair_that_fails_eases_the_next",
        "xlnet_jax/comparison/intervals.py",
        "left -= rejects",
        "left -= 1",
        one(
            "comparison/intervals",
            "test_holm_gives_the_smallest_p_the_hardest_level_and_stops_at_the_first_that_fails",
        ),
    ),
    Mutant(
        "a_chart_is_upside_down",
        "xlnet_jax/comparison/page.py",
        "scale([least, most], 210, 8)",
        "scale([least, most], 8, 210)",
        one("commands/report", "test_a_chart_has_its_points_in_the_picture"),
    ),
    Mutant(
        "a_score_is_that_of_the_best_seed",
        "xlnet_jax/comparison/page.py",
        "{np.mean(found):.4f}",
        "{np.max(found):.4f}",
        one("commands/compare", "test_every_run_is_fine_tuned_once_and_the_page_has_the_task"),
    ),
    Mutant(
        "a_switch_in_vain_passes",
        "xlnet_jax/compat/__init__.py",
        'parts.positions == "relative" and not',
        "not",
        one("train/compat", "test_a_switch_that_changes_nothing_is_refused"),
    ),
    Mutant(
        "a_card_without_the_pooling_of_a_head",
        "xlnet_jax/convert/model_card.py",
        'pools = task.task == "embeddings" or "pooling" in dict(of_head(row, task.task).values())',
        'pools = task.task == "embeddings"',
        one("convert/card", "test_the_pooling_that_a_head_reads_is_named"),
    ),
    Mutant(
        "a_mistyped_switch_is_ignored",
        "xlnet_jax/compat/__init__.py",
        "name in SWITCHES or name in SETS",
        "True",
        one("config", "test_a_mistake_is_one_line_that_names_key_value_and_fix"),
    ),
    Mutant(
        "shares_of_masks_exceed_one",
        "xlnet_jax/config/data.py",
        "data.mask_share + data.random_share <= 1",
        "max(data.mask_share, data.random_share) <= 1",
        one("data/batches/whole_sentences", "test_settings_that_a_family_cannot_have_are_refused"),
    ),
    Mutant(
        "segments_of_xlnet_may_be_left_out",
        "xlnet_jax/config/data.py",
        'data.pairs != "none" or data.whole_documents or config.model.member.bounded',
        'data.pairs != "none" or not config.model.member.bounded',
        one("data/batches/whole_sentences", "test_rules_of_others_name_the_families_too"),
    ),
    Mutant(
        "an_odd_width_of_sines_passes",
        "xlnet_jax/config/model.py",
        'member.parts.positions in ("input", "rotary")',
        'member.parts.positions not in ("input", "rotary")',
        one("config", "test_a_mistake_is_one_line_that_names_key_value_and_fix"),
    ),
    Mutant(
        "a_cluster_may_be_empty",
        "xlnet_jax/config/model.py",
        "all(a < b for",
        "all(a <= b for",
        one("model/adaptive", "test_clusters_that_cannot_be_are_refused"),
    ),
    Mutant(
        "a_shuffle_keeps_any_length_together",
        "xlnet_jax/config/phases.py",
        " and common <= LONGEST * max(blocks)",
        "",
        one(
            "train/phases",
            "test_the_shuffle_keeps_together_what_all_phases_read_in_whole_blocks_if_that_is_short",
        ),
    ),
    Mutant(
        "a_checkpoint_falls_into_a_dispatch",
        "xlnet_jax/config/run.py",
        "checkpoint.every % K == 0",
        "every % K == 0",
        one("config", "test_a_mistake_is_one_line_that_names_key_value_and_fix"),
    ),
    Mutant(
        "two_axes_take_the_rest",
        "xlnet_jax/config/run.py",
        ".count(-1) <= 1",
        ".count(-1) <= 2",
        one("config", "test_a_mistake_is_one_line_that_names_key_value_and_fix"),
    ),
    Mutant(
        "a_changed_key_is_told_backwards",
        "xlnet_jax/config/whole.py",
        "{saved[name]!r} -> {now!r}",
        "{now!r} -> {saved[name]!r}",
        one("config", "test_changed_keys_by_rule"),
    ),
    Mutant(
        "phases_count_from_one",
        "xlnet_jax/config/whole.py",
        "enumerate(config.parts)",
        "enumerate(config.parts, 1)",
        one("train/phases", "test_what_several_phases_have_wrong_is_said_once"),
    ),
    Mutant(
        "keys_of_the_caller_are_assumed",
        "xlnet_jax/convert/formats.py",
        ' | {word.removeprefix("--config.").partition("=")[0] for word in overrides}',
        "",
        one(
            "commands/import",
            "test_what_a_folder_does_not_say_is_named_and_what_the_caller_says_counts",
        ),
    ),
    Mutant(
        "what_is_no_number_is_imported",
        "xlnet_jax/convert/formats.py",
        "not np.isfinite(leaf).all()",
        "np.isinf(leaf).any()",
        one("commands/import", "test_bad_input_is_one_line_and_writes_nothing"),
    ),
    Mutant(
        "a_shard_ends_past_its_size",
        "xlnet_jax/convert/huggingface.py",
        "size + tensor.nbytes > shard_bytes",
        "size > shard_bytes",
        one("commands/import", "test_shards_and_back"),
    ),
    Mutant(
        "a_pooler_is_dropped_without_a_word",
        "xlnet_jax/convert/huggingface.py",
        "lost + asked + sorted(spare)",
        "lost + asked",
        one("convert/peers", "test_names_of_other_writers[roberta]"),
    ),
    Mutant(
        "the_card_of_a_task_says_pretrained",
        "xlnet_jax/convert/model_card.py",
        '"fine-tuned" if tuned else "pretrained"',
        '"pretrained"',
        one("convert/card", "test_a_fine_tuned_model_is_one_of_its_task"),
    ),
    Mutant(
        "the_card_of_a_task_fills_masks",
        "xlnet_jax/convert/model_card.py",
        "sees_masks and not tuned",
        "sees_masks",
        one("convert/card", "test_a_fine_tuned_model_is_one_of_its_task"),
    ),
    Mutant(
        "arrays_of_half_precision_are_taken",
        "xlnet_jax/convert/names.py",
        "there[name].dtype != wanted[name].dtype",
        "there[name].shape != wanted[name].shape",
        one("convert/names", "test_all_that_does_not_fit_is_listed_in_one_line"),
    ),
    Mutant(
        "an_export_for_orbax_lacks_its_tokenizer",
        "xlnet_jax/convert/orbax.py",
        "files.to_json(trained.identity))\n        workdirs.write_tokenizer(partial, trained.tokenizer)",
        "files.to_json(trained.identity))",
        one("commands/import", "test_orbax_and_back"),
    ),
    Mutant(
        "keys_of_the_caller_are_lost",
        "xlnet_jax/convert/orbax.py",
        "workdirs.load_config(path, list(overrides))",
        "workdirs.load_config(path)",
        one("commands/import", "test_orbax_and_back"),
    ),
    Mutant(
        "several_labels_are_exported_as_one",
        "xlnet_jax/convert/peers.py",
        '"ForSequenceClassification", "multi_label_classification", FinetuneConfig',
        '"ForSequenceClassification", "single_label_classification", FinetuneConfig',
        one(
            "convert/peers",
            "test_export_import_export_gives_the_same_bytes[bert-classification]",
        ),
    ),
    Mutant(
        "a_regression_is_exported_with_two_labels",
        "xlnet_jax/convert/peers.py",
        'lambda _: ["score"]',
        "lambda _: []",
        one("convert/peers", "test_a_head_that_is_another_function_is_refused_in_one_line"),
    ),
    Mutant(
        "every_export_normalizes",
        "xlnet_jax/convert/sentence_transformers.py",
        "_KINDS[: 2 + task.normalize]",
        "_KINDS",
        one("convert/sentence_transformers", "test_every_pooling_comes_back"),
    ),
    Mutant(
        "the_gate_of_modernbert_is_activated",
        "xlnet_jax/members/modernbert.py",
        '"layers/feed_forward/inner/kernel layers/feed_forward/gate/kernel"',
        '"layers/feed_forward/gate/kernel layers/feed_forward/inner/kernel"',
        family("modernbert"),
    ),
    Mutant(
        "the_angles_of_the_other_kind_are_read",
        "xlnet_jax/convert/fields.py",
        '{"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}',
        '{"full_attention": "local_rope_theta", "sliding_attention": "global_rope_theta"}',
        one("convert/peers", "test_config_json_of_either_version_is_read"),
    ),
    Mutant(
        "angles_of_another_kind_are_read_silently",
        "xlnet_jax/convert/fields.py",
        "if one | given != one:",
        "if False:",
        one("convert/peers", "test_what_has_no_equal_is_refused_in_one_line[modernbert]"),
    ),
    Mutant(
        "the_first_layer_of_modernbert_has_a_norm",
        "xlnet_jax/members/modernbert.py",
        ", first=1",
        "",
        family("modernbert"),
    ),
    Mutant(
        "a_modernbert_says_nothing_of_cls",
        "xlnet_jax/members/modernbert.py",
        '("pooling", "cls")',
        '("pooling", "mean")',
        one("convert/peers", "test_config_json_of_either_version_is_read[regression]"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`caught`, `escaped` or `unfinished`, and why."""

    kind: str
    reason: str = ""


_LAYOUT = re.compile(r"""\s+ | ,(?=\s*[)\]}]) | "\s*\n\s*" """, re.VERBOSE)
"""What a formatter changes: white space, a comma before a closing bracket, where a string goes on
in the next line.
"""


def spans(mutant: Mutant, source: str) -> list[tuple[int, int]]:
    """Where `before` is in a source, wherever lines end there.

    Characters are compared and not tokens, because a row may begin or end inside one.
    """
    layout = _LAYOUT if mutant.file.endswith(".py") else re.compile("$^")
    ignored = {at for found in layout.finditer(source) for at in range(*found.span())}
    places = [at for at in range(len(source)) if at not in ignored]
    text, wanted = "".join(source[at] for at in places), layout.sub("", mutant.before)
    starts = [found.start() for found in re.finditer(f"(?={re.escape(wanted)})", text)]
    return [(places[start], places[start + len(wanted) - 1] + 1) for start in starts]


def planted(mutant: Mutant, source: str) -> str:
    """The source with the fault, which must stand once in it. White space around the row stays as
    it is there.
    """
    ((start, end),) = spans(mutant, source)
    after = mutant.after.lstrip() if mutant.before[0].isspace() else mutant.after
    return (
        source[:start] + (after.rstrip() if mutant.before[-1].isspace() else after) + source[end:]
    )


def plant(mutant: Mutant, folder: str) -> str | None:
    """Copies to `folder` what the tests need, with the fault in it; why that cannot be done."""
    for name in ("xlnet_jax", "tests", "configs", "docs", "launch"):
        shutil.copytree(
            os.path.join(ROOT, name),
            os.path.join(folder, name),
            ignore=shutil.ignore_patterns("__py*"),
        )
    for name in ("pyproject.toml", "mkdocs.yml", "README.md"):
        shutil.copy(os.path.join(ROOT, name), folder)
    path = os.path.join(folder, mutant.file)
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if (count := len(spans(mutant, source))) != 1:
        return f"{mutant.before!r} stands {count} times in {mutant.file}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(planted(mutant, source))
    return None


def check(mutant: Mutant, cache: str) -> Verdict:
    """Runs the tests of a fault. All copies share pytest's folder `cache`, and so the programs they
    compile alike.
    """
    with tempfile.TemporaryDirectory(prefix="xlnet_jax_mutant_") as folder:
        if problem := plant(mutant, folder):
            return Verdict("unfinished", problem)
        report = os.path.join(folder, "report.xml")
        options = [f"--junitxml={report}", "-o", f"cache_dir={cache}"]
        command = [sys.executable, "-m", "pytest", "-q", "-x", *options, *selected(mutant.tests)]
        # Unoptimised, which `tests/conftest.py` sees to.
        environment = {**os.environ, "PYTHONPATH": folder, "XLNET_TEST_PRODUCTION": "0"}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Verdict("unfinished", f"not within {SECONDS} s")
        if done.returncode == 0:
            return Verdict("escaped", "the tests pass")
        if done.returncode != 1 or not os.path.exists(report):
            return Verdict(
                "unfinished", f"pytest ended with {done.returncode}: {done.stdout[-300:]}"
            )
        failures = [
            x.get("message", "") for x in xml.etree.ElementTree.parse(report).iter("failure")
        ]
        if any(
            message.startswith(("assert", "AssertionError", "Failed: DID NOT RAISE"))
            for message in failures
        ):
            return Verdict("caught")
        return Verdict(
            "unfinished",
            f"no assertion failed: {failures[:1]} {done.stdout[-300:] if not failures else ''}",
        )


def selected(tests: tuple[str, ...]) -> list[str]:
    """A name that ends in * selects by its beginning."""
    words = []
    for test in tests:
        if test.endswith("*"):
            file, name = test.split("::")
            words += [file, "-k", name.rstrip("*")]
        else:
            words.append(test)
    return words


def main() -> int:
    """Checks all faults, two at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--only", help="check one fault")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only in (None, mutant.name)]
    if not chosen:
        parser.error(f"no fault has the name {args.only!r}")
    began = time.monotonic()
    found: dict[str, list[str]] = {"caught": [], "escaped": [], "unfinished": []}
    with (
        tempfile.TemporaryDirectory(prefix="xlnet_jax_mutants_") as cache,
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
    ):
        for mutant, verdict in zip(
            chosen, pool.map(lambda one: check(one, cache), chosen), strict=True
        ):
            print(
                f"{mutant.name:34} {verdict.kind}  {verdict.reason}".rstrip(),
                file=sys.stderr,
                flush=True,
            )
            found[verdict.kind].append(mutant.name)
    seconds = round(time.monotonic() - began, 1)
    if args.json:
        counts = {"mutants": len(chosen), "caught": len(found["caught"])}
        print(
            json.dumps(
                counts
                | {kind: found[kind] for kind in ("escaped", "unfinished")}
                | {"seconds": seconds}
            )
        )
    else:
        print(
            f"{len(found['caught'])} of {len(chosen)} caught, {len(found['escaped'])} escaped, "
            f"{len(found['unfinished'])} unfinished in {seconds} s"
        )
    return 1 if len(found["caught"]) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
