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
    """Rules of a `Config`: lengths of examples, and keys that conflict with the objective."""
    shortest: Callable[[Any], tuple[int, str]]
    """The number of tokens of the shortest text for a `Config`, and the reason."""
    examples: str = "permuted"
    """The key of `data.batches.examples.BUILDERS` for its batches."""
    stream: str = "content"
    """The stream that predicts. A query stream predicts in any order of the distribution
    `data.factorization_order`.
    """
    causal: bool = False
    """Whether every token is predicted from the tokens before it, at the last of these tokens.
    Held-out text is then read in long streams, and a perplexity is the perplexity of a language
    model.
    """
    masks: bool = False
    """Whether unknown tokens are MASK in the text. A call then predicts from all other tokens, and
    the chain rule in one order needs a call for each token.
    """
    framed: tuple[bool, bool] = (False, False)
    """Whether a text stands between CLS and SEP: with `Member.bounded` False, and True."""
    whole: bool = False
    """Whether the whole text may be predicted; it then has no A and B."""
    likelihood: str = "exact"
    """Likelihood of a text under a trained model. exact; pseudo: of each token given all others;
    bound: a lower bound.
    """
    measures: tuple[str, ...] = ("left_to_right", "half", "pseudo")
    """Its keys of `infer.estimators`."""
