"""The exported folder as files: what is in it, under which names, and what is refused. `peers/`
loads it.
"""

import base64
import json
import os
import re
import unicodedata
from pydoc_data import topics
from unittest import mock

import data_fixtures
import jax
import numpy as np
import pytest
import safetensors
import sentencepiece
import tiny
from safetensors.numpy import load_file
from sentencepiece import sentencepiece_model_pb2

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.config import Config
from xlnet_jax.convert import huggingface, tokenizer_json
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization, Tokenizer, train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import find, on_one_device, opened
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import make_recipe

VOCAB = 400
FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "xlnet_jax.json",
]


def small(**changes) -> Config:
    sizes = dict(vocab_size=VOCAB, layers=2, d_model=12, heads=3, head_dim=4, d_ff=20, memory_len=0)
    return Config().changed(model=sizes | changes)


def params_of(config: Config) -> dict:
    return tiny.random_params(tiny.config().changed(model=vars(config.model)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("tokenizer") / "spiece.model")
    lines = "\n".join(topics.topics.values()).split("\n")[:2000]
    numbers = [f"in {year}, or {year + 1}, it was" for year in [1990, 2000] * 200]
    train_tokenizer(
        [line for line in lines + numbers if line.strip()], path, VOCAB, seed=0, threads=1
    )
    return path


def write(tokenizer, folder, params=None, **changes) -> None:
    params = params_of(small(**changes)) if params is None else params
    huggingface.write(Trained(small(**changes), Tokenizer(tokenizer), params), str(folder))


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory) -> tuple[dict, str]:
    params, folder = params_of(small()), tmp_path_factory.mktemp("export") / "below" / "model"
    write(tokenizer, folder, params)
    return params, str(folder)


def read(folder: str, name: str) -> dict:
    return files.read_json(os.path.join(folder, name))


def test_tensors(exported):
    params, folder = exported
    path = os.path.join(folder, "model.safetensors")
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    tensors = load_file(path)
    assert len(tensors) == 3 + 2 * 17 and "lm_loss.weight" not in tensors
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}

    attention, forward = params["layers"]["attention"], params["layers"]["feed_forward"]
    letters = dict(q="query", k="key", v="value", o="output", r="position")
    expected = {
        "transformer.word_embedding.weight": params["word_embedding"],
        "transformer.mask_emb": params["mask_embedding"][None, None],
        "lm_loss.bias": params["lm_head"]["bias"],
    }
    for i in range(2):
        layer = f"transformer.layer.{i}"
        expected |= {
            f"{layer}.rel_attn.{letter}": attention[name][i] for letter, name in letters.items()
        }
        for letter, name in (("w", "content"), ("r", "position"), ("s", "segment")):
            expected[f"{layer}.rel_attn.r_{letter}_bias"] = attention[f"{name}_bias"][i]
        expected[f"{layer}.rel_attn.seg_embed"] = attention["segment_embedding"][i]
        for name, part in (
            ("rel_attn.layer_norm", attention["norm"]),
            ("ff.layer_norm", forward["norm"]),
        ):
            expected |= {
                f"{layer}.{name}.weight": part["scale"][i],
                f"{layer}.{name}.bias": part["bias"][i],
            }
        for name, part in (("layer_1", forward["inner"]), ("layer_2", forward["outer"])):
            expected |= {
                f"{layer}.ff.{name}.weight": part["kernel"][i].T,
                f"{layer}.ff.{name}.bias": part["bias"][i],
            }
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
    assert tensors["transformer.layer.0.ff.layer_1.weight"].shape == (20, 12)


def test_tokenizer_files(exported):
    """A piece that ends in a digit and a comma is never taken: SentencePiece's training splits
    there.
    """
    _, folder = exported
    written, config = read(folder, "tokenizer.json"), read(folder, "tokenizer_config.json")
    assert [(token["id"], token["content"]) for token in written["added_tokens"]] == list(
        enumerate(SPECIAL_PIECES)
    )
    cut = [score < -90 for piece, score in written["model"]["vocab"] if re.search(r"\d,$", piece)]
    assert cut and all(cut)
    assert config["model_input_names"][1] == "token_type_ids" and config["padding_side"] == "left"
    named = [config[f"{name}_token"] for name in ("unk", "bos", "eos", "cls", "sep", "pad", "mask")]
    assert tuple(named) == SPECIAL_PIECES[:7]


def test_normalizers_follow_the_normalization(tokenizer):
    model = files.read(tokenizer)

    def kinds(**changes) -> list[str]:
        written = tokenizer_json.tokenizer_json(model, Normalization(**changes), "t")
        return [step["type"] for step in written["normalizer"]["normalizers"]]

    assert kinds() == ["Replace", "Replace", "Replace", "NFKD", "Replace", "NFC", "Precompiled"]
    assert kinds(lower=True)[5:7] == ["Replace", "Lowercase"]
    assert kinds(keep_accents=True, nfkc=True)[3:] == ["NFKC", "NFC", "Precompiled"]
    assert kinds(keep_accents=True, remove_space=False) == [
        "Replace",
        "Replace",
        "NFC",
        "Precompiled",
    ]
    spec = sentencepiece_model_pb2.ModelProto.FromString(model).normalizer_spec
    last = tokenizer_json.tokenizer_json(model, Normalization(), "t")["normalizer"]["normalizers"][
        -1
    ]
    assert base64.b64decode(last["precompiled_charsmap"]) == spec.precompiled_charsmap != b""


def test_accents_are_the_characters_the_normalization_drops(tokenizer):
    steps = tokenizer_json.tokenizer_json(files.read(tokenizer), Normalization(), "t")[
        "normalizer"
    ]["normalizers"]
    accents = re.compile(steps[4]["pattern"]["Regex"])
    drop, dropped = Normalization(remove_space=False), 0
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x20000)):
        ours = accents.sub("", unicodedata.normalize("NFKD", chr(code)))
        assert ours == drop(chr(code)), hex(code)
        dropped += ours == ""
    assert dropped > 800


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(share_layers=True),
            "model.share_layers=True: .* has only model.share_layers=False; use --format=orbax",
        ),
        (
            dict(norm="pre", scale_embedding=True),
            "norm=pre, model.scale_embedding=True: .* only model.norm=post, mod",
        ),
        (
            dict(head_dim=5),
            "model.heads=3 times model.head_dim=5 is not model.d_model=12.*head_dim=4 to export",
        ),
        (dict(vocab_size=VOCAB + 1), f"has {VOCAB} pieces, the model {VOCAB + 1}"),
    ],
)
def test_a_model_that_cannot_be_expressed(changes, message, tokenizer, tmp_path):
    with pytest.raises(BadInput, match=message) as caught:
        write(tokenizer, tmp_path / "model", {}, **changes)
    assert "\n" not in str(caught.value) and not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("full", "not empty"), ("file", "not a folder"), ("file/below", "file: Not a directory")],
)
def test_a_folder_in_use_is_refused(name, message, tokenizer, tmp_path):
    (tmp_path / "full").mkdir()
    for path in (tmp_path / "full" / "config.json", tmp_path / "file"):
        path.write_text("mine")
    with pytest.raises(BadInput, match=message):
        write(tokenizer, tmp_path / name)
    assert (
        (tmp_path / "full" / "config.json").read_text() == (tmp_path / "file").read_text() == "mine"
    )
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(28, "No space left"), BadInput), (KeyboardInterrupt(), None)]
)
def test_an_export_that_fails_leaves_nothing(error, raised, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "save_file", mock.Mock(side_effect=error))
    with pytest.raises(raised or type(error)):
        write(tokenizer, tmp_path / "model")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(model_type="bpe"), "unigram"), (dict(byte_fallback=True), "byte")],
)
def test_tokenizers_that_cannot_be_expressed(options, message, tmp_path):
    """With the right special pieces, so that it is the export that refuses."""
    lines = [line for line in topics.topics["strings"].split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "other"),
        vocab_size=VOCAB,
        minloglevel=2,
        control_symbols=list(SPECIAL_PIECES[3:8]),
        user_defined_symbols=["<eop>"],
        pad_id=-1,
        **options,
    )
    with pytest.raises(BadInput, match=message):
        write(str(tmp_path / "other.model"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_average_that_a_run_keeps_is_read_where_it_is_asked_for(tmp_path):
    """By what exports and by what computes on a mesh; the fault: the parameters, or a slot of the
    optimizer.
    """
    config = tiny.config(optimizer={"average": 0.9})
    rng, run, asked = (
        np.random.default_rng(0),
        str(tmp_path / "run"),
        ["--config.evaluation.averaged=true"],
    )
    params = tiny.random_params(config)
    state = jax.tree.map(
        lambda x: rng.standard_normal(x.shape).astype(x.dtype),
        make_recipe(config).optimizer.init(params),
    )
    tiny.save_run(run, config, params)
    with Checkpoints(run, config.checkpoint) as checkpoints:
        checkpoints.save(
            4, {"params": params, "optimizer": state}, workdirs.identity(config, "1" * 64, "2" * 64)
        )

    def same(found, wanted):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), wanted)

    for name, overrides, wanted in (("plain", [], params), ("averaged", asked, state[-1].average)):
        export(run, str(tmp_path / name), format="orbax", overrides=overrides)
        same(find(str(tmp_path / name)).params, wanted)
        with opened(find(run, overrides)) as model:
            assert model.step == 4
            same(model.params, wanted)
    # What is imported has the average as its parameters.
    import_(str(tmp_path / "averaged"), str(tmp_path / "imported"))
    same(on_one_device(find(str(tmp_path / "imported"), asked))[0], state[-1].average)


def test_an_average_that_a_run_does_not_keep_is_refused(tmp_path):
    tiny.save_run(str(tmp_path / "run"), tiny.config(), tiny.random_params(tiny.config()))
    with pytest.raises(
        BadInput,
        match="evaluation.averaged=True needs a run that keeps an average; set optimizer.av",
    ):
        export(
            str(tmp_path / "run"),
            str(tmp_path / "out"),
            overrides=["--config.evaluation.averaged=true"],
        )


def test_the_mean_of_checkpoints(tmp_path):
    """The newest one and those before it; the fault: a sum, the oldest ones, or a mean with an old
    one that is kept.
    """
    config = tiny.config()
    rng = np.random.default_rng(0)
    params = [
        jax.tree.map(
            lambda x: rng.standard_normal(x.shape).astype(np.float32), tiny.random_params(config)
        )
        for _ in range(3)
    ]
    tiny.save_run(str(tmp_path / "run"), config, params[0])
    with Checkpoints(str(tmp_path / "run"), config.checkpoint) as checkpoints:
        for step, each in ((8, params[1]), (12, params[2])):
            checkpoints.save(step, {"params": each}, workdirs.identity(config, "1" * 64, "2" * 64))
    result = export(str(tmp_path / "run"), str(tmp_path / "out"), format="orbax", average=2)
    found = find(str(tmp_path / "out")).params
    wanted = jax.tree.map(lambda a, b: (a + b) / 2, *params[1:])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, wanted)
    assert result["step"] == 12
    for step, average, said in (
        (
            None,
            3,
            (
                "last 3 saves up to step 12, every 4 steps, and .* has steps 12, 8, 3; "
                "train until there are so many saves, or average fewer"
            ),
        ),
        (None, 4, r"has steps 12, 8, 3; train with checkpoint.keep=4 \(it was 3\)"),
        (8, 2, "last 2 saves up to step 8, every 4 steps, and .*; give --step=12"),
        (8, 3, "last 3 saves up to step 8, every 4 steps, and .*; give --step=12"),
    ):
        with pytest.raises(BadInput, match=said):
            export(
                str(tmp_path / "run"),
                str(tmp_path / "other"),
                format="orbax",
                average=average,
                step=step,
            )


def test_every_kept_checkpoint_becomes_a_folder_with_its_card(tmp_path):
    """The fault: one checkpoint in all folders, the newest one left out, or the steps of another
    batch size.
    """
    config, run, out = tiny.config(), str(tmp_path / "run"), tmp_path / "out"
    params = [tiny.random_params(config, scale) for scale in (1.0, 2.0)]
    tiny.save_run(run, config, params[0])
    with Checkpoints(run, config.checkpoint) as checkpoints:
        plan = {"plan": [[0, 0, 8], [4, 8, 16]]}
        checkpoints.save(
            8, {"params": params[1]}, workdirs.identity(config, "1" * 64, "2" * 64) | plan
        )
    files.write(
        f"{run}/evaluations.jsonl", b'{"step": 8, "heldout_loss": 4.25, "heldout_share": 0.125}\n'
    )
    result = export(run, str(out), every=True)
    assert result["steps"] == [3, 8] and len(result["files"]) == 2 * len(FILES)
    assert (
        sorted(os.listdir(out)) == ["step_3", "step_8"]
        and sorted(os.listdir(out / "step_8")) == FILES
    )
    for step, each in zip(result["steps"], params, strict=True):
        tensors = load_file(out / f"step_{step}" / "model.safetensors")
        np.testing.assert_array_equal(
            tensors["transformer.word_embedding.weight"], each["word_embedding"]
        )
    first, last = ((out / f"step_{step}" / "README.md").read_text() for step in result["steps"])
    tokens = (4 * 8 + 4 * 16) * config.data.reuse_len
    for line in (
        "exported at step 8.",
        f"| fresh tokens | {tokens:,} |",
        f"| steps | 8 of {config.train.steps} |",
        "| held-out, 12.5% of the split | 4.2500 nats per target |",
    ):
        assert line in last and line not in first
    for options, said in (
        ({"step": 3}, "--every exports all checkpoints, and --step=3 one"),
        ({}, "out: is not empty; choose another"),
    ):
        with pytest.raises(BadInput, match=said):
            export(run, str(out), every=True, **options)
    os.mkdir(tmp_path / "checkpoints")
    with pytest.raises(BadInput, match="has no complete checkpoint; train until the first save"):
        export(str(tmp_path), str(tmp_path / "other"), every=True)


@pytest.mark.parametrize(
    ("task", "line", "expected"),
    [
        (
            "classification",
            {"accuracy": 0.75, "f1": 0.5, "matthews": 0.25},
            ["accuracy", "f1", "matthews"],
        ),
        ("regression", {"pearson": 0.75, "spearman": 0.5}, ["pearson", "spearman"]),
        ("embeddings", {"accuracy": 0.75}, ["accuracy"]),
    ],
)
def test_the_card_of_a_task_has_the_scores_of_its_step(task, line, expected, tmp_path):
    """Its loss is in no nats of a target."""
    tokens = data_fixtures.tokenizer()
    config = tiny.config(
        finetune={"task": task, "labels": "no,yes" if task == "classification" else ""}
    )
    run = str(tmp_path / "run")
    tiny.save_run(run, config, tiny.random_params(config, 1, tokens))
    lines = [
        line | {"step": 2, "loss": 9.0} | dict.fromkeys(line, 0.125),
        line | {"step": 3, "loss": 0.625, "rank": -1},
    ]
    files.write(
        f"{run}/evaluations.jsonl", "".join(json.dumps(each) + "\n" for each in lines).encode()
    )
    export(run, f"{run}.exported")
    card = files.read(f"{run}.exported/README.md").decode()
    rows = [row for row in card.splitlines() if "of the dev set" in row]
    assert rows == [f"| {name} of the dev set | {line[name]:.4f} |" for name in expected]
    assert "| dev | 0.6250 |" in card and "nats" not in card and "9.0000" not in card
