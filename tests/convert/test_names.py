"""Our parameter tree under the original's names: counts of the released models, and the way there
and back.
"""

import math

import flax.linen as nn
import jax
import numpy as np
import pytest
import released
import tiny
from flax import traverse_util
from oracle import replay

from xlnet_jax import config as configs
from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.convert import names, peers
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.members.peer import Entry
from xlnet_jax.members.xlnet import HUGGINGFACE, TENSORFLOW
from xlnet_jax.train.recipe import make_recipe

SMALL = dict(
    vocab_size=11,
    layers=3,
    d_model=8,
    heads=2,
    head_dim=4,
    d_ff=12,
    memory_len=0,
    compute_dtype="float32",
)


def official(params):
    return names.to_foreign(TENSORFLOW, params)


def shapes_of(model: ModelConfig) -> dict:
    return nn.unbox(make_recipe(Config(model=model)).abstract_params)


def random_params(model: ModelConfig) -> dict:
    return tiny.random_params(Config(model=model))


def test_the_names_there_are_those_that_the_oracle_reads():
    """Its table is its own: names of one shape that change places would come back in every round
    trip.
    """
    theirs = {
        f"transformer.layer.{{}}.{name}": f"layers/{ours}" for name, ours in replay.OF_LAYER.items()
    }
    theirs |= {
        f"transformer.layer.{{}}.{name}": f"layers/attention/{ours}"
        for name, ours in replay.BIASES.items()
    }
    found = {
        entry.theirs: entry.ours for entry in HUGGINGFACE if not entry.ours.startswith("biases/")
    }
    assert found == theirs | replay.WHOLE and len(found) > 15


def test_every_task_has_a_class_and_a_head_there():
    assert (
        set(configs.fields()["finetune.task"].metadata["choices"])
        == {"none", *TASKS}
        == {"none", *peers.EXPORTS}
    )
    config = Config().changed(finetune={"task": "token_classification"})
    assert Entry("head/logits/bias", "classifier.bias") in peers.table(config)


def test_shared_layers_have_no_name_there():
    with pytest.raises(BadInput, match="share_layers=True: the original's checkpoints"):
        official(random_params(ModelConfig(**SMALL, share_layers=True)))


@pytest.mark.parametrize(
    ("size", "model", "tensors", "parameters"),
    [
        ("large", ModelConfig(), 319, 360_300_800),
        ("base", ModelConfig(layers=12, d_model=768, heads=12, d_ff=3072), 163, 116_750_336),
    ],
)
def test_names_shapes_and_counts_are_those_of_the_released_models(size, model, tensors, parameters):
    arrays = jax.eval_shape(official, shapes_of(model))
    assert {name: leaf.shape for name, leaf in arrays.items()} == released.tensorflow_shapes(
        **released.SIZES[size]
    )
    assert len(arrays) == tensors
    assert sum(math.prod(leaf.shape) for leaf in arrays.values()) == parameters


@pytest.mark.parametrize("table", [TENSORFLOW, HUGGINGFACE], ids=["tensorflow", "huggingface"])
@pytest.mark.parametrize("biases_per_layer", [True, False])
def test_there_and_back(table, biases_per_layer):
    """Bit for bit. A name table with two equal right-hand sides would pass the round trip of its
    own half.
    """
    model = ModelConfig(**SMALL, biases_per_layer=biases_per_layer)
    params = random_params(model)
    theirs = names.to_foreign(table, params)
    (last,) = (
        array
        for name, array in theirs.items()
        if "layer_2/rel_attn/k/" in name or "layer.2.rel_attn.k" in name
    )
    np.testing.assert_array_equal(last, params["layers"]["attention"]["key"][2])
    if biases_per_layer:
        assert len({array.tobytes() for array in theirs.values()}) == len(theirs)
        assert sum(array.size for array in theirs.values()) == sum(
            leaf.size for leaf in jax.tree.leaves(params)
        )
    arrays = names.Arrays.of("folder", theirs)
    if table is HUGGINGFACE and not biases_per_layer:
        with pytest.raises(
            BadInput, match="has content_bias of each layer; use model.biases_per_layer=True"
        ):
            names.from_foreign(table, shapes_of(model), arrays)
        model = ModelConfig(**SMALL)
        params["layers"]["attention"] |= {
            name: np.broadcast_to(bias, (3, *bias.shape))
            for name, bias in params.pop("biases").items()
        }
    back = names.from_foreign(table, shapes_of(model), arrays)
    assert names.from_foreign(table, shapes_of(model) | {"head": {}}, arrays)["head"] == {}, (
        "one that only pools"
    )
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    assert all(leaf.flags.c_contiguous for leaf in jax.tree.leaves(back))


def test_all_that_does_not_fit_is_listed_in_one_line():
    model = ModelConfig(**SMALL)
    arrays = official(random_params(model))
    at = "model/transformer/layer_1/ff"
    del arrays[f"{at}/layer_2/bias"], arrays[f"{at}/layer_1/bias"]
    arrays[f"{at}/LayerNorm/gamma"] = np.zeros((4, 2), np.float32)
    arrays[f"{at}/LayerNorm/beta"] = np.zeros(8, np.float16)
    arrays |= {
        "model/lm_loss/weight": np.zeros((11, 8), np.float32),
        "model/extra": np.zeros(1, np.float32),
    }
    with pytest.raises(BadInput) as caught:
        names.from_foreign(TENSORFLOW, shapes_of(model), names.Arrays.of("ckpt", arrays))
    assert str(caught.value) == (
        "ckpt does not hold the arrays of this model. "
        f"missing (2): {at}/layer_1/bias, {at}/layer_2/bias; "
        "left over (2): model/extra, model/lm_loss/weight; "
        f"of another shape (1): {at}/LayerNorm/gamma is [4, 2] and must be [8]; "
        f"of another dtype (1): {at}/LayerNorm/beta is float16 and must be float32"
    )


def test_several_parameters_are_one_array_side_by_side():
    """Queries, keys and values in one, [in, out] as GPT-2 has them or [out, in]. The fault: the
    other axis.
    """
    model = ModelConfig(**SMALL)
    params, paths = (
        random_params(model),
        [f"layers/attention/{name}" for name in ("query", "key", "value")],
    )
    others = tuple(entry for entry in HUGGINGFACE if entry.ours not in paths)
    found = {}
    for form in ("joined", "transposed"):
        table = (*others, Entry(" ".join(paths), "transformer.layer.{}.all", form))
        theirs = names.to_foreign(table, params)
        found[form] = theirs["transformer.layer.2.all"]
        back = names.from_foreign(table, shapes_of(model), names.Arrays.of("folder", theirs))
        jax.tree.map(np.testing.assert_array_equal, back, params)
    np.testing.assert_array_equal(
        found["joined"][:, 8:16], params["layers"]["attention"]["key"][2].reshape(8, 8)
    )
    np.testing.assert_array_equal(found["transposed"], found["joined"].T)


def test_a_parameter_without_a_name_there_is_not_dropped():
    params = random_params(ModelConfig(**SMALL)) | {"new": {"kernel": np.zeros(1, np.float32)}}
    with pytest.raises(BadInput, match="no name for new/kernel"):
        names.to_foreign(HUGGINGFACE, params)
    flat = traverse_util.flatten_dict(params, sep="/")
    jax.tree.map(
        np.testing.assert_array_equal,
        names.from_ours(params, names.Arrays.of("orbax", flat)),
        params,
    )
