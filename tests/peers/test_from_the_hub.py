"""The six commands of docs/convert.md: a folder as transformers writes it, trained further,
classifying, back there.
"""

import json
import os
import shlex

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.cli import main

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
OURS = [
    "model.layers=2",
    "model.d_model=16",
    "model.heads=2",
    "model.head_dim=8",
    "model.d_ff=32",
    "model.max_positions=40",
    "model.init_truncated=false",
    "model.compute_dtype=float32",
    "model.unroll=off",
    "data.segment_len=32",
    "data.reuse_len=29",
    "data.num_predict=4",
]
OFTEN = [
    "train.batch_size=8",
    "train.steps_per_dispatch=4",
    "train.steps=8",
    "optimizer.warmup_steps=2",
    "checkpoint.every=4",
    "evaluation.every=4",
    "log.tensorboard=false",
]
TASK = [
    "model.compute_dtype=float32",
    "model.unroll=off",
    "data.segment_len=16",
    "optimizer.learning_rate=5e-3",
]
SMALL = {
    "prepare": ["--heldout=0.2", "--workers=1"],
    "train": [*OURS, *OFTEN, "evaluation.blocks=4"],
    "finetune": [*TASK, *OFTEN],
}
"""What makes the commands of the page small, by command."""


def commands():
    """The words of each command of the page's section, without the program."""
    section = (
        (tiny.ROOT / "docs" / "convert.md")
        .read_text()
        .split("### From the hub")[1]
        .split("\n###")[0]
    )
    return [
        shlex.split(line)[1:] for line in section.splitlines() if line.startswith("    xlnet-jax ")
    ]


def write_folder(folder):
    """BERT with random weights and a vocabulary of letters, pieces of words and words, by
    transformers alone.
    """
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    words = sorted(
        {
            word.strip(",.").lower()
            for word in data_fixtures.synthetic_text(0, 50).split()
            if word[0].isalpha()
        }
    )
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        *words[:60],
    ]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = transformers.BertTokenizer(vocab=vocab, do_lower_case=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(pieces), initializer_range=0.3, **SIZES)
    transformers.BertForPreTraining(config).save_pretrained(folder)
    return tokenizer, len(pieces)


def test_six_commands_from_there_and_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokenizer, size = write_folder("bert-base-uncased")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "own.txt").write_text(data_fixtures.synthetic_text(3, 60))
    for name, seed in (("train.tsv", 1), ("dev.tsv", 2)):
        rows = [f"{text}\t{number % 2}" for number, text in enumerate(sentences(seed))]
        (tmp_path / name).write_text("\n".join(["sentence\tlabel", *rows, ""]))
    done = {}
    for command, *words in commands():
        own = [word if word[0] == "-" else f"--config.{word}" for word in SMALL.get(command, [])]
        own += [f"--config.model.vocab_size={size}"] if command == "train" else []
        words = [word.replace("=configs/", f"={tiny.ROOT}/configs/") for word in words]
        assert main([command, *words, *own, "--json"]) == 0, command
        done[command] = (
            json.loads(capsys.readouterr().out)
            if command != "predict"
            else [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        )
    assert list(done) == ["prepare", "import", "train", "finetune", "predict", "export"]
    assert done["train"]["step"] == 8 and done["finetune"]["score"] is not None
    texts = commands()[4][2:]
    given = tokenizer(texts, padding=True, return_tensors="pt")
    again = transformers.AutoTokenizer.from_pretrained("classifier")
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained("classifier").eval()
    assert type(model) is transformers.BertForSequenceClassification
    with torch.no_grad():
        theirs = torch.softmax(model(**given).logits, -1).numpy()
    ours = np.array(
        [[line["scores"][name] for name in model.config.label2id] for line in done["predict"]]
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert abs(theirs[0] - theirs[1]).max() > 1e-3, "the texts make no difference"


def sentences(seed):
    return [
        line.split(",")[0] for line in data_fixtures.synthetic_text(seed, 8).split("\n") if line
    ]
