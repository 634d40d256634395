"""The configuration: a Python file at the edge, frozen dataclasses inside.

A file under `configs/` defines `get_config()`, which returns an `ml_collections.ConfigDict`; the command line may
change single keys (`--config.train.steps=10`); `load` turns the result once into the frozen dataclasses below and
checks the fields against each other before any device is used. Every key carries its documentation and its rule on
resume:

    frozen    must not change: another model, objective or seed is another run
    elastic   may change between two starts; the data plan and the log record it (batch size, mesh)
    free      may change at any start (length of the run, logging, checkpoints, evaluation)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import runpy
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from xlnet_jax.config_rules import LARGEST, LARGEST_INT, NAMES, rules
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.messages import suggest, suggest_file

FROZEN, ELASTIC, FREE = "frozen", "elastic", "free"


def key(default: Any, doc: str, resume: str = FROZEN, choices: str = "", of_run: bool = False) -> Any:
    """A dataclass field with its documentation, its rule on resume and its allowed values, separated by spaces.

    A key of `model` is architecture, which parameters bring with them to another run, unless it is free or `of_run`.
    """
    metadata = {"doc": doc, "resume": resume, "choices": tuple(choices.split()), "of_run": of_run}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture. Defaults are XLNet-Large."""

    vocab_size: int = key(32000, "pieces in the vocabulary; must be the tokenizer's")
    layers: int = key(24, "number of layers")
    d_model: int = key(1024, "model width D")
    heads: int = key(16, "attention heads H")
    head_dim: int = key(64, "width of one head E")
    d_ff: int = key(4096, "inner width of the feed-forward layer F")
    activation: str = key("gelu", "gelu is the tanh approximation, as in the original", choices="gelu gelu_erf relu")
    biases_per_layer: bool = key(True, "every layer has its own u, v and w biases (`untie_r`)")
    norm: str = key(
        "post", "LayerNorm after each residual sum, or before attention and feed-forward", choices="post pre"
    )
    scale_embedding: bool = key(False, "word embeddings times sqrt(d_model), as in Transformer-XL")
    cutoffs: str = key("", "adaptive embedding and softmax: first words of the tail clusters, by commas; empty = none")
    div_val: int = key(1, "vectors of tail cluster i have the width d_embed / div_val^i")
    d_embed: int = key(0, "width of the word embedding before its projection; 0 = d_model, without projection")
    tie_embedding: bool = key(True, "the softmax has the word embedding as its weights")
    tie_projections: str = key(
        "all", "clusters whose softmax has the projection of the embedding: all, all but the first, or none",
        choices="all rest none",
    )  # fmt: skip
    share_layers: bool = key(False, "one layer's parameters serve as all layers (ALBERT); no export to Hugging Face")
    position_scheme: str = key(
        "relative",
        "distances in every score (Transformer-XL), or learned positions added at every layer (Vanilla Transformer)",
        choices="relative absolute",
    )
    layer_losses: bool = key(
        False,
        "layer l of n predicts too, with a softmax of its own, until l / 2n of train.steps (Vanilla Transformer)",
        of_run=True,
    )
    memory_len: int = key(384, "memory slots M; 0 = no memory", of_run=True)
    same_length: bool = key(
        False,
        "a query sees the `memory_len` newest positions, itself included: all queries see equally many",
        of_run=True,
    )
    clamp_len: int = key(-1, "clip relative distances to +-clamp_len; -1 = off")
    dropout: float = key(0.1, "embedding, position table, both sub-layer outputs, final output", of_run=True)
    attention_dropout: float = key(0.1, "attention probabilities", of_run=True)
    activation_dropout: float = key(0.0, "after the feed-forward activation", of_run=True)
    init_std: float = key(0.02, "standard deviation of the normal initialiser", of_run=True)
    layer_norm_epsilon: float = key(1e-12, "as in the original")
    compute_dtype: str = key(
        "bfloat16",
        "dtype of activations and memory; softmax, LayerNorm, positions and loss are at least float32",
        choices="bfloat16 float32 float64",
        of_run=True,
    )
    remat: str = key(
        "none", "recomputed in the backward pass: nothing, all but matmuls, or whole layers", FREE, "none dots full"
    )
    attention: str = key(
        "auto",
        "all implementations give the same results; auto = fused on TPU v4 and later and on NVIDIA A100, H100 and H200 "
        "if it agrees with xla, else xla",
        FREE,
        "auto xla fused",
    )
    unroll: str = key(
        "auto", "the layers of a training step one by one, not as a loop: faster on a CPU, which auto is", FREE,
        "auto on off",
    )  # fmt: skip

    def cutoff_list(self) -> list[int]:
        """`cutoffs` as numbers. Raises ValueError."""
        return [int(word) for word in self.cutoffs.split(",")] if self.cutoffs else []

    @property
    def adaptive(self) -> bool:
        """Whether embedding and head are those of `model.adaptive`, with clusters, projections or their own weights."""
        return bool(self.cutoffs or self.d_embed not in (0, self.d_model) or not self.tie_embedding)


ARCHITECTURE = tuple(field.name for field in dataclasses.fields(ModelConfig)
                     if field.metadata["resume"] == FROZEN and not field.metadata["of_run"])  # fmt: skip
"""Keys of `model` that belong to its parameters: a run that starts from other parameters takes these keys with them."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Contents of an example. Defaults are the published ones."""

    corpus: str = key(
        "", "folder that `xlnet-jax prepare` wrote, or several with commas; the hash is frozen, not the path", FREE
    )
    weights: str = key("", "shares of blocks read from several corpora, separated by commas; empty = their tokens")
    objective: str = key(
        "plm", "permutation LM (XLNet), causal LM with memory (Transformer-XL), masked LM (BERT)", choices="plm clm mlm"
    )
    factorization_order: str = key(
        "spans",
        "plm: XLNet's span law with A and B, or any unknown positions, in random order (uniform) or from left to right",
        choices="spans uniform left_within",
    )
    segment_len: int = key(512, "tokens T of an example")
    reuse_len: int = key(256, "fresh tokens R of an example: its first part, which enters the memory")
    num_predict: int = key(85, "target slots P")
    multi_token_prediction: int = key(
        1, "left-to-right: tokens that each position predicts; the loss of those after the next has weight 0.5"
    )
    windows_per_block: int = key(8, "consecutive windows W that a row reads before it jumps elsewhere")
    bidirectional: bool = key(True, "every other block is read reversed")
    mask_group_size: int = key(6, "context pieces per target piece while spans are drawn")
    masks_per_group: int = key(1, "targets per `mask_group_size` context pieces")
    max_span: int = key(5, "longest target span; a span of n has probability proportional to 1/n")
    spans: str = key(
        "words",
        "targets: n whole words, n pieces from a word start, or single pieces anywhere",
        choices="words pieces random",
    )
    pairs: str = key(
        "next",
        "segment B: the text after A or text from elsewhere (next), or A and B in order or swapped (order)",
        choices="next order",
    )
    positive_pair_rate: float = key(0.5, "how often segment B is the text that follows A")
    read_threads: int = key(4, "threads that read and build batches", FREE)
    prefetch: int = key(8, "dispatches of batches kept ready", FREE)
    workers: int = key(-1, "processes that build batches; 0 = threads here; -1 = one per four cores, at most 8", FREE)

    def folders(self) -> list[str]:
        """The folders in `corpus`."""
        return [path.strip() for path in self.corpus.split(",")] if self.corpus else []

    @property
    def left_to_right(self) -> bool:
        """Whether every token is predicted from those before it: the perplexity is that of a language model."""
        return self.objective == "clm"

    def weight_list(self) -> list[float]:
        """`weights` as numbers. Raises ValueError."""
        return [float(word) for word in self.weights.split(",")] if self.weights else []


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """A clipped gradient, linear warm-up, then decay to `min_lr_ratio`."""

    name: str = key("adamw", "the update rule", choices="adamw")
    learning_rate: float = key(4e-4, "peak learning rate", FREE)
    warmup_steps: int = key(40_000, "steps from 0 to the peak", FREE)
    schedule: str = key("polynomial", "decay after the warm-up (polynomial is linear)", FREE, "polynomial cosine")
    min_lr_ratio: float = key(0.0, "the learning rate ends at this share of its peak", FREE)
    weight_decay: float = key(0.01, "decoupled; not on LayerNorm and dense biases", FREE)
    adam_b1: float = key(0.9, "decay of the first moment", FREE)
    adam_b2: float = key(0.999, "decay of the second moment", FREE)
    adam_epsilon: float = key(1e-6, "added outside the square root", FREE)
    clip: float = key(1.0, "bound on the norm of the global averaged gradient; 0 = off", FREE)
    layer_decay: float = key(1.0, "rate of a layer as a share of the one above it; the embeddings are the lowest", FREE)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length and shape of the run."""

    steps: int = key(500_000, "optimizer steps of the whole run; the schedule ends here", FREE)
    batch_size: int = key(2048, "rows over all devices and hosts", ELASTIC)
    gradient_accumulation_steps: int = key(
        1, "sequential micro-batches per step; one gradient sum crosses the network", ELASTIC
    )
    elastic: bool = key(False, "fill up batches that do not divide over the devices with rows of weight 0", ELASTIC)
    steps_per_dispatch: int = key(10, "segments K that the device runs without returning to the host", ELASTIC)
    max_bad_steps: int = key(5, "non-finite steps or spikes in a row that end the run (exit code 3)", FREE)
    spike_zscore: float = key(0.0, "skip steps with a loss this many standard deviations above the mean; 0 = off", FREE)
    spike_window: int = key(100, "number of good steps in the mean and deviation of the loss", FREE)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices on each axis; one axis may be -1: all that are left."""

    data: int = key(-1, "rows of the batch", ELASTIC)
    fsdp: int = key(1, "rows of the batch, and parameters split over their width", ELASTIC)
    tensor: int = key(1, "heads, feed-forward and vocabulary", ELASTIC)
    slices: int = key(0, "TPU slices, which share the rows of the batch; 0 = as many as the devices belong to", ELASTIC)
    zero1: bool = key(False, "ZeRO-1: parameters, optimizer state and update are split over `data` as well", ELASTIC)


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Several processes in one run. TPU VMs, GKE and SLURM need no settings."""

    coordinator: str = key("", "HOST:PORT of process 0; empty = JAX_COORDINATOR_ADDRESS, or from the cluster", FREE)
    processes: int = key(0, "number of processes; 0 = JAX_NUM_PROCESSES, or from the cluster", FREE)
    process_id: int = key(-1, "index of this process, from 0; -1 = JAX_PROCESS_ID, or from the cluster", FREE)
    detect: bool = key(True, "ask the cluster; false = use only the values set here", FREE)
    rendezvous_port: int = key(0, "on the host of process 0; 0 = next to the coordinator's port", FREE)
    rendezvous_seconds: float = key(600.0, "how long all processes wait for a missing one (exit code 42)", FREE)
    report_seconds: float = key(30.0, "between two log lines about missing processes", FREE)
    heartbeat_seconds: float = key(60.0, "silence after which a process is lost and all others exit with 42", FREE)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the whole state is saved (asynchronously), and which checkpoints are kept."""

    every: int = key(1000, "steps between checkpoints; the last step is always saved", FREE)
    keep: int = key(3, "number of newest checkpoints kept", FREE)
    keep_every: int = key(0, "also keep a checkpoint every this many steps; 0 = none", FREE)
    keep_best: int = key(0, "also keep this many checkpoints of the lowest held-out loss; 0 = none", FREE)
    memory: str = key(
        "all", "saved (all), or left out of checkpoints and computed from the text on resume", FREE, "all rebuild"
    )
    init_from: str = key(
        "", "work directory or checkpoint to take the parameters of a new run from; empty = none", FREE
    )
    io_deadline_seconds: float = key(300.0, "how long failed saves are retried; then the run ends", FREE)
    grace_seconds: float = key(
        30.0, "from SIGTERM to SIGKILL; a warning if two dispatches and a save take longer; 0 = unknown", FREE
    )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Held-out loss: of a permutation LM with fixed orders, of a left-to-right model with carried memory."""

    every: int = key(0, "steps between evaluations during training; 0 = none", FREE)
    blocks: int = key(0, "blocks of the held-out split used during training; 0 = all", FREE)
    batch_size: int = key(0, "rows per evaluation step; 0 = train.batch_size (never changes the result)", FREE)
    final: bool = key(True, "after the last step, evaluate if there is a held-out split, and plot the losses", FREE)


@dataclasses.dataclass(frozen=True)
class WatchdogConfig:
    """Checks of a run from outside the step."""

    seconds: float = key(
        1800.0, "without progress (dispatch, evaluation batch, save): print all stacks, exit with 42; 0 = off", FREE
    )
    report_every: int = key(1000, "steps between two tables of step times by host; 0 = none", FREE)
    sdc_every: int = key(0, "steps between checks that compute a gradient twice and compare the bits; 0 = never", FREE)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Logs written in addition to the checkpoints."""

    tensorboard: bool = key(True, "write TensorBoard events beside metrics.jsonl", FREE)
    profile_start: int = key(-1, "first step of a profiler capture; -1 = none", FREE)
    profile_steps: int = key(5, "steps in the capture (rounded up to whole dispatches)", FREE)
    compilation_cache: str = key(
        "", "folder; empty = <workdir>/compilation_cache in training, else ~/.cache/xlnet_jax; none = no cache", FREE
    )


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A task on labelled examples, for `xlnet-jax finetune`; pretraining ignores this section.

    `data.segment_len` is the length of an example; `evaluation` has when the dev set is scored.
    """

    task: str = key(
        "none",
        "what the head predicts",
        choices="none classification regression multiple_choice question_answering token_classification embeddings",
    )
    train: str = key("", "training examples: a file, or tfds:NAME:SPLIT; their hash is frozen, not the name", FREE)
    dev: str = key("", "examples that score checkpoints, in the same form; empty = none", FREE)
    columns: str = key("", "columns or fields: the texts, then the label, with commas; empty = the usual names")
    labels: str = key("", "names of the labels, with commas; empty = those of the training examples, sorted")
    metric: str = key("", "the score that ranks checkpoints; empty = the usual one of the task")
    tokenizer: str = key("", "SentencePiece model of a run from scratch; empty = that of checkpoint.init_from", FREE)
    segments: int = key(1, "segments of an example; the earlier ones fill the memory, without gradient")
    patience: int = key(0, "evaluations without a better score that end the run; 0 = off", FREE)
    stride: int = key(128, "spans: tokens between the starts of two windows of a long context")
    max_question: int = key(64, "pieces of the question that are kept; choice: of the question and its option")
    max_answer: int = key(64, "spans: pieces of the longest answer", FREE)
    beam: int = key(5, "spans: starts, and ends for each start, that are searched", FREE)
    pooling: str = key("mean", "embeddings: mean of all pieces, or the vector of CLS", choices="mean cls")
    temperature: float = key(0.05, "embeddings: cosine similarities are divided by it")

    def label_list(self) -> list[str]:
        """The names in `labels`."""
        return [name.strip() for name in self.labels.split(",")] if self.labels else []


COMPAT_SWITCHES = {
    "piece_spans": "spans are n pieces, not n words",
    "fill_functional": "spans and the fill may cover SEP and CLS, which are not targets then: fewer targets than slots",
    "static_targets": "windows, their targets and their segments A and B are the same in every epoch",
    "both_directions": "every text is read forward and reversed in the same step, by rows r and r + B/2",
    "zero_memory": "empty memory slots are zeros that every position sees, and all slots are emptied every 1000 steps",
    "position_dropout_per_row": "every row has its own dropout mask on the position table",
    "glorot_mask_embedding": "the query stream's first vector is drawn uniformly, by Glorot's bound",
    "core_clip": "each of `compat.cores` cores averages and clips the gradient of its own rows before the sum",
    "no_bias_correction": "Adam without bias correction; without weight decay TensorFlow's, corrected with epsilon hat",
    "layer_decay_on_gradients": "layer-wise decay scales gradients, not rates; no embeddings and no relative biases",
}
"""Differences of the 2019 code, by name."""


@dataclasses.dataclass(frozen=True)
class CompatConfig:
    """Behaviour of the 2019 code, to reproduce published numbers; docs/compat.md has the table."""

    switches: str = key("", "2019 = all, or names separated by commas")
    cores: int = key(1, "TPU cores of the run that core_clip imitates")

    def on(self, name: str) -> bool:
        """Whether one of `COMPAT_SWITCHES` is on."""
        return self.switches == "2019" or name in self.switches.split(",")


CORRECT = CompatConfig()
"""The default: no switch is on."""


@dataclasses.dataclass(frozen=True)
class SeedsConfig:
    """Separate seeds, for example for the same data with another initialisation."""

    init: int = key(0, "parameters")
    data: int = key(1, "order of the blocks, spans, permutations, segments")
    dropout: int = key(2, "dropout masks")


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole configuration; see each section."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    log: LogConfig = LogConfig()
    compat: CompatConfig = CompatConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    seeds: SeedsConfig = SeedsConfig()


RENAMED = {
    "model.untie_biases": "model.biases_per_layer",
    "data.orders": "data.factorization_order",
    "data.targets_ahead": "data.multi_token_prediction",
    "data.mask_alpha": "data.mask_group_size",
    "data.mask_beta": "data.masks_per_group",
    "data.follow_probability": "data.positive_pair_rate",
    "train.accumulation": "train.gradient_accumulation_steps",
}
"""Keys by the old name that stored runs and exports may have."""

RENAMED_VALUES = {
    "finetune.task": {
        "tokens": "token_classification", "spans": "question_answering", "choice": "multiple_choice",
    },
}  # fmt: skip
"""Values by key, in the same way."""


def default() -> ConfigDict:
    """The defaults as a locked ConfigDict; a config file starts here and sets what differs."""
    return ConfigDict(dataclasses.asdict(Config())).lock()


def load(path: str, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Reads a config file and applies command-line overrides.

    Args:
      path: a Python file that defines `get_config()`.
      overrides: words such as `--config.train.steps=10`.

    Raises:
      BadInput: the file is missing or broken, a key does not exist (with the nearest one that does), a value has the
        wrong type, or two fields contradict each other.
    """
    check_link("--config", path)
    if not os.path.isfile(path) or not path.endswith(".py"):
        what = "not a Python file; give one that defines get_config()"
        raise BadInput(f"--config={path}: " + (what if os.path.exists(path) else f"no such file{suggest_file(path)}"))
    try:
        # stdout is for the result of the command.
        with contextlib.redirect_stdout(sys.stderr):
            values = runpy.run_path(path)["get_config"]()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it may raise what it likes
        raise BadInput(f"--config={path}{_mistake(error, path)}") from error
    if not isinstance(values, ConfigDict):
        raise BadInput(f"--config={path}: get_config() must return a ConfigDict; start from xlnet_jax.config.default()")
    return _overridden(values, overrides, f"--config={path}")


def override(config: Config, overrides: list[str] | tuple[str, ...]) -> Config:
    """The same configuration with some keys changed by words such as `--config.mesh.fsdp=4`. Raises BadInput."""
    return _overridden(ConfigDict(dataclasses.asdict(config)), overrides, "config")


def _overridden(values: ConfigDict, overrides: list[str] | tuple[str, ...], where: str) -> Config:
    for word in overrides:
        if not word.startswith("--config."):
            raise BadInput(f"unknown option {word!r}; a config key is set as --config.train.steps=10")
        if "=" not in word:
            raise BadInput(f"{word!r} has no value; write {word}=VALUE")
        _check_key(word.removeprefix("--config.").split("=")[0])
    argv = [__name__, *overrides]
    flag_values = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", values, flag_values=flag_values, lock_config=True, sys_argv=argv)
    try:
        flag_values(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where}: {summary(error)}") from error
    # The flag has changed `values` in place.
    return from_dict(values.to_dict())


def _mistake(error: BaseException, path: str) -> str:
    """The error of a config file with its line: `, line 4: NameError: name 'x' is not defined`."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, text = [error.lineno or 1], error.msg
    at = f", line {lines[-1]}" if lines else ""
    if isinstance(error, SystemExit):
        return f"{at}: ended the program (SystemExit: {error.code}); a config file only returns its values"
    # Of a wrong key, ml_collections lists all others first, and then the nearest, if one is very near.
    if nearest := re.search(r"Did you mean .*\?", text):
        text = nearest[0]
    elif wrong := re.match(r"\W*Key \W*(\w+)\W* does not exist", text):
        text = f"no key {wrong[1]!r}{suggest_key(wrong[1])}"
    return f"{at}: {type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")


def suggest_key(dotted: str) -> str:
    """`messages.suggest` for what is no key: the key that other programs call so, the same in another section."""
    if dotted in RENAMED:
        return f"; it is called {RENAMED[dotted]!r} now"
    keys, (section, _, name) = list(flat(Config())), dotted.rpartition(".")
    of_name = NAMES.get(name) or [key for key in keys if key.endswith(f".{name}")]
    same = [key for key in of_name if key.startswith(f"{section}.")] or of_name
    return suggest(same[0], same[:1]) if same else suggest(dotted, keys)


def _check_key(dotted: str) -> None:
    if dotted not in flat(Config()):
        raise BadInput(f"no config key {dotted!r}{suggest_key(dotted) or '; docs/configuration.md lists them'}")


def flat(config: Config) -> dict[str, Any]:
    """All values by dotted key, in order: `{'model.vocab_size': 32000, ...}`."""
    return {f"{name}.{key}": value for name, section in vars(config).items() for key, value in vars(section).items()}


def fields() -> dict[str, dataclasses.Field[Any]]:
    """The field behind every dotted key: default, and the metadata `doc`, `resume`, `choices`."""
    return {f"{name}.{field.name}": field for name, section in vars(Config()).items()
            for field in dataclasses.fields(section)}  # fmt: skip


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """`flat` values of an older version under the names of today, for reading stored runs and exports."""
    return {RENAMED.get(name, name): RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in values.items()}  # fmt: skip


def nested(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The inverse of `flat`, for `from_dict`."""
    found: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        found.setdefault(section, {})[name] = value
    return found


def from_dict(values: dict[str, Any], overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Builds the dataclasses from nested dictionaries, changes keys as `override` and checks them. Raises BadInput."""
    known = vars(Config())
    for section, given in values.items():
        for dotted in [f"{section}.{name}" for name in given] if section in known else [section]:
            _check_key(dotted)
    config = Config(**{name: type(default)(**values.get(name, {})) for name, default in known.items()})
    if overrides:
        return override(config, overrides)
    check(config)
    return config


def check(config: Config) -> None:
    """Checks every value, alone and against the others; needs neither a device nor the corpus.

    Raises BadInput. Its message lists all conflicts; each names the key, the value and the fix.
    """
    conflicts = list(_conflicts(config))
    if len(conflicts) == 1:
        raise BadInput(conflicts[0])
    if conflicts:
        numbered = "; ".join(f"({number}) {conflict}" for number, conflict in enumerate(conflicts, 1))
        raise BadInput(f"{len(conflicts)} conflicts in the configuration: {numbered}")


def _conflicts(config: Config) -> Iterator[str]:
    values = flat(config)
    mistaken = False
    for name, field in fields().items():
        value, choices = values[name], field.metadata["choices"]
        if type(value) is not type(field.default) and not (type(value) is int and type(field.default) is float):
            mistaken = True
            yield f"{name}={value!r} must be of type {type(field.default).__name__}"
        elif choices and value not in choices:
            yield f"{name}={value!r} is not one of {', '.join(choices)}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{name}={value!r} must be finite"
    if mistaken:
        return  # the rules compare numbers
    for name in config.compat.switches.split(",") if config.compat.switches not in ("", "2019") else ():
        if name not in COMPAT_SWITCHES:
            yield f"compat.switches has no {name!r}{suggest(name, COMPAT_SWITCHES)}"
    for name, holds, what in rules(config):
        if not holds:
            yield f"{name}={values[name]} {what}"
    for name, value in values.items():
        largest = LARGEST.get(name, LARGEST_INT if type(value) is int else math.inf)
        if not isinstance(value, str) and value > largest:
            yield f"{name}={value} must be at most {largest:,}"


def changed_keys(config: Config, saved: dict[str, Any], resume: str) -> list[str]:
    """Lines `key: saved -> now` for the keys of one resume rule whose value differs from the saved `flat(config)`."""
    now = flat(config)
    keys = [name for name, field in fields().items() if field.metadata["resume"] == resume and name in saved]
    return [f"{name}: {saved[name]!r} -> {now[name]!r}" for name in keys if saved[name] != now[name]]
