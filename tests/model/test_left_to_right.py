"""A left-to-right model: the settings that it cannot have, and positions at its input."""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.errors import BadInput
from xlnet_jax.model import positions

CLM = {"objective": "clm", "reuse_len": 32, "num_predict": 32}


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            {"memory_len": 0, "same_length": True},
            CLM,
            "model.same_length=True needs a memory: .* model.memory_len=0",
        ),
        ({"same_length": True}, {}, "model.same_length=True needs data.objective=clm"),
        (
            {"architecture": "transformer_xl"},
            {},
            "objective=plm is not for model.architecture=transformer_xl",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(model, data, message):
    with pytest.raises(BadInput, match=message):
        tiny.config(model=model, data=data)


def test_sinusoids_at_the_input_are_those_of_the_paper(x64):
    """sin and cos in turns, of pairs with the wave lengths 2 pi and 200 pi; the fault: halves, or
    cosine first.
    """
    wanted = [
        [0, 1, 0, 1],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337],
    ]
    found_BTD = positions.absolute_sinusoids(jnp.array([[0, 1, 3]]), 4, jnp.dtype("float64"))
    np.testing.assert_allclose(found_BTD[0], wanted, atol=1e-9)
