"""Every key of the configuration has its place in a Hugging Face folder, or such a model is
refused.
"""

import dataclasses
import json
import tempfile

import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.config import ModelConfig
from xlnet_jax.convert import fields, huggingface, peers
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

KEYS = {field.name: field for field in dataclasses.fields(ModelConfig)}


def written(config, folder):
    """The two files of a folder, and what is read of them again."""
    files.write(f"{folder}/config.json", files.to_json(fields.config_json(config, XLNET, {})))
    files.write(f"{folder}/{fields.OWN}", files.to_json(fields.own_keys(config)))
    files.write(
        f"{folder}/tokenizer_config.json",
        files.to_json({"model_max_length": config.data.segment_len}),
    )
    found = fields.read_config_json(str(folder))
    model, task = fields.read_model(str(folder), found), fields.read_task(str(folder), found)
    return configs.nested(fields.read_own(str(folder), config.model.architecture) | model | task)


def other(field, value):
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != value)
    if isinstance(value, str):
        return "100"
    # The width stays a multiple of the heads.
    return not value if isinstance(value, bool) else 2 * value if value > 1 else value + 1


FAMILY = {
    "xlnet": {},
    **{name: {"architecture": name, "memory_len": 0} for name in ("bert", "roberta")},
    "albert": {"architecture": "albert", "memory_len": 0, "share_layers": True, "d_embed": 128},
    "gpt2": {"architecture": "gpt2", "memory_len": 0, "norm": "pre"},
    "modernbert": {"architecture": "modernbert", "memory_len": 0, "norm": "pre", "window": 8},
}


# Keys that config.json has no place for: of all families, of XLNet, which has no projections
# without `cutoffs` and `d_embed`, and of ModernBERT.
NO_PLACE = {
    "activation_dropout",
    "init_truncated",
    "compute_dtype",
    "remat",
    "attention",
    "unroll",
    "spare_rows",
}
NO_PLACE_IN = {
    "xlnet": {"tie_projections", "memory_len", "attention_dropout", "max_positions"},
    # Its dropouts act at other places; xlnet_jax.json has ours.
    "modernbert": {"dropout", "attention_dropout"},
}


def test_each_member_with_a_class_there_is_here():
    assert {*FAMILY} == {*peers.PEERS}


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("name", [name for name in KEYS if name != "architecture"])
def test_a_key_comes_back_or_the_model_is_refused(name, family, tmp_path):
    """Would fail for a key that is dropped on the way: the same tensors there, and another
    function.
    """
    row, usual = peers.PEERS[family], configs.Config().changed(model=FAMILY[family])
    no_place = (NO_PLACE | NO_PLACE_IN.get(family, set())) - row.named.keys()
    places = [
        name in row.named,
        name in row.only,
        name in no_place,
        name == "head_dim" and name not in row.named,
    ]
    assert sum(places) == 1, (
        "say in the `Peer` of the member where the new key goes, or here that it goes nowhere"
    )
    value = other(KEYS[name], getattr(usual.model, name))
    config = usual.changed(model={name: value})
    try:
        fields.check_model(config.model)
    except BadInput as error:
        assert name in row.only and str(error) == (
            f"model.{name}={value}: Hugging Face's {row.prefix} has only "
            f"model.{name}={row.only[name]}; use --format=orbax"
        )
        return
    found = written(config, tmp_path)["model"]
    assert found["architecture"] == family
    if name == "biases_per_layer":  # copied to each layer
        assert found[name] is True
    elif places[3]:  # refused by `huggingface.check`
        assert found[name] == config.model.d_model // config.model.heads
    elif KEYS[name].metadata["resume"] == configs.FREE:  # how it is computed on this machine
        assert name not in found
    else:
        assert found[name] == value


def test_an_embedding_projected_to_its_own_width_is_none():
    fields.check_model(ModelConfig(d_embed=1024))
    with pytest.raises(
        BadInput, match="d_embed=512, model.tie_embedding=False: .* only model.d_embed=0, model.tie"
    ):
        fields.check_model(ModelConfig(d_embed=512, tie_embedding=False))


TASK = {
    "task": "question_answering",
    "segments": 2,
    "stride": 9,
    "max_question": 7,
    "max_answer": 5,
    "beam": 3,
    "temperature": 0.5,
    "train": "mine.json",
    "dev": "dev.json",
    "columns": "a,b",
    "metric": "f1",
    "patience": 3,
}
DATA = {
    "segment_len": 48,
    "num_predict": 5,
    "windows_per_block": 2,
    "bidirectional": False,
    "corpus": "a,b",
    "weights": "1,2",
    "read_threads": 1,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"data": DATA, "compat": {"switches": "static_targets,core_clip", "cores": 4}},
        {"data": DATA | {"objective": "mlm", "reuse_len": 45}, "model": {"memory_len": 0}},
        {
            "data": DATA | {"objective": "mdm", "reuse_len": 48, "num_predict": 48},
            "model": {"memory_len": 0},
        },
        {
            "data": DATA,
            "finetune": TASK,
            "evaluation": {"every": 4},
            "model": {"compute_dtype": "bfloat16"},
        },
    ],
    ids=["plm", "mlm", "mdm", "task"],
)
def test_an_import_is_configured_as_the_run_that_was_exported(changes, tmp_path):
    config = tiny.config(**changes)
    found = configs.flat(configs.from_dict(written(config, tmp_path)))
    sections, defaults = ("model.", "data.", "compat.", "finetune."), configs.flat(configs.Config())
    of_run = {
        name
        for name in found
        if name.startswith(sections) and found[name] != configs.flat(config)[name]
    }
    assert of_run and all(found[name] == defaults[name] for name in of_run)
    assert of_run <= {
        "model.unroll",
        "data.corpus",
        "data.weights",
        "data.read_threads",
        "compat.cores",
        "finetune.train",
        "finetune.dev",
        "finetune.columns",
        "finetune.metric",
        "finetune.patience",
    }
    # No path of this machine gets into a folder that others will have.
    free = {
        name
        for name in fields.own_keys(config)
        if configs.fields()[name].metadata["resume"] == configs.FREE
    }
    assert free == {"finetune.max_answer", "finetune.columns"}


def test_a_family_without_a_class_there_is_refused_in_one_line():
    with pytest.raises(
        BadInput,
        match="model.architecture=transformer: Hugging Face has no such model; use --format=",
    ):
        huggingface.check(tiny.family("transformer"))


LABELS = [["joy, love", "anger"], [",", "''", "."], [" a", "b "], ['["x"', "y"], ["no", "yes"]]


@pytest.mark.parametrize("labels", LABELS, ids=repr)
def test_the_names_of_labels_come_back_as_they_are(labels, tmp_path):
    config = tiny.config(finetune={"task": "classification", "labels": json.dumps(labels)})
    assert config.finetune.label_list() == labels
    found = configs.from_dict(written(config, tmp_path))
    assert found.finetune.label_list() == labels


def test_labels_come_back_by_their_numbers():
    """The fault: in the order of the letters, which has 10 before 2."""
    names = [f"label {number}" for number in range(12)]
    found = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    for order in (range(12), range(11, -1, -1)):
        told = found | {"id2label": {str(number): names[number] for number in order}}
        assert labels_of(told) == names


def labels_of(found):
    """The labels of a folder with this config.json."""
    with tempfile.TemporaryDirectory() as folder:
        files.write(f"{folder}/tokenizer_config.json", files.to_json({"model_max_length": 32}))
        read = configs.nested(fields.read_task(folder, found))
    return configs.Config().changed(finetune=read["finetune"]).finetune.label_list()


def test_a_null_of_config_json_is_the_usual_value(tmp_path):
    """`n_inner` of every published GPT-2."""
    config = configs.Config().changed(
        model=FAMILY["gpt2"] | {"d_model": 96, "heads": 4, "head_dim": 24, "d_ff": 384}
    )
    content = fields.config_json(config, XLNET, {}) | {"n_inner": None, "layer_norm_epsilon": None}
    files.write(f"{tmp_path}/config.json", files.to_json(content))
    found = fields.read_model(str(tmp_path), fields.read_config_json(str(tmp_path)))
    assert (found["model.d_ff"], found["model.layer_norm_epsilon"]) == (4 * 96, 1e-5)
