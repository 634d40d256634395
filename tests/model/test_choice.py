"""On what the model runs: how that is decided, and that a CPU and other devices compute the
same.
"""

import types
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest
from test_transformer import B, M, R, T, make_batch

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import fused, xla
from xlnet_jax.members import MEMBERS
from xlnet_jax.model import choice
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.train.loss import LanguageModel, mean_loss


def with_attention(value, **model):
    return ModelConfig(**{"head_dim": 128, "compute_dtype": "float32", "attention": value} | model)


def wrong_gradient(arguments):
    """A kernel that is right forward, and whose keys get no gradient."""
    return xla.attend(replace(arguments, k_BKHE=jax.lax.stop_gradient(arguments.k_BKHE)))


def test_where_there_is_no_kernel_auto_is_plain_and_fused_is_refused():
    assert choice.choose(with_attention("auto")) == (
        "cpu",
        f"attention: cpu, because there is no kernel for cpu, only for {', '.join(fused.KERNELS)}",
    )
    with pytest.raises(
        BadInput, match="model.attention=fused: there is no kernel for cpu.*use model.attention=xla"
    ):
        choice.choose(with_attention("fused"))
    assert [choice.choose(with_attention(value))[0] for value in ("xla", "cpu")] == ["xla", "cpu"]


@pytest.mark.parametrize(
    ("other", "expected"), [("xla\nattention: xla, because of x", "xla"), (None, "fused")]
)
def test_all_processes_take_xla_if_one_must(other, expected, caplog):
    caplog.set_level("INFO")
    processes = types.SimpleNamespace(
        collect=lambda mine: [mine, other or mine], broadcast=lambda text: text
    )
    absent = types.SimpleNamespace(device_kind="TPU v5 lite")
    assert choice.resolve_attention(Config(), processes, absent).model.attention == expected
    assert f"attention: {expected}, " in caplog.text


@pytest.mark.parametrize(("architecture", "window"), [("xlnet", 0), ("bert", 0), ("modern", 128)])
@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v4", "NVIDIA H100"])
def test_every_member_has_a_kernel(kind, architecture, window):
    absent = types.SimpleNamespace(device_kind=kind)
    config = with_attention("auto", architecture=architecture, window=window)
    chosen, why = choice.choose(config, absent)
    no_kernel = kind == "TPU v4" and window > 0
    assert chosen == ("xla" if no_kernel else "fused")
    assert ("the kernel for TPU v4 has no room for the long texts" in why) == no_kernel


def test_a_cpu_has_no_choice_and_no_line(caplog, monkeypatch):
    caplog.set_level("INFO")
    assert (
        choice.resolve_attention(Config(), Session()).model.attention == "cpu" and caplog.text == ""
    )
    device = types.SimpleNamespace(device_kind="TPU v3")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert choice.resolve_attention(Config(), Session()).model.attention == "xla"
    assert "attention: xla, because there is no kernel for TPU v3" in caplog.text


def test_a_kernel_is_compared_with_xla(monkeypatch):
    monkeypatch.setitem(fused.KERNELS, "cpu", xla.attend)
    assert choice.choose(with_attention("auto"))[0] == "fused"
    monkeypatch.setitem(fused.KERNELS, "cpu", wrong_gradient)
    chosen, why = choice.choose(with_attention("auto"))
    assert chosen == "cpu" and why.startswith(
        "attention: cpu, because the kernel for cpu differs from xla by "
    )
    with pytest.raises(
        BadInput, match="differs from xla by .* units, more than 16; use model.attention=xla"
    ):
        choice.choose(with_attention("fused"))
    # As the run will call it.
    monkeypatch.setitem(
        fused.KERNELS, "cpu", lambda a: wrong_gradient(a) if a.save else xla.attend(a)
    )
    assert [
        choice.choose(with_attention("auto", unroll=unroll))[0] for unroll in ("off", "on")
    ] == ["fused", "cpu"]


def small(name, attention):
    """A model of a member and its usual objective."""
    usual = MEMBERS[name].usual(T)
    config = ModelConfig(
        **{
            **usual["model"],
            "attention": attention,
            "vocab_size": 60,
            "layers": 2,
            "d_model": 16,
            "heads": 2,
            "head_dim": 8,
            "d_ff": 24,
            "compute_dtype": "float32",
            "memory_len": M * (MEMBERS[name].parts.positions == "relative"),
        }
    )
    return LanguageModel(
        XLNet(
            config, R if config.memory_len else T, objective=OBJECTIVES[usual["data"]["objective"]]
        )
    )


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("xlnet", "vanilla", "bert") else pytest.param(name, marks=pytest.mark.slow)
        for name in MEMBERS
    ],
)
def test_a_cpu_computes_what_other_devices_do(name):
    """The loss and its rows, the memory and all gradients, with dropout. A cache is the same on all
    devices.
    """
    ours, theirs = (small(name, attention) for attention in ("cpu", "xla"))
    batch, key, rng = make_batch(), jax.random.key(1), np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda: (ours.init(key, batch), ours.carried(B))))
    params, memory = jax.tree.map(
        lambda x: (0.3 * rng.standard_normal(x.shape)).astype(np.float32), shapes
    )
    memory = replace(memory, valid_B=np.array([M, 3], np.int32))
    gradient = jax.jit(jax.value_and_grad(mean_loss, has_aux=True), static_argnums=1)
    lowered = [gradient.lower(params, model, batch, memory, key) for model in (ours, theirs)]
    assert lowered[0].as_text() != lowered[1].as_text()
    found, expected = (
        jax.tree.leaves(one.compile()(params, batch, memory, key)) for one in lowered
    )
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * np.abs(y).max(initial=1))
