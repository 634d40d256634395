"""Every key of the configuration has its place in a Hugging Face folder, or such a model is refused."""

import dataclasses

import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.config import ModelConfig
from xlnet_jax.convert import fields
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

KEYS = {field.name: field for field in dataclasses.fields(ModelConfig)}


def written(config, folder):
    """The two files of a folder, and what is read of them again."""
    files.write(f"{folder}/config.json", files.to_json(fields.config_json(config.model, config.finetune, {})))
    files.write(f"{folder}/{fields.OWN}", files.to_json(fields.own(config)))
    files.write(f"{folder}/tokenizer_config.json", files.to_json({"model_max_length": config.data.segment_len}))
    found = fields.read_config_json(str(folder))
    model, task = fields.read_model(str(folder), found), fields.read_task(str(folder), found)
    return configs.nested(fields.read_own(str(folder)) | model | task)


def other(field):
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != field.default)
    if isinstance(field.default, str):
        return "100"
    return not field.default if isinstance(field.default, bool) else field.default + 1


@pytest.mark.parametrize("name", KEYS)
def test_a_key_comes_back_or_the_model_is_refused(name, tmp_path):
    """Would fail for a key that is dropped on the way: the same tensors there, and another function."""
    assert name in {*fields.NAMED, *fields.ONLY, *fields.NO_PLACE}, "say in convert/fields.py where the new key goes"
    value = other(KEYS[name])
    config = configs.Config().changed(model={name: value})
    assert value != KEYS[name].default
    try:
        fields.check(config.model)
    except BadInput as error:
        assert str(error) == (
            f"model.{name}={value}: Hugging Face's XLNet has only model.{name}={KEYS[name].default}; use --format=orbax"
        )
        return
    found = written(config, tmp_path)["model"]
    if name == "biases_per_layer":  # copied to each layer
        assert found[name] is True
    elif KEYS[name].metadata["resume"] == configs.FREE:  # how it is computed on this machine
        assert name not in found
    else:
        assert found[name] == value


def test_an_embedding_projected_to_its_own_width_is_none():
    fields.check(ModelConfig(d_embed=1024))
    with pytest.raises(BadInput, match="d_embed=512, model.tie_embedding=False: .* only model.d_embed=0, model.tie"):
        fields.check(ModelConfig(d_embed=512, tie_embedding=False))


TASK = {
    "task": "question_answering", "segments": 2, "stride": 9, "max_question": 7, "max_answer": 5, "beam": 3,
    "temperature": 0.5,
    "train": "mine.json", "dev": "dev.json", "columns": "a,b", "metric": "f1", "patience": 3,
}  # fmt: skip
DATA = {"segment_len": 48, "num_predict": 5, "windows_per_block": 2, "bidirectional": False, "corpus": "a,b",
        "weights": "1,2", "read_threads": 1}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"data": DATA, "compat": {"switches": "static_targets,core_clip", "cores": 4}},
        {"data": DATA | {"objective": "mlm", "reuse_len": 45}, "model": {"memory_len": 0}},
        {"data": DATA, "finetune": TASK, "evaluation": {"every": 4}, "model": {"compute_dtype": "bfloat16"}},
    ],
    ids=["plm", "mlm", "task"],
)
def test_an_import_is_configured_as_the_run_that_was_exported(changes, tmp_path):
    config = tiny.config(**changes)
    found = configs.flat(configs.from_dict(written(config, tmp_path)))
    sections, defaults = ("model.", "data.", "compat.", "finetune."), configs.flat(configs.Config())
    of_run = {name for name in found if name.startswith(sections) and found[name] != configs.flat(config)[name]}
    assert of_run and all(found[name] == defaults[name] for name in of_run)
    assert of_run <= {
        "model.unroll", "data.corpus", "data.weights", "data.read_threads", "compat.cores", "finetune.train",
        "finetune.dev", "finetune.columns", "finetune.metric", "finetune.patience",
    }  # fmt: skip
    # No path of this machine gets into a folder that others will have.
    free = {name for name in fields.own(config) if configs.fields()[name].metadata["resume"] == configs.FREE}
    assert free == {"finetune.max_answer"}
