"""Evaluation by sliding one token at a time, as models without memory need it (Al-Rfou et al. 2018, arXiv 1808.04444).

Inside a segment the first positions have hardly any context. So every token is predicted from the last position of a
window of its own, which holds exactly the `context` tokens before it, and the window is computed from nothing. What
only other positions would use is left out: the last layer and the softmax have one row per window.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.batch import Batch
from xlnet_jax.errors import BadInput
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import Recipe


class Sliding:
    """The likelihood of each token of a text given exactly the `context` tokens before it.

    Compiles at the first call. Requires the mesh in use (`jax.set_mesh`).

    Args:
      recipe: of a left-to-right model; with absolute positions `context` is at most `data.segment_len`.
      batch_size: windows that are computed together; they are split over the rows of the mesh.
    """

    def __init__(self, recipe: Recipe, mesh: Mesh, context: int, batch_size: int) -> None:
        config = recipe.config
        if not recipe.model.transformer.left_to_right:
            raise BadInput(
                f"data.objective={config.data.objective}: only left-to-right models (clm) predict a next token"
            )
        if context < 1 or (config.model.position_scheme == "absolute" and context > config.data.segment_len):
            raise BadInput(
                f"a context of {context} tokens does not fit; this model has positions for 1 to "
                f"data.segment_len={config.data.segment_len}"
            )
        meshes.check_batch_size(batch_size, mesh, "evaluation.batch_size")
        self.context, self.batch_size = context, batch_size
        self._everywhere, self._rows = NamedSharding(mesh, PartitionSpec()), meshes.batch_sharding(mesh)

        def run(params: Any, tokens_N: jax.Array, start_B: jax.Array) -> jax.Array:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                windows_BN = tokens_N[start_B[:, None] + jnp.arange(context + 1)[None]]
                return nll(recipe.model, params, windows_BN)

        self._run = jax.jit(run, out_shardings=self._everywhere)

    def __call__(self, params: Any, tokens_N: np.ndarray) -> np.ndarray:
        """-log p in nats of all tokens but the first `context`: float32 [N - context].

        Args:
          params: placed on the mesh.
          tokens_N: int32, the text, equal in all processes.

        Raises BadInput if the text has no token with so many before it.
        """
        count = len(tokens_N) - self.context
        if count < 1:
            raise BadInput(
                f"a text of {len(tokens_N)} tokens is too short for a context of {self.context}; it needs one more"
            )
        text_N = jax.device_put(np.asarray(tokens_N, np.int32), self._everywhere)
        found = []
        for first in range(0, count, self.batch_size):
            # Past the end the last window is computed again, and cut off below.
            start_B = np.minimum(first + np.arange(self.batch_size, dtype=np.int32), count - 1)
            found.append(self._run(params, text_N, jax.device_put(start_B, self._rows)))
        return np.concatenate(jax.device_get(found))[:count]


def nll(model: LanguageModel, params: Any, windows_BN: jax.Array) -> jax.Array:
    """-log p of the last token of each window given those before it, [B], at least float32."""
    B, T = windows_BN.shape[0], windows_BN.shape[1] - 1
    zero_B, zero_BT, one_B1 = jnp.zeros(B, jnp.int32), jnp.zeros((B, T), jnp.int32), jnp.ones((B, 1), jnp.int32)
    batch = Batch(
        tokens=windows_BN[:, :T], segments=zero_BT, rank=zero_BT + jnp.arange(T)[None], direction=zero_B + 1,
        continues=zero_B > 0, target_positions=one_B1 * (T - 1), target_tokens=windows_BN[:, T:],
        target_weights=one_B1.astype(jnp.float32), summary_position=zero_B, label=zero_B,
        label_weight=zero_B.astype(jnp.float32),
    )  # fmt: skip
    transformer = model.transformer.clone(last_layer_at_targets=True)
    out: Any = transformer.apply({"params": params}, batch, empty_memory(transformer.config, B, 0), deterministic=True)
    return model.nll(params, out.target_vectors_BPD, batch.target_tokens)[:, 0]
