"""The models that the package brings are found by their names."""

import pathlib

import numpy as np
import pytest

import xlnet_jax as xj
from xlnet_jax.cli import main
from xlnet_jax.infer import opened

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def test_a_packaged_model_scores_and_fills_molecules_as_whole_documents():
    model = xj.load("molecules")
    assert model.config.data.whole_documents and model.tokenizer.level == "pattern"
    pieces = model.tokenizer.encode(ASPIRIN)
    assert "".join(model.tokenizer.pieces[id] for id in pieces) == ASPIRIN
    shuffled = model.tokenizer.decode(np.random.default_rng(0).permutation(pieces))
    of_aspirin, of_shuffled = model.score([ASPIRIN, shuffled], order="left")
    assert of_aspirin.log_prob_KU[0].sum() == pytest.approx(of_aspirin.joint_K[0], abs=1e-3)
    assert of_aspirin.joint_K[0] > of_shuffled.joint_K[0] + 15
    # A ring that is open, a branch that is open, and an aromatic atom of a benzene.
    for text in (
        "CC(=O)Oc1ccccc[MASK]C(=O)O",
        "CC(=O)Oc1ccccc1C(=O[MASK]O",
        "CC(=O)Oc1cc[MASK]cc1C(=O)O",
    ):
        (filled,) = model.fill([text])
        assert filled.text == ASPIRIN and filled.log_prob > -0.7


def test_a_path_that_exists_is_read_instead_and_an_unknown_name_says_the_names(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = [path.name for path in pathlib.Path(opened.__file__).parents[1].glob("pretrained/*")]
    assert names == ["molecules"]
    (tmp_path / "molecules").mkdir()
    for path in ("molecules", "molecule"):
        assert main(["score", f"--workdir={path}", "CCO"]) == 2
        said = capsys.readouterr().err
        assert f"{path}: no config.json; give the --workdir of a training run" in said
        assert "a model of the package (molecules)" in said
