"""The model card of an exported folder: README.md with the configuration, the data, the losses and how to use it."""

from __future__ import annotations

import functools

import xlnet_jax
from xlnet_jax.convert.formats import Trained
from xlnet_jax.convert.peers import class_of

_NAMES = {"xlnet": "XLNet", "bert": "BERT", "roberta": "RoBERTa", "albert": "ALBERT", "gpt2": "GPT-2"}
_HEADER = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- {family}
- pretraining
---

# {name}

{article} {name} pretrained with xlnet_jax {version}, exported at step {step}.

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

"""
_OF_LAYOUT = {
    "last": """\
The tokenizer pads on the left and puts `<sep><cls>` at the end: the vector of a text is the last one. Long texts are
cut with `truncation=True` at {max_length} tokens, the length of a segment in training; the model itself has no limit.
`generate` takes neither segment ids nor the two special pieces:
`model.generate(**tokenizer(text, add_special_tokens=False, return_token_type_ids=False, return_tensors="pt"))`.
""",
    "first": """\
The tokenizer pads on the right and puts `{cls}` first: the vector of a text is the first one. Long texts are cut with
`truncation=True` at {max_length} tokens, the length of an example in training; positions end at {longest}.
""",
    "none": """\
Every vector has read the text up to its piece; that of a text is the last one. Long texts are cut with
`truncation=True` at {max_length} tokens, the length of an example in training; positions end at {longest}. Texts go on
with `AutoModelForCausalLM` and `model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=20)`.
""",
}
"""By where CLS stands."""

_MASKS = """
## What stands at `{mask}`

```python
import torch
from transformers import AutoTokenizer, {architecture}

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {architecture}.from_pretrained("FOLDER").eval()
given = tokenizer("The {mask} of the union.", return_tensors="pt")
masked = given["input_ids"][0] == tokenizer.mask_token_id  # [T]
"""
_OF_QUERY_STREAM = """\
perm_mask = masked.float().expand(1, len(masked), -1)  # [1, T, T]: no position sees the masked ones
target_mapping = torch.eye(len(masked))[masked][None]  # [1, P, T]: these are predicted
with torch.no_grad():
    logits = model(**given, perm_mask=perm_mask, target_mapping=target_mapping).logits[0]  # [P, V]
print(tokenizer.convert_ids_to_tokens(logits.argmax(-1)))
```

Both arguments are needed. XLNet predicts from its query stream, which knows a position and not the piece there, and
without `target_mapping` transformers does not compute it: a plain call `model(**given)` and `pipeline("fill-mask")`
give logits of the content stream, which has read `<mask>` as a piece of the text and never learned to predict. Their
answer for `<mask>` is often `<mask>`.
"""
_OF_CONTENT_STREAM = """\
with torch.no_grad():
    logits = model(**given).{logits}[0, masked]  # [P, V]
print(tokenizer.convert_ids_to_tokens(logits.argmax(-1)))
```

`pipeline("fill-mask")` gives the same: {why}
"""
_WHY = """this model learned to predict masked pieces from the content stream, as BERT
does, and needs neither `perm_mask` nor `target_mapping`."""


def model_card(trained: Trained) -> str:
    """The card as Markdown."""
    config, step = trained.config, trained.step
    model, data, train = config.model, config.data, config.train
    sections = {
        "Model": {
            "layers": model.layers, "width": model.d_model, "heads": f"{model.heads} of {model.head_dim}",
            "feed-forward width": model.d_ff, "activation": model.activation, "vocabulary": model.vocab_size,
            **({"positions": model.max_positions} if model.family.absolute
               else {"memory in training": f"{model.memory_len} positions"}),
        },
        "Training": {
            "objective": data.objective, "segment": f"{data.segment_len} tokens, {data.num_predict} predicted",
            # Parameters that were imported say nothing of these.
            **({"batch": f"{train.batch_size} segments", "learning rate": config.optimizer.learning_rate,
                "steps": f"{step:,} of {train.steps:,}"} if step else {}),
            **({"fresh tokens": f"{trained.tokens:,}"} if trained.tokens else {}),
        },
        "Data": {
            "corpus (SHA-256)": trained.identity.get("corpus_sha256") or "unknown: the parameters were imported",
            "tokenizer (SHA-256)": trained.tokenizer.sha256,
        },
        "Losses": {name: f"{value:.4f} nats per target" for name, value in trained.losses.items()},
    }  # fmt: skip
    tables = (f"## {name}\n\n| | |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in rows.items())
              for name, rows in sections.items() if rows)  # fmt: skip
    family, special, pieces = model.family, trained.tokenizer.special, trained.tokenizer.pieces
    name, sees_masks = _NAMES[model.architecture], family.cls != "none"
    words = {
        "version": xlnet_jax.__version__, "step": f"{step:,}", "family": model.architecture, "name": name,
        "article": "An" if name[0] in "XA" else "A", "max_length": str(data.segment_len),
        "pipeline": "fill-mask" if family.cls == "first" else "text-generation", "longest": str(model.max_positions),
        "architecture": class_of(config), "logits": "prediction_logits" if data.sentence_loss else "logits",
        "cls": pieces[special.cls] if sees_masks else "", "mask": pieces[special.mask] if sees_masks else "",
        "why": _WHY if not family.absolute else "this is what the model learned.",
    }  # fmt: skip
    use = _USE + _OF_LAYOUT[family.cls]
    if config.finetune.task == "none" and sees_masks:
        use += _MASKS + (_OF_QUERY_STREAM if data.objective == "plm" else _OF_CONTENT_STREAM)
    header, use = (functools.reduce(lambda text, word: text.replace(f"{{{word}}}", words[word]), words, part)
                   for part in (_HEADER, use))  # fmt: skip
    return header + "\n".join(tables) + use
