"""How fast a training step is, beside that of XLNet or ModernBERT in Hugging Face `transformers`,
on the same machine in one run.

    python benchmarks/step.py [--device=cpu] [--json]            needs the extra `peers`;
                                                                 torch.compile takes minutes
    python benchmarks/step.py --eager --rounds=15                without torch.compile
    python benchmarks/step.py --tiny                            tiny sizes, to try it
    python benchmarks/step.py --device=gpu --config=configs/xlnet_large_512.py
                              --config.train.batch_size=16
                                                                 any model, here in bfloat16
    python benchmarks/step.py --device=gpu --figures ours ours_xla
                                                                 these alone, same options

Both sides do the whole step: streams with the memory of the step before, the targets' loss,
backward, clip of the gradient's norm, AdamW. They compute in float32; where a configuration says
bfloat16, theirs is under torch's autocast. Sizes, batches, activation and all dropout rates are the
same; a configuration without dropout has none in any figure. XLNet's gelu is by tanh. ModernBERT
has the attention that transformers takes, and its head only at targets. Other models have no peer:
name the figures. Every side has a process of its own, pinned to the same cores. The sides take
turns of a few steps, so that other work on the machine slows all of them down. Compilation and
first steps are not in the figures. Figures:

  ours_tokens_per_second, peer_..., peer_compiled_...   B T tokens of a step over its time, dropout
                                                        0.1: median of turns
  ours_with_loader_tokens_per_second                    the same with batches of a corpus, read and
                                                        built in threads
  ours_xla_tokens_per_second                            of ours with XLA's attention, as on a CPU:
                                                        not measured there
  mfu                                                   of our figures, model FLOPs over published
                                                        peak; null on a CPU
  compile_cpu_seconds                                   of ours: XLA's CPU seconds for the program
                                                        of a dispatch
  ratio, ratio_compiled                                 ours over the peer's, dropout 0.1: median
                                                        over rounds of turns
  ratio_no_dropout                                      ours over the eager peer's with dropout 0
  ratio_xla                                             ours over ours with XLA's attention, dropout
                                                        0.1
  cpu_per_wall                                          CPU seconds over seconds of a side, dropout
                                                        0.1. Far below the number of cores: the
                                                        machine had other work, do not use the run
  tokens_per_cpu_second                                 of all sides; depends less on what else the
                                                        machine does
  spread                                                smallest and largest turn of every
                                                        tokens_per_second

Where `torch.compile` cannot work, its figures are null and stderr says why.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import _texts
from _sides import STEPS, Made, Ours, Peer, dispatches
from _turns import Turn, taken, timed

DROPOUT = 0.1
OURS, XLA, PEER, COMPILED = "ours", "ours_xla", "peer", "peer_compiled"
FIGURES = {
    "ours": (OURS, DROPOUT),
    "ours_with_loader": (OURS, DROPOUT),
    "ours_xla": (XLA, DROPOUT),
    "peer": (PEER, DROPOUT),
    "peer_compiled": (COMPILED, DROPOUT),
    "ours_no_dropout": (OURS, 0.0),
    "peer_no_dropout": (PEER, 0.0),
}


class CannotCompile(Exception):
    """torch.compile does not work here."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process trains: one side with one dropout rate."""

    side: str
    dropout: float
    device: str
    cores: int
    tiny: bool
    path: str | None
    """A configuration file, with changes of single keys."""
    words: tuple[str, ...]
    corpus: str = ""
    """The batches are its; otherwise random."""

    def config(self):
        """Sizes and optimizer of both sides, as our configuration."""
        from xlnet_jax.config import (
            Config,
            DataConfig,
            ModelConfig,
            OptimizerConfig,
            TrainConfig,
            load,
        )

        given = load(self.path, list(self.words)) if self.path else None
        names = ("dropout", "attention_dropout", "activation_dropout")
        rates = dict.fromkeys(names, self.dropout if not given or given.model.dropout else 0.0)
        if given:
            changes = rates | ({"attention": "xla"} if self.side == XLA else {})
            return given.changed(model=changes, train={"steps_per_dispatch": STEPS})
        sizes = dict(
            vocab_size=8000, layers=4, d_model=256, heads=4, head_dim=64, d_ff=1024, memory_len=96
        )
        data, batch_size = DataConfig(segment_len=128, reuse_len=64, num_predict=21), 8
        if self.tiny:
            sizes = dict(
                vocab_size=400, layers=1, d_model=16, heads=2, head_dim=8, d_ff=32, memory_len=12
            )
            data, batch_size = DataConfig(segment_len=16, reuse_len=8, num_predict=3), 2
        return Config(
            model=ModelConfig(**sizes, **rates, compute_dtype="float32"),
            data=data,
            optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=0),
            train=TrainConfig(batch_size=batch_size, steps_per_dispatch=STEPS),
        )


@functools.cache
def loaded(task: Task):
    """Dispatches of the task's corpus."""
    from xlnet_jax.data.batches.loader import prefetched

    config = task.config()
    return prefetched(dispatches(config, task.corpus), config)


@functools.cache
def trainer(task: Task) -> Ours | Peer:
    """The trainer of a task in this process, made and compiled by the first call."""
    if task.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.cores])
    # Of a GPU's memory, which the others need too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if task.side in (OURS, XLA):
        made = Ours(task.config(), task.device)
        made.steps()
    else:
        made = Peer(task.config(), task.device, task.side == COMPILED, task.cores)
        try:
            made.steps()
        except RuntimeError as error:
            if task.side != COMPILED:
                raise
            raise CannotCompile(str(error).strip().splitlines()[0]) from None
    made.steps()
    return made


def prepare(task: Task) -> Made:
    """Makes the trainer."""
    return trainer(dataclasses.replace(task, corpus="")).made


def take_turn(task: Task) -> Turn:
    """A turn; its result is the loss of the last step."""
    side = trainer(dataclasses.replace(task, corpus=""))
    source = (loaded(task),) if task.corpus else ()
    return timed(lambda: side.steps(*source))


def write_corpus(folder: str, pieces: int) -> str:
    """A corpus of speeches with a tokenizer of that many pieces; its folder."""
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    text, corpus = os.path.join(folder, "text"), os.path.join(folder, "corpus")
    _texts.write(_texts.speeches(), text, 400 * max(pieces, 10_000))
    prepare(
        [text], corpus, PrepareOptions(tokenizer=None, vocab_size=pieces, heldout=0.01, workers=1)
    )
    return corpus


def measure(tasks: dict[str, Task], rounds: int) -> tuple[dict[str, list[Turn]], dict[str, Made]]:
    """All turns of each task that works here, in the order of the rounds, and what was made for
    it.
    """
    context = multiprocessing.get_context("spawn")
    pools = {task.side: ProcessPoolExecutor(1, mp_context=context) for task in tasks.values()}
    try:
        made: dict[str, Made] = {}
        for name, task in tasks.items():
            began = time.perf_counter()
            try:
                made[name] = pools[task.side].submit(prepare, task).result()
            except CannotCompile as error:
                print(f"torch.compile does not work here: {error}", file=sys.stderr)
                continue
            print(
                f"{name}: compiled and warm in {time.perf_counter() - began:.0f} s", file=sys.stderr
            )
        parameters = {name: each.parameters for name, each in made.items()}
        if len(set(parameters.values())) > 1:
            sys.exit(f"the sides do not have the same number of parameters: {parameters}")

        def turn(task: Task) -> Turn:
            return pools[task.side].submit(take_turn, task).result()

        return taken({name: functools.partial(turn, tasks[name]) for name in made}, rounds), made
    finally:
        for pool in pools.values():
            pool.shutdown()


def report(turns: dict[str, list[Turn]], tokens: int) -> dict[str, Any]:
    """The figures; null for a side that has no turns. `tokens` is the number in a turn."""
    rates = {name: [tokens / turn.seconds for turn in turns.get(name, [])] for name in FIGURES}
    median = lambda values: statistics.median(values) if values else None  # noqa: E731

    def ratio(ours: str, peer: str) -> float | None:
        return median([a / b for a, b in zip(rates[ours], rates[peer], strict=False)])

    return {
        **{f"{name}_tokens_per_second": median(values) for name, values in rates.items()},
        "ratio": ratio(OURS, PEER),
        "ratio_compiled": ratio(OURS, COMPILED),
        "ratio_no_dropout": ratio("ours_no_dropout", "peer_no_dropout"),
        "ratio_xla": ratio(OURS, XLA),
        "cpu_per_wall": {
            name: sum(turn.cpu_seconds for turn in turns[name])
            / sum(turn.seconds for turn in turns[name])
            for name in (OURS, XLA, PEER, COMPILED)
            if name in turns
        },
        "tokens_per_cpu_second": {
            name: tokens * len(values) / sum(turn.cpu_seconds for turn in values)
            for name, values in turns.items()
        },
        "spread": {name: [min(values), max(values)] for name, values in rates.items() if values},
        "loss": {name: values[-1].result for name, values in turns.items()},
    }


def show(result: dict[str, Any]) -> None:
    heads = ("median", "smallest", "largest", "CPU/wall", "per CPU s", "loss")
    print(f"{'tokens per second':18} " + " ".join(f"{head:>9}" for head in heads))
    for name, (low, high) in result["spread"].items():
        cpu = result["cpu_per_wall"].get(name)
        columns = f"{result[f'{name}_tokens_per_second']:9,.0f} {low:9,.0f} {high:9,.0f}"
        columns += (
            f" {'' if cpu is None else format(cpu, '.2f'):>9} "
            f"{result['tokens_per_cpu_second'][name]:9,.0f}"
        )
        print(f"{name:18} {columns} {result['loss'][name]:9.4f}")
    for name in ("ratio", "ratio_compiled", "ratio_no_dropout", "ratio_xla"):
        print(f"{name:18} {'null' if result[name] is None else format(result[name], '.2f'):>9}")
    for name in (
        "mfu",
        "compile_cpu_seconds",
        "dropout",
        "device",
        "cores",
        "parameters",
        "load_average",
    ):
        print(f"{name:18} {result[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cpu", help="platform of JAX and of torch; gpu is CUDA (default cpu)"
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=2,
        help="that every side may use, and torch's threads (default 2)",
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help=f"of turns of {STEPS} steps (default 9)"
    )
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--figures", nargs="+", choices=FIGURES, help="only these (default: all but ours_xla)"
    )
    parser.add_argument(
        "--corpus", help="folder of `prepare` to read, instead of speeches that are prepared first"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="tiny sizes, of three sides unless --figures names them: the figures mean nothing",
    )
    parser.add_argument(
        "--config", help="configuration file, with changes as --config.train.batch_size=32"
    )
    parser.add_argument("--json", action="store_true")
    args, words = parser.parse_known_args()
    if args.tiny and not args.figures:
        args.figures, args.rounds = ["ours", "ours_with_loader", "peer"], 1
    if unknown := [word for word in words if not (args.config and word.startswith("--config."))]:
        parser.error(f"unknown: {' '.join(unknown)}")
    if missing := [
        name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None
    ]:
        sys.exit(f"{' and '.join(missing)} not installed; run `make .venv/peers.stamp`")
    if "xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "") and not args.tiny:
        sys.exit("XLA_FLAGS asks for unoptimised code, which the tests use; unset it")
    tasks = {
        name: Task(side, dropout, args.device, args.cores, args.tiny, args.config, tuple(words))
        for name, (side, dropout) in FIGURES.items()
        if (name in args.figures if args.figures else side != XLA)
        and not (args.eager and side == COMPILED)
    }
    load, config = [os.getloadavg()[0]], next(iter(tasks.values())).config()
    with_peer = {task.side for task in tasks.values()} & {PEER, COMPILED}
    if with_peer and config.model.architecture not in ("xlnet", "modernbert"):
        sys.exit(f"{config.model.architecture} has no peer here; name the figures: --figures ours")
    with tempfile.TemporaryDirectory() as folder:
        if loading := tasks.get("ours_with_loader"):
            corpus = args.corpus or write_corpus(folder, config.model.vocab_size)
            tasks["ours_with_loader"] = dataclasses.replace(loading, corpus=corpus)
        turns, made = measure(tasks, args.rounds)
    result = report(turns, STEPS * config.train.batch_size * config.data.segment_len)
    ours = {name: each for name, each in made.items() if each.flops}
    result["mfu"] = {
        name: each.peak
        and each.flops * STEPS / each.peak / statistics.median(turn.seconds for turn in turns[name])
        for name, each in ours.items()
    }
    result["compile_cpu_seconds"] = {name: each.compile_cpu_seconds for name, each in ours.items()}
    load.append(os.getloadavg()[0])
    result |= {
        "dropout": config.model.dropout,
        "device": args.device,
        "cores": args.cores,
        "load_average": load,
        "parameters": next(iter(made.values())).parameters,
    }
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
