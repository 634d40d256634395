"""The model card of an exported folder: README.md with the configuration, the data, the losses and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xlnet_jax
from xlnet_jax.config import Config

_HEADER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- xlnet
- pretraining
---

# {title}

An XLNet pretrained with xlnet_jax {version}, exported at step {step:,}.

"""

_USE = """
## How to use

```python
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER")
hidden = model(**tokenizer("A sentence.", return_tensors="pt")).last_hidden_state

classifier = AutoModelForSequenceClassification.from_pretrained("FOLDER", num_labels=2)  # its head is untrained
```

The tokenizer pads on the left and puts `<sep><cls>` at the end: the vector of a text is the last one. Long texts are
cut with `truncation=True` at {max_length} tokens, the length of a segment in training; the model itself has no limit.
`generate` takes neither segment ids nor the two special pieces:
`model.generate(**tokenizer(text, add_special_tokens=False, return_token_type_ids=False, return_tensors="pt"))`.
"""


def model_card(
    config: Config, step: int, identity: Mapping[str, Any], losses: Mapping[str, Any], title: str = "XLNet"
) -> str:
    """The card as Markdown.

    Args:
      identity: of the run: hashes of corpus and tokenizer.
      losses: from the run's `metrics.jsonl` and `evaluations.jsonl`, by the words that describe them; may be empty.
      title: its first line.
    """
    model, data, train = config.model, config.data, config.train
    sections = {
        "Model": {
            "layers": model.layers, "width": model.d_model, "heads": f"{model.heads} of {model.head_dim}",
            "feed-forward width": model.d_ff, "activation": model.activation, "vocabulary": model.vocab_size,
            "memory in training": f"{model.memory_len} positions",
        },
        "Training": {
            "objective": data.objective, "segment": f"{data.segment_len} tokens, {data.num_predict} predicted",
            "batch": f"{train.batch_size} segments", "learning rate": config.optimizer.learning_rate,
            "steps": f"{step:,} of {train.steps:,}",
        },
        "Data": {
            "corpus (SHA-256)": identity["corpus_sha256"] or "unknown: the parameters were imported",
            "tokenizer (SHA-256)": identity["tokenizer_sha256"],
        },
        "Losses": {name: f"{value:.4f} nats per target" for name, value in losses.items()},
    }  # fmt: skip
    tables = (f"## {name}\n\n| | |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in rows.items())
              for name, rows in sections.items() if rows)  # fmt: skip
    header = _HEADER.format(title=title, version=xlnet_jax.__version__, step=step)
    return header + "\n".join(tables) + _USE.replace("{max_length}", str(data.segment_len))
