"""Killed at random moments, a run ends with the same bits; `make prove` does it 30 times, and 10 with two processes."""

import pytest
from chaos import chaos


@pytest.mark.slow
@pytest.mark.production
def test_killed_at_random_moments_it_ends_with_the_same_bits():
    result = chaos(3)
    assert result["runs"] == result["identical"] == 3 and result["kills"] >= 3
