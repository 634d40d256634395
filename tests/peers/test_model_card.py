"""The program of the model card, as it is written there, gives our logits at `<mask>`; a plain call
does not.
"""

import os

import data_fixtures
import numpy as np
import pytest
import tiny
from convert.test_peers import config_of, tokenizer_of
from peers.test_config_fields import CASES

import xlnet_jax as xj
from xlnet_jax.commands.export import export
from xlnet_jax.commands.predict import predict
from xlnet_jax.convert import huggingface
from xlnet_jax.convert.formats import Trained

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

    _, program, *_ = (tmp_path / "exported" / "README.md").read_text().split("```python\n")[1:]
    found: dict = {}
    assert TEXT in program and '"FOLDER"' in program
    exec(program.split("```")[0].replace("FOLDER", folder), found)  # our own model card
    theirs = found["logits"].numpy()
    assert theirs.shape == ours.shape == (1, tiny.VOCAB)
    np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())

    with torch.no_grad():
        plain = found["model"](**found["given"]).logits[0, found["masked"]].numpy()
    assert (np.abs(plain - ours).max() > 0.01) == differs


QUESTION, CONTEXT, CHOICES = (
    "Who wrote it?",
    "The book is by a woman of Leeds.",
    ["One.", "Two.", "Three."],
)
ASKED = {
    "classification": "A sentence.",
    "multi_label_classification": "A sentence.",
    "regression": "A sentence.",
    "token_classification": "A sentence in words .",
    "question_answering": f"{CONTEXT}\t{QUESTION}",
    "embeddings": "A sentence.",
    "multiple_choice": "\t".join(["A context.", "A question?", *CHOICES]),
}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_program_of_every_card_runs_as_it_stands(family, task, tmp_path, capsys):
    """Those of BERT and XLNet also say what `predict` says."""
    if task == "embeddings":
        pytest.importorskip("sentence_transformers")
    tokenizer, model, data = data_fixtures.tokenizer(), {}, {}
    if family != "xlnet":
        tokenizer, config = tokenizer_of(family), config_of(family)
        model = vars(config.model) | {"max_positions": 128}
        data = {
            name: getattr(config.data, name)
            for name in ("objective", "pairs", "bidirectional", "sentence_loss")
        }
    extra = {"gpt2": 0, "roberta": 2, "modernbert": 2, "xlnet": 48}.get(family, 3)
    data |= {
        "segment_len": 96,
        "reuse_len": 96 - extra,
        "num_predict": 96 if family == "gpt2" else 6,
    }
    named = ["no", "some|thing", "yes"] if task.endswith("classification") else []
    tuned = {"task": task, "labels": ",".join(named)}
    data |= {"sentence_loss": False} if task != "none" else {}
    config, folder = tiny.config(model=model, data=data, finetune=tuned), str(tmp_path / "model")
    huggingface.write(
        Trained(config, tokenizer, tiny.random_params(config, 0.5, tokenizer), step=3), folder
    )
    found: dict = {}
    for program in (tmp_path / "model" / "README.md").read_text().split("```python\n")[1:]:
        exec(program.split("```")[0].replace("FOLDER", folder), found)  # our own model card
    if family not in ("bert", "xlnet") or task == "none":
        return
    said = capsys.readouterr().out
    (ours,) = predict(folder, texts=[ASKED[task]])
    if "classify" in found:
        (theirs,) = found["classify"]([{"text": ASKED[task]}])
        shares = {each["label"]: each["score"] for each in theirs}
        assert shares == pytest.approx(ours.get("scores", {"score": ours.get("score")}), abs=1e-5)
    elif task == "token_classification":
        words = ASKED[task].split()
        assert f"{list(zip(words, ours['labels'], strict=True))}\n" == said
    elif task == "multiple_choice":
        assert found["logits"].softmax(-1).tolist() == pytest.approx(ours["scores"], abs=1e-5)
    elif task == "embeddings":
        assert found["vectors"][0] == pytest.approx(ours["vectors"][0], abs=1e-4)
    else:
        assert said.startswith(ours["answer"])
