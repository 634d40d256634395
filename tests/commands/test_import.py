"""Models from elsewhere become work directories, bit for bit; what does not fit is refused in one
line.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import data_fixtures
import fake_gcs
import fake_hub
import fake_s3
import jax
import numpy as np
import pytest
import shared
import tiny
from safetensors.numpy import load_file, save_file

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.cli import main
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.convert import fields, huggingface, orbax, peers, tensorflow, tokenizer_json
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
    assert found.model == dataclasses.replace(CONFIG.model, unroll="auto")
    assert found.data == CONFIG.data
    tokenizer = workdirs.tokenizer(workdir)
    assert tokenizer.sha256 == data_fixtures.tokenizer().sha256
    assert tokenizer.normalization == NORMALIZATION
    again = export(workdir, str(tmp_path / "again"), step=0)
    assert {os.path.basename(file) for file in again["files"]} == set(os.listdir(folder))
    for name in set(os.listdir(folder)) - {"README.md"}:
        assert files.read(f"{folder}/{name}") == files.read(str(tmp_path / "again" / name)), name
    card = files.read(str(tmp_path / "again" / "README.md")).decode()
    assert "library_name: transformers" in card and "the parameters were imported" in card


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
    assert (found.data.segment_len, found.data.reuse_len) == (40, 20)
    assert found.model.memory_len == CONFIG.model.memory_len and "assumed" not in caplog.text
    (copy / fields.OWN).unlink()
    edit(copy / "config.json", mem_len=7, reuse_len=0)  # 0 is null there
    assert fields.read_lengths(fields.read_config_json(str(copy))) == {"model.memory_len": 7}
    import_(str(copy), str(tmp_path / "untold"), overrides=words)
    said = (
        "does not say how its model was trained; assumed: "
        "model.compute_dtype=bfloat16 data.objective=plm;"
    )
    assert f"{copy} {said}" in caplog.text
    assert workdirs.load_config(str(tmp_path / "untold")).model.memory_len == 7
    (copy / fields.OWN).write_text('{"data.sgment_len": 3}')
    with pytest.raises(BadInput, match="'data.sgment_len' is no key .* Did you mean 'data.seg"):
        import_(str(copy), str(tmp_path / "other"))


def test_a_folder_names_no_programs_and_no_other_path(copy, tmp_path):
    """`predict` reads it as it is, and would run machine code from the folder that it names."""
    for key in ("log.compilation_cache", "data.corpus"):
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
    edit(copy / "config.json", **said, task_specific_params={"text": 250}, finetuned=None)
    work, first, second = (str(tmp_path / name) for name in ("work", "first", "second"))
    import_(str(copy), work)
    assert "a later export will lack them: task_specific_params={'text': 250}\n" in caplog.text
    data = SimpleNamespace(sha256="1" * 64, tokenizer=data_fixtures.tokenizer())
    own = str(tmp_path / "own")
    for run, source in ((first, work), (second, first), (second, "gone"), (own, "")):
        config = CONFIG.changed(checkpoint={"init_from": source})
        files.make_folder(run)
        workdirs.write_start(run, config, data, 0, {})
    identity = workdirs.identity(CONFIG, data.sha256, data.tokenizer.sha256)
    for run in (second, own):
        with Checkpoints(run, CONFIG.checkpoint) as checkpoints:
            checkpoints.save(1, {"params": params}, identity)
    for run, expected in ((work, said), (second, said), (own, peers.PEERS["xlnet"].kept)):
        export(run, f"{run}.exported")
        found = files.read_json_object(f"{run}.exported/config.json")
        assert found.items() >= (expected | {"use_mems_train": False}).items()
    strange = said | {"n_layer": 5, "same_length": True}
    edit(tmp_path / "work" / "config.json", source_config=strange)
    export(work, str(tmp_path / "strange"))
    found = files.read_json_object(f"{tmp_path}/strange/config.json")
    ours = {"n_layer": CONFIG.model.layers, "same_length": False}
    assert found.items() >= (said | ours).items()
    edit(tmp_path / "work" / "config.json", source_config=5)
    with pytest.raises(BadInput, match="config.json: source_config='5' is no JSON object"):
        export(work, str(tmp_path / "other"))


def test_shards_and_back(params, tmp_path):
    """No file is larger than asked for, and an array is in exactly one of them."""
    path = str(tmp_path / "model")
    huggingface.write(Trained(CONFIG, data_fixtures.tokenizer(), params), path, shard_bytes=9000)
    weights = sorted(f"{path}/{name}" for name in os.listdir(path) if name.endswith(".safetensors"))
    assert weights[0] == f"{path}/model-00001-of-{len(weights):05}.safetensors"
    sizes, found = [], {}
    for file in weights:
        shard = load_file(file)
        sizes.append(sum(array.nbytes for array in shard.values()))
        assert len(shard) == 1 or sizes[-1] <= 9000
        found |= dict.fromkeys(shard, os.path.basename(file))
    index = files.read_json_object(f"{path}/model.safetensors.index.json")
    assert index["weight_map"] == found and len(weights) > 3
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert index["metadata"]["total_size"] == sum(sizes) == total
    import_(path, str(tmp_path / "work"), overrides=REST)
    assert_equal(imported_params(tmp_path / "work"), params)
    os.remove(weights[1])
    with pytest.raises(BadInput, match=f"has no {os.path.basename(weights[1])}"):
        import_(path, str(tmp_path / "other"), overrides=REST)


def test_orbax_and_back(tmp_path):
    """Ours -> Orbax -> ours, with all keys of the run; Orbax's public functions read it."""
    from orbax.checkpoint import v1 as ocp

    # Shared layers have no place in a folder of Hugging Face.
    config = tiny.config(model={"share_layers": True}, mesh={"data": 1})
    params = tiny.random_params(config)
    run, exported, work = (str(tmp_path / name) for name in ("run", "exported", "work"))
    # The first tokenizer of a work directory stays.
    workdirs.write_tokenizer(run, Tokenizer(data_fixtures.tokenizer_path(), NORMALIZATION))
    tiny.save_run(run, config, params)
    written = export(run, exported, format="orbax")["files"]
    names = {os.path.basename(file.rstrip("/")) for file in written}
    assert names == {"params", "config.json", "tokenizer"}
    assert_equal(ocp.load(f"{exported}/params"), params)
    assert import_(exported, work)["arrays"] == len(jax.tree.leaves(params))
    assert_equal(imported_params(work), params)
    found = workdirs.load_config(work)
    assert (found.data, found.model) == (config.data, config.model)
    assert workdirs.tokenizer(work).normalization == NORMALIZATION
    with pytest.raises(BadInput, match="trained with other frozen keys: model.layers"):
        import_(exported, f"{work}2", overrides=["--config.model.layers=3"])
    shutil.rmtree(f"{exported}/params/state")
    with pytest.raises(BadInput, match="params: Orbax cannot read it"):
        import_(exported, f"{work}2")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("fake", [fake_gcs, fake_s3, fake_hub])
def test_stores(params, tmp_path, fake):
    """An export appears in a store, in shards and with its card, and is imported from there."""
    trained = Trained(CONFIG, data_fixtures.tokenizer(), params)
    with fake.serve() as store:
        place = f"{store.kind}://bucket/model".replace("hf://bucket", "hf://me")
        huggingface.write(trained, place, shard_bytes=9000)
        listed = files.listing(place).keys()
        assert {"README.md", "model.safetensors.index.json", "spiece.model"} <= listed
        if fake is fake_gcs:
            assert {f"bucket/model/{file}" for file in listed} == store.objects.keys()
        import_(place, str(tmp_path / "work"), overrides=REST)
        assert_equal(imported_params(tmp_path / "work"), params)
        with pytest.raises(BadInput, match=f"{place}: is not empty"):
            huggingface.write(trained, place)


@pytest.mark.slow
def test_killed(params, tmp_path):
    """After the checkpoint and before the configuration; the source is on S3."""
    program = f"""
import os, signal
from xlnet_jax.commands.import_ import import_
from xlnet_jax.run import workdir
workdir.write_tokenizer = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
import_("s3://bucket/model", {str(tmp_path / "work")!r}, overrides={REST})
"""
    with fake_s3.serve() as store:
        trained = Trained(CONFIG, data_fixtures.tokenizer(), params)
        huggingface.write(trained, "s3://bucket/model", shard_bytes=9000)
        environment = shared.environment() | store.environment()
        done = subprocess.run([sys.executable, "-c", program], env=environment)
        assert done.returncode == -signal.SIGKILL and os.listdir(tmp_path / "work/checkpoints")
        with pytest.raises(BadInput, match="no config.json"):
            workdirs.load_config(str(tmp_path / "work"))
        # As if that import had had another source, and had been killed a little later.
        (tmp_path / "work/tokenizer").mkdir()
        (tmp_path / "work/tokenizer/spiece.model").write_bytes(b"of another source")
        import_("s3://bucket/model", str(tmp_path / "work"), overrides=REST)
        assert_equal(imported_params(tmp_path / "work"), params)
        found = workdirs.tokenizer(str(tmp_path / "work"))
        assert found.content == data_fixtures.tokenizer().content
        # Not a killed import: a run whose configuration is lost.
        os.rename(tmp_path / "work/checkpoints/0", tmp_path / "work/checkpoints/8")
        os.remove(tmp_path / "work/config.json")
        with pytest.raises(BadInput, match="work holds checkpoints of a run; name a new folder"):
            import_("s3://bucket/model", str(tmp_path / "work"), overrides=REST)


def test_a_folder_of_orbax_on_s3(params, tmp_path):
    tokenizer = data_fixtures.tokenizer()
    identity = workdirs.identity(CONFIG, "", tokenizer.sha256)
    trained = Trained(CONFIG, tokenizer, params, identity=identity)
    with fake_s3.serve():
        orbax.write(trained, "s3://bucket/model", 1)
        import_("s3://bucket/model", str(tmp_path / "work"))
    assert_equal(imported_params(tmp_path / "work"), params)


def test_names_without_prefix_and_a_copied_embedding(copy, params, tmp_path):
    """As a bare `XLNetModel` is saved, and with the tied weights of other writers."""
    path = copy / "model.safetensors"
    arrays = load_file(path)
    bare = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    save_file(bare | {"lm_loss.weight": bare["word_embedding.weight"]}, path)
    import_(str(copy), str(tmp_path / "work"), overrides=REST)
    assert_equal(imported_params(tmp_path / "work"), params)
    del bare["lm_loss.bias"]
    save_file(bare, path)
    with pytest.raises(BadInput, match=r"missing \(1\): lm_loss.bias"):
        import_(str(copy), str(tmp_path / "other"), overrides=REST)


def test_a_tokenizer_json_without_spiece_model(copy, tmp_path):
    os.remove(copy / "spiece.model")
    import_(str(copy), str(tmp_path / "work"), overrides=REST)
    found = workdirs.tokenizer(str(tmp_path / "work"))
    ours = Tokenizer(data_fixtures.tokenizer_path(), NORMALIZATION)
    assert found.pieces == ours.pieces and found.normalization == ours.normalization
    lines = data_fixtures.synthetic_text(3, 40).split("\n")
    lines += ["(12,000), 1990, and <eop> “quoted” ﬁne", "한국어 がぎ"]
    for line in lines:
        np.testing.assert_array_equal(found.encode(line), ours.encode(line))
    os.remove(copy / "tokenizer.json")
    other = str(tmp_path / "other")
    with pytest.raises(BadInput, match="has no spiece.model, vocabulary.json, tokenizer.json"):
        import_(str(copy), other, overrides=REST)
    import_(str(copy), other, tokenizer=data_fixtures.tokenizer_path(), overrides=REST)
    assert workdirs.tokenizer(other).normalization == NORMALIZATION


def test_the_steps_of_a_nested_normalizer_are_found():
    step = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    for _ in range(2):
        step = {"type": "Sequence", "normalizers": [step]}
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0]]}
    document = {"model": model, "pre_tokenizer": None, "normalizer": step}
    made = tokenizer_json.sentencepiece_model_pb2.ModelProto.FromString(
        tokenizer_json.sentencepiece_model(document, "x")
    )
    assert made.normalizer_spec.precompiled_charsmap == b"\0\0\0"
    assert made.normalizer_spec.add_dummy_prefix
    with pytest.raises(BadInput, match="x: "):
        tokenizer_json.sentencepiece_model({"model": {"type": "BPE"}}, "x")


def test_a_tokenizer_without_a_limit_says_no_length(tmp_path):
    """`transformers` writes int(1e30), which would be refused as a segment length."""
    classes = {"model_type": "xlnet", "architectures": ["XLNetForSequenceClassification"]}
    for limit, expected in ((int(1e30), None), (128, 128)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        assert fields.read_task(str(tmp_path), classes).get("data.segment_len") == expected


def test_bad_input_is_one_line_and_writes_nothing(copy, folder, tmp_path, capsys):
    work, config = tmp_path / "work", copy / "config.json"

    def refused(source=copy, *words):
        assert main(["import", str(source), f"--workdir={work}", "--json", *REST, *words]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert not work.exists()
        return line

    assert "no model found" in refused(tmp_path / "nowhere")
    assert "No such file" in refused(copy, f"--tokenizer={tmp_path}/other.model")
    weights = copy / "model.safetensors"
    save_file(load_file(weights) | {"lm_loss.bias": np.full(200, np.nan, np.float32)}, weights)
    assert "not finite: lm_head/bias" in refused()
    weights.write_bytes(b"\xff" * 100)
    assert "model.safetensors: not a safetensors file" in refused()
    os.remove(weights)
    assert "has no model.safetensors; save the model in safetensors" in refused()
    for changes, said in (
        (dict(vocab_size=199), "has 200 pieces, the model"),
        (dict(d_model="16"), 'd_model is "16" and'),
        (dict(attn_type="uni"), "attn_type"),
        (dict(architectures=5), "architectures is 5 and must be a list"),
        (dict(same_length=0), "same_length is 0 and"),
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
        ("question_answering", {"end_n_top": 7}, "end_n_top=7 and start_n_top=5"),
        ("regression", {"summary_activation": None}, 'summary_activation=null; only "tanh"'),
    ],
)
def test_a_head_of_xlnet_that_is_another_function_is_refused(task, changes, said, tmp_path, capsys):
    labels = "a,b" if task == "classification" else ""
    config = tiny.config(finetune={"task": task, "labels": labels})
    tokenizer = data_fixtures.tokenizer()
    trained = Trained(config, tokenizer, tiny.random_params(config, 1, tokenizer))
    huggingface.write(trained, str(tmp_path / "model"))
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
    refused("needs tensorflow; install the extra `tf`", str(tmp_path))
    (tmp_path / "second.index").touch()
    refused("holds 2 TensorFlow checkpoints", str(tmp_path))


class Unreadable(Exception):
    """As `tf.errors.OpError`."""


@pytest.mark.parametrize(
    "error", [Unreadable("Checksum does not match"), IndexError("Read less bytes"), ValueError("")]
)
def test_a_damaged_tensorflow_data_file_is_one_line(error, monkeypatch):
    """The index is whole; `peers/test_tensorflow.py` damages files for TensorFlow itself."""
    reader = mock.Mock()
    reader.get_variable_to_shape_map.return_value = {"a": (2,)}
    reader.get_variable_to_dtype_map.return_value = {"a": mock.Mock(as_numpy_dtype=np.float32)}
    reader.get_tensor.side_effect = error
    library = mock.Mock()
    library.errors.OpError = Unreadable
    library.train.load_checkpoint.return_value = reader
    monkeypatch.setitem(sys.modules, "tensorflow", library)
    arrays = tensorflow.open_checkpoint("model.ckpt")
    with pytest.raises((BadInput, type(error))) as raised:
        arrays.read("a")
    said = str(raised.value)
    assert said.startswith("model.ckpt: TensorFlow cannot read it (") and "; copy it again" in said


def test_an_imported_work_directory_is_no_run(folder, tmp_path, capsys):
    """`train` into it would mix two things: it says how to start from it."""
    workdir = str(tmp_path / "work")
    import_(folder, workdir, overrides=REST)
    assert main(shared.train_words(workdir)) == 2
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
    words = [f"--config.data.corpus={data_fixtures.corpus_path()}", "--blocks=8", "--json"]
    assert main(["evaluate", f"--workdir={workdir}", *words]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["step"] == 0 and scores["heldout_loss"] > 5
