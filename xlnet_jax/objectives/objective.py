"""The type of an objective: all differences between the values of `data.objective`, except for
functions of arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from xlnet_jax.keys import Rule

Rules = list[Rule]


class Objective(NamedTuple):
    """The targets of a training, with the rules and lengths of its examples."""

    name: str
    """The value of `data.objective`."""
    rules: Callable[[Any], Rules]
    """The rules of a `Config` for lengths of examples and for keys that do not go with them."""
    shortest: Callable[[Any], tuple[int, str]]
    """The number of tokens of the shortest text for a `Config`, and the reason."""
    examples: str = "permuted"
    """The key of `data.batches.examples.BUILDERS` for its batches."""
    stream: str = "content"
    """The stream that predicts. A query stream predicts in any order of the distribution
    `data.factorization_order`.
    """
    causal: bool = False
    """Whether every token is predicted from the tokens before it, by the last of them. Held-out
    text is then read in long streams, and a perplexity is the perplexity of a language model.
    """
    masks: bool = False
    """Whether unknown tokens stand in the text as MASK. A call then predicts from all other tokens,
    and an order needs a call for each token.
    """
    framed: tuple[bool, bool] = (False, False)
    """Whether a text stands between CLS and SEP, for members without and with positions at the
    input.
    """
    whole: bool = False
    """Whether the whole text may be predicted; it then has no A and B."""
    likelihood: str = "exact"
    """The likelihood by a trained model. exact; pseudo: of each token given all others; bound: a
    lower bound.
    """
    measures: tuple[str, ...] = ("left_to_right", "half", "pseudo")
    """Its keys of `infer.estimators`."""
