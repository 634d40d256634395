"""A folder that transformers wrote: imported, trained on own text, fine-tuned, and back into
transformers.
"""

import os
import shutil

import data_fixtures
import pytest
from convert.test_peers import tokenizer_of

from xlnet_jax.cli import main
from xlnet_jax.commands.import_ import _changed
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
SHORT = {
    "train.steps": 2,
    "train.batch_size": 8,
    "train.steps_per_dispatch": 1,
    "checkpoint.every": 2,
    "evaluation.final": False,
    "optimizer.warmup_steps": 1,
    "log.tensorboard": False,
}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_from_a_folder_of_theirs_to_one_for_them(family, tmp_path):
    tokenizer, paths = (
        tokenizer_of(family),
        {
            name: str(tmp_path / name)
            for name in ("theirs", "imported", "corpus", "run", "task", "exported")
        },
    )
    if family == "bert":
        sizes = transformers.BertConfig(
            vocab_size=tokenizer.vocab_size, max_position_embeddings=32, **SIZES
        )
        model = transformers.BertForPreTraining(sizes)
    else:
        ids = dict(bos_token_id=tokenizer.special.bos, eos_token_id=tokenizer.special.eos)
        sizes = transformers.GPT2Config(
            vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=32, **ids
        )
        model = transformers.GPT2LMHeadModel(sizes)
    model.save_pretrained(paths["theirs"])
    shutil.copy(tokenizer.path, f"{paths['theirs']}/tokenizer.json")
    files.write(str(tmp_path / "config.py"), b"from xlnet_jax.config import default as get_config")
    rows = "".join(f"bado kilu {word}.\t{word}\n" for word in ("sidu", "rave") * 8)
    files.write(str(tmp_path / "train.tsv"), f"sentence\tlabel\n{rows}".encode())
    short = [
        f"--config={tmp_path}/config.py",
        *(f"--config.{name}={value}" for name, value in SHORT.items()),
    ]

    def run(*words):
        assert main(list(words)) == 0

    run("import", paths["theirs"], f"--workdir={paths['imported']}")
    run(
        "prepare",
        f"--input={data_fixtures.text_folder()}/*.txt",
        f"--output={paths['corpus']}",
        f"--tokenizer={paths['theirs']}",
        "--workers=1",
    )
    own = _changed(workdirs.load_config(paths["imported"]))
    run(
        "train",
        *short,
        *own,
        f"--config.data.corpus={paths['corpus']}",
        f"--workdir={paths['run']}",
        f"--config.checkpoint.init_from={paths['imported']}",
    )
    run(
        "finetune",
        *short,
        *(word for word in own if ".model." in word),
        f"--workdir={paths['task']}",
        f"--config.checkpoint.init_from={paths['run']}",
        "--config.finetune.task=classification",
        f"--config.finetune.train={tmp_path}/train.tsv",
        "--config.data.segment_len=16",
    )
    run("export", f"--workdir={paths['task']}", f"--output={paths['exported']}")
    name = files.read_json_object(f"{paths['exported']}/config.json")["architectures"][0]
    _, report = getattr(transformers, name).from_pretrained(
        paths["exported"], output_loading_info=True
    )
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    (answer,) = transformers.pipeline("text-classification", model=paths["exported"])(
        "bado kilu sidu."
    )
    assert answer["label"] in ("sidu", "rave")
