"""Models from elsewhere become work directories, bit for bit; what does not fit is refused in one
line.
"""

import dataclasses
import json
import os
import shutil
import sys
from types import SimpleNamespace

import data_fixtures
import fake_gcs
import jax
import numpy as np
import pytest
import released
import tiny
from convert import test_transformer_xl as transformer_xl_arrays
from oracle import xl_replay
from safetensors.numpy import load_file, save_file

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.cli import main
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.convert import fields, huggingface, peers, tensorflow, tokenizer_json
from xlnet_jax.convert.formats import Trained
from xlnet_jax.convert.names import Arrays
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

CONFIG = tiny.config(model={"activation": "gelu_erf"}, mesh={"data": 1})
# What a source does not say.
REST = [
    f"--config.{name}={value}"
    for name, value in configs.flat(CONFIG).items()
    if name
    in (
        "model.memory_len",
        "model.compute_dtype",
        "model.unroll",
        "data.segment_len",
        "data.reuse_len",
        "data.num_predict",
    )
]
NORMALIZATION = Normalization(lower=True, nfkc=True)


def imported_params(workdir):
    params, step = tiny.saved_parameters(str(workdir))
    assert step == 0
    return params


def assert_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.fixture(scope="module")
def params():
    return tiny.random_params(CONFIG)


@pytest.fixture(scope="module")
def folder(params, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("folder") / "model")
    tokenizer = Tokenizer(data_fixtures.tokenizer_path(), NORMALIZATION)
    huggingface.write(Trained(CONFIG, tokenizer, params), path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_huggingface_and_back(folder, params, tmp_path, caplog):
    """Ours -> Hugging Face -> ours -> Hugging Face: arrays, configuration and tokenizer are those
    that left.
    """
    caplog.set_level("INFO")
    workdir = str(tmp_path / "work")
    arrays = len(load_file(f"{folder}/model.safetensors"))
    assert import_(folder, workdir) == {"arrays": arrays, "workdir": workdir}
    assert "assumed" not in caplog.text and "have no key" not in caplog.text
    assert "model.activation=gelu_erf" in caplog.text
    assert (
        f"--config.checkpoint.init_from={workdir} --config.model.vocab_size={tiny.VOCAB}"
        in caplog.text
    )
    assert_equal(imported_params(workdir), params)
    found = workdirs.load_config(workdir)
    assert (
        found.model == dataclasses.replace(CONFIG.model, unroll="auto")
        and found.data == CONFIG.data
    )
    tokenizer = workdirs.tokenizer(workdir)
    assert (tokenizer.sha256, tokenizer.normalization) == (
        data_fixtures.tokenizer().sha256,
        NORMALIZATION,
    )
    again = export(workdir, str(tmp_path / "again"), step=0)
    assert {os.path.basename(file) for file in again["files"]} == set(os.listdir(folder))
    same = set(os.listdir(folder)) - {"README.md"}
    for name in same:
        assert files.read(f"{folder}/{name}") == files.read(str(tmp_path / "again" / name)), name
    card = files.read(str(tmp_path / "again" / "README.md")).decode()
    assert (
        "library_name: transformers" in card
        and "| width | 16 |" in card
        and "the parameters were imported" in card
    )


def test_what_a_folder_does_not_say_is_named_and_what_the_caller_says_counts(
    copy, tmp_path, caplog
):
    caplog.set_level("INFO")
    words = [
        "--config.data.segment_len=40",
        "--config.data.reuse_len=20",
        "--config.data.num_predict=4",
    ]
    import_(str(copy), str(tmp_path / "told"), overrides=words)
    found = workdirs.load_config(str(tmp_path / "told"))
    assert (found.data.segment_len, found.data.reuse_len, found.model.memory_len) == (
        40,
        20,
        CONFIG.model.memory_len,
    )
    assert "assumed" not in caplog.text
    (copy / fields.OWN).unlink()
    edit(copy / "config.json", mem_len=7, reuse_len=0)
    assert fields.read_lengths(fields.read_config_json(str(copy))) == {"model.memory_len": 7}, (
        "0 is null there"
    )
    import_(str(copy), str(tmp_path / "untold"), overrides=words)
    said = (
        "does not say how its model was trained; assumed: "
        "model.compute_dtype=bfloat16 data.objective=plm;"
    )
    assert f"{copy} {said}" in caplog.text
    assert workdirs.load_config(str(tmp_path / "untold")).model.memory_len == 7
    (copy / fields.OWN).write_text('{"data.sgment_len": 3}')
    with pytest.raises(
        BadInput,
        match=r"json: 'data.sgment_len' is no key of such a file. Did you mean 'data.segment",
    ):
        import_(str(copy), str(tmp_path / "other"))


def test_a_folder_names_no_programs_and_no_other_path(copy, tmp_path):
    """`predict` reads it as it is, and would run machine code from the folder that it names."""
    for key in ("log.compilation_cache", "checkpoint.init_from", "data.corpus", "model.attention"):
        (copy / fields.OWN).write_text(json.dumps(fields.own_keys(CONFIG) | {key: str(tmp_path)}))
        with pytest.raises(BadInput, match=rf"xlnet_jax.json: '{key}' is no key of such a file"):
            import_(str(copy), str(tmp_path / "other"))


def test_a_run_that_starts_from_an_import_writes_again_what_its_source_said(
    copy, params, tmp_path, caplog
):
    """Import, a run that starts from it, one that starts from that one; export. What cannot be kept
    is named.
    """
    caplog.set_level("INFO")
    said = dict(mem_len=7, reuse_len=3, bi_data=True, use_mems_eval=False)
    edit(
        copy / "config.json",
        **said,
        task_specific_params={"text-generation": {"max_length": 250}},
        finetuned=None,
    )
    work, first, second = (str(tmp_path / name) for name in ("work", "first", "second"))
    import_(str(copy), work)
    assert (
        "these settings have no key, so a later export will lack them: "
        "task_specific_params={'text-generation': {'max_length': 250}}\n"
    ) in caplog.text
    data = SimpleNamespace(sha256="1" * 64, tokenizer=data_fixtures.tokenizer())
    for run, source in ((first, work), (second, first), (second, "gone")):
        config = tiny.config(model={"activation": "gelu_erf"}, checkpoint={"init_from": source})
        files.make_folder(run)
        workdirs.write_start(run, config, data, 0, {})
    own = str(tmp_path / "own")
    files.make_folder(own)
    workdirs.write_start(own, CONFIG, data, 0, {})
    for run, expected in ((work, said), (second, said), (own, peers.PEERS["xlnet"].kept)):
        if run != work:
            with Checkpoints(run, CONFIG.checkpoint) as checkpoints:
                checkpoints.save(
                    1,
                    {"params": params},
                    workdirs.identity(CONFIG, "1" * 64, data.tokenizer.sha256),
                )
        export(run, f"{run}.exported")
        found = files.read_json_object(f"{run}.exported/config.json")
        assert {key: found[key] for key in expected} == expected
        assert found.items() >= {"mem_len": expected["mem_len"], "use_mems_train": False}.items()
    edit(
        tmp_path / "work" / "config.json", source_config=said | {"n_layer": 5, "same_length": True}
    )
    export(work, str(tmp_path / "strange"))
    sizes = {"n_layer": CONFIG.model.layers, "same_length": False}
    assert (
        files.read_json_object(f"{tmp_path}/strange/config.json").items() >= (said | sizes).items()
    )
    edit(tmp_path / "work" / "config.json", source_config=5)
    with pytest.raises(
        BadInput, match="config.json: source_config='5' is no JSON object; leave it out"
    ):
        export(work, str(tmp_path / "other"))


def test_shards_and_back(params, tmp_path):
    """No file is larger than asked for, and an array is in exactly one of them."""
    path = str(tmp_path / "model")
    huggingface.write(Trained(CONFIG, data_fixtures.tokenizer(), params), path, shard_bytes=9000)
    weights = sorted(f"{path}/{name}" for name in os.listdir(path) if name.endswith(".safetensors"))
    index = files.read_json_object(f"{path}/model.safetensors.index.json")
    arrays = [load_file(file) for file in weights]
    assert (
        len(weights) > 3
        and os.path.basename(weights[0]) == f"model-00001-of-{len(weights):05}.safetensors"
    )
    sizes = [sum(array.nbytes for array in shard.values()) for shard in arrays]
    assert max(size for size, shard in zip(sizes, arrays, strict=True) if len(shard) > 1) <= 9000
    assert (
        index["metadata"]["total_size"]
        == sum(sizes)
        == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    )
    found = {
        name: os.path.basename(file)
        for file, shard in zip(weights, arrays, strict=True)
        for name in shard
    }
    assert index["weight_map"] == found
    import_(path, str(tmp_path / "work"), overrides=REST)
    assert_equal(imported_params(tmp_path / "work"), params)
    os.remove(weights[1])
    with pytest.raises(BadInput, match=f"has no {os.path.basename(weights[1])}"):
        import_(path, str(tmp_path / "other"), overrides=REST)


@pytest.mark.parametrize("share_layers", [False, True])
def test_orbax_and_back(share_layers, tmp_path):
    """Ours -> Orbax -> ours, with all keys of the run; Orbax's public functions read it."""
    from orbax.checkpoint import v1 as ocp

    config = tiny.config(model={"share_layers": share_layers}, mesh={"data": 1})
    params, run = tiny.random_params(config), str(tmp_path / "run")
    identity = {
        "config": configs.flat(config),
        "corpus_sha256": "1" * 64,
        "tokenizer_sha256": data_fixtures.tokenizer().sha256,
    }
    with Checkpoints(run, config.checkpoint) as checkpoints:
        checkpoints.save(7, {"params": params}, identity)
    workdirs.write_tokenizer(run, Tokenizer(data_fixtures.tokenizer_path(), NORMALIZATION))
    files.write(f"{run}/config.json", files.to_json(identity))
    exported = export(run, str(tmp_path / "exported"), format="orbax")
    assert {os.path.basename(file.rstrip("/")) for file in exported["files"]} == {
        "params",
        "config.json",
        "tokenizer",
    }
    assert_equal(ocp.load(str(tmp_path / "exported" / "params")), params)
    workdir = str(tmp_path / "work")
    assert import_(str(tmp_path / "exported"), workdir)["arrays"] == len(jax.tree.leaves(params))
    assert_equal(imported_params(workdir), params)
    assert (
        workdirs.load_config(workdir).data == config.data
        and workdirs.load_config(workdir).model == config.model
    )
    assert workdirs.tokenizer(workdir).normalization == NORMALIZATION
    with pytest.raises(BadInput, match="trained with other frozen keys: model.layers"):
        import_(
            str(tmp_path / "exported"),
            str(tmp_path / "other"),
            overrides=["--config.model.layers=3"],
        )
    shutil.rmtree(tmp_path / "exported" / "params" / "state")
    with pytest.raises(BadInput, match="params: Orbax cannot read it"):
        import_(str(tmp_path / "exported"), str(tmp_path / "other"))


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_buckets(params, tmp_path):
    """An export appears in a bucket, in shards, and is imported from there."""
    with fake_gcs.serve() as server:
        trained = Trained(CONFIG, data_fixtures.tokenizer(), params)
        huggingface.write(trained, "gs://bucket/model", shard_bytes=9000)
        assert {
            f"bucket/model/{file}" for file in files.listing("gs://bucket/model")
        } == server.objects.keys()
        import_("gs://bucket/model", str(tmp_path / "work"), overrides=REST)
        assert_equal(imported_params(tmp_path / "work"), params)
        with pytest.raises(BadInput, match="gs://bucket/model: is not empty"):
            huggingface.write(trained, "gs://bucket/model")


def test_names_without_prefix_and_a_copied_embedding(copy, params, tmp_path):
    """As a bare `XLNetModel` is saved, and with the tied weights of other writers."""
    path = copy / "model.safetensors"
    arrays = load_file(path)
    bare = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    save_file(bare | {"lm_loss.weight": arrays["transformer.word_embedding.weight"]}, path)
    with pytest.raises(BadInput, match=r"missing \(1\): lm_loss.bias"):
        save_file(
            {name: bare[name] for name in bare if name != "lm_loss.bias"},
            copy / "model.safetensors",
        )
        import_(str(copy), str(tmp_path / "work"), overrides=REST)
    save_file(arrays | {"lm_loss.weight": arrays["transformer.word_embedding.weight"]}, path)
    import_(str(copy), str(tmp_path / "work"), overrides=REST)
    assert_equal(imported_params(tmp_path / "work"), params)
    save_file(arrays | {"lm_loss.weight": arrays["transformer.word_embedding.weight"] + 1}, path)
    with pytest.raises(
        BadInput, match="lm_loss.weight differs from transformer.word_embedding.weight; only tied"
    ):
        import_(str(copy), str(tmp_path / "other"), overrides=REST)


def test_a_tokenizer_json_without_spiece_model(copy, tmp_path):
    os.remove(copy / "spiece.model")
    import_(str(copy), str(tmp_path / "work"), overrides=REST)
    found, ours = (
        workdirs.tokenizer(str(tmp_path / "work")),
        Tokenizer(data_fixtures.tokenizer_path(), NORMALIZATION),
    )
    assert found.pieces == ours.pieces and found.normalization == ours.normalization
    lines = data_fixtures.synthetic_text(3, 40).split("\n") + [
        "(12,000), 1990, and <eop> “quoted” ﬁne",
        "한국어 がぎ",
    ]
    assert [found.encode(line).tolist() for line in lines] == [
        ours.encode(line).tolist() for line in lines
    ]
    os.remove(copy / "tokenizer.json")
    with pytest.raises(
        BadInput, match="has no spiece.model, vocabulary.json, tokenizer.json.*--tokenizer"
    ):
        import_(str(copy), str(tmp_path / "other"), overrides=REST)
    import_(
        str(copy), str(tmp_path / "other"), tokenizer=data_fixtures.tokenizer_path(), overrides=REST
    )
    assert workdirs.tokenizer(str(tmp_path / "other")).normalization == NORMALIZATION


def test_the_steps_of_a_nested_normalizer_are_found():
    inner = {
        "type": "Sequence",
        "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}],
    }
    document = {
        "model": {"type": "Unigram", "vocab": [["<unk>", 0.0]]},
        "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [inner]},
    }
    made = tokenizer_json.sentencepiece_model_pb2.ModelProto.FromString(
        tokenizer_json.sentencepiece_model(document, "x")
    )
    assert (
        made.normalizer_spec.precompiled_charsmap == b"\0\0\0"
        and made.normalizer_spec.add_dummy_prefix
    )
    with pytest.raises(BadInput, match="x: "):
        tokenizer_json.sentencepiece_model({"model": {"type": "BPE"}}, "x")


def test_a_tokenizer_without_a_limit_says_no_length(tmp_path):
    """`transformers` writes int(1e30), which would be refused as a segment length."""
    classes = {"model_type": "xlnet", "architectures": ["XLNetForSequenceClassification"]}
    for limit, expected in ((10**30 + 19884624838656, {}), (128, {"data.segment_len": 128})):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        assert expected.items() == {
            x for x in fields.read_task(str(tmp_path), classes).items() if "len" in x[0]
        }


def test_bad_input_is_one_line_and_writes_nothing(copy, folder, tmp_path, capsys):
    work, config = tmp_path / "work", copy / "config.json"

    def refused(source=copy, *words):
        assert main(["import", str(source), f"--workdir={work}", "--json", *REST, *words]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert not work.exists()
        return line

    assert "no model found" in refused(tmp_path / "nowhere")
    assert "No such file" in refused(copy, f"--tokenizer={tmp_path}/other.model")
    arrays = load_file(copy / "model.safetensors")
    bias = "transformer.layer.1.rel_attn.r_w_bias"
    save_file(
        {name: array for name, array in arrays.items() if name != bias}
        | {
            "transformer.layer.2.rel_attn.r_w_bias": arrays[bias],
            "lm_loss.bias": np.zeros(7, np.float32),
        },
        copy / "model.safetensors",
    )
    line = refused()
    assert (
        f"missing (1): {bias};" in line
        and "left over (1): transformer.layer.2.rel_attn.r_w_bias;" in line
    )
    assert "lm_loss.bias is [7] and must be [200]" in line
    save_file(
        arrays | {"lm_loss.bias": np.full(200, np.nan, np.float32)}, copy / "model.safetensors"
    )
    assert "not finite: lm_head/bias" in refused()
    (copy / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "model.safetensors: not a safetensors file" in refused()
    os.remove(copy / "model.safetensors")
    assert "has no model.safetensors; save the model in safetensors" in refused()
    for changes, said in (
        (dict(vocab_size=199), "has 200 pieces, the model"),
        (dict(d_model="16"), 'd_model is "16" and'),
        (dict(ff_activation="silu"), "ff_activation='silu' is not one of"),
        (dict(attn_type="uni"), "attn_type"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings=false"),
        (dict(model_type="t5"), "is 't5'; only"),
        (dict(architectures=5), "architectures is 5 and must be a list"),
        (dict(same_length=0), "same_length is 0 and"),
        (
            dict(architectures=["XLNetForSequenceClassification"], id2label={"a": "x"}),
            "does not name the label of",
        ),
    ):
        shutil.copy(f"{folder}/config.json", config)
        edit(config, **changes)
        assert said in refused()
    config.write_text("[]")
    assert "holds no JSON object" in refused()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{folder}/{name}", copy)
    edit(copy / "tokenizer_config.json", do_lower_case="no")
    assert 'tokenizer_config.json: do_lower_case is "no" and must be true or false' in refused()


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        (
            "classification",
            {"summary_last_dropout": 0.3},
            "summary_last_dropout=0.3 and dropout=0.1; only equal values",
        ),
        ("multiple_choice", {"dropout": 0.2}, "summary_last_dropout=0.1 and dropout=0.2"),
        ("question_answering", {"end_n_top": 7}, "end_n_top=7 and start_n_top=5"),
        ("regression", {"summary_activation": None}, 'summary_activation=null; only "tanh"'),
        (
            "multi_label_classification",
            {"id2label": {"0": "a", "2": "b"}},
            "does not name the label of each number",
        ),
    ],
)
def test_a_head_of_xlnet_that_is_another_function_is_refused(task, changes, said, tmp_path, capsys):
    config = tiny.config(
        finetune={"task": task, "labels": "a,b" if task.endswith("classification") else ""}
    )
    tokenizer = data_fixtures.tokenizer()
    huggingface.write(
        Trained(config, tokenizer, tiny.random_params(config, 1, tokenizer)),
        str(tmp_path / "model"),
    )
    edit(tmp_path / "model" / "config.json", **changes)
    assert main(["import", str(tmp_path / "model"), f"--workdir={tmp_path}/work", "--json"]) == 2
    assert said in capsys.readouterr().err


def test_a_tensorflow_checkpoint_needs_its_configuration_and_tensorflow(tmp_path, monkeypatch):
    (tmp_path / "model.ckpt.index").touch()
    shutil.copy(data_fixtures.tokenizer_path(), tmp_path / "spiece.model")
    sizes = dict(n_token=200, n_layer=2, d_model=16, n_head=2, d_head=8, d_inner=32, untie_r=True)

    def refused(message, source=str(tmp_path / "model.ckpt")):
        with pytest.raises(BadInput, match=message):
            import_(source, str(tmp_path / "work"))

    with monkeypatch.context() as empty:
        empty.setattr(tensorflow, "open_checkpoint", lambda prefix: Arrays.of(prefix, {}))
        refused(r"it has no transformer/r_w_bias; for an XLNet put its xlnet_config.json beside")
    (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes))
    refused("has no ff_activation")
    (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes | {"ff_activation": "gelu"}))
    assert tensorflow.read_model(str(tmp_path))["model.activation"] == "gelu"  # the tanh form
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refused("needs tensorflow; install the extra `tf`")
    refused("needs tensorflow; install the extra `tf`", str(tmp_path))
    (tmp_path / "second.index").touch()
    refused("holds 2 TensorFlow checkpoints", str(tmp_path))


class Unreadable(Exception):
    """As `tf.errors.OpError`."""


@pytest.mark.parametrize(
    "error", [Unreadable("Checksum does not match"), IndexError("Read less bytes"), ValueError("")]
)
@pytest.mark.parametrize("kind", ["xlnet", "transformer_xl"])
def test_a_damaged_tensorflow_data_file_is_one_line(kind, error, tmp_path, monkeypatch, capsys):
    """The index is whole; `peers/test_tensorflow.py` damages files for TensorFlow itself."""

    def get_tensor(name):
        raise error

    arrays = released.tensorflow_arrays("tiny")
    words, symbols = [], tmp_path / "symbols.txt"
    if kind == "transformer_xl":
        arrays = transformer_xl_arrays.variables_of(
            xl_replay.load("plain"), xl_replay.CASES["plain"]
        )
        symbols.write_text("\n".join(transformer_xl_arrays.SYMBOLS))
        words = [f"--tokenizer={symbols}"]
    else:
        sizes = released.SIZES["tiny"] | {"ff_activation": "gelu", "untie_r": True}
        (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes))
        released.write_tokenizer(tmp_path, sizes["n_token"])
    float32 = SimpleNamespace(as_numpy_dtype=np.float32)
    reader = SimpleNamespace(
        get_tensor=get_tensor,
        get_variable_to_shape_map=lambda: {name: array.shape for name, array in arrays.items()},
        get_variable_to_dtype_map=lambda: dict.fromkeys(arrays, float32),
    )
    library = SimpleNamespace(
        errors=SimpleNamespace(OpError=Unreadable),
        train=SimpleNamespace(load_checkpoint=lambda _: reader),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", library)
    (tmp_path / "model.ckpt.index").touch()
    assert (
        main(["import", f"{tmp_path}/model.ckpt", f"--workdir={tmp_path}/work", "--json", *words])
        == 2
    )
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert f"{tmp_path}/model.ckpt: TensorFlow cannot read it (" in line and line.endswith(
        "; copy it again"
    )


def test_an_imported_work_directory_is_no_run(folder, tmp_path, capsys):
    """`train` into it would mix two things: it says how to start from it."""
    workdir = str(tmp_path / "work")
    import_(folder, workdir, overrides=REST)
    words = [
        f"--config={tiny.TESTS}/tiny_config.py",
        f"--config.data.corpus={data_fixtures.corpus_path()}",
    ]
    assert main(["train", *words, f"--workdir={workdir}"]) == 2
    assert "holds imported parameters" in capsys.readouterr().err
    with pytest.raises(BadInput, match="holds a run; name a new folder"):
        import_(folder, workdir, overrides=REST)
    with pytest.raises(BadInput, match="is a work directory; start from it with"):
        import_(workdir, str(tmp_path / "new"))
    assert main(["inspect", f"--workdir={workdir}", "--parameters", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)["parameters"]
    assert counted == sum(x.size for x in jax.tree.leaves(tiny.random_params(CONFIG)))


@pytest.mark.slow
def test_an_imported_work_directory_is_evaluated(folder, tmp_path, capsys):
    workdir = str(tmp_path / "work")
    import_(folder, workdir, overrides=REST)
    words = [
        f"--config.data.corpus={data_fixtures.corpus_path()}",
        "--batch_size=8",
        "--blocks=8",
        "--json",
    ]
    assert main(["evaluate", f"--workdir={workdir}", *words]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["step"] == 0 and scores["heldout_loss"] > 5 and scores["targets"] > 0
