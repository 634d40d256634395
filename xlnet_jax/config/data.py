"""`data` and `finetune`: the contents of an example, a task, and the rules for them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from xlnet_jax.keys import FREE, Rule, divides, key, numbers, split
from xlnet_jax.objectives import OBJECTIVES, PREFIX

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Contents of an example. Defaults are the published ones."""

    corpus: str = key(
        "", "folder of `prepare`, or several with commas; their hash is frozen, not the path", FREE
    )
    weights: str = key(
        "",
        "shares of blocks read from several corpora, separated by commas; empty = their tokens",
        phased=True,
    )
    objective: str = key(
        "plm",
        "permutation LM (XLNet), causal LM with memory (Transformer-XL), "
        "masked LM (BERT), masked diffusion (LLaDA)",
        choices=" ".join(OBJECTIVES),
        phased=True,
    )
    factorization_order: str = key(
        "spans",
        "plm: XLNet's span distribution with A and B, or any unknown positions, "
        "in random order (uniform) or from left to right",
        choices="spans uniform left_within",
        phased=True,
    )
    segment_len: int = key(512, "tokens T of an example", le=2**20, phased=True)
    reuse_len: int = key(
        256,
        "fresh tokens R of an example: its first part, which enters the memory",
        ge=1,
        phased=True,
    )
    num_predict: int = key(85, "target slots P", phased=True)
    multi_token_prediction: int = key(
        1,
        "clm: tokens that each position predicts; the loss of those after the next has weight 0.5",
        ge=1,
        le=16,
    )
    windows_per_block: int = key(
        8,
        "consecutive windows W that a row reads before it jumps elsewhere",
        ge=1,
        le=2**20,
        phased=True,
    )
    shuffle_len: int = key(
        0,
        "consecutive tokens that the shuffle keeps together; 0 = a block, "
        "or what fits the blocks of all phases",
    )
    bidirectional: bool = key(True, "every other block is read reversed")
    mask_group_size: int = key(6, "context pieces per target piece while spans are drawn", le=2**16)
    masks_per_group: int = key(1, "targets per `mask_group_size` context pieces")
    max_span: int = key(
        5, "longest target span; a span of n has probability proportional to 1/n", ge=1, le=2**16
    )
    spans: str = key(
        "words",
        "targets: n whole words, n pieces from a word start, or single pieces; bert, "
        "roberta, albert: in random order",
        choices="words pieces random",
    )
    pairs: str = key(
        "next",
        "segment B: the text after A or text from elsewhere, or A and B in order or swapped; "
        "bert, roberta, albert: or no B, and text across documents",
        choices="next order none",
    )
    short_rate: float = key(
        0.0,
        "bert, albert: how often A and B have a shorter length, uniform from 2; Google's has 0.1",
        le=1,
    )
    target_rate: float = key(
        0.15,
        "bert, roberta, albert: targets per piece of an example, at most `num_predict`",
        gt=0,
        le=1,
        phased=True,
    )
    mask_share: float = key(0.8, "mlm: share of the targets that become MASK", le=1, phased=True)
    random_share: float = key(
        0.1, "mlm: share that become a random piece; the others are unchanged", le=1, phased=True
    )
    random_pieces: str = key(
        "text",
        "mlm: random pieces are of text, or of all, special ones too (Google's BERT)",
        choices="text all",
        phased=True,
    )
    sentence_loss: bool = key(
        False, "bert, albert: a second loss, whether B follows A or whether both are in order"
    )
    positive_pair_rate: float = key(0.5, "how often segment B is the text that follows A", le=1)
    read_threads: int = key(4, "threads that read and build batches", FREE, ge=1, le=2**10)
    prefetch: int = key(8, "dispatches of batches kept ready", FREE, ge=1, le=2**10)
    workers: int = key(
        -1,
        "processes that build batches; 0 = threads",
        FREE,
        le=2**10,
        special={-1: "one per four cores, at most 8"},
    )

    def folders(self) -> list[str]:
        """The folders in `corpus`."""
        return [path.strip() for path in self.corpus.split(",")] if self.corpus else []

    def weight_list(self) -> list[float]:
        """`weights` as numbers."""
        return numbers(self.weights, float)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A task on labelled examples, for `xlnet-jax finetune`; pretraining ignores this section.

    `data.segment_len` is the length of an example; `evaluation` has when the dev set is scored.
    """

    task: str = key(
        "none",
        "what the head predicts",
        choices=(
            "none classification multi_label_classification regression multiple_choice "
            "question_answering token_classification embeddings text_to_text"
        ),
    )
    train: str = key(
        "",
        "training examples: a file, or tfds:NAME:SPLIT; their hash is frozen, not the name",
        FREE,
    )
    dev: str = key("", "examples that score checkpoints, in the same form; empty = none", FREE)
    dev_share: float = key(
        0.0,
        "share of the training examples, drawn by seeds.data, "
        "that are the dev set if finetune.dev is empty",
        lt=1,
    )
    epochs: float = key(
        0.0,
        "if train.steps is not set, passes over the training examples: optimizer.warmup_steps (a "
        "tenth of them), checkpoint.every and evaluation.every (one pass) follow, "
        "but for those that are set",
        FREE,
        le=10**6,
    )
    columns: str = key(
        "",
        "columns or fields: the texts, then the label, with commas; empty = the usual names",
        FREE,
    )
    labels: str = key(
        "",
        "names of the labels, with commas, or as a list of JSON if one has a comma; empty = those "
        "of the training examples, sorted",
    )
    drop_unlabelled: bool = key(
        True,
        "leaves out examples whose label is null, NaN, "
        "- or (of classes 0 to n - 1) -1; False refuses them",
        FREE,
    )
    metric: str = key("", "the score that ranks checkpoints; empty = the usual one of the task")
    tokenizer: str = key(
        "",
        "tokenizer of a run from scratch, a file or a folder; empty = that of checkpoint.init_from",
        FREE,
    )
    segments: int = key(
        1,
        "segments of an example; the earlier ones fill the memory, without gradient",
        ge=1,
        le=2**10,
    )
    patience: int = key(0, "evaluations without a better score that end the run; 0 = off", FREE)
    stride: int = key(
        128, "question_answering: tokens between the starts of two windows of a long context", ge=1
    )
    max_question: int = key(
        64, "pieces of the question that are kept; multiple_choice: with its option", ge=1
    )
    max_answer: int = key(
        64, "question_answering, text_to_text: pieces of the longest answer or target", FREE, ge=1
    )
    beam: int = key(
        5,
        "question_answering: starts, and ends for each start, that are searched; "
        "text_to_text: hypotheses, 1 = greedy",
        FREE,
        ge=1,
        le=2**10,
    )
    length_penalty: float = key(
        0.6,
        "text_to_text: the log-probability of n pieces is divided by ((5 + n) / 6) to this power",
        FREE,
        le=5,
    )
    pooling: str = key(
        "mean",
        "embeddings: mean or maximum over all pieces, the vector of CLS or of the last piece",
        choices="mean cls max last",
    )
    normalize: bool = key(False, "embeddings: the vector of a text has length 1")
    temperature: float = key(0.05, "embeddings: cosine similarities are divided by it", gt=0)

    def column_list(self) -> list[str]:
        """The names in `columns`."""
        return split(self.columns)

    def label_list(self) -> list[str]:
        """The names in `labels`."""
        return split(self.labels)


def rules(config: Config) -> list[Rule]:
    """Rules for the examples of pretraining or of a task."""
    data, pretraining, objective = config.data, config.pretrains, config.objective
    return [
        (
            "data.factorization_order",
            data.factorization_order == "spans" or (objective.stream == "query" and pretraining),
            "is for pretraining with data.objective=plm; use spans",
        ),
        *(objective.rules(config) if pretraining else _task_rules(config)),
        (
            "data.pairs",
            data.pairs != "none" or config.model.member.positions_at_input,
            f"is not for model.architecture={config.model.architecture}; use next or order",
        ),
        (
            "data.random_share",
            data.mask_share + data.random_share <= 1,
            f"and data.mask_share={data.mask_share} are more than 1 together",
        ),
        (
            "data.shuffle_len",
            divides(data.reuse_len * data.windows_per_block, data.shuffle_len),
            (
                "must be a multiple of the "
                f"{data.reuse_len * data.windows_per_block} tokens of a block"
            ),
        ),
        (
            "data.weights",
            all(0 < weight < math.inf for weight in data.weight_list()),
            "must be positive numbers separated by commas",
        ),
        (
            "data.mask_group_size",
            data.mask_group_size >= data.masks_per_group >= 1,
            f"must be at least data.masks_per_group={data.masks_per_group}, and that at least 1",
        ),
    ]


_WITHOUT_CLS = ("classification", "multi_label_classification", "text_to_text")
"""The tasks of a member without CLS."""


def _task_rules(config: Config) -> list[Rule]:
    """Rules of `xlnet-jax finetune`."""
    task, every, member = config.finetune, config.evaluation.every, config.model.member
    generates, T = task.task == "text_to_text", config.data.segment_len
    least = 16 if generates else 8
    return [
        (
            "finetune.task",
            member.cls != "none" or task.task in _WITHOUT_CLS,
            f"needs a CLS, which model.architecture={config.model.architecture} has not; use "
            f"one of {', '.join(_WITHOUT_CLS)}",
        ),
        *(PREFIX.rules(config) if generates else []),
        (
            "finetune.columns",
            len({*task.column_list()}) == len(task.column_list()),
            "names a column twice",
        ),
        (
            "finetune.segments",
            not member.positions_at_input or task.segments == 1,
            (
                f"must be 1 with model.architecture={config.model.architecture}: "
                "its positions have no past"
            ),
        ),
        (
            "data.segment_len",
            least <= T,
            f"must be at least {least} with finetune.task={task.task}",
        ),
        (
            "evaluation.every",
            not every or task.dev != "" or task.dev_share > 0,
            "needs examples to score; set finetune.dev",
        ),
        (
            "evaluation.every",
            divides(config.checkpoint.every, every),
            (
                f"must be a multiple of checkpoint.every={config.checkpoint.every}: "
                "the best checkpoint is kept"
            ),
        ),
        (
            "train.gradient_accumulation_steps",
            task.task != "embeddings" or config.train.gradient_accumulation_steps == 1,
            (
                "would cut the batch into batches of their own, "
                "but the negatives are the other rows of the batch; use 1"
            ),
        ),
        ("finetune.patience", not task.patience or every > 0, "needs scores; set evaluation.every"),
    ]
