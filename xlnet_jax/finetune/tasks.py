"""The tasks by `finetune.task`. A new task needs a class, a row here, and a choice of that key."""

from __future__ import annotations

from xlnet_jax.finetune.classification import (
    Classification,
    MultiLabelClassification,
    MultipleChoice,
    Regression,
)
from xlnet_jax.finetune.embeddings import Embeddings
from xlnet_jax.finetune.question_answering import QuestionAnswering
from xlnet_jax.finetune.task import Task
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.finetune.token_classification import TokenClassification

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multi_label_classification": MultiLabelClassification,
    "regression": Regression,
    "multiple_choice": MultipleChoice,
    "question_answering": QuestionAnswering,
    "token_classification": TokenClassification,
    "embeddings": Embeddings,
    "text_to_text": TextToText,
}
