"""Folders of BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT: ours load in transformers, and what it
writes comes back the same.
"""

import os

import numpy as np
import pytest
from convert.test_peers import config_of, written
from oracle import families
from safetensors.numpy import load_file

import xlnet_jax as xj
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.convert import peers

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TASKS = [(family, task) for family in families.FAMILIES for task in families.TASKS_OF[family]]
TEXT, OTHER = "Bado kilu, menora.", "Sidu rave tusi."


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_a_class_there_loads_our_folder_and_writes_the_same_arrays(family, task, tmp_path):
    written(family, tmp_path / "ours", task)
    kind = getattr(transformers, peers.class_of(config_of(family, task)))
    model, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_folder_that_they_wrote_goes_in_and_out(family, tmp_path):
    """With their config.json alone and their files of the tokenizer; a hidden state, and what the
    card says of MASK.
    """
    written(family, tmp_path / "first")
    kind = getattr(transformers, peers.class_of(config_of(family)))
    kind.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "first")
    tokenizer.save_pretrained(tmp_path / "theirs")
    import_(str(tmp_path / "theirs"), str(tmp_path / "work"))
    export(str(tmp_path / "work"), str(tmp_path / "second"))
    first, second = (
        load_file(tmp_path / name / "model.safetensors") for name in ("first", "second")
    )
    assert all(np.array_equal(first[name], second[name]) for name in first | second)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    assert again(TEXT, OTHER) == tokenizer(TEXT, OTHER)
    if family != "gpt2":
        mask = tokenizer.mask_token
        (ours,) = xj.load(str(tmp_path / "work")).logits([f"kilu {mask} sidu"])
        program = (
            (tmp_path / "second" / "README.md").read_text().split("```python\n")[2].split("```")[0]
        )
        found = {}
        program = program.replace("FOLDER", str(tmp_path / "second")).replace(
            f"The {mask} of the union.", f"kilu {mask} sidu"
        )
        exec(program, found)  # our own model card
        np.testing.assert_allclose(found["logits"].numpy(), ours, atol=1e-5 * np.abs(ours).max())
