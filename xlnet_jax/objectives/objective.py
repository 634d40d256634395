"""What an objective is: all that differs between the values of `data.objective`, but for functions
of arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from xlnet_jax.keys import Rule

Rules = list[Rule]


class Objective(NamedTuple):
    """A value of `data.objective`."""

    name: str
    """That value."""
    rules: Callable[[Any], Rules]
    """Of a `Config`: the lengths of its examples, and what does not go with them."""
    shortest: Callable[[Any], tuple[int, str]]
    """Of a `Config`: tokens of the least text, and what needs them."""
    examples: str = "permuted"
    """How its batches are made: `data.batches.examples.BUILDERS`."""
    stream: str = "content"
    """The stream that predicts. query: in any order, of the distribution
    `data.factorization_order`.
    """
    causal: bool = False
    """Every token is predicted from those before it, by the last of them. So held-out text is read
    in long streams, and a perplexity is that of a language model.
    """
    masks: bool = False
    """What is unknown stands in the text as MASK, and a call predicts from all else: an order needs
    a call for each token.
    """
    framed: tuple[bool, bool] = (False, False)
    """Whether a text stands between CLS and SEP: of a member without positions at the input, and of
    one with them.
    """
    whole: bool = False
    """All of the text may be predicted, and it has no A and B."""
    likelihood: str = "exact"
    """What a trained model is asked for. exact; pseudo: of each token given all others; bound:
    below the exact one.
    """
    measures: tuple[str, ...] = ("left_to_right", "half", "pseudo")
    """Those of `infer.estimators` that it has."""
