"""Verbs that train, and those that show beforehand what training will do."""

from __future__ import annotations

import argparse
import os
from typing import Any

from xlnet_jax.errors import BadInput
from xlnet_jax.verbs import Verb, print_lines


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="Python file; --config.KEY=VALUE changes a key")


def _train_options(parser: argparse.ArgumentParser) -> None:
    _config_option(parser)
    parser.add_argument("--workdir", required=True, help="checkpoints, metrics and manifest go here, also gs://")
    parser.add_argument("--stop_at", type=int, help="save and stop in order after this step")
    parser.add_argument("--dry_run", action="store_true", help="check everything up to the first step; write nothing")


def _train(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    # Before the imports, which take seconds.
    with stop_request():
        from xlnet_jax.config import load

        config = load(args.config, overrides)
        from xlnet_jax.commands.train import train

        return train(config, args.workdir, stop_at=args.stop_at, dry_run=args.dry_run)


def _inspect_options(parser: argparse.ArgumentParser) -> None:
    _config_option(parser)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--row", type=int, default=0)
    parser.add_argument("--output", help="PNG of the content and the query mask")
    parser.add_argument("--parameters", action="store_true", help="count parameters and tensors instead")


def _inspect(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    if args.output and args.parameters:
        raise BadInput("--output draws an example; leave it out with --parameters")
    if args.output and os.path.isdir(args.output):
        raise BadInput(f"--output={args.output} is a folder; name a picture in it: {args.output}/masks.png")
    config = load(args.config, overrides)
    from xlnet_jax.commands import inspect

    if args.parameters:
        return inspect.count_parameters(config)
    shown = inspect.example(config, args.step, args.row)
    if args.output:
        inspect.draw(shown, args.output)
    return shown


def _show_inspected(result: dict[str, Any]) -> None:
    from xlnet_jax.commands.inspect import print_example

    print_lines(result) if "parameters" in result else print_example(result)


def _compile_options(parser: argparse.ArgumentParser) -> None:
    _config_option(parser)
    parser.add_argument("--topology", required=True, help="chips of a slice, such as v3:16x16, v4:8x8x4, v6e:16x16")
    parser.add_argument("--slices", type=int, default=1, help="equal slices, joined by a network (default 1)")
    parser.add_argument("--budget", action="store_true",
                        help="search the largest batch per device that fits: many compilations")  # fmt: skip


def _compile(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.aot import topology

    topology.check(args.topology, args.slices)
    topology.prepare_environment()
    from xlnet_jax.aot.report import compile_for

    return compile_for(config, args.topology, args.slices, args.budget)


def _show_compiled(result: dict[str, Any]) -> None:
    from xlnet_jax.aot.report import print_report

    print_report(result)


def _quickstart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", default="runs/quickstart")
    parser.add_argument("--config", default="configs/quickstart.py", help="Python file")


def _quickstart(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.commands.quickstart import quickstart

    return quickstart(config, args.workdir, float(os.environ.get("XLNET_INSTALL_SECONDS", "0")))


def _show_nothing(_: dict[str, Any]) -> None:
    """The table that the quick start has printed says it all."""


VERBS = (
    Verb("train", "Pretrain, or resume, in a work directory.",
         "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run",
         _train_options, _train),
    Verb("inspect", "Show one training example, or count parameters.",
         "xlnet-jax inspect --config=configs/xlnet_base.py --config.data.corpus=corpus --step=3",
         _inspect_options, _inspect, _show_inspected),
    Verb("compile",
         "Compile the training step for TPUs that are not here: memory, collectives, and a projection of the speed.",
         "xlnet-jax compile --config=configs/xlnet_large.py --topology=v5e:16x16",
         _compile_options, _compile, _show_compiled),
    Verb("quickstart", "The whole way on real prose in about five minutes.",
         "xlnet-jax quickstart --workdir=runs/quickstart",
         _quickstart_options, _quickstart, _show_nothing),
)  # fmt: skip
