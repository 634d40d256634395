"""A checkpoint with the names and shapes of the released models comes in whole, and training
continues from it.

The first loss of `train` is compared with that of transformers, with the same parameters, on the
same batch.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import released
import shared
import tiny
from peers.test_huggingface import inputs, two_stream_arguments
from safetensors.numpy import save_file

from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = (
    "The first sentence is here, and it has nine or ten words in it.\n"
    "A second one (shorter) follows.\n\n"
) * 400
SIZES = [
    pytest.param("tiny", "gelu"),
    pytest.param("base", "gelu_new", marks=pytest.mark.slow),
    pytest.param("large", "gelu_new", marks=pytest.mark.prove),  # needs 16 GB
]


def loss_there(folder: str, config: configs.Config) -> float:
    """transformers' mean negative log-likelihood of the targets of our first batch, nats."""
    mixture = open_mixture(config)
    B, W = config.train.batch_size, config.data.windows_per_block
    batch = loader.TrainDispatches(
        mixture, config, extend_plan((), 0, B, W), np.arange(B), 0, 1
    ).batch(0)
    assert (batch.direction == 1).all() and batch.target_weights.all()
    model = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**inputs(batch), **two_stream_arguments(batch)).logits
    targets = torch.tensor(batch.target_tokens).long()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))


@pytest.mark.parametrize(("size", "activation"), SIZES)
def test_it_comes_in_whole_and_trains_on(size, activation, tmp_path, capsys):
    folder, work = tmp_path / "released", tmp_path / "work"
    folder.mkdir()
    variables = released.tensorflow_arrays(size)
    arrays = released.huggingface_arrays(variables)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    lengths_there = {"mem_len": 7, "reuse_len": 5, "bi_data": False}
    (folder / "config.json").write_text(
        released.config_json(size, ff_activation=activation, **lengths_there)
    )
    tokenizer = released.write_tokenizer(folder, released.SIZES[size]["n_token"])
    lengths = ["--config.model.memory_len=8", "--config.model.compute_dtype=float32"]
    assert main(["import", str(folder), f"--workdir={work}", "--json", *lengths]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"arrays": len(arrays), "workdir": str(work)}

    (tmp_path / "text.txt").write_text(TEXT)
    corpus = str(tmp_path / "corpus")
    prepare = [
        "prepare",
        f"--input={tmp_path}/text.txt",
        f"--output={corpus}",
        f"--tokenizer={tokenizer}",
    ]
    assert main([*prepare, "--workers=1", "--heldout=0"]) == 0
    model = workdirs.load_config(str(work)).model
    words = [
        f"--config.model.{key}={value}" for key, value in vars(model).items() if key != "unroll"
    ]
    words += [
        "--config.model.unroll=off",
        "--config.model.attention_dropout=0.0",
        f"--config.data.corpus={corpus}",
        "--config.data.bidirectional=false",
        "--config.train.batch_size=2",
        "--config.checkpoint.every=4",
        "--config.train.steps_per_dispatch=1",
        f"--config.checkpoint.init_from={work}",
    ]
    run, path = str(tmp_path / "run"), f"{tiny.TESTS}/tiny_config.py"
    train = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "train",
        f"--config={path}",
        *words,
        f"--workdir={run}",
        "--stop_at=1",
    ]
    subprocess.run(train, env=shared.environment(), check=True)
    ours = read_jsonl(f"{run}/metrics.jsonl")[0]["loss"]
    theirs = loss_there(str(folder), configs.load(path, words))
    assert abs(ours - theirs) < 1e-4 * theirs and theirs > 1, (ours, theirs)
    # What the source said of its use comes out of the run again.
    assert main(["export", f"--workdir={run}", f"--output={tmp_path}/again"]) == 0
    again = transformers.AutoConfig.from_pretrained(f"{tmp_path}/again").to_dict()
    assert again.items() >= lengths_there.items()
