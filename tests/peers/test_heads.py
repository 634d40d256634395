"""The heads of tasks against those of transformers, with the same parameters and the same vectors."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import torch
from transformers import XLNetConfig
from transformers.models.xlnet import modeling_xlnet as xlnet

from xlnet_jax.finetune.heads import Classifier, cross_entropy
from xlnet_jax.finetune.question_answering import AnswerHead
from xlnet_jax.finetune.task import Hidden

B, T, D, BEAM = 3, 11, 16, 4


@pytest.fixture(scope="module")
def hidden():
    """Vectors of three rows: no padding, 5 question tokens with both SEPs before CLS."""
    h_BTD = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
    segments_BT = np.tile(np.array([0] * 7 + [1] * 3 + [2], np.int32), (B, 1))
    return Hidden(jnp.asarray(h_BTD)[:, None], jnp.ones((B, 1, T), bool), segments_BT[:, None], jnp.arange(B))


def _model():
    return dataclasses.replace(tiny.config().model, init_std=0.5, dropout=0.0, layer_norm_epsilon=1e-12)


def _random(params):
    """Biases and LayerNorms too, which start at 0 and 1."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([0.5 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)])


def _fill(module, ours):
    """Copies {name: {kernel, bias} or {scale, bias}} into the module of torch with these names."""
    for name, values in ours.items():
        linear = module.get_submodule({"norm": "LayerNorm"}.get(name, name))
        weight = values["kernel"].T if "kernel" in values else values["scale"]
        linear.weight.data = torch.tensor(np.asarray(weight))
        assert (linear.bias is not None) == ("bias" in values), name
        if "bias" in values:
            linear.bias.data = torch.tensor(np.asarray(values["bias"]))
    return module.eval()


def test_spans(hidden):
    """Logits of start, end and no answer; the fault: halves of a joined vector swapped, or another mask."""
    head = AnswerHead(_model(), BEAM)
    labels = {"start": np.array([0, 3, T - 1]), "end": np.array([2, 5, T - 1]), "impossible": np.array([0, 0, 1])}
    params = head.init(jax.random.key(0), hidden, labels, deterministic=True, method="losses")
    params = _random(nn.meta.unbox(params))
    ours = params["params"]
    config = XLNetConfig(d_model=D, n_head=2, start_n_top=BEAM, end_n_top=BEAM, layer_norm_eps=1e-12)
    start, end, answer = (
        _fill(module(config), ours[name])
        for name, module in (
            ("start_logits", xlnet.XLNetPoolerStartLogits),
            ("end_logits", xlnet.XLNetPoolerEndLogits),
            ("answer_class", xlnet.XLNetPoolerAnswerClass),
        )
    )
    h_BTD = torch.tensor(np.asarray(hidden.h_BCTD[:, 0]))
    # 1 = no answer starts or ends here: SEP, the question, SEP.
    mask_BT = torch.tensor(np.tile([0.0] * 6 + [1.0] * 4 + [0.0], (B, 1)), dtype=torch.float32)
    with torch.no_grad():
        log_start = torch.log_softmax(start(h_BTD, p_mask=mask_BT), dim=-1)
        expected = torch.einsum("blh,bl->bh", h_BTD, log_start.exp())
        no_answer = answer(h_BTD, start_states=expected, cls_index=torch.full((B,), T - 1))
        positions = torch.tensor(labels["start"])
        log_end = torch.log_softmax(end(h_BTD, start_positions=positions, p_mask=mask_BT), dim=-1)
        top, index = log_start.topk(BEAM)
        states = torch.gather(h_BTD, 1, index[..., None].expand(-1, -1, D))[:, None].expand(-1, T, -1, -1)
        each = end(h_BTD[:, :, None].expand(-1, -1, BEAM, -1), start_states=states, p_mask=mask_BT[..., None])
        top_end, index_end = torch.log_softmax(each, dim=1).topk(BEAM, dim=1)

    losses = head.apply(params, hidden, labels, deterministic=True, method="losses")
    rows = range(B)
    span = -log_start[rows, labels["start"]] - log_end[rows, labels["end"]]
    bce = torch.nn.functional.binary_cross_entropy_with_logits(
        no_answer, torch.tensor(labels["impossible"], dtype=torch.float32), reduction="none"
    )
    np.testing.assert_allclose(losses, (0.5 * span + 0.5 * bce).numpy(), rtol=1e-5, atol=1e-5)

    found = head.apply(params, hidden, method="predictions")
    np.testing.assert_allclose(found["no_answer"], no_answer.numpy(), atol=1e-5)
    np.testing.assert_allclose(found["start_score"], top.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found["start"] + T, index.numpy())
    # transformers has the ends first and the starts second.
    np.testing.assert_allclose(found["end_score"], top_end.transpose(1, 2).numpy(), atol=1e-5)
    np.testing.assert_array_equal(found["end"] + T, index_end.transpose(1, 2).numpy())


def test_the_classifier(hidden):
    head = Classifier(_model(), 3, cross_entropy)
    params = head.init(jax.random.key(0), hidden, {"label": np.zeros(B, np.int32)}, deterministic=True, method="losses")
    params = _random(nn.meta.unbox(params))
    summary = _fill(
        xlnet.XLNetSequenceSummary(XLNetConfig(d_model=D, n_head=2)), {"summary": params["params"]["summary"]}
    )
    logits = torch.nn.Linear(D, 3)
    kernel, bias = params["params"]["logits"]["kernel"], params["params"]["logits"]["bias"]
    logits.weight.data, logits.bias.data = torch.tensor(np.asarray(kernel.T)), torch.tensor(np.asarray(bias))
    with torch.no_grad():
        expected = logits(summary(torch.tensor(np.asarray(hidden.h_BCTD[:, 0]))))
    found = head.apply(params, hidden, method="predictions")["logits"][:, 0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
