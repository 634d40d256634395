"""The reference of the fused kernels: its gradient, written out by hand, is what JAX derives of the plain attention."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import by_reference, cast, differentiated, draw

from xlnet_jax.kernels import xla
from xlnet_jax.kernels.dropout import AttentionDropout

CASES = [dict(T=5, M=4), dict(T=4, M=6, tables=2), dict(T=5, M=4, chosen=3), dict(T=1, M=0), dict(T=1, M=3, chosen=2)]


@pytest.mark.parametrize("max_distance", [None, 2])
@pytest.mark.parametrize("rate", [0, 0.3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_gradients_are_those_of_the_plain_attention(case, rate, max_distance, x64):
    """Catches a wrong sign, factor or sum in any formula of the reference, and a mask that is not the others'."""
    dropout = AttentionDropout(jnp.uint32(4), rate, 1) if rate else None
    arguments = replace(cast(draw(**case, seed=3), jnp.float64), dropout=dropout, max_distance=max_distance)
    do_BQHE = jnp.asarray(np.random.default_rng(1).standard_normal(arguments.q_BQHE.shape))
    ours, theirs = by_reference(arguments, do_BQHE), differentiated(xla.attend, arguments, do_BQHE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), ours, theirs)
    assert np.any(theirs[1]["q_BQHE"]) or case["T"] == 1, "no gradient to compare"
