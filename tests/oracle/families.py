"""BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT as this package computes them, for comparisons with
Hugging Face `transformers`.

A case is a configuration, a batch with padding, and weights under the names of that library, all
drawn from a seed. `run` gives what a class of that library gives: logits, the loss, and the
gradient of every parameter under its name there. So both directions of the tables of `convert` are
in it, and the border of the sentence heads. All needs x64.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, Batch
from xlnet_jax.config import Config
from xlnet_jax.convert import fields, names, peers
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.finetune.recipe import TaskModel
from xlnet_jax.finetune.task import Task, TaskBatch
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import language_model, make_recipe

FAMILIES = ("bert", "roberta", "albert", "gpt2", "modernbert")
RECORDINGS = pathlib.Path(__file__).with_name("families.json")
B, T, C, LABELS = 3, 9, 2, 3
FIRST_TEXT = 6
"""Below are special pieces, among them that of padding, from whose id RoBERTa counts positions."""
TASKS_OF = {
    **dict.fromkeys(
        ("bert", "roberta", "albert", "modernbert"),
        (
            "none",
            "classification",
            "regression",
            "multiple_choice",
            "token_classification",
            "question_answering",
            "multi_label_classification",
        ),
    ),
    "gpt2": ("none", "classification", "multi_label_classification"),
}


def special(family: str) -> SpecialIds:
    """Of a vocabulary as the family has it; BERT's is shorter than the released ones."""
    return {
        "bert": SpecialIds(1, None, None, 2, 3, 0, 4, None, None),
        "roberta": SpecialIds(3, 0, 2, 0, 2, 1, 4, 2, None),
        "albert": SpecialIds(1, None, None, 2, 3, 0, 4, None, None),
        "gpt2": SpecialIds(None, 5, 5, None, None, 5, None, 5, None),
        "modernbert": SpecialIds(3, None, None, 1, 2, 0, 4, None, None),
    }[family]


def tokenizer(config: Config) -> Any:
    """What a task asks a tokenizer for, apart from texts."""
    return types.SimpleNamespace(
        special=special(config.model.architecture), vocab_size=config.model.vocab_size
    )


def draw(family: str, seed: int, task: str = "none") -> Config:
    """A configuration without dropout; of the first ones each activation occurs, and each kind of
    loss.
    """
    rng = np.random.default_rng((seed, FAMILIES.index(family)))
    heads, head_dim = int(rng.integers(1, 4)), int(rng.integers(2, 5))
    further = {}
    if family == "albert":
        further = {"share_layers": True, "d_embed": int(rng.integers(2, 7))}
    if family == "modernbert":
        head_dim, further = (
            2 * head_dim,
            {
                "window": int(rng.integers(2, 7)),
                "global_every": (3, 2, 1)[seed % 3],
                "theta": float(rng.choice([100.0, 160_000.0])),
                "theta_local": float(rng.choice([7.0, 10_000.0])),
            },
        )
    labels = ",".join("abc") if task.endswith("classification") else ""
    pools = family == "modernbert" and seed % 2 and TASKS.get(task, Task).summarised
    gpt2, paired = (
        family == "gpt2",
        task == "none" and family in ("bert", "albert") and seed % 2 == 0,
    )
    return Config().changed(
        model=dict(
            architecture=family,
            vocab_size=int(rng.integers(12, 24)),
            layers=int(rng.integers(1, 4)) + 2 * (family == "modernbert"),
            heads=heads,
            head_dim=head_dim,
            d_model=heads * head_dim,
            d_ff=int(rng.integers(3, 12)),
            memory_len=0,
            dropout=0.0,
            attention_dropout=0.0,
            max_positions=T + int(rng.integers(0, 4)),
            norm="pre" if family in ("gpt2", "modernbert") else "post",
            # That of RoBERTa's head stays gelu_erf, which shows only where the layers have another
            # one.
            activation=("gelu_erf", "gelu", "relu")[(seed + (family == "roberta")) % 3],
            compute_dtype="float64",
            unroll="off",
            layer_norm_epsilon=float(rng.choice([1e-12, 1e-5, 1e-3])),
            **further,
        ),
        data=dict(
            objective="clm" if gpt2 else "mlm",
            segment_len=T,
            bidirectional=False,
            pairs={"roberta": "none", "modernbert": "none", "albert": "order"}.get(family, "next"),
            reuse_len=T - {"gpt2": 0, "roberta": 2, "modernbert": 2}.get(family, 3),
            num_predict=T if gpt2 else 3,
            sentence_loss=paired,
        ),
        finetune=dict(task=task, labels=labels, pooling="cls" if pools else "mean"),
    )


def forms(config: Config) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays by their names there."""
    arrays = jax.eval_shape(
        lambda tree: names.to_foreign(peers.table(config), tree), tree_of(config)
    )
    return {name: array.shape for name, array in arrays.items()}


def draw_weights(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Large, so that attention is far from uniform and a wrong mask or position shows; exact in
    float32.
    """
    rng = np.random.default_rng(seed)

    def one(name: str, shape: tuple[int, ...]) -> np.ndarray:
        norm = len(shape) == 1 and name.endswith(".weight")
        scale = 0.3 if norm else 1.0 if "mbedding" in name or ".w" in name[-10:] else 0.5
        return (norm + scale * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)

    return {name: one(name, shape) for name, shape in sorted(forms(config).items())}


def draw_inputs(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Rows [B, C, T] with padding on the right, and labels as that library has them."""
    rng, model, ids = (
        np.random.default_rng((seed, 1)),
        config.model,
        special(config.model.architecture),
    )
    task, rows = config.finetune.task, C if config.finetune.task == "multiple_choice" else 1
    length = np.array([T, *rng.integers(4, T, B * rows - 1)]).reshape(B, rows, 1)
    real = np.arange(T) < length
    tokens = np.where(real, rng.integers(FIRST_TEXT, model.vocab_size, (B, rows, T)), ids.pad)
    second = real & (np.arange(T) >= rng.integers(2, 4, (B, rows, 1)))
    segments = second * (model.member.segments == 2)
    chosen = real & (rng.random((B, rows, T)) < 0.5)
    chosen[:, :, 1] = True
    labels = {
        "none": np.where(chosen, rng.integers(0, model.vocab_size, chosen.shape), -100),
        "classification": rng.integers(0, LABELS, B),
        "regression": rng.standard_normal(B),
        "multiple_choice": rng.integers(0, C, B),
        "token_classification": np.where(chosen, rng.integers(0, LABELS, chosen.shape), -100),
        "question_answering": np.stack([rng.integers(0, 4, B), rng.integers(0, 4, B)]),
        "multi_label_classification": (np.arange(B * LABELS).reshape(B, LABELS) + seed) % 4 % 2.0,
    }[task]
    if model.architecture == "gpt2" and task == "none":
        labels = np.where(real & (chosen | (np.arange(T) == 1)), tokens, -100)
    return dict(
        tokens=tokens,
        segments=segments.astype(int),
        real=real,
        labels=labels,
        pairs=rng.integers(0, 2, B),
    )


@functools.cache
def tree_of(config: Config) -> Any:
    """The abstract tree of our model with its head."""
    if config.finetune.task == "none":
        return nn.meta.unbox(make_recipe(config).abstract_params)
    model = task_model(config)
    batch: Any = jax.tree.map(
        lambda x: x.astype(f"{x.dtype.kind}4"), task_batch(config, draw_inputs(config, 0))
    )
    return nn.meta.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)))


def task_model(config: Config) -> TaskModel:
    task = TASKS[config.finetune.task](config, tokenizer(config))
    return TaskModel(XLNet(config.model, None, config.compat), task.head(config.model), task)


def task_batch(config: Config, fed: dict[str, np.ndarray]) -> TaskBatch:
    task, labels = config.finetune.task, fed["labels"]
    ours = {
        "label": np.where(labels[:, 0] < 0, -1, labels[:, 0])
        if task == "token_classification"
        else labels
    }
    if task == "question_answering":
        ours = {"start": labels[0], "end": labels[1]}
    return TaskBatch(fed["tokens"][:, :, None], fed["segments"][:, :, None], ours, np.ones(B))


def batch_of(config: Config, fed: dict[str, np.ndarray]) -> Batch:
    """All positions are slots, and those without a label have weight 0."""
    tokens, real, labels = (fed[name][:, 0] for name in ("tokens", "real", "labels"))
    causal = config.data.objective == "clm"
    if causal:  # the label of a position is predicted at the one before
        labels = np.concatenate([labels[:, 1:], np.full((B, 1), -100)], axis=1)
    return Batch(
        tokens=tokens,
        segments=fed["segments"][:, 0],
        rank=np.where(real, np.arange(T) * causal, NEVER),
        direction=np.ones(B, np.int32),
        continues=np.zeros(B, bool),
        target_positions=np.broadcast_to(np.arange(T), (B, T)),
        target_tokens=np.maximum(labels, 0),
        target_weights=(labels >= 0).astype(np.float64),
        summary_position=np.zeros(B, np.int32),
        label=1 - fed["pairs"],
        label_weight=np.ones(B),
    )


def to_tree(config: Config, arrays: dict[str, np.ndarray]) -> Any:
    """Arrays under their names as our tree of float64."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, np.dtype(np.float64)), tree_of(config)
    )
    return names.from_foreign(peers.table(config), shapes, names.Arrays.of("folder", arrays))


def run(
    config: Config, weights: dict[str, np.ndarray], fed: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Logits (of pairs: log-probabilities), `loss`, and gradients under their names."""
    params = jax.tree.map(jnp.asarray, to_tree(config, weights))
    pretraining = config.finetune.task == "none"
    batch = jax.tree.map(jnp.asarray, (batch_of if pretraining else task_batch)(config, fed))

    def of_pretraining(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        model = language_model(config)
        memory = empty_memory(config.model, B)
        loss, _ = mean_loss(params, model, batch, memory)
        out = model.transformer.apply({"params": params}, batch, memory)
        found = {"logits": model.logits(params, out.hidden_BTD)}
        if config.data.sentence_loss:
            head = {"params": {name: params[name] for name in ("pooler", "sentence_head")}}
            found["pairs"] = -jnp.stack(
                [
                    model.sentence_head.apply(
                        head,
                        out.hidden_BTD,
                        dataclasses.replace(batch, label=jnp.full(B, label)),
                        jnp.arange(B),
                    )
                    for label in (1, 0)
                ],
                axis=1,
            )
        return loss, found

    def of_task(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        model, labels = task_model(config), batch.labels
        hidden = model.hidden(params, batch)
        variables = {"params": params["head"]}
        loss_B = model.head.apply(variables, hidden, labels, method="losses")
        loss = loss_B.mean()
        if config.finetune.task == "token_classification":  # there it is the mean over all words
            words_B = (labels["label"] >= 0).sum(axis=1)
            loss = (loss_B * words_B).sum() / words_B.sum()
            return loss, {"logits": model.head.apply(variables, hidden, method="logits")}
        if config.finetune.task == "question_answering":
            scores = model.head.apply(variables, hidden, method="scores")
            return loss, {"logits": jnp.stack(scores, axis=2)}
        return loss, {"logits": model.head.apply(variables, hidden)}

    compute = jax.value_and_grad(of_pretraining if pretraining else of_task, has_aux=True)
    (loss, found), gradient = jax.jit(compute)(params)
    theirs = names.to_foreign(peers.table(config), jax.device_get(gradient))
    if config.finetune.task == "question_answering" and config.model.member.padding_row < 0:
        # The softmax covers padding, whose lookup has no gradient there, whatever its id.
        embedding = peers.peer(config.model).table[0].theirs
        theirs[embedding] = theirs[embedding].copy()
        theirs[embedding][special(config.model.architecture).pad] = 0
    return {"loss": loss, **found} | {
        f"gradient of {name}": array for name, array in theirs.items()
    }


def error(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], real: np.ndarray
) -> dict[str, float]:
    """The largest difference of each array, relative to its largest value but not to less than
    1e-3; logits of padding are not compared. GPT-2's padding reads the text before it.
    """
    found = {}
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        got, wanted = (
            np.asarray(ours[name], np.float64).reshape(np.shape(wanted)),
            np.asarray(wanted),
        )
        if name == "logits" and wanted.ndim == 3:
            got, wanted = got[real[:, 0]], wanted[real[:, 0]]
        found[name] = float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-3))
    return found


def shortened(found: dict[str, np.ndarray], seed: int = 7) -> dict[str, Any]:
    """For a recording: the sum and one random projection of every array."""
    rng, made = np.random.default_rng(seed), {}
    for name, array in sorted(found.items()):
        x = np.asarray(array, np.float64).ravel()
        made[name] = [float(x.sum()), float(x @ rng.standard_normal(len(x)))]
    return made


def load() -> dict[str, Any]:
    return json.loads(RECORDINGS.read_text(encoding="utf-8"))


def config_json(config: Config) -> dict[str, Any]:
    return fields.config_json(config, special(config.model.architecture), {})
