"""Vectors of texts whose cosine is the similarity of the texts, learnt from pairs of similar texts.

    loss_i = -( log softmax_j( cos(a_i, b_j) / t )[i] + log softmax_j( cos(b_i, a_j) / t )[i] ) / 2

The other texts of the batch on all devices are the negatives (InfoNCE). The vectors are gathered
inside the step's `shard_map`, so the loss does not depend on the number of devices. Micro-batches
would change the loss, so the rules of the configuration refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import ModelConfig
from xlnet_jax.data import layouts
from xlnet_jax.finetune import metrics, readers, unlabelled
from xlnet_jax.finetune.classification import correlations
from xlnet_jax.finetune.heads import cross_entropy, pooled
from xlnet_jax.finetune.task import Example, Hidden, Labels, Outputs, Scores, Task
from xlnet_jax.storage.files import Json

_ROWS = 1024  # rows of the similarity table that are computed at a time


class EmbeddingHead(nn.Module):
    """Pools the vectors of a sequence; has no parameters."""

    pooling: str
    """See `heads.pooled`."""
    temperature: float
    normalize: bool = False
    """Whether vectors have length 1."""

    def vectors(self, hidden: Hidden) -> jax.Array:
        """Returns the vectors, [B, C, D], at least float32."""
        pooled_BCD = pooled(hidden, self.pooling)
        return _unit(pooled_BCD, jnp) if self.normalize else pooled_BCD

    def losses(self, hidden: Hidden, labels: Labels) -> jax.Array:
        """Returns loss_B of rows of two texts."""
        return contrastive_losses(self.vectors(hidden), self.temperature)

    def predictions(self, hidden: Hidden) -> dict[str, jax.Array]:
        """Returns the vectors."""
        return {"vectors": self.vectors(hidden)}


def contrastive_losses(vectors_B2D: jax.Array, temperature: float) -> jax.Array:
    """Returns the losses [B] of the rows on this device, with the texts of the whole batch as
    negatives.
    """
    unit_B2D = _unit(vectors_B2D, jnp)
    mesh = jax.sharding.get_abstract_mesh()
    # Under `jit` an array is the whole batch; under `shard_map` it is the part of one device.
    axes = tuple(
        name for name in mesh.axis_names if name in mesh.manual_axes and mesh.shape[name] > 1
    )
    every_N2D = jax.lax.all_gather(unit_B2D, axes, tiled=True) if axes else unit_B2D
    first = jax.lax.axis_index(axes) * len(unit_B2D) if axes else 0
    partner_B = first + jnp.arange(len(unit_B2D))
    a_to_b_BN, b_to_a_BN = (unit_B2D[:, c] @ every_N2D[:, 1 - c].T / temperature for c in range(2))
    return 0.5 * (cross_entropy(a_to_b_BN, partner_B) + cross_entropy(b_to_a_BN, partner_B))


class Embeddings(Task):
    """Makes vectors of pairs of texts, in `predict` also of single texts."""

    read, usual = staticmethod(readers.pairs), staticmethod(readers.usual_pair)
    options = frozenset({"normalize", "pooling", "segments", "temperature"})
    no_label = staticmethod(unlabelled.beside_others)

    @property
    def metrics(self) -> tuple[str, ...]:
        """See `Task`."""
        columns = self.config.finetune.column_list()
        return ("spearman", "pearson") if len(columns) > 2 else ("accuracy",)

    def sequences(self, example: Example) -> list[layouts.Sequence]:
        """Returns a sequence for each text."""
        encode = self.tokenizer.encode
        return [layouts.sentences(self.layout, self.length, encode(text)) for text in example.texts]

    def head(self, config: ModelConfig) -> EmbeddingHead:
        """See `EmbeddingHead`."""
        options = self.config.finetune
        return EmbeddingHead(options.pooling, options.temperature, options.normalize)

    def output(self, prediction: Labels) -> Json:
        """Returns the vector of each text, and the cosine of two texts."""
        vectors_CD = prediction["vectors"]
        pair = {"similarity": float(np.dot(*_unit(vectors_CD)))} if len(vectors_CD) == 2 else {}
        return {"vectors": vectors_CD.tolist()} | pair

    def score(self, outputs: Outputs, examples: Sequence[Example]) -> Scores:
        """Returns the correlations of the cosines with the labels. Without labels: the share of
        first texts whose nearest second text is their partner.
        """
        if examples[0].label is not None:
            return correlations(examples, [output["similarity"] for output in outputs])
        unit_N2D = _unit(np.array([each["vectors"] for each in outputs]))
        nearest = [
            (unit_N2D[first : first + _ROWS, 0] @ unit_N2D[:, 1].T).argmax(axis=1)
            for first in range(0, len(unit_N2D), _ROWS)
        ]
        return {"accuracy": metrics.accuracy(np.arange(len(unit_N2D)), np.concatenate(nearest))}


def _unit(vectors: Any, library: Any = np) -> Any:
    """Vectors scaled to length 1, by numpy or `jax.numpy`."""
    return vectors / library.linalg.norm(vectors, axis=-1, keepdims=True)
