"""The model card of an exported folder: README.md with configuration, data, losses and programs
that use the model.
"""

from __future__ import annotations

import string

import xlnet_jax
from xlnet_jax.convert.formats import Trained
from xlnet_jax.convert.peers import class_of, of_head, peer
from xlnet_jax.data.vocabulary import Vocabulary

_HEADER = """\
---
library_name: $library
pipeline_tag: $pipeline
tags:
- $family
- $tag
---

# $name

$name, $trained with xlnet_jax $version, exported at step $step.

"""

_HOW = """
## How to use

```python
"""
_USE = """\
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER")
hidden = model(**tokenizer("$text", return_tensors="pt")).last_hidden_state

classifier = AutoModelForSequenceClassification.from_pretrained("FOLDER", num_labels=2)  # its head is untrained
```

"""  # noqa: E501
_CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", model="FOLDER", truncation=True, top_k=None)
print(classify([{"text": "$text"}]))
```

Two texts are `{"text": "One.", "text_pair": "Two."}`. """
_LOAD = """\
import torch
from transformers import AutoTokenizer, $architecture

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = $architecture.from_pretrained("FOLDER").eval()
"""
_WORDS = """\
words = "A sentence in words .".split()
given = tokenizer([f"${space}{word}" for word in words], is_split_into_words=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    best_T = model(**given).logits[0].argmax(-1).tolist()
first = {word: place for place, word in reversed([*enumerate(given.word_ids())]) if word is not None}
print([(words[word], model.config.id2label[best_T[place]]) for word, place in sorted(first.items())])
```

The label of a word is the label of its first piece.

"""  # noqa: E501
_CHOOSE = """\
context, question, options = "A context.", "A question?", ["One.", "Two.", "Three."]
asked = [f"{question} {option}" for option in options]
given = tokenizer([context] * len(options), asked, truncation="only_first", padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**{name: each[None] for name, each in given.items()}).logits[0]  # one for each option
print(dict(zip(options, logits.softmax(-1).tolist())))
```

"""  # noqa: E501
_EMBED = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["A sentence.", "Another one."])
print(model.similarity(vectors, vectors))
```

"""
_ANSWER = """\
question, context = "Who wrote it?", "The book is by a woman of Leeds."
given = tokenizer(question, context, truncation="only_second", return_offsets_mapping=True, return_tensors="pt")
places = given.pop("offset_mapping")[0].tolist()
outside = torch.tensor([part != 1 for part in given.sequence_ids()])  # [T]
with torch.no_grad():
    out = model(**given)
start, end = (logits[0].masked_fill(outside, -torch.inf) for logits in (out.start_logits, out.end_logits))
scores = (start[:, None] + end).masked_fill(torch.ones(len(end), len(end)).tril(-1).bool(), -torch.inf)
first, last = divmod(int(scores.argmax()), len(end))
print(context[places[first][0] : places[last][1]], float(scores.max()))
```

The score of "no answer" is `out.start_logits[0, 0] + out.end_logits[0, 0]`. Longer contexts
are read in windows: `stride` and `return_overflowing_tokens=True`.

"""  # noqa: E501
_ANSWER_OF_XLNET = """\
question, context = "Who wrote it?", "The book is by a woman of Leeds."
given = tokenizer(context, question, truncation="only_first", return_offsets_mapping=True, return_tensors="pt")
places = given.pop("offset_mapping")[0].tolist()
p_mask = torch.tensor([[float(part != 0) for part in given.sequence_ids()]])  # 1 = no answer starts or ends there
with torch.no_grad():
    out = model(**given, p_mask=p_mask)
starts = out.start_top_index[0]
ends = out.end_top_index[0].reshape(-1, len(starts))  # [ends of each start, starts]
shares = out.end_top_log_probs[0].reshape(ends.shape) * out.start_top_log_probs[0]  # no logarithms, despite the name
place = int(shares.masked_fill(ends < starts, -1).argmax())
first, last = int(starts[place % len(starts)]), int(ends.flatten()[place])
print(context[places[first][0] : places[last][1]])
```

The context is the first text. The logit of "no answer" is `out.cls_logits`, with
`p_mask[0, -1] = 0` as in training. `AutoModelForQuestionAnswering` has another head, which this
folder lacks. Longer contexts are read in windows: `stride` and `return_overflowing_tokens=True`.

"""  # noqa: E501


_CARDS = {
    "classification": (
        "text-classification",
        _CLASSIFY + "The scores are probabilities, together 1.\n\n",
    ),
    "multi_label_classification": (
        "text-classification",
        _CLASSIFY + "Each label has its own probability; a text has the labels above 0.5.\n\n",
    ),
    "regression": ("text-classification", _CLASSIFY + "The score is the number.\n\n"),
    "multiple_choice": ("multiple-choice", _LOAD + _CHOOSE),
    "question_answering": ("question-answering", _LOAD + _ANSWER),
    "token_classification": ("token-classification", _LOAD + _WORDS),
    "embeddings": ("sentence-similarity", _EMBED),
}
"""Pipeline and example program by `finetune.task`."""

_MASKS = """
## Predictions at `$mask`

```python
"""
_MASKED = """\
given = tokenizer("$before$mask$after", return_tensors="pt")
masked = given["input_ids"][0] == tokenizer.mask_token_id  # [T]
"""
_OF_QUERY_STREAM = """\
perm_mask = masked.float().expand(1, len(masked), -1)  # [1, T, T]: no position sees the masked ones
target_mapping = torch.eye(len(masked))[masked][None]  # [1, P, T]: these are predicted
with torch.no_grad():
    logits = model(**given, perm_mask=perm_mask, target_mapping=target_mapping).logits[0]  # [P, V]
print(tokenizer.convert_ids_to_tokens(logits.argmax(-1)))
```

Both arguments are needed. XLNet predicts from its query stream, which reads a position but not the
piece there. Without `target_mapping` transformers does not compute the query stream: a plain call
`model(**given)` and `pipeline("fill-mask")` give logits of the content stream, which has read
`<mask>` as a piece of the text and never learned to predict. Their prediction for `<mask>` is often
`<mask>`.
"""
_OF_CONTENT_STREAM = """\
with torch.no_grad():
    logits = model(**given).$logits[0, masked]  # [P, V]
print(tokenizer.convert_ids_to_tokens(logits.argmax(-1)))
```

`pipeline("fill-mask")` gives the same: $why
"""
_GENERATE = """
## Continue a text

```python
from transformers import AutoTokenizer, $architecture

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = $architecture.from_pretrained("FOLDER").eval()
given = tokenizer("$start", ${prompt}return_tensors="pt")
print(tokenizer.decode(model.generate(**given, max_new_tokens=20)[0]))
```
"""


def model_card(trained: Trained) -> str:
    """Returns the card as Markdown."""
    config = trained.config
    model, task, member = config.model, config.finetune.task, config.model.member
    special, pieces, row = trained.tokenizer.special, trained.tokenizer.pieces, peer(model)
    tuned, sees_masks = task != "none", member.cls != "none"
    of_query = config.objective.stream == "query"
    fills = member.cls == "first" or (sees_masks and not of_query)
    pipeline, program = _CARDS.get(task, ("fill-mask" if fills else "text-generation", _USE))
    if task == "question_answering" and not member.bounded:
        program = _LOAD + _ANSWER_OF_XLNET
    use = _HOW + program + row.card
    if sees_masks and not tuned:
        use += _MASKS + _LOAD + _MASKED + (_OF_QUERY_STREAM if of_query else _OF_CONTENT_STREAM)
    if not (fills or tuned):
        use += _GENERATE
    # Counted vocabularies know only the characters of their text.
    known = "".join([piece for piece in pieces[len(special.ids()) :] if piece.isalnum()][:4])
    texts = {
        "text": "A sentence.",
        "start": "A sentence",
        "before": "The ",
        "after": " of the union.",
    }
    if isinstance(trained.tokenizer, Vocabulary):
        texts = dict.fromkeys(texts, known)
    words = texts | {
        "version": xlnet_jax.__version__,
        "step": f"{trained.step:,}",
        "family": model.architecture,
        "name": row.title,
        "max_length": config.data.segment_len,
        "longest": model.max_positions,
        "library": "sentence-transformers" if program == _EMBED else "transformers",
        "pipeline": pipeline,
        "tag": "fine-tuning" if tuned else "pretraining",
        "trained": "fine-tuned" if tuned else "pretrained",
        "architecture": class_of(config),
        "logits": "prediction_logits" if config.data.sentence_loss else "logits",
        "cls": pieces[special.cls] if sees_masks else "",
        "mask": "" if special.mask is None else pieces[special.mask],
        "space": trained.tokenizer.space,
        "prompt": row.prompt,
        "why": row.why_filled,
    }
    header, use = (string.Template(part).substitute(words) for part in (_HEADER, use))
    return header + _tables(trained) + use


def _tables(trained: Trained) -> str:
    """Returns the tables of the card, without the rows that have no value."""
    config, step = trained.config, trained.step
    model, data, train, task = config.model, config.data, config.train, config.finetune
    tuned, bounded, row = task.task != "none", model.member.bounded, peer(model)
    pools = task.task == "embeddings" or "pooling" in dict(of_head(row, task.task).values())
    sections = {
        "Task": {
            "task": tuned and task.task,
            # A vertical line would end the cell.
            "labels": ", ".join(task.label_list()).replace("|", "\\|"),
            "pooling": pools and task.pooling,
            **{
                f"{score} of the dev set": f"{value:.4f}" for score, value in trained.scores.items()
            },
        },
        "Model": {
            "layers": model.layers,
            "width": model.d_model,
            "heads": f"{model.heads} of {model.head_dim}",
            "feed-forward width": model.d_ff,
            "activation": model.activation,
            "vocabulary": model.vocab_size,
            "positions": bounded and model.max_positions,
            "memory in training": not bounded and f"{model.memory_len} positions",
        },
        "Training": {
            "sequence": tuned and f"{task.segments * data.segment_len} tokens",
            "objective": not tuned and data.objective,
            "segment": not tuned and f"{data.segment_len} tokens, {data.num_predict} predicted",
            # The keys of training say nothing about imported parameters, whose step is 0.
            "batch": step and f"{train.batch_size} {'examples' if tuned else 'segments'}",
            "learning rate": step and config.optimizer.learning_rate,
            "steps": step and f"{step:,} of {train.steps:,}",
            "fresh tokens": trained.tokens and f"{trained.tokens:,}",
        },
        "Data": {
            "corpus (SHA-256)": trained.identity.get("corpus_sha256")
            or "unknown: the parameters were imported",
            "tokenizer (SHA-256)": trained.tokenizer.sha256,
        },
        "Losses": {
            loss: f"{value:.4f}{' nats per target' * (not tuned)}"
            for loss, value in trained.losses.items()
        },
    }
    tables = ""
    for title, rows in sections.items():
        cells = [f"| {key} | {value} |\n" for key, value in rows.items() if value]
        tables += f"## {title}\n\n| | |\n|---|---|\n{''.join(cells)}\n" if cells else ""
    return tables.removesuffix("\n")
