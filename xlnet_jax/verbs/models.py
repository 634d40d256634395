"""Verbs that use a trained model."""

from __future__ import annotations

import argparse
from typing import Any

from xlnet_jax.verbs import Verb


def _checkpoint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="of the training run; --config.KEY=VALUE changes a key")
    parser.add_argument("--step", type=int, help="checkpoint (default: the newest)")


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
    _checkpoint_options(parser)
    parser.add_argument("--batch_size", type=int, help="rows at a time; does not change the result")
    parser.add_argument("--blocks", type=int, default=0, help="score only the first blocks (default: all)")


def _evaluate(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    with stop_request():
        from xlnet_jax.commands.evaluate import evaluate

        if args.batch_size is not None:
            overrides = [*overrides, f"--config.evaluation.batch_size={args.batch_size}"]
        return evaluate(args.workdir, step=args.step, blocks=args.blocks, overrides=overrides)


def _export_options(parser: argparse.ArgumentParser) -> None:
    _checkpoint_options(parser)
    parser.add_argument("--format", choices=("huggingface",), default="huggingface")
    parser.add_argument("--output", required=True, help="new folder")


def _export(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.commands.export import export

    return export(args.workdir, args.output, step=args.step, overrides=overrides)


VERBS = (
    Verb("evaluate", "Held-out permutation-LM loss of a checkpoint.", "xlnet-jax evaluate --workdir=run --json",
         _evaluate_options, _evaluate),
    Verb("export", "Write a checkpoint for another library.",
         "xlnet-jax export --workdir=run --format=huggingface --output=exported",
         _export_options, _export),
)  # fmt: skip
