"""`data` and `finetune`: examples, tasks and their rules."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import TYPE_CHECKING

from xlnet_jax.keys import FREE, Rule, key, split_names, split_numbers
from xlnet_jax.objectives import OBJECTIVES, PREFIX

if TYPE_CHECKING:
    from xlnet_jax.config.whole import Config


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Examples. Defaults are the published values."""

    corpus: str = key(
        "",
        "folder of `prepare`, or several with commas; their hash is frozen, not the path",
        resume=FREE,
    )
    weights: str = key(
        "", "shares of blocks per corpus, with commas; empty = in proportion to tokens", phased=True
    )
    objective: str = key(
        "plm",
        "plm: permutation LM (XLNet); clm: causal LM (Transformer-XL); mlm: masked LM "
        "(BERT); mdm: masked diffusion (LLaDA)",
        " ".join(OBJECTIVES),
        phased=True,
    )
    documents: str = key(
        "joined",
        "joined: examples are windows of one stream of text; whole: each document is an example "
        "by itself, and several share a row",
        "joined whole",
    )
    factorization_order: str = key(
        "spans",
        "plm: which positions are unknown, in which order; spans = XLNet's spans, with A and B; "
        "uniform = any positions in random order; left_within = any, from left to right",
        "spans uniform left_within",
        phased=True,
    )
    segment_len: int = key(512, "tokens T of an example", "[0, 1_048_576]", phased=True)
    reuse_len: int = key(
        256,
        "fresh tokens R at the start of an example, which enter the memory",
        "[1, inf)",
        phased=True,
    )
    num_predict: int = key(85, "largest number of targets P of an example", phased=True)
    multi_token_prediction: int = key(
        1,
        "clm: tokens predicted per position; losses of tokens after the next one have weight 0.5",
        "[1, 16]",
    )
    windows_per_block: int = key(
        8,
        "consecutive windows W that a row reads before it jumps to another block",
        "[1, 1_048_576]",
        phased=True,
    )
    shuffle_len: int = key(
        0,
        "consecutive tokens that the shuffle keeps together; 0 = a block, or a multiple "
        "that fits all phases",
    )
    bidirectional: bool = key(True, "reads every other block reversed")
    mask_group_size: int = key(
        6,
        "n target pieces lie in a context of n * mask_group_size / masks_per_group pieces",
        "[0, 65_536]",
    )
    masks_per_group: int = key(1, "see `mask_group_size`", "[1, inf)")
    max_span: int = key(
        5,
        "longest target span, in words or pieces; length n has probability proportional to 1/n",
        "[1, 65_536]",
    )
    spans: str = key(
        "words",
        "targets: n whole words (words), n pieces from a word start (pieces), or single pieces "
        "(random); chosen in random order for members without memory",
        "words pieces random",
    )
    pairs: str = key(
        "next",
        "text B: next = the text after A or another text; order = A and B in order or "
        "swapped; none = no B, text across documents (bert, roberta, albert, modernbert)",
        "next order none",
    )
    short_rate: float = key(
        0.0,
        "bert, albert: rate of examples with shorter A and B, of uniform length from 2 on; "
        "Google's code has 0.1",
        "[0, 1]",
    )
    target_rate: float = key(
        0.15,
        "bert, roberta, albert, modernbert: targets per piece, at most `num_predict`",
        "(0, 1]",
        phased=True,
    )
    mask_share: float = key(0.8, "mlm: share of targets replaced by MASK", "[0, 1]", phased=True)
    random_share: float = key(
        0.1,
        "mlm: share of targets replaced by a random piece; the other targets are unchanged",
        "[0, 1]",
        phased=True,
    )
    random_pieces: str = key(
        "text",
        "mlm: random pieces are pieces of text (text), or any pieces, special ones too (all; "
        "Google's BERT)",
        "text all",
        phased=True,
    )
    sentence_loss: bool = key(
        False, "bert, albert: adds a loss on whether B follows A, or whether both are in order"
    )
    positive_pair_rate: float = key(
        0.5,
        "rate of texts B that follow A, or with data.pairs=order of pairs in order",
        "[0, 1]",
    )
    read_threads: int = key(4, "threads that read and build batches", "[1, 1_024]", FREE)
    prefetch: int = key(
        8,
        "number of dispatches (`train.steps_per_dispatch` steps each) whose batches are kept ready",
        "[1, 1_024]",
        FREE,
    )
    workers: int = key(
        -1,
        "processes that build batches; 0 = threads",
        "[0, 1_024]",
        FREE,
        special={-1: "one per four cores, at most 8"},
    )

    @property
    def whole_documents(self) -> bool:
        """Whether each document is an example by itself."""
        return self.documents == "whole"

    def folders(self) -> list[str]:
        """Returns the folders in `corpus`."""
        return [path.strip() for path in self.corpus.split(",")] if self.corpus else []

    def weight_list(self) -> list[float]:
        """Returns `weights` as numbers."""
        return split_numbers(self.weights, float)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """Task of `xlnet-jax finetune`; an example has `data.segment_len` tokens, and `evaluation` says
    when the dev set is scored.
    """

    task: str = key(
        "none",
        "task of the head; none = pretraining",
        "none classification multi_label_classification regression multiple_choice "
        "question_answering token_classification embeddings text_to_text",
    )
    train: str = key(
        "",
        "training examples: files, folders or tfds:NAME:SPLIT, with commas; their hash is frozen, "
        "not the names",
        resume=FREE,
    )
    dev: str = key(
        "",
        "examples that rank checkpoints, in the form of finetune.train; empty = none",
        resume=FREE,
    )
    dev_share: float = key(
        0.0,
        "share of the training examples that is the dev set if finetune.dev is empty, drawn "
        "by seeds.data",
        "[0, 1)",
    )
    epochs: float = key(
        0.0,
        "passes over the training examples, instead of train.steps; by default "
        "optimizer.warmup_steps is then a tenth of the steps, and checkpoint.every and "
        "evaluation.every are one pass",
        "[0, 1_000_000]",
        FREE,
    )
    columns: str = key(
        "",
        "columns or fields of the texts, then of the label, with commas; empty = the usual names",
        resume=FREE,
    )
    labels: str = key(
        "",
        "label names, with commas, or a JSON list if a name has a comma; empty = the labels of "
        "the training examples, sorted",
    )
    drop_unlabelled: bool = key(
        True,
        "leaves out examples without a label, such as null; False refuses them",
        resume=FREE,
    )
    metric: str = key("", "score that ranks checkpoints; empty = the usual score of the task")
    tokenizer: str = key(
        "",
        "tokenizer file or folder of a run from scratch; empty = the tokenizer of "
        "checkpoint.init_from",
        resume=FREE,
    )
    segments: int = key(
        1,
        "segments of an example; all but the last fill the memory, without gradient",
        "[1, 1_024]",
    )
    patience: int = key(
        0, "evaluations without a better score that end the run; 0 = off", resume=FREE
    )
    stride: int = key(
        128, "question_answering: tokens between the starts of two windows of a context", "[1, inf)"
    )
    max_question: int = key(
        64, "pieces kept of a question; multiple_choice: of question and option", "[1, inf)"
    )
    max_answer: int = key(
        64,
        "question_answering, text_to_text: pieces of the longest answer or target",
        "[1, inf)",
        FREE,
    )
    beam: int = key(
        5,
        "question_answering: starts searched, and ends per start; text_to_text: hypotheses, "
        "1 = greedy",
        "[1, 1_024]",
        FREE,
    )
    length_penalty: float = key(
        0.6,
        "text_to_text: the log-probability of n pieces is divided by ((5 + n) / 6)^length_penalty",
        "[0, 5]",
        FREE,
    )
    pooling: str = key(
        "mean",
        "embeddings: mean or maximum over the pieces of the last segment, or the vector of CLS or "
        "of the last piece; modernbert, modern: mean or cls also in classification, regression "
        "and multiple choice",
        "mean cls max last",
    )
    normalize: bool = key(False, "embeddings: vectors have length 1")
    temperature: float = key(
        0.05, "embeddings: divisor of the cosine similarities in the loss", "(0, inf)"
    )

    def column_list(self) -> list[str]:
        """Returns the names in `columns`."""
        return split_names(self.columns)

    def label_list(self) -> list[str]:
        """Returns the names in `labels`."""
        return split_names(self.labels)


def rules(config: Config) -> list[Rule]:
    """Returns the rules for the examples of pretraining or of a task."""
    data, pretraining, objective = config.data, config.pretrains, config.objective
    block = data.reuse_len * data.windows_per_block
    return [
        (
            "data.factorization_order",
            data.factorization_order == "spans" or (objective.stream == "query" and pretraining),
            "is for pretraining with data.objective=plm; use spans",
        ),
        (
            "data.documents",
            pretraining or not data.whole_documents,
            "is for pretraining; use joined",
        ),
        *(
            _task_rules(config)
            if not pretraining
            else _document_rules(config)
            if data.whole_documents
            else objective.rules(config)
        ),
        (
            "data.pairs",
            data.pairs != "none" or data.whole_documents or config.model.member.bounded,
            f"is not for model.architecture={config.model.architecture}; use next or order",
        ),
        (
            "data.random_share",
            data.mask_share + data.random_share <= 1,
            f"and data.mask_share={data.mask_share} are more than 1 together",
        ),
        (
            "data.shuffle_len",
            data.shuffle_len % block == 0,
            f"must be a multiple of the {block} tokens of a block",
        ),
        (
            "data.weights",
            all(0 < weight < math.inf for weight in data.weight_list()),
            "must be positive numbers separated by commas",
        ),
        (
            "data.mask_group_size",
            data.mask_group_size >= data.masks_per_group,
            f"must be at least data.masks_per_group={data.masks_per_group}",
        ),
    ]


def _document_rules(config: Config) -> list[Rule]:
    """Returns the rules of rows of whole documents."""
    data, T, objective = config.data, config.data.segment_len, config.objective
    every = objective.whole or data.factorization_order != "spans"
    alone = "with data.documents=whole: each document is an example by itself"
    fixed = {
        "model.memory_len": 0,
        "model.layer_losses": False,
        "data.reuse_len": T,
        "data.windows_per_block": 1,
        "data.shuffle_len": 0,
        "data.pairs": "none",
        "data.sentence_loss": False,
        "data.short_rate": 0,
        "data.multi_token_prediction": 1,
        **({"data.num_predict": T} if every else {}),
    }
    return [
        *[
            (name, operator.attrgetter(name)(config) == value, f"must be {value} {alone}")
            for name, value in fixed.items()
        ],
        (
            "data.num_predict",
            1 <= data.num_predict <= T,
            f"must be from 1 to data.segment_len={T}",
        ),
    ]


_WITHOUT_CLS = ("classification", "multi_label_classification", "text_to_text")
"""Tasks that a member without CLS can do."""


def _task_rules(config: Config) -> list[Rule]:
    """Returns the rules of `xlnet-jax finetune`."""
    task, every, member = config.finetune, config.evaluation.every, config.model.member
    generates = task.task == "text_to_text"
    T = config.data.segment_len
    least = 16 if generates else 8
    return [
        (
            "finetune.task",
            member.cls != "none" or task.task in _WITHOUT_CLS,
            f"needs a CLS, which model.architecture={config.model.architecture} lacks; use "
            f"one of {', '.join(_WITHOUT_CLS)}",
        ),
        *(PREFIX.rules(config) if generates else []),
        (
            "finetune.pooling",
            task.task == "embeddings" or task.pooling in ("mean", "cls"),
            f"is for finetune.task=embeddings; use mean with finetune.task={task.task}",
        ),
        (
            "finetune.columns",
            len({*task.column_list()}) == len(task.column_list()),
            "names a column twice",
        ),
        (
            "finetune.segments",
            not member.bounded or task.segments == 1,
            (
                f"must be 1 with model.architecture={config.model.architecture}: "
                "its positions do not reach into a memory"
            ),
        ),
        (
            "data.segment_len",
            least <= T,
            f"must be at least {least} with finetune.task={task.task}",
        ),
        (
            "evaluation.every",
            task.dev or task.dev_share or not every,
            "needs examples to score; set finetune.dev",
        ),
        (
            "evaluation.every",
            every % config.checkpoint.every == 0,
            (
                f"must be a multiple of checkpoint.every={config.checkpoint.every}: "
                "the best checkpoint is kept"
            ),
        ),
        (
            "train.gradient_accumulation_steps",
            task.task != "embeddings" or config.train.gradient_accumulation_steps == 1,
            "would split the batch, in which all other rows are negatives of a row; use 1",
        ),
        ("finetune.patience", every or not task.patience, "needs scores; set evaluation.every"),
    ]
