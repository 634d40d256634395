"""`xlnet-jax fill`, `generate` and `score`: fills, continues or scores texts, with one JSON object
for each.

On a terminal `fill` and `generate` print texts instead; `generate` prints each text while it
generates it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from xlnet_jax import messages
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.infill import Passage, ids_of_passage
from xlnet_jax.infer.options import Generate, Score
from xlnet_jax.infer.score import Likelihood
from xlnet_jax.library import on_all_devices
from xlnet_jax.messages import suggest_file
from xlnet_jax.run import progress
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json


def fill(
    workdir: str,
    *,
    texts: Sequence[str] = (),
    input: str | None = None,
    step: int | None = None,
    batch_size: int = 16,
    overrides: Sequence[str] = (),
    **options: Any,
) -> list[Json]:
    """Fills the gaps of every text; see `library.Model.fill`, also for `options` and errors.

    Args:
      input: a file with more texts, one per line, or JSON objects with `text` if its name ends in
        .jsonl; `-` = stdin. Empty lines are left out.
      step: the checkpoint; None = the newest good one.
      overrides: elastic or free config keys to change.

    Returns:
      The fields of `infer.infill.Infilled` for each text, in the order of the texts. Several
      samples of a text also have their number `sample`, or with `top` their `rank`, from 1.
    """
    model = on_all_devices(workdir, overrides, step, batch_size)
    rows = gather(
        texts, input, lambda path: (fields["text"] for fields in _objects(path, ("text",)))
    )
    filled = model.fill(rows, **options)
    several, name = len(filled) > len(rows), "rank" if options.get("top", 1) > 1 else "sample"
    return [
        ({name: turn} if several else {})
        | one._asdict()
        | {"gaps": [gap._asdict() for gap in one.gaps]}
        for number in range(len(rows))
        for turn, one in enumerate(filled[number :: len(rows)], 1)
    ]


def generate(
    workdir: str,
    *,
    texts: Sequence[str] = (),
    prompt: Sequence[str] = (),
    input: str | None = None,
    step: int | None = None,
    batch_size: int = 16,
    on_terminal: bool = False,
    overrides: Sequence[str] = (),
    **options: Any,
) -> list[Json]:
    """Continues every prompt; see `library.Model.generate`, also for `options` and errors, and
    `fill`.

    Args:
      texts, prompt: texts to continue, in this order; an empty text starts a document.
      on_terminal: also print the texts in their order; left-to-right models print while they write.

    Returns:
      `prompt` and its continuation `text`, in the order of the prompts; for a model of any order
      also `exact`: false if tokens were drawn in parallel.
    """
    asked, model = Generate(**options), on_all_devices(workdir, overrides, step, batch_size)
    prompts = gather([*texts, *prompt], input, lambda path: filter(str.strip, read_lines(path)))
    continued = model.generate(
        prompts, listener=Terminal(prompts) if on_terminal else None, **options
    )
    exact = {} if model.config.objective.causal else {"exact": asked.tokens_per_step == 1}
    return [
        {"prompt": before, "text": text, **exact}
        for before, text in zip(prompts, continued, strict=True)
    ]


def for_people() -> bool:
    """Whether the command line prints texts, not JSON."""
    return sys.stdout.isatty() and not messages.output.json


def fill_shown(**options: Any) -> list[Json]:
    """Calls `fill` for the command line. On a terminal prints the texts and the contents of their
    gaps, and returns [].
    """
    filled = fill(**options)
    if not for_people():
        return filled
    for one in filled:
        print(messages.printable_lines(one["text"]))
        for gap in one["gaps"]:
            log_prob = gap["log_prob"]
            print(f"  {messages.printable(gap['text'])}  {chance(log_prob)}  ({log_prob:.2f} nats)")
    return []


def generate_shown(**options: Any) -> list[Json]:
    """Calls `generate` for the command line. On a terminal prints the texts, and returns []."""
    continued = generate(**options, on_terminal=for_people())
    return [] if for_people() else continued


def chance(log_prob: float) -> str:
    """Formats exp(log_prob): `12.3 %`, or `2.1e-05` below one in a thousand."""
    probability = math.exp(log_prob)
    return f"{100 * probability:.1f} %" if probability >= 1e-3 else f"{probability:.1e}"


class Terminal:
    """A `TextListener` that prints texts in the order of the prompts: a text starts when the text
    before it has ended.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        self._waiting, self._ended, self._at = list(prompts), set[int](), 0

    def __call__(self, number: int, text: str, ended: bool) -> None:
        """Takes the next characters of a text, and prints all that can be printed now."""
        self._waiting[number] += text
        self._ended |= {number} if ended else set()
        while self._at < len(self._waiting):
            print(messages.printable_lines(self._waiting[self._at]), end="", flush=True)
            self._waiting[self._at] = ""
            if self._at not in self._ended:
                break
            self._at += 1
            print("\n" if self._at < len(self._waiting) else "")


def score(
    workdir: str,
    *,
    texts: Sequence[str] = (),
    input: str | None = None,
    step: int | None = None,
    batch_size: int = 16,
    overrides: Sequence[str] = (),
    **options: Any,
) -> list[Json]:
    """Computes the log-likelihood of every text; see `library.Model.score`, also for `options` and
    errors, and `fill`.

    Args:
      texts: texts to score as a whole; JSON objects of `input` may also have the known text
        `before` and `after`.

    Returns:
      For each text, in nats: `log_prob`, the mean over the orders; with several orders their
      standard deviation `spread`, and `log_mean_exp`; `mean_log_prob` per piece; `pieces`, and the
      mean `log_probs` of each piece. In place of `log_prob` a masked model has `pseudo_log_prob`;
      masked diffusion has `elbo`, its `standard_error` (None for one draw) and the `draws`. With
      `order=confidence` all have `log_prob`, and `order`: the place of each piece, from 1.
    """
    model, asked = on_all_devices(workdir, overrides, step, batch_size), Score(**options)
    likelihood = model.config.objective.likelihood
    passages = gather(
        map(Passage, texts),
        input,
        lambda path: (Passage(**fields) for fields in _objects(path, Passage._fields)),
    )
    if likelihood == "pseudo" and asked == Score():
        scored = [
            (one.position_U, one.log_prob_U, {"pseudo_log_prob": one.pseudo_log_prob})
            for one in model.pseudo_score(passages)
        ]
    elif likelihood == "bound" and asked.order != "confidence":
        scored = [
            (
                one.position_U,
                one.term_KU.mean(axis=0),
                {
                    "elbo": one.elbo,
                    "standard_error": progress.number(np.float64(one.standard_error)),
                    "draws": len(one.term_KU),
                },
            )
            for one in model.elbo(passages, **options)
        ]
    else:
        scored = [
            (one.position_U, one.log_prob_KU.mean(axis=0), _of_orders(one))
            for one in model.score(passages, **options)
        ]
    results = list[Json]()
    for number, (passage, scores) in enumerate(zip(passages, scored, strict=True), 1):
        position_U, log_prob_U, totals = scores
        tokens, _ = ids_of_passage(model.tokenizer, passage, number)
        # A left-to-right model of whole documents also scores the end, at the next position.
        tokens.append(model.tokenizer.special.eod)
        results.append(
            {
                "text": passage.text,
                **totals,
                "mean_log_prob": float(log_prob_U.mean()),
                "pieces": [model.tokenizer.pieces[tokens[position]] for position in position_U],
                "log_probs": log_prob_U.tolist(),
            }
        )
    return results


def _of_orders(score: Likelihood) -> Json:
    totals = {"log_prob": float(score.joint_K.mean())}
    if len(score.joint_K) > 1:
        totals |= {"spread": float(score.joint_K.std(ddof=1)), "log_mean_exp": score.log_mean_exp}
    if score.place_U is not None:
        totals["order"] = score.place_U.tolist()
    return totals


def gather(
    given: Iterable[Any], path: str | None, read: Callable[[str], Iterable[Any]]
) -> list[Any]:
    """Returns the given texts, then the texts that `read` returns for the file of `--input`. Raises
    BadInput if there are none.
    """
    rows = [*given, *(read(path) if path else ())]
    if not rows:
        raise BadInput(
            f"--input={path} has no text" if path else "no text; give texts, or --input=FILE"
        )
    return rows


def read_lines(path: str) -> list[str]:
    """Reads the lines of `--input`, a file or `-` for stdin. Raises BadInput."""
    if path == "-" and sys.stdin is None:
        raise BadInput("--input=-: stdin is closed; give a file, or send the lines to stdin")
    with files.translate_errors(path):
        data = sys.stdin.buffer.read() if path == "-" else files.read_if_there(path)
    if data is None:
        raise BadInput(f"--input={path}: no such file{suggest_file(path)}")
    if b"\0" in data:
        raise BadInput(f"--input={path}: a NUL byte, so it is not UTF-8 text; convert the file")
    try:
        return files.lines(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"--input={path}: not UTF-8 at byte {error.start}; convert the file"
        ) from error


def _objects(path: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the rows of `--input` as objects with `text`, the first of `names`, and optionally the
    other names. Empty lines are left out.

    Rows are JSON objects if the name of the file ends in .jsonl, or if the first row of stdin
    starts with a brace; otherwise they are texts. Raises BadInput.
    """
    lines = read_lines(path)
    as_json = path.endswith(".jsonl") or (path == "-" and "".join(lines).lstrip().startswith("{"))
    others = f", and {' and '.join(names[1:])} if there are any" * (len(names) > 1)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, row {number}"
        fields = files.json_object(line, where) if as_json else {"text": line}
        if (
            "text" not in fields
            or not fields.keys() <= {*names}
            or {*map(type, fields.values())} != {str}
        ):
            raise BadInput(f"{where}: give an object of strings: text{others}, and nothing else")
        yield fields
