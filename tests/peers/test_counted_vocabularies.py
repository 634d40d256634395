"""Models with a vocabulary of characters or of a pattern, as transformers reads and writes them:
equal ids and logits, out and in.
"""

import os
import random

import numpy as np
import pytest
import tiny
from oracle import families
from safetensors.numpy import load_file

import xlnet_jax as xj
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.convert import huggingface, peers
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data import vocabulary
from xlnet_jax.data.patterns import SMILES
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

KINDS = {
    "characters": ("", "MKVLAGTSPDEFHINQRWY acgt\n", ["MKVLAG", "ac  MK\nLA"]),
    "pattern": (SMILES, "CC(=O)Oc1ccccc1BrCl[nH][Na+].", ["CC(=O)Cl", "c1cc[nH]c1", "[Na+].OBr"]),
}


def vocabulary_of(level, folder):
    pattern, text, _ = KINDS[level]
    path, rules = f"{folder}/vocabulary.json", Normalization(keep_accents=True)
    vocabulary.write_counted(
        path, level, vocabulary.count([text], level, pattern), None, False, pattern
    )
    return Vocabulary(path, rules)


def written(family, tokenizer, folder):
    """A folder of random weights."""
    sizes = {"vocab_size": tokenizer.vocab_size, "compute_dtype": "float32"}
    config = (
        families.draw("gpt2", 0)
        if family == "gpt2"
        else tiny.config(model={"activation": "gelu_erf"})
    )
    config = config.changed(model=sizes, mesh={"data": 1}, train={"batch_size": 8})
    huggingface.write(Trained(config, tokenizer, tiny.random_params(config, 0.3)), str(folder))
    return config


@pytest.mark.parametrize("level", KINDS)
@pytest.mark.parametrize("family", ["xlnet", "gpt2"])
def test_ids_and_logits_are_equal_out_and_in(family, level, tmp_path):
    ours, (_, alphabet, texts) = vocabulary_of(level, tmp_path), KINDS[level]
    config = written(family, ours, tmp_path / "first")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "first")
    rng, equal = random.Random(0), 0
    for text in [*texts, *("".join(rng.choices(alphabet + "\t", k=20)) for _ in range(200))]:
        try:
            wanted = ours.encode(text).tolist()
        except BadInput:
            with pytest.raises(Exception, match="UNK"):
                theirs(text)
        else:
            assert theirs.encode(text, add_special_tokens=False) == wanted
            assert theirs.decode(wanted) == ours.decode(wanted)
            equal += 1
    assert equal > 50 or level == "pattern"
    for role in ("unk", "cls", "sep", "mask", "pad"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours.special, role), role
    kind = getattr(transformers, peers.class_of(config))
    model = kind.from_pretrained(tmp_path / "first").eval()
    logits_of(family, tmp_path / "first", model, theirs, texts)
    # What that library writes has no vocabulary.json; then the file of ours.
    model.save_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    assert "vocabulary.json" not in os.listdir(tmp_path / "theirs")
    for source in ("theirs", "first"):
        import_(str(tmp_path / source), str(tmp_path / f"work of {source}"))
        export(str(tmp_path / f"work of {source}"), str(tmp_path / f"again of {source}"))
        back = huggingface.open_tokenizer(str(tmp_path / f"again of {source}"))
        assert (back.pieces, back.pattern) == (ours.pieces, ours.pattern)
        assert back.normalization == ours.normalization
        assert (back.sha256 == ours.sha256) == (source == "first")
        arrays = (tmp_path / name / "model.safetensors" for name in ("first", f"again of {source}"))
        first, second = map(load_file, arrays)
        assert all(np.array_equal(first[name], second[name]) for name in first | second)
        files = (tmp_path / name / "tokenizer.json" for name in ("first", f"again of {source}"))
        assert len({path.read_bytes() for path in files}) == 1
    logits_of(family, tmp_path / "work of theirs", model, theirs, texts)


def logits_of(family, path, model, tokenizer, texts):
    """Compares the logits of our model at `path` with theirs."""
    opened = xj.load(str(path))
    for text in texts:
        if family == "gpt2":
            ours = opened.hidden([text])[0] @ model.transformer.wte.weight.detach().numpy().T
            given = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                theirs = model(**given).logits[0].numpy()
        else:
            ours = opened.logits([f"{text}[MASK]{text}"])[0]
            given = tokenizer(f"{text}{tokenizer.mask_token}{text}", return_tensors="pt")
            masked = given["input_ids"][0] == tokenizer.mask_token_id
            with torch.no_grad():
                theirs = (
                    model(
                        **given,
                        perm_mask=masked.float().expand(1, len(masked), -1),
                        target_mapping=torch.eye(len(masked))[masked][None],
                    )
                    .logits[0]
                    .numpy()
                )
        assert ours.shape == theirs.shape and np.ptp(ours) > 0.1
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_the_program_of_the_card_reads_the_vocabulary(tmp_path):
    ours = vocabulary_of("pattern", tmp_path)
    written("xlnet", ours, tmp_path / "first")
    card = (tmp_path / "first" / "README.md").read_text()
    programs = [part.split("```")[0] for part in card.split("```python\n")[1:]]
    assert len(programs) == 3
    for program in programs:
        exec(program.replace("FOLDER", str(tmp_path / "first")), {})  # our own model card
