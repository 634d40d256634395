"""The choice of an implementation of attention at the start of a run."""

import dataclasses
import types

import jax
import pytest
from attention_cases import GATHERED as KERNEL

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import fused, xla
from xlnet_jax.model import implementation


def with_attention(value, **model):
    return ModelConfig(**{"head_dim": 128, "compute_dtype": "float32", "attention": value} | model)


def wrong_gradient(arguments):
    """A kernel that is right forward, and whose keys get no gradient."""
    return xla.attend(dataclasses.replace(arguments, k_BKHE=jax.lax.stop_gradient(arguments.k_BKHE)))


def test_where_there_is_no_kernel_auto_is_xla_and_fused_is_refused():
    """Catches a silent choice, and a run that ends only when it traces the model."""
    assert implementation.choose(with_attention("auto")) == (
        "xla", f"attention: xla, because there is no kernel for cpu, only for {', '.join(fused.KERNELS)}"
    )  # fmt: skip
    with pytest.raises(BadInput, match="model.attention=fused: there is no kernel for cpu.*use model.attention=xla"):
        implementation.choose(with_attention("fused"))
    assert implementation.choose(with_attention("xla"))[0] == "xla"


@pytest.mark.parametrize(("other", "expected"), [("xla\nattention: xla, because of x", "xla"), (None, "fused")])
def test_all_processes_take_xla_if_one_must(other, expected, caplog):
    """Catches processes that compile different programs, and a comparison on a device that is not here."""
    caplog.set_level("INFO")
    processes = types.SimpleNamespace(gather=lambda mine: [mine, other or mine])
    absent = types.SimpleNamespace(device_kind="TPU v5 lite")
    assert implementation.decided(Config(), processes, absent).model.attention == expected
    assert f"attention: {expected}, " in caplog.text


def test_a_cpu_has_no_choice_and_no_line(caplog, monkeypatch):
    caplog.set_level("INFO")
    assert implementation.decided(Config(), Session()).model.attention == "xla" and caplog.text == ""
    device = types.SimpleNamespace(device_kind="TPU v3", platform="tpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert implementation.decided(Config(), Session()).model.attention == "xla"
    assert "attention: xla, because there is no kernel for TPU v3" in caplog.text


def test_sizes_that_a_kernel_refuses(monkeypatch):
    """Catches a size that fails only when the step is traced."""
    monkeypatch.setitem(fused.KERNELS, "cpu", KERNEL)
    chosen, why = implementation.choose(with_attention("auto", head_dim=129))
    assert chosen == "xla" and "model.head_dim=129 is above 128" in why


def test_a_kernel_is_compared_with_xla(monkeypatch):
    """Catches a comparison that misses a wrong gradient, and one that a right kernel fails."""
    monkeypatch.setitem(fused.KERNELS, "cpu", KERNEL)
    assert implementation.choose(with_attention("auto"))[0] == "fused"
    monkeypatch.setitem(fused.KERNELS, "cpu", wrong_gradient)
    chosen, why = implementation.choose(with_attention("auto"))
    assert chosen == "xla" and why.startswith("attention: xla, because the kernel for cpu differs from xla by ")
    with pytest.raises(BadInput, match="differs from xla by .* units, more than 16; use model.attention=xla"):
        implementation.choose(with_attention("fused"))
