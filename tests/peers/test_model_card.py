"""The program of the model card, as it is written there, gives our logits at `<mask>`; a plain call does not."""

import os

import numpy as np
import pytest
import tiny

import xlnet_jax as xj
from xlnet_jax.commands.export import export

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "The <mask> of the union."
MASKED = {"data": {"objective": "mlm", "reuse_len": 29}, "model": {"memory_len": 0}}


@pytest.mark.parametrize(("changes", "differs"), [({}, True), (MASKED, False)], ids=["plm", "mlm"])
def test_the_program_of_the_card_gives_our_logits(changes, differs, tmp_path):
    config, run, folder = tiny.config(**changes), str(tmp_path / "run"), str(tmp_path / "exported")
    tiny.save_run(run, config, tiny.random_params(config, 0.5))
    export(run, folder)
    # xlnet_jax.json says which of the two streams predicts.
    (ours,) = xj.load(folder).logits([TEXT])
    np.testing.assert_array_equal(ours, xj.load(run).logits([TEXT])[0])

    _, program = (tmp_path / "exported" / "README.md").read_text().split("```python\n")[1:]
    found: dict = {}
    assert TEXT in program and '"FOLDER"' in program
    exec(program.split("```")[0].replace("FOLDER", folder), found)  # our own model card
    theirs = found["logits"].numpy()
    assert theirs.shape == ours.shape == (1, tiny.VOCAB)
    np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())

    with torch.no_grad():
        plain = found["model"](**found["given"]).logits[0, found["masked"]].numpy()
    assert (np.abs(plain - ours).max() > 0.01) == differs
    fill = transformers.pipeline("fill-mask", model=found["model"], tokenizer=found["tokenizer"], top_k=tiny.VOCAB)
    scores = np.zeros(tiny.VOCAB)
    for answer in fill(TEXT):
        scores[answer["token"]] = answer["score"]
    np.testing.assert_allclose(scores, np.exp(plain[0] - plain.max()) / np.exp(plain - plain.max()).sum(), atol=1e-5)
