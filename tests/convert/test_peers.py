"""BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT in Hugging Face folders: there and back byte for
byte, other writers' files, sizes.

`oracle/test_oracle.py` and `peers/test_live_families.py` compare what the models compute.
"""

import functools
import math
import os
import re
import shutil
from unittest import mock

import data_fixtures
import jax
import numpy as np
import pytest
import tiny
from flax import traverse_util
from oracle import families
from safetensors.numpy import load_file, save_file
from tiny import saved_parameters

import xlnet_jax
from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.config.loading import load
from xlnet_jax.convert import huggingface, peers
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data import subwords
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.options import Fill, Generate
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

WEIGHTS = "model.safetensors"
PARAMETERS = {
    "bert/base": 110_106_428,
    "bert/large": 336_226_108,
    "roberta/base": 124_697_433,
    "roberta/large": 355_412_057,
    "albert/base": 11_813_810,
    "albert/large": 17_847_474,
    "albert/xlarge": 59_021_490,
    "albert/xxlarge": 223_158_450,
    "gpt2/small": 124_439_808,
    "modern/base_mlm": 149_655_232,
    "modern/large_mlm": 395_881_664,
}
"""As transformers 5.23 counts them, tied ones once."""


def test_each_member_with_a_class_there_is_compared_with_it():
    """tests/oracle/replay.py and tests/peers/test_huggingface.py compare XLNet."""
    assert {*families.FAMILIES} == {*families.TASKS_OF} == {*peers.PEERS} - {"xlnet"}
    sized = {name.partition("/")[0].replace("modern", "modernbert") for name in PARAMETERS}
    assert {*families.FAMILIES} == sized


MODERN = {"s": "CLS", "/s": "SEP", "pad": "PAD", "unk": "UNK", "mask": "MASK"}


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    """A small one of the kind of the family."""
    folder, text = (
        f"{data_fixtures.session_folder()}/{family}",
        data_fixtures.synthetic_text(0, 100).split("\n"),
    )
    os.makedirs(folder, exist_ok=True)
    if family == "albert":
        return Tokenizer(data_fixtures.albert(folder, text, 100), Normalization(lower=True))
    path = f"{folder}/tokenizer.json"
    subwords.train(
        text,
        path,
        150 if family == "bert" else 300,
        "wordpiece" if family == "bert" else "bytebpe",
        Normalization(),
    )
    theirs = {
        "gpt2": {"<s>": "<|endoftext|>"},
        "modernbert": {f"<{old}>": f"[{new}]" for old, new in MODERN.items()},
    }
    made, document = f"{folder}/their-tokenizer.json", files.read(path).decode()
    for old, new in theirs.get(family, {}).items():
        document = document.replace(f'"{old}"', f'"{new}"')
    files.write(made, document.encode())
    return open_tokenizer(made)


def config_of(family, task="none"):
    sizes = {"vocab_size": tokenizer_of(family).vocab_size, "compute_dtype": "float32"}
    return families.draw(family, 0, task).changed(
        model=sizes, mesh={"data": 1}, train={"batch_size": 8}
    )


def written(family, folder, task="none"):
    """A folder of random weights, and its parameters; a row that is not written is ones."""
    config = config_of(family, task)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: rng.standard_normal(x.shape).astype(np.float32), families.tree_of(config)
    )
    if family == "modernbert":
        params["layers"]["attention"]["norm"]["scale"][0] = 1
    huggingface.write(Trained(config, tokenizer_of(family), params), str(folder))
    return params


def edit(folder, **changes):
    path = f"{folder}/config.json"
    found = files.read_json_object(path) | changes
    files.write(
        path, files.to_json({name: value for name, value in found.items() if value is not ...})
    )


def assert_equal(ours, theirs):
    # GPT-2's head has nothing.
    ours, theirs = (traverse_util.flatten_dict(dict(tree)) for tree in (ours, theirs))
    assert ours.keys() == theirs.keys()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("task", ["none", "classification", "multi_label_classification"])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_export_import_export_gives_the_same_bytes(family, task, tmp_path):
    params = written(family, tmp_path / "first", task)
    import_(str(tmp_path / "first"), str(tmp_path / "work"))
    assert_equal(saved_parameters(str(tmp_path / "work"))[0], params)
    found, config = workdirs.load_config(str(tmp_path / "work")), config_of(family, task)
    assert found.model.member == config.model.member and found.data == config.data
    assert found.finetune.task == task and found.finetune.labels == config.finetune.labels
    export(str(tmp_path / "work"), str(tmp_path / "second"))
    assert data_fixtures.contents(tmp_path / "first") == data_fixtures.contents(tmp_path / "second")


def as_on_the_hub(family, arrays):
    """The same arrays as old files have them: other names, buffers, tied arrays twice."""
    row, T = peers.PEERS[family], np.arange(9)[None]
    copies = {copy: arrays[original] for copy, original in row.copies.items()}
    if family == "modernbert":
        return copies | arrays
    if family == "gpt2":
        bare = {name.removeprefix("transformer."): array for name, array in arrays.items()}
        buffers = {
            "h.0.attn.bias": np.ones((1, 1, 9, 9), bool),
            "h.0.attn.masked_bias": np.float32([-1e4]),
        }
        return copies | bare | buffers
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in arrays.items()
    }
    unread = (
        {}
        if f"{family}.pooler.dense.weight" in old or family == "albert"
        else {f"{family}.pooler.dense.weight": np.zeros((2, 2), np.float32)}
    )
    return copies | old | unread | {f"{family}.embeddings.position_ids": T}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_names_of_other_writers(family, tmp_path, caplog):
    caplog.set_level("INFO")
    params = written(family, tmp_path / "model")
    arrays = load_file(tmp_path / "model" / WEIGHTS)
    os.remove(tmp_path / "model" / "xlnet_jax.json")
    edit(tmp_path / "model", architectures=None)
    save_file(as_on_the_hub(family, arrays), tmp_path / "model" / WEIGHTS)
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    assert_equal(saved_parameters(str(tmp_path / "work"))[0], params)
    found = workdirs.load_config(str(tmp_path / "work"))
    assert (found.data.objective, found.data.sentence_loss) == (
        config_of(family).data.objective,
        family in ("bert", "albert"),
    )
    # The words that are told for further training make the same model and data.
    words = re.search(r"--config.checkpoint.init_from=\S+ (.*)", caplog.text)[1].split()
    again = configs.override(configs.Config(), words)
    assert (again.model, again.data) == (found.model, found.data)
    assert ("will lack them: roberta.pooler.dense.weight" in caplog.text) == (family == "roberta")


def test_a_bare_model_is_one_for_vectors(tmp_path):
    """As `BertModel` is saved: without the prefix, with a pooler, without what predicts pieces."""
    params = written("bert", tmp_path / "model")
    arrays = load_file(tmp_path / "model" / WEIGHTS)
    bare = {
        name.removeprefix("bert."): array
        for name, array in arrays.items()
        if name.startswith("bert.")
    }
    save_file(bare, tmp_path / "model" / WEIGHTS)
    edit(tmp_path / "model", architectures=["BertModel"])
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    found, _ = saved_parameters(str(tmp_path / "work"))
    assert_equal(found["layers"], params["layers"])
    assert (
        "lm_head" not in found
        and workdirs.load_config(str(tmp_path / "work")).finetune.task == "embeddings"
    )


REFUSED = {
    "bert": [
        (dict(is_decoder=True), "is_decoder=true; only false"),
        (dict(auto_map={"A": "mine.Model"}), 'auto_map={"A": "mine.Model"}; only null'),
        (dict(hidden_act="silu"), "hidden_act='silu' is not one of"),
        (dict(num_hidden_layers="2"), 'num_hidden_layers is "2" and must be'),
        (dict(max_position_embeddings=30), "and must be [30, "),
        (dict(hidden_size=7), "hidden_size=7"),
        (dict(architectures=["TFBertForQuestionAnswering"]), "missing"),
        (dict(architectures=["BertLMHeadModel"]), "class BertLMHeadModel; only BertFor"),
    ],
    "roberta": [(dict(pad_token_id=0), "id=0; only 1")],
    "albert": [
        (dict(embedding_size=13), "and must be [100, 13]"),
        (dict(classifier_dropout_prob=0.3), "classifier_dropout_prob=0.3; only 0.1"),
    ],
    "gpt2": [
        (dict(scale_attn_by_inverse_layer_idx=True), "layer_idx=true"),
        (dict(architectures=["GPT2ForTokenClassification"]), "GPT2ForTokenClassification; only "),
        (dict(model_type="t5"), "is 't5'"),
        (dict(embd_pdrop=..., resid_pdrop=0.3), "embd_pdrop=0.1 and resid_pdrop=0.3"),
        (dict(resid_pdrop=...), "embd_pdrop=0.0 and resid_pdrop=0.1"),
    ],
    "modernbert": [
        (dict(attention_bias=True), "attention_bias=true; only false"),
        (dict(architectures=["ModernBertDecoderForCausalLM"]), "ModernBertDecoderForCausalLM; "),
        (dict(decoder_bias=False), "decoder_bias=false; only true"),
        (dict(embedding_dropout=0.1), "embedding_dropout=0.1; only 0.0"),
        (dict(classifier_activation="silu"), "classifier_activation=silu and hidden_activation="),
        (dict(layer_types=["sliding_attention"] * 9), 'layer_types=["sliding_attention", '),
        (dict(layer_types=[]), "layer_types=[] with num_hidden_layers=4 and global_attn_every_n_"),
        (dict(rope_parameters={"full_attention": {"rope_type": "yarn"}}), '{"rope_type": "yarn"}'),
        (dict(rope_parameters={"full_attention": {"rope_theta": 3.5}}), '{"rope_theta": 3.5}'),
        (dict(rope_parameters={"rope_theta": 3.5}), 'rope_parameters={"rope_theta": 3.5}'),
        (dict(local_rope_theta=None), "the base of sliding_attention, is null; write its number"),
        (dict(rope_scaling={"factor": 2.0}), 'rope_scaling={"factor": 2.0}; only null'),
        (dict(head_dim=4), "head_dim=4; only null"),
        (dict(local_attention=1), "local_attention=1; only 2 or more"),
    ],
}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_what_has_no_equal_is_refused_in_one_line(family, tmp_path, capsys, monkeypatch):
    """Before a device is used."""
    written(family, tmp_path / "model")
    device = mock.Mock(side_effect=AssertionError("a device is used"))
    monkeypatch.setattr(jax, "devices", device)
    whole = (tmp_path / "model" / "config.json").read_text()

    def refused(said):
        assert (
            main(["import", str(tmp_path / "model"), f"--workdir={tmp_path}/work", "--json"]) == 2
        )
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line and not (tmp_path / "work").exists()

    for changes, said in REFUSED[family]:
        (tmp_path / "model" / "config.json").write_text(whole)
        edit(tmp_path / "model", **changes)
        refused(said)
    (tmp_path / "model" / "config.json").write_text(whole)
    arrays = load_file(tmp_path / "model" / WEIGHTS)
    copy, original = list(peers.PEERS[family].copies.items())[-1]
    save_file(arrays | {copy: arrays[original] + 1}, tmp_path / "model" / WEIGHTS)
    refused(f"{copy} differs from {original}; only tied arrays")
    if family == "bert":
        save_file(
            {name: x for name, x in arrays.items() if "seq_rel" not in name},
            tmp_path / "model" / WEIGHTS,
        )
        refused("missing (2): cls.seq_relationship.bias, cls.seq_relationship.weight")
        shutil.copy(tokenizer_of("roberta").path, tmp_path / "model" / "tokenizer.json")
        edit(tmp_path / "model", vocab_size=300)
        (tmp_path / "model" / "tokenizer_config.json").unlink()
        refused("its padding is piece 1, and bert needs piece 0")


HEADS = [
    (
        "bert",
        "classification",
        dict(classifier_dropout=0.3),
        "classifier_dropout=0.3 and hidden_dropout_prob=0.0",
    ),
    (
        "albert",
        "multiple_choice",
        dict(classifier_dropout_prob=0.0),
        "classifier_dropout_prob=0.0; only 0.1",
    ),
    (
        "bert",
        "classification",
        dict(problem_type="regression"),
        "problem_type=regression with 3 labels in id2label",
    ),
    (
        "bert",
        "regression",
        dict(problem_type="single_label_classification"),
        "classification with 1 label in id2label",
    ),
    (
        "gpt2",
        "classification",
        dict(problem_type="ordinal"),
        "problem_type=ordinal with 3 labels in id2label",
    ),
    (
        "bert",
        "classification",
        dict(id2label={"0": "a", "1": "b", "3": "c"}),
        "does not name the label of each number",
    ),
    ("modernbert", "classification", dict(classifier_dropout=0.1), "_dropout=0.1; only 0.0"),
    ("modernbert", "regression", dict(classifier_pooling="sum"), "classifier_pooling='sum' is not"),
    ("modernbert", "regression", dict(classifier_pooling="max"), "finetune.pooling=max is for"),
    (
        "bert",
        "multi_label_classification",
        dict(id2label={"0": "a", "1": "b", "2": "a"}),
        "or has a name twice",
    ),
]


@pytest.mark.parametrize(("family", "task", "changes", "said"), HEADS)
def test_a_head_that_is_another_function_is_refused_in_one_line(
    family, task, changes, said, tmp_path, capsys
):
    written(family, tmp_path / "model", task)
    edit(tmp_path / "model", **changes)
    assert main(["import", str(tmp_path / "model"), f"--workdir={tmp_path}/work", "--json"]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        (dict(problem_type="multi_label_classification"), "multi_label_classification"),
        (dict(problem_type=None), "classification"),
        (dict(problem_type=..., id2label=..., num_labels=3), "classification"),
        (dict(classifier_dropout=0.0), "classification"),
    ],
)
def test_the_problem_of_a_head_is_what_the_folder_says(changes, task, tmp_path):
    """The fault: a softmax over labels of which each has its own probability."""
    written("bert", tmp_path / "model", "classification")
    edit(tmp_path / "model", **changes)
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    assert workdirs.load_config(str(tmp_path / "work")).finetune.task == task


@pytest.mark.parametrize("task", ["none", "regression"])
def test_config_json_of_either_version_is_read(task, tmp_path):
    """transformers 5 names the kind of each layer, and the angles by kind; 4 has one number for the
    layers. A head reads CLS if nothing is said.
    """
    params, config = written("modernbert", tmp_path / "model", task), config_of("modernbert", task)
    kinds = "full_attention", "sliding_attention"
    thetas = config.model.theta, config.model.theta_local
    edit(
        tmp_path / "model",
        layer_types=[
            kinds[number % config.model.global_every > 0] for number in range(config.model.layers)
        ],
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in zip(kinds, thetas, strict=True)
        },
        **dict.fromkeys(
            (
                "global_attn_every_n_layers",
                "global_rope_theta",
                "local_rope_theta",
                "classifier_pooling",
            ),
            ...,
        ),
    )
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    assert_equal(saved_parameters(str(tmp_path / "work"))[0], params)
    found = workdirs.load_config(str(tmp_path / "work"))
    assert found.model == config.changed(model={"unroll": "auto"}).model
    assert 1 < found.model.global_every < found.model.layers and len({*thetas}) == 2
    assert found.finetune.pooling == ("mean" if task == "none" else "cls")


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_published_sizes_have_the_published_numbers_of_parameters(name):
    config = load(str(tiny.ROOT / "configs" / f"{name}.py"), [])
    assert sum(map(math.prod, families.forms(config).values())) == PARAMETERS[name]


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("task", ["none", "classification"])
def test_a_folder_without_tokenizer_config_is_imported(family, task, tmp_path):
    params = written(family, tmp_path / "model", task)
    for name in ("tokenizer_config.json", "xlnet_jax.json"):
        os.remove(tmp_path / "model" / name)
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    assert_equal(saved_parameters(str(tmp_path / "work"))[0], params)
    assert workdirs.load_config(str(tmp_path / "work")).finetune.task == task


def padded(folder, family, rows, kind="model"):
    """Adds rows without a piece to the tables of a folder; a model would predict them first."""
    size = tokenizer_of(family).vocab_size
    arrays = {
        name: np.concatenate([array, np.full((rows, *array.shape[1:]), 9, np.float32)])
        if len(array) == size
        else array
        for name, array in load_file(folder / WEIGHTS).items()
    }
    save_file(arrays, folder / WEIGHTS, {"format": "pt"})
    edit(folder, vocab_size=size + rows)
    return arrays


@pytest.mark.parametrize(
    ("family", "rows"),
    [("bert", 2), ("roberta", 102), ("albert", 4), ("gpt2", 47), ("modernbert", 8)],
)
def test_rows_without_a_piece_are_kept_and_written_again(family, rows, tmp_path, caplog):
    written(family, tmp_path / "model")
    arrays = padded(tmp_path / "model", family, rows)
    import_(str(tmp_path / "model"), str(tmp_path / "work"))
    size = tokenizer_of(family).vocab_size
    assert (
        f"has {size} pieces, the model {size + rows} rows; the last {rows} are kept, and never"
        in caplog.text
    )
    export(str(tmp_path / "work"), str(tmp_path / "again"))
    again = load_file(tmp_path / "again" / WEIGHTS)
    assert again.keys() == arrays.keys()
    jax.tree.map(np.testing.assert_array_equal, again, arrays)
    assert (
        files.read_json_object(str(tmp_path / "again" / "config.json"))["vocab_size"] == size + rows
    )


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_rows_without_a_piece_are_never_predicted(family, tmp_path):
    """Nor scored as a token: a masked model ranks all pieces, a left-to-right one draws from
    all.
    """
    written(family, tmp_path / "model")
    padded(tmp_path / "model", family, 8)
    model, size = xlnet_jax.load(str(tmp_path / "model")), tokenizer_of(family).vocab_size
    if family == "bert":
        gapped = infill.gapped(model.tokenizer, "bado [MASK]", 1)
        (filled,) = model.filled([gapped], Fill(top=size))
        assert {one.token_N[gapped.known.index(False)] for one in filled.best} == {*range(size)}
        assert np.isfinite([one.log_prob_U for one in filled.best]).all()
        assert len(model.logits(["bado [MASK]"])[0][0]) == size + 8, (
            "the function of the model stays"
        )
    else:
        asked = Generate(tokens=7, temperature=1.0)
        (filled,) = model._filled(
            [infill.prompt(model.tokenizer, "bado", 1, asked.tokens, 40)], asked
        )
        assert len(filled.position_U) <= 7 and filled.token_N.max() < size
        with pytest.raises(BadInput, match=f"id {size} is outside of the vocabulary of {size}"):
            model.log_prob([[1, size]], [[True, False]])


def test_a_tokenizer_of_another_model_is_refused_with_its_own_name(tmp_path):
    """More pieces than rows, or far more rows; the file is that of the folder."""
    written("bert", tmp_path / "model")
    for size in (149, 150 + 2000):
        edit(tmp_path / "model", vocab_size=size)
        with pytest.raises(
            BadInput,
            match=rf"l/tokenizer.json: has 150 pieces, the model {size}; .*=tokenizer.json",
        ):
            import_(str(tmp_path / "model"), str(tmp_path / "work"))


@pytest.mark.parametrize("change", ["ids", "types"])
def test_other_special_pieces_around_a_text_are_refused(change, tmp_path):
    written("bert", tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    document = files.read_json_object(str(path))
    single, pair = (document["post_processor"][name] for name in ("single", "pair"))
    if change == "ids":
        single.pop()
    else:
        pair[-1]["SpecialToken"]["type_id"] = 0
    files.write(str(path), files.to_json(document))
    with pytest.raises(
        BadInput, match="its post_processor puts other special pieces around texts than a model"
    ):
        import_(str(tmp_path / "model"), str(tmp_path / "work"))
