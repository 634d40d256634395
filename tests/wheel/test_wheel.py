"""What someone has who has no checkout: .venv-wheel, into which `make` installs the wheel and
nothing else of ours.
"""

import json
import os
import subprocess
import tarfile
import zipfile

import pages
import pytest
import tiny
from packaging.metadata import Metadata

BIN = tiny.ROOT / ".venv-wheel" / "bin"
DIST = BIN.parent / "dist"
FEW = [
    "--config.train.steps=20",
    "--config.checkpoint.every=10",
    "--config.optimizer.warmup_steps=5",
    "--config.evaluation.blocks=4",
]


def run(folder, program, *words):
    """What a program of the environment prints, in a folder outside of the checkout."""
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [str(BIN / program), *words], cwd=folder, env=env, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the quick start has run, with few steps."""
    folder = tmp_path_factory.mktemp("elsewhere")
    result = json.loads(run(folder, "xlnet-jax", "quickstart", *FEW, "--json"))
    assert (folder / result["export"] / "model.safetensors").exists() and len(result["filled"]) == 4
    return folder


def test_the_package_is_that_of_the_wheel(folder):
    place = run(folder, "python", "-c", "import xlnet_jax; print(xlnet_jax.__file__)")
    assert place.startswith(str(BIN.parent))
    program = "from xlnet_jax.config.loading import packaged; print(*sorted(packaged()))"
    listed = run(folder, "python", "-c", program)
    ours = tiny.ROOT / "configs"
    assert listed.split() == sorted(str(path.relative_to(ours))[:-3] for path in ours.rglob("*.py"))


def test_the_package_brings_a_model_of_molecules(tmp_path):
    asked = ["fill", "--workdir=molecules", "CC(=O)Oc1ccccc[MASK]C(=O)O"]
    assert json.loads(run(tmp_path, "xlnet-jax", *asked))["text"] == "CC(=O)Oc1ccccc1C(=O)O"


@pytest.mark.parametrize("page", ["README.md", "docs/library.md"])
def test_the_python_of_a_page_prints_as_many_lines_as_it_shows(folder, page):
    sessions = pages.sessions((tiny.ROOT / page).read_text(encoding="utf-8"))
    assert sessions
    program = "".join(f"{code}\nprint('END')\n" for code, _ in sessions)
    found = run(folder, "python", "-c", program).split("END\n")[:-1]
    assert [output.count("\n") for output in found] == [
        output.count("\n") for _, output in sessions
    ]


def test_the_metadata_of_both_files_can_be_read_by_an_index():
    """What `twine check` asks, without its fourteen packages."""
    (sdist,), (wheel,) = ([*DIST.glob("*.tar.gz")], [*DIST.glob("*.whl")])
    with tarfile.open(sdist) as files, zipfile.ZipFile(wheel) as zipped:
        of_sdist = next(name for name in files.getnames() if name.endswith("/PKG-INFO"))
        of_wheel = next(name for name in zipped.namelist() if name.endswith(".dist-info/METADATA"))
        found = [files.extractfile(of_sdist).read(), zipped.read(of_wheel)]
    for text in found:
        metadata = Metadata.from_email(text, validate=True)
        assert metadata.description_content_type == "text/markdown"
        assert metadata.description == (tiny.ROOT / "README.md").read_text(encoding="utf-8")
        assert metadata.license_expression == "Apache-2.0" and metadata.license_files == ["LICENSE"]
