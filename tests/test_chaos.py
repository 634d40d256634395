"""Killed at random moments, a run ends with the same bits; one of two processes killed as well."""

import pytest
from chaos import chaos


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "processes"), [(3, 1), (2, 2)])
def test_killed_at_random_moments_it_ends_with_the_same_bits(runs, processes):
    result = chaos(runs, processes)
    assert result["runs"] == result["identical"] == runs and result["kills"] >= runs
