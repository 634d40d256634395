"""What a masked language model (`mlm`) says: of one unknown token, given all others.

    conditional          p(x_i | all but x_i)              one pass, in which position i is MASK
    pseudo-likelihood    sum_i log p(x_i | all but x_i)    a pass for each token

The sum is no likelihood: its terms are of no joint distribution. So it has a name of its own
(Salazar et al. 2020, arXiv:1910.14659). Of several unknown tokens each would be predicted without
knowing of the others; only one is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.infer.decoder import Filled
from xlnet_jax.infer.infill import Gapped
from xlnet_jax.infer.options import Fill
from xlnet_jax.infer.sampling import Sampling, most_probable, sample


class Pseudo(NamedTuple):
    """Of the U scored tokens of one text."""

    position_U: np.ndarray
    """int: where they are in the text, ascending."""
    log_prob_U: np.ndarray
    """log p of each given all others, nats."""

    @property
    def pseudo_log_prob(self) -> float:
        """Their sum."""
        return float(self.log_prob_U.sum())


def filled(texts: Sequence[Gapped], logits_BV: Any, asked: Fill) -> list[Filled]:
    """Each text with its unknown piece drawn from its row of logits, or the most probable ones."""
    B, logits_BV = len(texts), jnp.asarray(logits_BV)
    number_B, count_B = jnp.arange(B), jnp.zeros(B, jnp.int32)
    token_B = sample(logits_BV, Sampling.of(asked), number_B, count_B, asked.filtered)
    log_prob_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), token_B[:, None], axis=1)[:, 0]
    best = zip(*jax.device_get(most_probable(logits_BV, asked.top)), strict=True)
    results = []
    for text, token, log_prob, pair in zip(
        texts, *jax.device_get((token_B, log_prob_B)), best, strict=True
    ):
        at = text.known.index(False)
        token_N = np.array(text.ids, np.int32)
        token_N[at] = token
        one = Filled(token_N, np.array([at]), np.array([log_prob]), 1)
        results.append(one.with_best(*pair) if asked.top > 1 else one)
    return results
