"""A fine-tuned model, exported: its head gives the same outputs in transformers as here."""

import json
import os

import data_fixtures
import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, PAD, SEP
from tiny import saved_parameters

from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.task import Example
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.run import workdir as workdirs

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

T = 32
PAIRS = [("Bado kilu menora.", "Sidu."), ("Rave tusi.", "Bado bado kilu no.")]
EXAMPLES = {
    "classification": PAIRS,
    "regression": [("Bado kilu menora.",), ("Rave tusi veno kilu.",)],
    "multi_label_classification": PAIRS,
    "multiple_choice": [
        ("Bado kilu.", "Menora?", "Sidu rave.", "Tusi veno no."),
        ("Kilu.", "Sidu?", "Bado.", "Rave."),
    ],
    "token_classification": [("Bado", "kilu", "menora"), ("Rave", "tusi")],
    "question_answering": [
        ("Bado kilu menora sidu rave tusi.", "Menora?"),
        ("Kilu menora rave.", "Bado kilu?"),
    ],
    "embeddings": [("Bado kilu menora.",), ("Rave tusi veno kilu bado sidu.",)],
}


def labels_of(task):
    return ["no", "maybe", "yes"] if task.endswith("classification") else []


def fine_tuned(task, workdir):
    keys = {"task": task, "labels": ",".join(labels_of(task)), "beam": 3}
    config = tiny.config(data={"segment_len": T}, finetune=keys)
    tokenizer = data_fixtures.tokenizer()
    made = TASKS[task](config, tokenizer)
    rows = [
        row
        for i, texts in enumerate(EXAMPLES[task])
        for row in made.encode(i, Example(texts, None, "test"))
    ]
    recipe = task_recipe(made, rows[0], config)
    boxed = jax.eval_shape(lambda: recipe.model.init(jax.random.key(0), recipe.example_batch(1)))
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: (0.3 * generator.standard_normal(x.shape)).astype(np.float32), nn.unbox(boxed)
    )
    tiny.save_run(workdir, config, params)
    return recipe.model, params, made.batch(rows, len(rows))


@pytest.mark.parametrize("task", EXAMPLES)
def test_the_head_gives_the_same(task, tmp_path):
    model, params, batch = fine_tuned(task, str(tmp_path / "run"))
    folder = str(tmp_path / "exported")
    export(str(tmp_path / "run"), folder)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        (name,) = json.load(file)["architectures"]
    import_(folder, str(tmp_path / "imported"))
    back, _ = saved_parameters(str(tmp_path / "imported"))
    jax.tree.map(np.testing.assert_array_equal, dict(params), back)
    settings = workdirs.load_config(str(tmp_path / "imported"))
    assert (settings.finetune.task, settings.finetune.label_list()) == (task, labels_of(task))
    theirs, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert (
        not report["missing_keys"]
        and not report["unexpected_keys"]
        and not report["mismatched_keys"]
    )
    tokens, segments = (torch.tensor(x[:, :, 0]).long() for x in (batch.tokens, batch.segments))
    if task != "multiple_choice":
        tokens, segments = tokens[:, 0], segments[:, 0]
    given = dict(input_ids=tokens, token_type_ids=segments, attention_mask=(tokens != 5).float())

    @jax.jit
    def here(params):
        hidden = model.hidden(params, batch)
        own = model.head.apply({"params": params["head"]}, hidden, method="predictions")
        return own, hidden.h_BCTD[:, 0]

    ours, hidden = here(params)
    if task == "question_answering":
        given["p_mask"] = torch.tensor(forbidden(batch)).float()
    with torch.no_grad():
        out = theirs.eval()(**given)

    def equal(ours, theirs):
        np.testing.assert_allclose(
            np.asarray(ours).reshape(theirs.shape), theirs, rtol=0, atol=1e-5
        )

    if task == "question_answering":
        B, K = ours["start"].shape
        np.testing.assert_array_equal(ours["start"] + T, out.start_top_index)
        equal(np.exp(ours["start_score"]), out.start_top_log_probs)
        # There the ends are counted before the starts.
        np.testing.assert_array_equal(
            ours["end"] + T, out.end_top_index.reshape(B, K, K).swapaxes(1, 2)
        )
        ends = out.end_top_log_probs.reshape(B, K, K).swapaxes(1, 2)
        equal(np.exp(ours["end_score"]), ends)
        equal(ours["no_answer"], out.cls_logits)
    elif task == "token_classification":
        real = np.asarray(batch.tokens[:, 0, 0] != 5)
        np.testing.assert_array_equal(
            np.asarray(ours["label"])[real], out.logits.argmax(-1).numpy()[real]
        )
    elif task == "embeddings":
        equal(hidden[:, -1], out.last_hidden_state[:, -1])
    else:
        equal(ours["logits"], out.logits)
    if task.endswith("classification"):
        assert theirs.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    if task == "multi_label_classification":
        assert theirs.config.problem_type == task


def forbidden(batch):
    """1 for the question, all SEP and padding: an answer is in the paragraph, or CLS if there is
    none.
    """
    tokens, segments = batch.tokens[:, 0, 0], batch.segments[:, 0, 0]
    return np.where((segments == 0) & ~np.isin(tokens, [SEP, PAD]) | (tokens == CLS), 0.0, 1.0)
