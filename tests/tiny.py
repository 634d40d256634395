"""A tiny run that every test of training shares: same shapes, so one compilation serves them
all.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import data_fixtures
import flax.linen as nn
import jax
import numpy as np
from compiling import PRODUCTION

from xlnet_jax import config as configs
from xlnet_jax.batch import Batch
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.data.batches.cycle import from_weights
from xlnet_jax.data.batches.loader import TrainDispatches
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.data.corpus.pages import DOCUMENT_START
from xlnet_jax.data.tokenizer import XLNET, SpecialIds, Tokenizer
from xlnet_jax.finetune.setup import any_recipe
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.layers import Declared, Depth, Kind, declared
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import make_recipe

VOCAB = data_fixtures.VOCAB_SIZE
TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
ATTENTION = ("xla", "cpu")
"""Implementations of attention, each of which must equal the recordings and the formula."""


def config(**changes: Any) -> Config:
    """Two layers, 32 tokens; `changes` are sections: `train={"steps": 4}`."""
    base = Config(
        model=configs.ModelConfig(
            vocab_size=VOCAB,
            layers=2,
            d_model=16,
            heads=2,
            head_dim=8,
            d_ff=32,
            memory_len=24,
            init_std=0.1,
            compute_dtype="float32",
            # Unrolled, a step takes a quarter longer to compile.
            unroll="auto" if PRODUCTION else "off",
        ),
        data=configs.DataConfig(segment_len=32, reuse_len=16, num_predict=6, windows_per_block=4),
        optimizer=configs.OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
        train=configs.TrainConfig(steps=40, batch_size=8, steps_per_dispatch=2),
        mesh=configs.MeshConfig(),
        checkpoint=configs.CheckpointConfig(every=4),
        evaluation=configs.EvaluationConfig(final=False),
        log=configs.LogConfig(tensorboard=False),
    )
    result = base.changed(**changes)
    configs.check(result)
    return result


def family(name: str, **changes: Any) -> Config:
    """`config` for pretraining a model of a family with `Member.bounded`; `changes` as there."""
    sections = MEMBERS[name].usual(32)
    sections["data"] |= {
        "sentence_loss": MEMBERS[name].segments > 1 and sections["data"]["pairs"] != "none"
    }
    sections["model"] |= {"d_embed": 8} if MEMBERS[name].parts.projected else {}
    return config(
        **{
            each: sections.get(each, {}) | changes.get(each, {})
            for each in sections.keys() | changes.keys()
        }
    )


def random_params(config: Config, scale: float = 1.0, tokenizer: Tokenizer | None = None) -> Any:
    """Numpy arrays of the shapes of a model's parameters, float32; with a `tokenizer` also those of
    a task's head.
    """
    recipe = any_recipe(config, tokenizer) if tokenizer else make_recipe(config)
    abstract = nn.meta.unbox(recipe.abstract_params)
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: (scale * generator.standard_normal(x.shape)).astype(np.float32), abstract
    )


def box(kind: Kind = "kernel", depth: Depth = 0, decays: bool = True) -> Declared:
    """What a parameter says of itself, without its array."""
    return declared(lambda: None, (), kind, depth, decays)()  # type: ignore[arg-type,return-value]


class Words:
    """A text of random tokens with sentences and word starts: what `examples.build` reads."""

    split, path = "train", "memory"

    def __init__(self, tokens: int = 5000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = tokens
        self.text = rng.integers(9, VOCAB, tokens).astype(np.int32)
        self.starts = rng.random(tokens) < 0.1
        self.tokenizer = Vocabulary(rng.random(VOCAB) < 0.7)
        self.document_starts = self.starts & (rng.random(tokens) < 0.1)

    @property
    def documents(self) -> int:
        """As of a `Corpus`."""
        return int(self.document_starts.sum())

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Corpus.read`."""
        index = (starts[:, None] + np.arange(length)) % self.tokens
        return self.text[index], self.starts[index]

    def read_flags(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Corpus.read_flags`."""
        tokens, is_start = self.read(starts, length)
        index = (starts[:, None] + np.arange(length)) % self.tokens
        return tokens, (is_start + DOCUMENT_START * self.document_starts[index]).astype(np.uint8)


@dataclasses.dataclass
class Vocabulary:
    """What examples and evaluation need of a tokenizer."""

    word_start: np.ndarray
    special: SpecialIds = XLNET

    @property
    def text_ids(self) -> np.ndarray:
        """As of a `Tokenizer`."""
        return np.setdiff1d(np.arange(len(self.word_start)), self.special)

    def text_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """One character of two bytes for each piece, and nothing for the special ones."""
        is_text = (np.arange(VOCAB) >= 9).astype(np.int64)
        return is_text, 2 * is_text


@functools.cache
def words() -> Words:
    """The shared text."""
    return Words()


def mixture(*texts: Words) -> Mixture:
    """Texts, or the shared one, as the corpora of a run."""
    texts = texts or (words(),)
    names = tuple(f"text{number}" for number in range(len(texts)))
    return Mixture(texts, names, from_weights([text.tokens for text in texts]))


def batch(
    config: Config, step: int = 0, rows: int | None = None, text: Words | None = None
) -> Batch:
    """The batch of a step; `rows` from the start of the data plan."""
    rows = rows or config.train.batch_size
    plan = extend_plan((), 0, rows, config.data.windows_per_block)
    return TrainDispatches(
        mixture(*[text] * bool(text)), config, plan, np.arange(rows), 0, 100
    ).batch(step)


def params(config: Config) -> Any:
    """Fresh parameters, compiled rather than op by op: that is several seconds faster."""
    return jax.jit(lambda: nn.meta.unbox(make_recipe(config).init_params()))()


def saved_parameters(workdir: str) -> tuple[Any, int]:
    """The parameters of the newest checkpoint of a work directory, and its step."""
    # Not importable with the protobuf of Beam.
    from xlnet_jax.infer.opened import find, on_one_device

    return on_one_device(find(workdir))


def save_run(
    workdir: str, config: Config, params: Any, phases: Sequence[dict[str, Any]] = ()
) -> None:
    """A work directory with these parameters, as a run leaves it at step 3."""
    tokenizer = data_fixtures.tokenizer()
    identity = workdirs.identity(config, "1" * 64, tokenizer.sha256, phases)
    with Checkpoints(workdir, config.checkpoint) as checkpoints:
        checkpoints.save(3, {"params": params}, identity)
    workdirs.write_tokenizer(workdir, tokenizer)
    files.write(f"{workdir}/config.json", files.to_json(identity))


def restored(checkpoints: Checkpoints, step: int, abstract: dict[str, Any]) -> dict[str, Any]:
    """The trees of a checkpoint, compared with the checksums of what was saved."""
    return checkpoints.gather(
        step, checkpoints.read(step, abstract), abstract, checkpoints.record(step)
    )
