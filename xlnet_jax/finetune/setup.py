"""Makes a task, its tokenizer and its encoded examples from a configuration, without a device.

Architecture (`config.ARCHITECTURE`) and tokenizer come from the pretrained run
(`checkpoint.init_from`), and after the start from the work directory; a run from scratch takes them
from the configuration.

The rows of each batch are a function of the step:

    row number = permutation_epoch(n % N)
    n = first + (step - start) * B + row of the batch
    epoch = n // N

This is the stream of pretraining, where a row is a window of one "token" and the only window of its
block. (start, first, B) is an entry of the data plan. So the batch size may change, and a resumed
run reads the same rows as an undisturbed run.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.checkpoint import restore
from xlnet_jax.config import Config, TrainConfig
from xlnet_jax.data import unknown
from xlnet_jax.data.batches.stream import Stream, Windows, extend_plan
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.vocabulary import Unseen, check_pieces, open_tokenizer, warn_of_export
from xlnet_jax.errors import LARGEST_INT, BadInput
from xlnet_jax.finetune import formats, readers
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.task import Example, Row, Task, TaskBatch, as_one_row
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.finetune.token_classification import TokenClassification
from xlnet_jax.messages import quantity
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import Recipe, make_recipe

log = logging.getLogger("xlnet_jax")


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Encoded examples: the `loader.TrainingData` of a task."""

    path: str
    """Source of the examples."""
    task: Task
    examples: tuple[Example, ...]
    rows: tuple[Row, ...]
    sha256: str
    """Digest of all pieces and labels, in order."""
    names: tuple[str, ...] = ("train",)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the task."""
        return self.task.tokenizer

    def stream(self, config: Config) -> Stream:
        """See `Task.stream`."""
        return dataclasses.replace(self.task, config=config).stream(self.rows)

    def build(
        self, config: Config, where: Windows, *, name: str, step: int, rows: np.ndarray
    ) -> TaskBatch:
        """Returns the batch of the rows in the windows `where`."""
        together = len(where.block_B) // len(rows)
        groups = [
            as_one_row([self.rows[n] for n in numbers])
            for numbers in where.block_B.reshape(-1, together).tolist()
        ]
        batch = self.task.batch(groups, len(rows), self.task.config.data.segment_len // together)
        return dataclasses.replace(batch, weight=batch.weight * where.exists_B)


def encode_examples(task: Task, path: str, examples: Sequence[Example]) -> TaskData:
    """Encodes examples. Raises BadInput, with the file and row, for an example that the task cannot
    use.
    """
    rows = rows_of(task, examples)
    ids = [np.concatenate(row.tokens) for row in rows]
    unknown.warn_of_texts(
        task.tokenizer, path, ids, lambda row: " ".join(examples[rows[row].example].texts)
    )
    digest = hashlib.sha256()
    for row in rows:
        labels = (row.labels[name] for name in sorted(row.labels))
        for array in (*row.tokens, *row.segments, *labels):
            digest.update(str(array.shape).encode() + array.tobytes())
    return TaskData(path, task, tuple(examples), tuple(rows), digest.hexdigest())


def rows_of(task: Task, examples: Sequence[Example]) -> list[Row]:
    """Returns the rows of all examples. Raises BadInput as `add_example` does."""
    before, rows = [], []
    for example in examples:
        add_example(task, example, before, rows)
    return rows


def add_example(task: Task, example: Example, examples: list[Example], rows: list[Row]) -> None:
    """Appends an example to `examples` and its rows to `rows`. Raises BadInput, with the file and
    row, if the task cannot use it.
    """
    (low, high), count = task.texts, len(example.texts)
    if not low <= count <= high:
        wanted = low if low == high else f"{low} to {high}".replace("to inf", "or more")
        raise BadInput(f"{example.where}: the number of texts is {count}; this task takes {wanted}")
    for text in example.texts:
        if not isinstance(text, str) or not text.strip():
            no_text = f"{str(text)[:60]!r} is not a text"
            what = "a text is empty" if isinstance(text, str) else no_text
            raise BadInput(f"{example.where}: {what}; correct the row or remove it")
    try:
        new = task.encode(len(examples), example)
    except Unseen as error:
        raise BadInput(f"{example.where}: {error}; correct the row or remove it") from error
    if rows and len(new[0].tokens) != len(rows[0].tokens):
        raise BadInput(
            f"{example.where}: {count} texts, and {examples[0].where} has "
            f"{len(examples[0].texts)}; every example needs the same number"
        )
    examples.append(example)
    rows += new


def prepare(config: Config, workdir: str) -> tuple[TaskData, TaskData | None]:
    """Reads and encodes the training examples and the dev set. Their `task.config` is the completed
    configuration.

    If the run in `workdir` has started, model and tokenizer are read there, because `init_from` may
    be gone.

    Raises BadInput if no task is set or the task does not read a key that is set. Raises BadInput
    also for a source or an example that the task cannot use, and for a tokenizer of another model.
    """
    if config.pretrains:
        raise BadInput(f"finetune.task is none; choose one of {', '.join(TASKS)}")
    if not config.finetune.train:
        raise BadInput(
            "finetune.train is empty; name the training examples: --config.finetune.train=FILE"
        )
    kind, started = TASKS[config.finetune.task], workdirs.read_config(workdir) is not None
    config, tokenizer = _model(config, workdir if started else "")
    if not started:  # an older version may have accepted a key that is now refused
        kind.check_options(config)
    config, examples, dev_examples = _read(kind, config)
    # Rows do not follow each other; batching them here is faster than in a worker process.
    config = config.changed(data={"corpus": "", "windows_per_block": 1, "workers": 0})
    if kind.several_lengths:  # all steps of a dispatch must have the same length
        config = config.changed(train={"steps_per_dispatch": 1})
    if config.evaluation.every:
        config = config.changed(checkpoint={"keep_best": max(1, config.checkpoint.keep_best)})
    configs.check(config)
    check_pieces(tokenizer, config, tokenizer.path)
    warn_of_export(tokenizer, config)
    train = encode_examples(kind(config, tokenizer), config.finetune.train, examples)
    if len(train.rows) < config.train.batch_size:
        raise BadInput(
            f"finetune.train={train.path} has {quantity(len(train.rows), 'row')}, fewer than "
            f"train.batch_size={config.train.batch_size}; use a smaller batch"
        )
    if config.finetune.epochs and config.train.steps == TrainConfig().steps:
        config = _in_epochs(config, train.stream(config), bool(dev_examples))
        train = dataclasses.replace(train, task=kind(config, tokenizer))
    task = train.task
    if isinstance(task, TextToText) and (lost := task.lost(train.rows, train.examples)):
        log.warning(
            "the tokenizer cannot write %s of %d, so no prediction can equal them: %.60r becomes "
            "%.60r; use a tokenizer that keeps all characters, as `prepare` makes them",
            quantity(len(lost), "target"),
            len(train.examples),
            *lost[0],
        )
    if isinstance(task, TokenClassification) and task.no_entities:
        log.warning("%s; accuracy ranks the checkpoints", task.no_entities)
    dev_path = config.finetune.dev or train.path
    dev = encode_examples(task, dev_path, dev_examples) if dev_examples else None
    log.info(
        "%s: %s in %s, %s",
        config.finetune.task,
        quantity(len(examples), "training example"),
        quantity(len(train.rows), "row"),
        quantity(len(dev_examples), "dev example"),
    )
    return train, dev


def _read(kind: type[Task], config: Config) -> tuple[Config, list[Example], list[Example]]:
    """Returns the configuration with the names of labels and columns, and the labelled examples of
    the training set and the dev set. Raises BadInput.
    """
    source, path = config.finetune.train, config.finetune.dev
    guessed = kind.usual and not config.finetune.columns
    usual = [*kind.usual(next(formats.records(config, source)).checked())] if guessed else []
    examples, dev = (
        readers.examples(kind.read, config, each, usual) if each else [] for each in (source, path)
    )
    labels = kind.labels_of(examples)
    if labels and not config.finetune.labels:
        config = config.changed(finetune={"labels": configs.join_names(_sorted(labels, source))})
    names = config.finetune.label_list()
    if len(set(names)) < len(names):
        raise BadInput(f"finetune.labels={config.finetune.labels} names a label twice")
    examples, dev = _labelled(kind, config, source, examples), _labelled(kind, config, path, dev)
    if "labels" in kind.options and len(names) < 2:
        has = f"one label, {config.finetune.labels!r}" if names else "no label"
        raise BadInput(f"{source} has {has}; a task needs at least two")
    if usual and len(counts := {len(example.texts) for example in examples}) == 1:
        if other := [example for example in dev if len(example.texts) not in counts]:
            raise BadInput(
                f"{other[0].where}: the number of texts is {len(other[0].texts)}, and in {source} "
                f"it is {counts.pop()}; every example needs the same number"
            )
        config = config.changed(finetune={"columns": configs.join_names(usual)})
    if not path and config.finetune.dev_share:
        examples, dev = _split(examples, config)
    return config, examples, dev


def _split(examples: Sequence[Example], config: Config) -> tuple[list[Example], list[Example]]:
    """Splits the examples into a training set and a dev set of `finetune.dev_share`."""
    held = max(1, round(len(examples) * config.finetune.dev_share))
    if held >= len(examples):
        raise BadInput(
            f"finetune.dev_share={config.finetune.dev_share:g} leaves none of "
            f"{quantity(len(examples), 'example')} for training; use a smaller share"
        )
    order = np.random.default_rng(config.seeds.data).permutation(len(examples)).tolist()
    log.info(
        "finetune.dev is empty: %d of %s of %s are the dev set",
        held,
        quantity(len(examples), "example"),
        config.finetune.train,
    )
    dev, train = sorted(order[:held]), sorted(order[held:])
    return [examples[n] for n in train], [examples[n] for n in dev]


def _in_epochs(config: Config, stream: Stream, scored: bool) -> Config:
    """Returns the configuration with values for the keys that follow from `finetune.epochs`, except
    keys that are set. Raises BadInput if the values do not fit.
    """
    plan = extend_plan((), 0, config.train.batch_size, 1)
    steps, each = (
        bisect.bisect_left(
            range(LARGEST_INT), epochs, key=lambda step: stream.epochs(step, plan)[0]
        )
        for epochs in (config.finetune.epochs, 1)
    )
    follow = {
        "train.steps": steps,
        "train.steps_per_dispatch": math.gcd(each, config.train.steps_per_dispatch),
        "optimizer.warmup_steps": steps // 10,
        "checkpoint.every": each,
        "evaluation.every": each * scored,
        "checkpoint.keep_best": int(scored),
    }
    values, usual = configs.flat(config), configs.flat(Config())
    values |= {name: value for name, value in follow.items() if values[name] == usual[name]}
    return configs.from_dict(configs.nested(values))


def _model(config: Config, started: str) -> tuple[Config, Tokenizer]:
    """Returns the configuration with the architecture of the parameters, and their tokenizer: from
    the work directory `started`, or from `init_from` if `started` is "".
    """
    init_from, named = config.checkpoint.init_from, config.finetune.tokenizer
    source, step = (started, None) if started else restore.run_of(init_from)
    if source:
        if workdirs.read_config(source) is None:
            raise BadInput(
                f"checkpoint.init_from={init_from}: no config.json in {source}; "
                "name a pretrained work directory"
            )
        tokenizer, trained = workdirs.tokenizer(source), workdirs.config_at(source, step=step)[0]
        config = config.changed(
            model={name: getattr(trained.model, name) for name in configs.ARCHITECTURE}
        )
        if "memory_len" in config.model.member.required:  # it must be 0, and its default is not
            config = config.changed(model={"memory_len": 0})
        if config.finetune.task == "text_to_text":  # parts of the model depend on the objective
            config = config.changed(data={"objective": trained.data.objective})
        try:
            configs.check(config)
        except BadInput as error:
            raise BadInput(f"the model of {source} does not fit this task: {error}") from error
        if named and (other := _tokenizer(named)).sha256 != tokenizer.sha256:
            raise BadInput(
                f"finetune.tokenizer={named} ({other.sha256[:12]}) is not the tokenizer of "
                f"{source} ({tokenizer.sha256[:12]}); leave it empty"
            )
        return config, tokenizer
    if not named:
        raise BadInput(
            "checkpoint.init_from is empty; name a pretrained work directory, or for a run from "
            "scratch finetune.tokenizer"
        )
    tokenizer = _tokenizer(named)
    return config.changed(model={"vocab_size": tokenizer.vocab_size, "spare_rows": 0}), tokenizer


def _tokenizer(path: str) -> Tokenizer:
    """Opens the tokenizer in a work directory or a file."""
    if workdirs.read_config(path) is not None:
        return workdirs.tokenizer(path)
    return open_tokenizer(files.resolve(path))


def _labelled(
    kind: type[Task], config: Config, source: str, examples: list[Example]
) -> list[Example]:
    """Returns the examples with a label; a warning counts the others.

    Raises BadInput if unlabelled examples may not be left out, or if all examples are unlabelled.
    """
    is_none = kind.no_label(config.finetune.label_list())
    without = [example for example in examples if is_none(example.label)]
    if not without:
        return examples
    counts = Counter(json.dumps(example.label, default=str)[:60] for example in without)
    values = ", ".join(f"{value} ({count:,})" for value, count in counts.items())
    of_all = f"{len(without):,} of {quantity(len(examples), 'example')}"
    what = f"{source}: {of_all} without a label: {values}, the first in {without[0].where}"
    if len(without) == len(examples) or not config.finetune.drop_unlabelled:
        raise BadInput(
            f"{what}; give labels, or remove the rows; "
            "finetune.drop_unlabelled=True leaves out some, not all"
        )
    log.warning("%s; left out", what)
    return [example for example in examples if not is_none(example.label)]


def _sorted(labels: set[str], source: str) -> list[str]:
    """Returns the names of labels in order, numbers by value. Raises BadInput for a name of more
    than 1000 characters, which is a text.
    """
    for name in labels:
        if len(name) > 1000:
            raise BadInput(
                f"{source}: the label {name[:60]!r} has {len(name)} characters; "
                "name its column with finetune.columns"
            )
    return sorted(labels, key=lambda name: (int(name) if name.isdecimal() else -1, name))


def trained_task(config: Config, tokenizer: Tokenizer, where: str) -> Task:
    """Returns the task of a fine-tuned model. Raises BadInput for a pretrained model."""
    if config.pretrains:
        raise BadInput(
            f"{where} holds no fine-tuned model; give the --workdir of `xlnet-jax finetune`"
        )
    return TASKS[config.finetune.task](config, tokenizer)


def any_recipe(config: Config, tokenizer: Tokenizer) -> Recipe:
    """Returns the recipe of pretraining, or of the task of a fine-tuned model, from which the
    shapes of all parameters follow.
    """
    if config.pretrains:
        return make_recipe(config)
    task = trained_task(config, tokenizer, "")
    example = Example(("a",) * int(task.texts[0]), None, "")
    return task_recipe(task, task.encode(0, example)[0], config)
