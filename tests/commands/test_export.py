"""The exported folder as files: what is in it, under which names, and what is refused. `peers/`
loads it.
"""

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
import tiny
from safetensors.numpy import load_file
from sentencepiece import sentencepiece_model_pb2

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.config import Config
from xlnet_jax.convert import huggingface, tokenizer_json
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import find, on_one_device, opened
from xlnet_jax.run import metrics
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
    train_tokenizer([line for line in lines if line.strip()], path, VOCAB, seed=0, threads=1)
    return path


def write(tokenizer, folder, params=None, **changes) -> None:
    params = params_of(small(**changes)) if params is None else params
    huggingface.write(Trained(small(**changes), Tokenizer(tokenizer), params), str(folder))


def test_tensors(tokenizer, tmp_path):
    """Values and shapes; `convert/test_names.py` compares the names with the recordings."""
    params, path = params_of(small()), tmp_path / "below" / "model" / "model.safetensors"
    write(tokenizer, path.parent, params)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    tensors = load_file(path)
    assert len(tensors) == 3 + 2 * 17 and "lm_loss.weight" not in tensors
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}

    attention, forward = params["layers"]["attention"], params["layers"]["feed_forward"]
    layer = "transformer.layer.1"
    expected = {
        "transformer.mask_emb": params["mask_embedding"][None, None],
        f"{layer}.rel_attn.o": attention["output"][1],
        f"{layer}.rel_attn.r_w_bias": attention["content_bias"][1],
        f"{layer}.ff.layer_1.weight": forward["inner"]["kernel"][1].T,
        f"{layer}.ff.layer_2.weight": forward["outer"]["kernel"][1].T,
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)


def test_accents_are_the_characters_the_normalization_drops(tokenizer):
    """`peers/test_huggingface.py` compares the ids by every normalization."""
    document = tokenizer_json.tokenizer_json(files.read(tokenizer), Normalization(), "t")
    accents = re.compile(document["normalizer"]["normalizers"][4]["pattern"]["Regex"])
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
    assert (tmp_path / "full" / "config.json").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(28, "No space left"), BadInput), (KeyboardInterrupt(), None)]
)
def test_an_export_that_fails_leaves_nothing(error, raised, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "save_file", mock.Mock(side_effect=error))
    with pytest.raises(raised or type(error)):
        write(tokenizer, tmp_path / "model")
    assert not os.listdir(tmp_path)


def test_tokenizers_that_cannot_be_expressed(tokenizer):
    content, other = files.read(tokenizer), sentencepiece_model_pb2.ModelProto()
    other.ParseFromString(content)
    other.trainer_spec.model_type = other.trainer_spec.BPE
    with pytest.raises(BadInput, match="tokenizer t: not a unigram model"):
        tokenizer_json.tokenizer_json(other.SerializeToString(), Normalization(), "t")
    other.ParseFromString(content)
    other.pieces[20].type = other.pieces[20].BYTE
    with pytest.raises(BadInput, match="tokenizer t: has byte pieces"):
        tokenizer_json.tokenizer_json(other.SerializeToString(), Normalization(), "t")


AVERAGED = ["--config.evaluation.averaged=true"]


def test_the_average_that_a_run_keeps_is_read_where_it_is_asked_for(tmp_path):
    """By what exports and by what computes on a mesh; the fault: the parameters, or a slot of the
    optimizer.
    """
    config = tiny.config(optimizer={"average": 0.9})
    rng, run, asked = np.random.default_rng(0), str(tmp_path / "run"), AVERAGED
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
    run = str(tmp_path / "run")
    tiny.save_run(run, tiny.config(), tiny.random_params(tiny.config()))
    with pytest.raises(BadInput, match="evaluation.averaged=True needs a run that keeps"):
        export(run, str(tmp_path / "out"), overrides=AVERAGED)


def test_the_mean_of_checkpoints(tmp_path):
    """The newest one and those before it; the fault: a sum, the oldest ones, or a mean with an old
    one that is kept.
    """
    config, run, out = tiny.config(), str(tmp_path / "run"), str(tmp_path / "out")
    params = [tiny.random_params(config, scale) for scale in (1.0, 2.0, 4.0)]
    tiny.save_run(run, config, params[0])
    identity = workdirs.identity(config, "1" * 64, "2" * 64)
    with Checkpoints(run, config.checkpoint) as checkpoints:
        checkpoints.save(8, {"params": params[1]}, identity)
        checkpoints.save(12, {"params": params[2]}, identity)
    assert export(run, out, format="orbax", average=2)["step"] == 12
    wanted = tiny.random_params(config, 3.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), find(out).params, wanted)
    for options, said in (
        ({"average": 3}, "saves up to step 12, .* has steps 12, 8, 3; train until there are so"),
        ({"average": 4}, r"has steps 12, 8, 3; train with checkpoint.keep=4 \(it was 3\)"),
        ({"average": 2, "step": 8}, "last 2 saves up to step 8, every 4 steps, and .*--step=12"),
    ):
        with pytest.raises(BadInput, match=said):
            export(run, f"{out}2", format="orbax", **options)


def test_every_kept_checkpoint_becomes_a_folder_with_its_card(tmp_path):
    """The fault: one checkpoint in all folders, the newest one left out, or the steps of another
    batch size.
    """
    config, run, out = tiny.config(), str(tmp_path / "run"), tmp_path / "out"
    params = [tiny.random_params(config, scale) for scale in (1.0, 2.0)]
    tiny.save_run(run, config, params[0])
    with Checkpoints(run, config.checkpoint) as checkpoints:
        identity = workdirs.identity(config, "1" * 64, "2" * 64)
        plan = {"plan": [[0, 0, 8], [4, 8, 16]]}
        checkpoints.save(8, {"params": params[1]}, identity | plan)
    evaluated = {"step": 8, "heldout_loss": 4.25, "heldout_share": 0.125}
    files.write(f"{run}/evaluations.jsonl", metrics.to_line(evaluated))
    result = export(run, str(out), every=True)
    assert result["steps"] == [3, 8] and len(result["files"]) == 2 * len(FILES)
    assert sorted(os.listdir(out)) == ["step_3", "step_8"]
    assert sorted(os.listdir(out / "step_8")) == FILES
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


def test_the_card_of_a_task_has_the_scores_of_its_step(tmp_path):
    """Its loss is in no nats of a target."""
    config = tiny.config(finetune={"task": "regression"})
    run = str(tmp_path / "run")
    tiny.save_run(run, config, tiny.random_params(config, 1, data_fixtures.tokenizer()))
    lines = [
        {"step": 2, "loss": 9.0, "pearson": 0.125, "spearman": 0.125},
        {"step": 3, "loss": 0.625, "pearson": 0.75, "spearman": 0.5, "rank": -1},
    ]
    files.write(f"{run}/evaluations.jsonl", b"".join(map(metrics.to_line, lines)))
    export(run, f"{run}.exported")
    card = files.read(f"{run}.exported/README.md").decode()
    rows = [row for row in card.splitlines() if "of the dev set" in row]
    assert rows == ["| pearson of the dev set | 0.7500 |", "| spearman of the dev set | 0.5000 |"]
    assert "| dev | 0.6250 |" in card and "nats" not in card and "9.0000" not in card
