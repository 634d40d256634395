"""`xlnet-jax inspect`: shows a training example as the model receives it, with its masks, or the
number of parameters.
"""

from __future__ import annotations

import functools
import logging

import flax.linen as nn
import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from xlnet_jax import config as configs
from xlnet_jax.batch import NEVER
from xlnet_jax.config import Config
from xlnet_jax.convert import names
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.distributed.mesh import available_devices
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.xlnet import TENSORFLOW
from xlnet_jax.messages import how_to_install, print_lines, printable, quantity
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage.files import Json
from xlnet_jax.train.launch import plan_until
from xlnet_jax.train.recipe import make_recipe

log = logging.getLogger("xlnet_jax")


def inspect(
    path: str | None,
    workdir: str | None,
    step: int,
    row: int,
    output: str | None,
    parameters: bool,
    overrides: list[str],
) -> Json:
    """Returns `example`, and draws it to `output` if given; with `parameters` returns
    `count_parameters`.

    Raises BadInput unless there is either the `path` of a configuration or a `workdir`.
    """
    if (path is None) == (workdir is None):
        raise BadInput(
            "give --config=FILE, or the --workdir of a run" + ", not both" * (path is not None)
        )
    if output and parameters:
        raise BadInput("--output draws an example; leave it out with --parameters")
    config = (
        workdirs.load_config(workdir, overrides) if workdir else configs.load(str(path), overrides)
    )
    of_phase = config.parts[config.phase_before(step + 1)]
    result = count_parameters(of_phase) if parameters else example(config, step, row)
    if output:
        draw(result, output)
        log.info("the picture is in %s", output)
    return result


def show(result: Json) -> None:
    """Prints the result of `inspect`."""
    print_lines(result) if "parameters" in result else print_example(result)


def count_parameters(config: Config) -> Json:
    """Counts `parameters` and `tensors`, as in the original's checkpoints where possible; lists the
    `families` for `model.architecture`, the family of this model first. Computes nothing.
    """
    available_devices()  # JAX makes a random key even if nothing is computed
    params = nn.meta.unbox(make_recipe(config).abstract_params)
    ours = names.by_path(params).keys()
    if not config.model.share_layers and ours <= {entry.ours for entry in TENSORFLOW}:
        params = jax.eval_shape(functools.partial(names.to_foreign, TENSORFLOW), params)
    tensors = jax.tree.leaves(params)
    families = sorted(MEMBERS, key=lambda name: name != config.model.architecture)
    return {
        "parameters": sum(int(np.prod(x.shape)) for x in tensors),
        "tensors": len(tensors),
        "families": families,
    }


def example(config: Config, step: int, row: int) -> Json:
    """Returns the example in one row of one step, for a run with a constant batch size.

    Returns:
      `tokens`, `pieces`, `segments`, `rank` of length T, as fed; `floor`, the lowest rank that each
      position sees (None: all); `targets` (positions) and `predicted` (their pieces); `direction`;
      `continues`; `label`, None where there is none; `objective`, `pairs` and `memory_len` of the
      configuration.

    Raises BadInput: no such row or step, or a corpus that does not fit.
    """
    whole, config = config, config.parts[config.phase_before(step + 1)]
    if row >= config.train.batch_size:
        raise BadInput(f"--row={row} is not in [0, train.batch_size={config.train.batch_size})")
    mixture = open_mixture(config)
    mixture.check(config)
    mixture.stream(config).check(config.train.batch_size, mixture.split_names())
    plan = plan_until(mixture, whole, step)
    batch = loader.TrainDispatches(mixture, config, plan, np.array([row]), step, step + 1).batch(
        step
    )
    used = batch.target_weights[0] > 0
    pieces = mixture.tokenizer.pieces
    return {
        "step": step,
        "row": row,
        "tokens": batch.tokens[0].tolist(),
        "pieces": [pieces[token] for token in batch.tokens[0]],
        "segments": batch.segments[0].tolist(),
        "rank": batch.rank[0].tolist(),
        "floor": batch.documents and batch.documents.floor[0].tolist(),
        "targets": batch.target_positions[0][used].tolist(),
        "predicted": [pieces[token] for token in batch.target_tokens[0][used]],
        "direction": int(batch.direction[0]),
        "continues": bool(batch.continues[0]),
        "label": int(batch.label[0]) if batch.label_weight[0] else None,
        "objective": config.data.objective,
        "pairs": config.data.pairs,
        "memory_len": config.model.memory_len,
    }


def visible(
    rank: list[int], targets: list[int], floor: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the content mask and the query mask, bool [T, T]: row i sees column j. Only targets
    have a query, and no row sees padding. Every row also sees the memory. `floor` is the lowest
    rank that each row sees; None = all.
    """
    rank_T = np.asarray(rank)
    has_query_T = np.isin(np.arange(len(rank_T)), targets)
    content_TT = (rank_T <= rank_T[:, None]) & (rank_T < NEVER)
    if floor is not None:
        content_TT &= rank_T >= np.asarray(floor)[:, None]
    return content_TT, content_TT & (rank_T < rank_T[:, None]) & has_query_T[:, None]


_PAIRS = {
    "next": ("B is from elsewhere", "B follows A"),
    "order": ("A and B are swapped", "A and B are in order"),
}
"""Descriptions of the labels 0 and 1, by `data.pairs`."""


def print_example(shown: Json) -> None:
    """Prints a table of the positions; for a target also the piece to predict and the positions
    that it sees.
    """
    targets = dict(zip(shown["targets"], shown["predicted"], strict=True))
    by_query = OBJECTIVES[shown["objective"]].stream == "query"
    sight = visible(shown["rank"], shown["targets"], shown["floor"])[by_query]
    pair = "" if shown["label"] is None else f"{_PAIRS[shown['pairs']][shown['label']]}, "
    # A piece may look like markup.
    console = Console(markup=False, emoji=False)
    memory = "continues its memory, " if shown["continues"] else "starts with an empty memory, "
    console.print(
        f"step {shown['step']} row {shown['row']}: "
        f"{'forward' if shown['direction'] > 0 else 'reversed'}, "
        f"{memory if shown['memory_len'] else ''}{pair}{quantity(len(targets), 'target')}"
    )
    table = Table("position", "piece", "segment", "rank", "predicts", "sees")
    for i, (piece, segment, rank) in enumerate(
        zip(shown["pieces"], shown["segments"], shown["rank"], strict=True)
    ):
        predicts = sees = ""
        if i in targets:
            earlier = [str(j) for j in sorted(targets) if sight[i, j]]
            others = quantity(sight[i].sum() - len(earlier), "other")
            predicts, sees = targets[i], f"{others}, targets {' '.join(earlier) or '-'}"
        place = "padding" if rank == NEVER else str(rank)
        table.add_row(*map(printable, (str(i), piece, str(segment), place, predicts, sees)))
    console.print(table)


def draw(shown: Json, path: str) -> None:
    """Writes the masks as a PNG; dark cells are visible. Raises BadInput without matplotlib, or if
    the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput(f"--output needs matplotlib: {how_to_install('quickstart')}") from error
    figure = Figure(figsize=(13, 6.5), layout="constrained")
    names = ("content", "query")[: 1 + (OBJECTIVES[shown["objective"]].stream == "query")]
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, mask, name in zip(
        panels,
        visible(shown["rank"], shown["targets"], shown["floor"]),
        names,
        strict=False,
    ):
        axes.imshow(mask, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        left = [-2] * len(shown["targets"])
        axes.plot(left, shown["targets"], "_", color="tab:red", clip_on=False)
        axes.set(
            title=f"{name} stream: row sees column (targets marked red)",
            xlabel="key",
            ylabel="query",
        )
    memory = "; the memory is visible to all" if shown["memory_len"] else ""
    figure.suptitle(f"step {shown['step']}, row {shown['row']}{memory}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise BadInput(f"--output={path}: {summary(error)}") from error
