"""Command lines made at random: each ends with 0, 2 or 42, and never with a traceback.

    python tests/commands/fuzz_commands.py --count 200 --seed 0

A line is drawn from the commands and options that the parser has, the keys of the configuration,
and values that people and scripts get wrong: other types, huge and negative numbers, missing files,
folders for files, links to nothing, Unicode, control characters. Some lines are good. Command
number n of a seed is the same in every run. It exits with 1 and prints the command lines that ended
otherwise.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import io
import json
import os
import pathlib
import sys
import tempfile
import traceback

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import data_fixtures  # noqa: E402

from xlnet_jax import cli  # noqa: E402
from xlnet_jax import config as configs  # noqa: E402

GOOD_CODES = (0, 2, 42)
SECONDS = 240
"""A command of these sizes is done in a few; one that takes longer hangs."""

NUMBERS = (
    "0", "1", "2", "3", "-1", "-5", "1000000000", "99999999999999999999", "-2147483649", "1.5",
    "nan", "inf", "1e400", "0x10", "ten", "", " ", "True", "None", "[1]", "²", "٣",
)  # fmt: skip
TEXTS = (
    "", "x", "ñandú", "日本語", "../..", "~", "$HOME", "a\nb", "\x1b[31mred", "a'b\"c", "{}", "*",
    "[", "-", "--", "%s", "🙂", "\u202e", "a" * 5000, "gs://", "s3://b/x", "://",
)  # fmt: skip


class World:
    """A folder with the files that command lines name: some good, most not."""

    def __init__(self, folder: pathlib.Path, cache: str) -> None:
        self.folder, self.cache = folder, cache
        self.run = str(folder / "run")
        self.corpus = data_fixtures.corpus_path()
        self.config = str(TESTS / "tiny_config.py")
        (folder / "empty").mkdir()
        (folder / "full").mkdir()
        for name in ("full/a.txt", "full/b.txt", "file", "new\nline.txt"):
            (folder / name).write_text("text\n\n")
        (folder / "binary").write_bytes(bytes(range(256)) * 20)
        for name, body in (
            ("raises", "return 1 / 0"),
            ("exits", "raise SystemExit(0)"),
            ("none", "return None"),
        ):
            (folder / f"{name}.py").write_text(f"def get_config():\n    {body}\n")
        (folder / "broken.py").write_text("def get_config(:\n")
        (folder / "nowhere").symlink_to(folder / "missing")
        (folder / "loop").symlink_to(folder / "loop")
        run = folder / "half"
        (run / "checkpoints" / "5").mkdir(parents=True)
        (run / "config.json").write_text(
            json.dumps({"config": {}, "corpus_sha256": "", "tokenizer_sha256": ""})
        )
        (folder / "json").mkdir()
        (folder / "json" / "config.json").write_text("{")
        self.paths = [str(path) for path in folder.iterdir()]
        self.paths += [
            str(folder / "file" / "below"),
            str(folder / "new"),
            "/proc/self/mem",
            "/dev/null",
            "/",
            ".",
        ]

    def train_options(self) -> list[str]:
        """A run of two steps; what it compiles is kept for the next."""
        return [
            "--config.train.steps=2",
            "--config.optimizer.warmup_steps=1",
            f"--config.log.compilation_cache={self.cache}",
        ]

    def train(self) -> None:
        words = [
            "train",
            f"--config={self.config}",
            f"--config.data.corpus={self.corpus}",
            f"--workdir={self.run}",
        ]
        code, _, err = run_here([*words, *self.train_options()])
        assert code == 0, err


def draw(world: World, number: int, seed: int) -> list[str]:
    rng = np.random.default_rng([seed, number])

    def one(values):
        return values[int(rng.integers(len(values)))]

    # So that some lines are good, and some have a single mistake.
    wild = one((0.0, 0.1, 0.3, 0.6))

    def path(good: str) -> str:
        return one([*world.paths, *TEXTS]) if rng.random() < wild else good

    if rng.random() < 0.03:
        return [
            one([*TEXTS, "train", "corpus", "--version", "--help"])
            for _ in range(int(rng.integers(3)))
        ]
    command = one([command for command in cli.COMMANDS if command.name != "quickstart"])
    parser = argparse.ArgumentParser()
    for option in command.options:
        parser.add_argument(option.name, **option.keywords)
    words = command.name.split()
    fresh = str(world.folder / f"new{number}")
    good = {
        "config": world.config,
        "input": data_fixtures.text_folder(),
        "tokenizer": data_fixtures.tokenizer_path(),
        "workdir": fresh if command.name == "train" else world.run,
        "output": f"{fresh}.png",
        "corpus": world.corpus,
        "path": world.corpus,
        "topology": "v9:2x2",
        "sample_bytes": "100000",
        "shard_bytes": "8000",
        "vocab_size": "200",
        "texts": "ba [MASK] lu",
    }
    for action in parser._actions:
        if action.dest in ("help", "beam_options") or rng.random() < (
            0.1 * wild if action.required or action.dest == "input" else 0.7
        ):
            continue
        if action.nargs == 0:
            words.append(action.option_strings[0])
            continue
        if action.choices:
            value = one(TEXTS) if rng.random() < wild else one([*action.choices])
        elif action.type is not None:
            value = one(NUMBERS) if rng.random() < wild else good.get(action.dest, one("123"))
        else:
            value = path(good.get(action.dest, "x"))
        words.append(f"{action.option_strings[0]}={value}" if action.option_strings else value)
    if command.name == "prepare":
        # Training a tokenizer takes longer than all the rest.
        words += [f"--tokenizer={path(good['tokenizer'])}", "--heldout=0.2"]
    if command.overrides:
        words += [f"--config.data.corpus={path(world.corpus)}"] * (command.name != "compile")
        words += world.train_options() * (command.name == "train")
        words += [_override(one) for _ in range(3) if rng.random() < wild]
    words += ["--json"] * int(rng.random() < 0.4) + [one(TEXTS)] * int(rng.random() < 0.1 * wild)
    return words


def _override(one) -> str:
    """A word for a key of any kind; numbers are far too large or small, so that no line takes a
    machine's memory.
    """
    name = one([*configs.fields(), "model.layer", "nonsense", "model", ""])
    field = configs.fields().get(name)
    if (
        field is not None
        and isinstance(field.default, (int, float))
        and not isinstance(field.default, bool)
    ):
        return f"--config.{name}={one(NUMBERS)}"
    return (
        f"--config.{name}={one([*TEXTS, *NUMBERS, *(field.metadata['choices'] if field else ())])}"
    )


def run_here(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in this process; a traceback counts as 1."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        for _ in range(2)
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def fault(words: list[str], ended: tuple[int, str, str]) -> str | None:
    """What is wrong with the end of a command; None if nothing is."""
    code, out, err = ended
    if code not in GOOD_CODES or "Traceback" in err:
        return f"exit code {code}: {err[-3000:]}"
    if "--json" in words and "--help" not in words and "--version" not in words:
        try:
            # Some commands print an object for each text.
            result = [json.loads(line) for line in out.splitlines()][-1]
        except (ValueError, IndexError):
            return f"with --json, but stdout is {out!r}"
        if code and result.get("exit_code") != code:
            return f"exit code {code}, but stdout says {result}"
    elif code == 2 and out:
        return f"an error, but stdout is {out!r}"
    if code == 2 and not err.rstrip("\n").rpartition("\n")[2].startswith("xlnet-jax"):
        return f"the last line of stderr is no message: {err[-500:]!r}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Command lines made at random.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first command")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # JAX reads it when a command first imports it.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    codes: collections.Counter[int] = collections.Counter()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="xlnet_jax_fuzz_") as folder:
        world = World(pathlib.Path(folder), f"{folder}/cache")
        os.chdir(folder)
        world.train()
        for number in range(args.first, args.first + args.count):
            words = draw(world, number, args.seed)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            ended = run_here(words)
            faulthandler.cancel_dump_traceback_later()
            codes[ended[0]] += 1
            if wrong := fault(words, ended):
                faults += 1
                print(
                    f"--seed {args.seed} --first {number} --count 1: {words}\n  {wrong}\n",
                    flush=True,
                )
    print(json.dumps({"commands": args.count, "codes": codes, "faults": faults}))
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
