"""The packages of the package and the arrows between them: a module imports from its own package
and from those below it.

Read from the source, so that an import inside a function counts as well.
"""

import ast
import collections
import pathlib

import pytest

import xlnet_jax

ROOT = pathlib.Path(xlnet_jax.__file__).parent


def read_design() -> dict[str, list[str]]:
    """Of `docs/design.md`, from top to bottom: the modules of each folder, and those that are in
    none.
    """
    text = (
        (ROOT.parent / "docs" / "design.md")
        .read_text(encoding="utf-8")
        .partition("\n## Packages\n")[2]
    )
    listed: dict[str, list[str]] = {}
    for line in text.partition("`launch/`")[0].splitlines():
        if line.startswith("    "):
            names = line.partition("#")[0].split()
            if line[4] != " ":
                # A line without a folder has modules that are packages of their own.
                folder = (
                    names.pop(0)[:-1].replace("/", ".")
                    if names[0].endswith("/")
                    else " ".join(names)
                )
                listed[folder] = []
            listed[folder] += names
    return listed


LISTED = read_design()
# A package is the longest dotted prefix of a module that is in the list. The package itself holds
# its version and public names, which it imports when they are used.
ROW = {
    package: number for number, packages in enumerate(LISTED) for package in packages.split()
} | {"": len(LISTED)}

# Arrows within a row: __main__ is the command line, and whoever refuses a value raises an error.
SIDEWAYS = {
    ("__main__", "cli"),
    ("batch", "errors"),
    ("keys", "errors"),
    ("keys", "messages"),
    ("messages", "errors"),
}

# Below, and still not to be known: what keeps a run alive works for any model, and folders of other
# programs have classes and tensors, no tasks.
APART = {("run", "model"), ("run", "kernels"), ("aot", "infer"), ("convert", "finetune")}

# Peers that exports are compared with, and what makes an import slow: never in the package, but for
# the reader of the original's checkpoints. tensorflow_datasets is not among them; it needs no
# TensorFlow for what we use.
NOWHERE = {"pandas", "tensorflow", "torch", "transformers"}
READERS = {("convert.tensorflow", "tensorflow")}
# Reading and preparing data works without a device, in worker processes that must start fast.
DEVICE = {"flax", "jax", "jaxlib", "optax", "orbax"}


def package_of(module: str) -> str:
    """`model.attention` is in package `model`, `data.prepare.text` in `data.prepare`; "" is the
    package itself.
    """
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in ROW:
            return ".".join(parts[:length])
    raise AssertionError(f"xlnet_jax.{module} is in no package; list it in docs/design.md")


def imports(module: str, source: str, is_package: bool, modules: set[str]) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of everything imported; submodules are told from attributes by
    `modules`.
    """
    found = []
    # What a leading dot in an import stands for: the package the module lies in.
    package = ["xlnet_jax", *module.split(".")] if module else ["xlnet_jax"]
    package = package if is_package else package[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.append(
                    (node.lineno, name if name.removeprefix("xlnet_jax.") in modules else base)
                )
    return found


def violations(
    module: str, source: str, is_package: bool = False, modules: set[str] | None = None
) -> list[str]:
    """One line for every import in the source of `xlnet_jax.<module>` that goes against the
    arrows.
    """
    package = package_of(module) if module else ""
    wrong = []
    for line, name in imports(
        module, source, is_package, set(SOURCES) if modules is None else modules
    ):
        top, _, rest = name.partition(".")
        reason = None
        if top in NOWHERE and (module, top) not in READERS:
            reason = "is not for the package"
        elif top == "orbax" and module not in ("checkpoint.store", "checkpoint.chunks"):
            reason = "is for checkpoint/store.py and chunks.py only"
        elif top in DEVICE and (package.partition(".")[0] == "data"):
            reason = "is not for data/: numpy only"
        elif top == "xlnet_jax":
            target = package_of(rest) if rest else ""
            if (
                target != package
                and (package, target) not in SIDEWAYS
                and ROW[target] <= ROW[package]
            ):
                reason = f"is not below {package or 'the package'}"
            elif (package, target) in APART:
                reason = f"is not for {package}"
        if reason:
            wrong.append(f"xlnet_jax.{module}:{line}: {name} {reason}")
    return wrong


def read_sources() -> dict[str, tuple[str, bool]]:
    """Dotted name below the package -> (source, whether it is an __init__.py)."""
    sources = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        sources[".".join(parts[:-1] if is_package else parts)] = (
            path.read_text(encoding="utf-8"),
            is_package,
        )
    return sources


SOURCES = read_sources()


def test_the_list_in_the_design_is_that_of_the_folders():
    files = collections.defaultdict(set)
    for module, (_, is_package) in SOURCES.items():
        if not is_package:
            files[module.rpartition(".")[0]].add(module.rpartition(".")[2])
    beside = {
        name for packages, names in LISTED.items() if packages.split() == names for name in names
    }
    assert {package: {*names} for package, names in LISTED.items() if {*names} - beside} | {
        "": beside
    } == files
    assert list(ROW)[:2] == ["cli", "__main__"] and len(ROW) > 20


@pytest.mark.parametrize("module", SOURCES)
def test_imports_go_down_only(module):
    source, is_package = SOURCES[module]
    if not module:  # what it has for type checkers is imported when it is used
        source = "\n".join(
            ast.unparse(node) for node in ast.parse(source).body if not isinstance(node, ast.If)
        )
    wrong = violations(module, source, is_package)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        (
            "model.heads",
            "from ..data.batches import loader\nfrom ..train import step",
            ":2: xlnet_jax.train.step is not",
        ),
        (
            "run.metrics",
            "from xlnet_jax.model import flops",
            "xlnet_jax.model.flops is not for run",
        ),
        ("data.batches.loader", "import jax.numpy as jnp", "jax.numpy is not for data/"),
        (
            "train.loop",
            "from orbax.checkpoint import v1",
            "is for checkpoint/store.py and chunks.py only",
        ),
        ("convert.tensorflow", "import tensorflow, torch", "torch is not for the package"),
    ],
)
def test_a_wrong_import_is_reported(module, source, expected):
    (wrong,) = violations(module, source)
    assert expected in wrong


def test_a_module_without_a_room_is_reported():
    with pytest.raises(AssertionError, match=r"xlnet_jax\.attic\.old is in no package"):
        violations("attic.old", "")
