"""Generation from texts to texts: what `xlnet_jax.load(...).generate` and `xlnet-jax generate` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.infer.generate import Generator
from xlnet_jax.infer.sampling import PLAIN, Sampling

TextListener = Callable[[int, str, bool], None]
"""Called with the number of a prompt, the text that is new since the last call, and whether it has ended."""


def continue_texts(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling = PLAIN,
    listener: TextListener | None = None,
) -> list[str]:
    """What follows each prompt, without the prompt. Raises BadInput; see `Generator`."""
    ids = [tokenizer.encode(text).tolist() for text in prompts]
    new: list[list[int]] = [[] for _ in prompts]
    shown = [""] * len(prompts)

    def heard(number: int, more: list[int], ended: bool) -> None:
        new[number] += more
        text = text_after(tokenizer, ids[number], [id for id in new[number] if id != generator.stop])
        if not ended:
            text = text.rstrip("\ufffd")  # a character that has only some of its bytes yet
        if listener is not None:
            listener(number, text[len(shown[number]) :], ended)
        shown[number] = text

    generator(ids, tokens, sampling, heard)
    return shown


def text_after(tokenizer: Tokenizer, before: list[int], new: list[int]) -> str:
    """The text of the new ids as it follows the others: with the space before a word that starts there."""
    start, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(new)
