"""The tokenizer of a work directory: a checkpoint is of use without the corpus that it was trained
on.
"""

import json
import shutil

import data_fixtures
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.data import vocabulary
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.run import workdir as workdirs


def workdir_of(path, corpus="", sha256=None):
    path.mkdir(exist_ok=True)
    identity = {
        "config": configs.flat(tiny.config(data={"corpus": corpus})),
        "corpus_sha256": "0" * 64,
        "tokenizer_sha256": sha256 or data_fixtures.tokenizer().sha256,
    }
    (path / "config.json").write_text(json.dumps(identity))
    return str(path)


def test_the_tokenizer_and_its_normalization_come_back(tmp_path):
    workdir = workdir_of(tmp_path / "run", corpus=str(tmp_path / "gone"))
    tokenizer = Tokenizer(data_fixtures.tokenizer_path(), Normalization(lower=True, nfkc=True))
    workdirs.write_tokenizer(workdir, tokenizer)
    found = workdirs.tokenizer(workdir)
    assert (found.sha256, found.normalization) == (tokenizer.sha256, tokenizer.normalization)
    assert (
        found.encode("  BADO ki").tolist()
        == data_fixtures.tokenizer().encode("bado ki").tolist()
        != []
    )
    # A later start of the run replaces nothing.
    workdirs.write_tokenizer(workdir, data_fixtures.tokenizer())
    assert workdirs.tokenizer(workdir).normalization == tokenizer.normalization


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "config.json",
            {"corpus_sha256": 5},
            "config.json: corpus_sha256 is 5 and must be a string",
        ),
        (
            "config.json",
            {"config": ["model"]},
            r'config is \["model"\] and must be an object; restore it',
        ),
        (
            "config.json",
            {"tokenizer_sha256": None},
            "config.json: it lacks tokenizer_sha256; restore it",
        ),
        ("config.json", [], "holds no JSON object; restore it"),
        (
            "tokenizer/normalization.json",
            {"lower": "no"},
            'lower is "no" and must be true or false; restore it from',
        ),
    ],
)
def test_a_value_of_a_wrong_type_is_told(tmp_path, file, content, message):
    workdir = workdir_of(tmp_path / "run")
    workdirs.write_tokenizer(workdir, Tokenizer(data_fixtures.tokenizer_path()))
    workdirs.tokenizer(workdir)
    path = tmp_path / "run" / file
    if isinstance(content, dict):
        content = json.loads(path.read_text()) | content
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=message):
        workdirs.tokenizer(workdir)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "format_version",
            99,
            "use the version that wrote it; this version has no entry 'format_version'",
        ),
        (
            "optimizer.clipp",
            1,
            "use the version that wrote it; this version has no config key 'optimizer.clipp'. "
            "Did you mean 'optimizer.clip'?",
        ),
        (
            "watchdog.sdc_every",
            0,
            "use the version that wrote it; this version has no config key 'watchdog.sdc_every'",
        ),
        ("finetune.task", "tokens", "finetune.task='tokens' is not one of none, classification, "),
    ],
)
def test_a_run_of_another_version_is_refused_with_its_file_and_key(tmp_path, key, value, told):
    workdir = workdir_of(tmp_path / "run")
    identity = json.loads((tmp_path / "run" / "config.json").read_text())
    (identity["config"] if "." in key else identity)[key] = value
    (tmp_path / "run" / "config.json").write_text(json.dumps(identity))
    with pytest.raises(BadInput) as raised:
        workdirs.load_config(workdir)
    assert str(raised.value).startswith(f"{workdir}/config.json: {told}")
    assert "\n" not in str(raised.value)
    if key not in configs.fields():  # a resume compares with it
        with pytest.raises(BadInput, match=key):
            workdirs.read_config(workdir)


def test_an_exported_folder_is_told_from_a_damaged_run(tmp_path):
    for text, message in (
        ('{"model_type": "xlnet"}', f"Hugging Face.*`xlnet-jax import {tmp_path} --workdir=NEW`$"),
        ("{", "config.json: not JSON"),
        ("{}", "lacks config, corpus_sha256, tokenizer_sha256"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInput, match=message):
            workdirs.load_config(str(tmp_path))


def test_a_counted_vocabulary_comes_back(tmp_path):
    path = str(tmp_path / "vocabulary.json")
    vocabulary.write_counted(path, "characters", {"a": 2, "b": 1}, None, verbatim=False)
    counted = vocabulary.open_tokenizer(path, Normalization(lower=True))
    workdir = workdir_of(tmp_path / "run", sha256=counted.sha256)
    workdirs.write_tokenizer(workdir, counted)
    found = workdirs.tokenizer(workdir)
    assert isinstance(found, vocabulary.Vocabulary) and found.sha256 == counted.sha256
    assert found.decode(found.encode("ABBA")) == "abba", "the normalization was lost"


def test_another_tokenizer_is_refused(tmp_path):
    workdir = workdir_of(tmp_path / "run", sha256="1" * 64)
    workdirs.write_tokenizer(workdir, data_fixtures.tokenizer())
    with pytest.raises(BadInput, match="not the tokenizer that .* was trained with"):
        workdirs.tokenizer(workdir)
    (tmp_path / "run" / "tokenizer" / "normalization.json").write_text('{"upper": true}')
    with pytest.raises(BadInput, match="normalization.json: .*upper"):
        workdirs.tokenizer(workdir)
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    with pytest.raises(
        BadInput, match="normalization.json: No such file.*; restore it from a copy"
    ):
        workdirs.tokenizer(workdir)
