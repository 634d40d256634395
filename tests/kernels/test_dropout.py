"""Dropout masks: the share kept and its scale, independence of all indices, and blocks as parts of
the whole.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.kernels.dropout import AttentionDropout, advance, drop, fold, keep, threshold

SHAPE = B, H, Q, K = 4, 4, 64, 256
ROWS, POSITIONS = jnp.arange(B), jnp.broadcast_to(jnp.arange(Q), (B, Q))


def kept(rate=0.1, key=7, stream=0, rows=ROWS, positions=POSITIONS, heads=H, first_head=0):
    """What the mask of attention keeps: bool [B, H, Q, K]."""
    ones = jnp.ones((len(rows), heads, positions.shape[1], K))
    dropout = AttentionDropout(jnp.uint32(key), rate, stream, first_head)
    return np.asarray(dropout(ones, rows[:, None], positions, jnp.arange(ones.shape[-1])[None])) > 0


def correlation(a, b):
    """In standard deviations of what independent masks would have."""
    a, b = a.ravel() - a.mean(), b.ravel() - b.mean()
    return abs(np.mean(a * b)) / np.sqrt(np.mean(a * a) * np.mean(b * b)) * np.sqrt(a.size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_what_is_kept_is_divided_by_the_exact_share_kept(dtype, x64):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(10_000), dtype)
    out = drop(x, 0.1, jnp.uint32(3), jnp.arange(10_000))
    share = threshold(0.1) / 2**32
    assert abs(share - 0.9) < 2**-32 and out.dtype == dtype
    dropped, given = np.asarray(out, np.float64), np.asarray(x, np.float64)
    ratio = dropped[dropped != 0] / given[dropped != 0]
    precision = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(ratio, 1 / share, rtol=precision)
    # And on average, even where a single product is rounded to 8 bits.
    assert ratio.mean() * share == pytest.approx(1, abs=max(precision / 50, 1e-6))


def test_hardly_any_and_hardly_none_are_dropped_at_extreme_rates():
    assert threshold(1e-12) == 2**32 - 1 and threshold(1 - 1e-12) == 1
    assert kept(1e-12).all() and not kept(1 - 1e-12).any()


def test_rows_heads_positions_keys_streams_and_layers_are_independent():
    rate = 0.1
    mask = kept(rate)
    # Five standard deviations of the share kept.
    assert abs(mask.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / mask.size)
    for axis in range(4):
        for distance in (1, 2, 3, 4, 8, 16, 32, 128):
            if distance < SHAPE[axis]:
                one, other = (
                    np.take(mask, range(*r), axis)
                    for r in ((0, SHAPE[axis] - distance), (distance, SHAPE[axis]))
                )
                assert correlation(one, other) < 5, (axis, distance)
        # Of every position and key the share kept: as scattered as it should be, and no more.
        if SHAPE[axis] >= 64:
            share = mask.mean(axis=tuple(other for other in range(4) if other != axis))
            scatter = share.var() / (rate * (1 - rate) / (mask.size / SHAPE[axis]))
            assert abs(scatter - 1) < 5 * np.sqrt(2 / SHAPE[axis])
    assert correlation(mask, kept(rate, stream=1)) < 5
    for key in (6, 8, 7 + 2**16, 7 + 2**31):
        assert correlation(mask, kept(rate, key=key)) < 5
    # Indices do not stand in for each other: row and head, position and key.
    others = ~np.eye(B, dtype=bool)
    assert correlation(mask[others], mask.swapaxes(0, 1)[others]) < 5
    square, others = mask[:, :, :, :Q], ~np.eye(Q, dtype=bool)
    assert correlation(square[:, :, others], square.swapaxes(2, 3)[:, :, others]) < 5


def bits(key, *indices):
    """The hash: not folded, as `advance` leaves it."""
    return fold(advance(fold(key), *indices))


def test_the_hash_is_that_of_the_formula():
    """Also where the high half of the hash is the threshold's."""

    def mix(word):
        word ^= word >> 16
        word *= np.uint32(0x7FEB352D)
        word ^= word >> 15
        word *= np.uint32(0x846CA68B)
        return word ^ word >> 16

    indices = np.arange(300, dtype=np.uint32)[:, None], np.arange(1000, dtype=np.uint32)[None]
    word = np.uint32(12345)
    for index in indices:
        word = mix(word ^ index * np.uint32(0x9E3779B9))
    np.testing.assert_array_equal(bits(jnp.uint32(12345), *indices), word)
    for one in np.sort(word.ravel())[[0, 1000, -1]]:
        for bound in (one, one + 1):
            rate = 1 - int(bound) / 2**32
            assert threshold(rate) == max(bound, 1)
            np.testing.assert_array_equal(
                keep(rate, fold(jnp.uint32(12345)), *indices), word < threshold(rate)
            )


def test_a_bit_of_any_index_changes_half_of_the_bits_of_the_hash():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 512, (3, 5000), dtype=np.uint32)
    before = np.asarray(bits(jnp.uint32(1), *indices))
    for which in range(3):
        for bit in range(9):
            changed = indices.copy()
            changed[which] ^= np.uint32(1 << bit)
            flipped = before ^ np.asarray(bits(jnp.uint32(1), *changed))
            share = np.unpackbits(flipped.view(np.uint8).reshape(-1, 4), axis=1).mean(axis=0)
            assert np.abs(share - 0.5).max() < 0.05, (which, bit)


def test_a_block_has_the_mask_of_its_part_of_the_whole():
    whole = kept(0.5)
    rows, positions = jnp.array([3, 1]), jnp.array([[5, 63, 0], [9, 9, 1]])
    part = kept(0.5, rows=rows, positions=positions, heads=2, first_head=1)
    np.testing.assert_array_equal(part[0], whole[3, 1:3][:, [5, 63, 0]])
    np.testing.assert_array_equal(part[1], whole[1, 1:3][:, [9, 9, 1]])


def test_a_key_of_64_bits_is_refused(x64):
    """Nearly every hash of it would be above any threshold."""
    with pytest.raises(TypeError, match="must be uint32, not uint64"):
        drop(jnp.ones(4), 0.1, jax.random.bits(jax.random.key(0)), jnp.arange(4))


def test_the_backward_pass_draws_the_mask_again():
    """No array as large as x waits for it; the gradient has the mask and the factor of the
    output.
    """
    x_BF = jnp.arange(1.0, 65.0).reshape(4, 16)
    indices = jnp.arange(4)[:, None], jnp.arange(16)[None]
    y_BF, pull = jax.vjp(lambda x: drop(x, 0.3, jnp.uint32(7), *indices), x_BF)
    assert max(leaf.size for leaf in jax.tree.leaves(pull)) < x_BF.size
    np.testing.assert_array_equal(pull(x_BF)[0], y_BF)
