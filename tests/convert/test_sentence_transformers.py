"""The modules of sentence-transformers and our keys; `peers/test_sentence_transformers.py` compares
the vectors.
"""

import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.convert import fields, sentence_transformers
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

MODEL = {"model.d_model": 16}


def written(folder, config, /, **changes):
    """The folder of a model for embeddings, with `changes` by file."""
    for name, document in sentence_transformers.documents(config).items():
        files.make_folder(f"{folder}/{name.rpartition('/')[0]}")
        found = changes.get(name.rpartition("/")[2].removesuffix(".json"), {})
        made = found if isinstance(document, list) and found else document
        files.write(
            f"{folder}/{name}",
            files.to_json(made if isinstance(document, list) else document | found),
        )
    return str(folder)


def read(folder, family):
    model = MODEL | {"model.architecture": family}
    return sentence_transformers.read_modules(folder, files.listing(folder), model)


def embeddings(family, **keys):
    sections = {"finetune": {"task": "embeddings", **keys}, "data": {"segment_len": 24}}
    return tiny.config(**sections) if family == "xlnet" else tiny.family(family).changed(**sections)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", configs.fields()["finetune.pooling"].metadata["choices"])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "xlnet"])
def test_every_pooling_comes_back(family, pooling, normalize, tmp_path):
    """XLNet's CLS is its last piece, which has one name there."""
    keys, lost = read(
        written(tmp_path, embeddings(family, pooling=pooling, normalize=normalize)), family
    )
    last_is_cls = family == "xlnet" and pooling == "last"
    assert keys == {
        "finetune.pooling": "cls" if last_is_cls else pooling,
        "finetune.normalize": normalize,
        "data.segment_len": 24,
    }
    assert not lost


MODULE = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"modules": [MODULE]},
            "the modules are Transformer; only Transformer, Pooling and perhaps Normalize can be",
        ),
        (
            {"modules": [MODULE, MODULE | {"path": "1_Pooling", "type": "mine.Pooling"}]},
            "Transformer, mine.Pooling",
        ),
        (
            {
                "modules": [
                    MODULE | {"path": "0_Transformer"},
                    MODULE | {"type": "sentence_transformers.models.Pooling"},
                ]
            },
            "the first in the folder itself",
        ),
        (
            {
                "modules": [
                    MODULE,
                    MODULE | {"type": "sentence_transformers.models.Pooling", "kwargs": ["task"]},
                ]
            },
            "without kwargs",
        ),
        ({"modules": [5]}, "not a list of modules with their types and paths"),
        ({"config": {"pooling_mode_max_tokens": True}}, "pooling_mode is ['max', 'mean']"),
        (
            {"config": {"pooling_mode": "first"}},
            "pooling_mode is first; only one of mean, cls, max, lasttoken can",
        ),
        (
            {"config": {"include_prompts": True}},
            "include_prompts=true may change the vectors; only null",
        ),
        (
            {"sentence_bert_config": {"do_lower_case": True}},
            "do_lower_case=true may change the vectors; only false",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes, said, tmp_path):
    with pytest.raises(BadInput) as raised:
        read(written(tmp_path, embeddings("bert"), **changes), "bert")
    assert said in str(raised.value)


@pytest.mark.parametrize("length", [None, 12])
def test_a_length_that_is_not_said_is_that_of_the_tokenizer(length, tmp_path):
    folder = written(tmp_path, embeddings("bert"), sentence_bert_config={"max_seq_length": length})
    assert read(folder, "bert")[0].get("data.segment_len") == length
    # As that library: a tokenizer says more than there are positions, or nothing.
    files.write(f"{folder}/tokenizer_config.json", files.to_json({"model_max_length": 100}))
    found = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 32}
    assert fields.read_task(folder, found)["data.segment_len"] == 32
