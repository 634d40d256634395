"""Inspect: the masks it draws are the ones the model uses."""

import numpy as np

from xlnet_jax.inspect import visible


def test_masks_of_the_golden_example():
    content, query = visible([-1, 2, 7, -1, 3, -1, 1, 6, 4], [1, 2, 6])
    assert [np.flatnonzero(~row).tolist() for row in content] == [
        [1, 2, 4, 6, 7, 8], [2, 4, 7, 8], [], [1, 2, 4, 6, 7, 8], [2, 7, 8], [1, 2, 4, 6, 7, 8], [1, 2, 4, 7, 8],
        [2], [2, 7],
    ]  # fmt: skip
    assert np.flatnonzero(query.any(axis=1)).tolist() == [1, 2, 6]
    assert np.flatnonzero(~query[1]).tolist() == [1, 2, 4, 7, 8]
    assert np.flatnonzero(~query[2]).tolist() == [2]
    assert np.flatnonzero(~query[6]).tolist() == [1, 2, 4, 6, 7, 8]
