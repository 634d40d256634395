"""Folders of sentence-transformers: their vectors are ours, in and out, or the folder is refused by
name.
"""

import json
import os
import shutil
import warnings

import data_fixtures
import numpy as np
import pytest
import tiny
from convert.test_peers import config_of, tokenizer_of

from xlnet_jax.cli import main
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.commands.predict import predict
from xlnet_jax.convert import huggingface
from xlnet_jax.convert.formats import Trained
from xlnet_jax.run import workdir as workdirs

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TEXTS = [
    "Bado kilu menora.",
    "Rave.",
    "Bado kilu menora sidu rave tusi, veno kilu bado sidu menora rave tusi bado.",
]
POSITIONS = 24
FLOAT32 = ["--config.model.compute_dtype=float32"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Without modules: the transformer of each family alone, as `transformers` has it."""
    place, made = tmp_path_factory.mktemp("models"), {}
    for family in ("bert", "roberta", "albert", "xlnet"):
        tokenizer, sizes = data_fixtures.tokenizer(), {}
        if family != "xlnet":
            tokenizer, sizes = (
                tokenizer_of(family),
                vars(config_of(family).model) | {"max_positions": POSITIONS},
            )
        task, data = {"task": "embeddings"}, {"segment_len": POSITIONS}
        config = tiny.config(model=sizes, finetune=task, data=data)
        params = tiny.random_params(config, 0.5, tokenizer)
        made[family] = str(place / family)
        huggingface.write(Trained(config, tokenizer, params), made[family])
        for name in ("modules.json", "sentence_bert_config.json", "xlnet_jax.json"):
            os.remove(f"{made[family]}/{name}")
        shutil.rmtree(f"{made[family]}/1_Pooling")
    return made


def saved(transformer, folder, pooling, *others, length=None):
    """A folder as that library writes it."""
    from sentence_transformers.models import Pooling, Transformer

    first = Transformer(transformer, max_seq_length=length)
    pool = Pooling(first.get_word_embedding_dimension(), pooling_mode=pooling)
    sentence_transformers.SentenceTransformer(modules=[first, pool, *others], device="cpu").save(
        folder
    )
    return folder


def theirs(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sentence_transformers.SentenceTransformer(folder, device="cpu").encode(TEXTS)


def ours(workdir):
    return np.array([line["vectors"][0] for line in predict(workdir, texts=TEXTS)])


def close(a, b):
    np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


DONE = [
    ("bert", "mean", None, False),
    ("bert", "cls", 10, True),
    ("bert", "max", 12, False),
    ("bert", "lasttoken", 9, False),
    ("roberta", "cls", None, False),
    ("roberta", "max", 9, True),
    ("albert", "lasttoken", None, True),
    ("xlnet", "lasttoken", 12, False),
    ("xlnet", "max", None, True),
    ("xlnet", "mean", 9, True),
]


@pytest.mark.parametrize(("family", "pooling", "length", "normalize"), DONE)
def test_vectors_are_the_same_on_the_way_in_and_out(
    family, pooling, length, normalize, folders, tmp_path
):
    """The fault: another pooling, a text that is cut elsewhere, vectors of another length."""
    from sentence_transformers.models import Normalize

    source = saved(
        folders[family],
        str(tmp_path / "source"),
        pooling,
        *[Normalize()] * normalize,
        length=length,
    )
    wanted = theirs(source)
    assert (np.abs(np.linalg.norm(wanted, axis=1) - 1).max() < 1e-5) == normalize
    work, back = str(tmp_path / "work"), str(tmp_path / "back")
    import_(source, work, overrides=FLOAT32)
    close(ours(work), wanted)
    assert workdirs.load_config(work).data.segment_len == (length or POSITIONS)
    export(work, back)
    close(theirs(back), wanted)


def edit(path, **changes):
    with open(path) as file:
        found = json.load(file) | changes
    with open(path, "w") as file:
        json.dump({name: value for name, value in found.items() if value is not ...}, file)


@pytest.mark.parametrize(
    ("file", "changes", "pooling"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ..., "pooling_mode_cls_token": True}, "cls"),
        ("1_Pooling/config.json", {"pooling_mode": ["lasttoken"]}, "last"),
        ("1_Pooling/config.json", {"pooling_mode": ...}, "mean"),
        ("sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False}, "mean"),
        ("tokenizer_config.json", {"model_max_length": 13}, "mean"),
        ("tokenizer_config.json", {"model_max_length": 10**30}, "mean"),
        ("config.json", {"architectures": None}, "mean"),
    ],
)
def test_other_ways_of_writing_it(file, changes, pooling, folders, tmp_path):
    source = saved(folders["bert"], str(tmp_path / "source"), "mean")
    edit(f"{source}/{file}", **changes)
    import_(source, str(tmp_path / "work"), overrides=FLOAT32)
    assert workdirs.load_config(str(tmp_path / "work")).finetune.pooling == pooling
    close(ours(str(tmp_path / "work")), theirs(source))


PROMPTS = "config_sentence_transformers.json"
REFUSED = [
    (
        "xlnet",
        "cls",
        None,
        {},
        "pooling_mode is cls; only one of mean, lasttoken, max can be imported",
    ),
    ("bert", "mean", "sentence_bert_config.json", {"max_seq_length": "9"}, "data.segment_len="),
    (
        "bert",
        "mean",
        PROMPTS,
        {"model_type": "SparseEncoder"},
        'model_type="SparseEncoder" may change the vectors',
    ),
]


@pytest.mark.parametrize(("family", "pooling", "file", "changes", "said"), REFUSED)
def test_what_makes_other_vectors_is_refused_by_name(
    family, pooling, file, changes, said, folders, tmp_path, capsys
):
    source = saved(folders[family], str(tmp_path / "source"), pooling)
    if file:
        edit(f"{source}/{file}", **changes)
    assert main(["import", source, f"--workdir={tmp_path}/work", "--json"]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "work").exists()


def test_a_further_module_is_refused_by_name(folders, tmp_path, capsys):
    from sentence_transformers.models import Dense

    source = saved(folders["bert"], str(tmp_path / "source"), "mean", Dense(9, 9))
    assert main(["import", source, f"--workdir={tmp_path}/work", "--json"]) == 2
    assert "the modules are Transformer, Pooling, Dense; only" in capsys.readouterr().err


def test_prompts_are_named(folders, tmp_path, caplog):
    """They are put before a text if a caller asks for them: the vectors of a text alone are the
    same.
    """
    caplog.set_level("INFO")
    source = saved(folders["bert"], str(tmp_path / "source"), "mean")
    edit(
        f"{source}/{PROMPTS}",
        prompts={"query": "query: ", "document": ""},
        similarity_fn_name="dot",
    )
    import_(source, str(tmp_path / "work"), overrides=FLOAT32)
    assert (
        "will lack them: prompts={'query': 'query: ', 'document': ''}, similarity_fn_name='dot'"
        in caplog.text
    )


def test_all_fields_of_that_library_are_in_a_table():
    """A field that a newer version writes is refused until one of the tables has it."""
    from sentence_transformers.models import Normalize, Pooling, Transformer

    from xlnet_jax.convert import sentence_transformers as tables

    empty = {"processing_kwargs", "query_length", "document_length", "query_expansion"}
    assert {*Transformer.config_keys} <= {*tables._ONLY, *tables._CARRIED, *empty}
    assert {*Pooling.config_keys} == {"embedding_dimension", "pooling_mode", "include_prompt"}
    assert {*Normalize.config_keys} == {"module_input_name", "module_output_name"}
    assert {*Pooling.POOLING_MODES} == {*tables._OF_POOLING.values()}
