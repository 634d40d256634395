"""Checkpoints: exact round trip, parts, retention, refusals, readers that leave the folder alone."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax import checkpoint
from xlnet_jax.batch import Memory
from xlnet_jax.checkpoint import Checkpoints
from xlnet_jax.errors import BadInput
from xlnet_jax.train.state import State


def make_state(scale=1.0) -> State:
    return State(
        params={"a": jnp.arange(6.0).reshape(2, 3) * scale, "b": {"c": jnp.array([0.1, -0.0, 1e-40], jnp.float32)}},
        opt_state=({"mu": jnp.ones(3) * scale}, jnp.array(7, jnp.int32)),
        memory=Memory(jnp.full((2, 1, 2, 2), 0.3, jnp.bfloat16), jnp.array([2], jnp.int32)),
        step=jnp.array(5, jnp.int32),
        skipped=jnp.array(1, jnp.int32),
        consecutive_bad=jnp.array(0, jnp.int32),
        loss_mean=jnp.array(4.5, jnp.float32),
        loss_variance=jnp.array(0.1, jnp.float32),
    )


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def test_everything_comes_back_bit_for_bit(tmp_path):
    state = make_state()
    with Checkpoints(str(tmp_path), keep=2) as writer:
        assert writer.latest() is None
        writer.save(5, checkpoint.split(state), {"plan": [[0, 0, 8]]})
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.latest() == 5
        assert reader.record(5) == {"format_version": 1, "plan": [[0, 0, 8]]}
        back = checkpoint.join(reader.restore(5, checkpoint.split(abstract(state))), State)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_relative_work_directory_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Checkpoints("run", keep=1) as writer:
        writer.save(3, checkpoint.split(make_state()), {})
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()


def test_a_state_donated_right_after_the_save_is_saved_as_it_was(tmp_path):
    """The CPU copies a donated buffer that is still being read; where it does not, the save must have its own."""
    state = make_state()
    expected = np.asarray(state.params["a"]).copy()
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 + 9, s), donate_argnums=0)
    with Checkpoints(str(tmp_path), keep=1) as writer:
        writer.save(1, checkpoint.split(state), {})
        overwritten = overwrite(state)
    assert not np.array_equal(overwritten.params["a"], expected)
    with Checkpoints(str(tmp_path)) as reader:
        params = reader.restore(1, {"params": abstract(overwritten).params})["params"]
    np.testing.assert_array_equal(params["a"], expected)


def test_parts_can_be_read_alone_and_old_ones_go(tmp_path):
    with Checkpoints(str(tmp_path), keep=2) as writer:
        for step in (2, 4, 6):
            writer.save(step, checkpoint.split(make_state(scale=step)), {})
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["4", "6"]
    with Checkpoints(str(tmp_path)) as reader:
        only = reader.restore(4, {"params": abstract(make_state()).params})
    assert only.keys() == {"params"} and only["params"]["a"][0, 1] == 4


def test_a_reader_leaves_unfinished_writing_alone_and_a_writer_clears_it(tmp_path):
    with Checkpoints(str(tmp_path), keep=2) as writer:
        writer.save(2, checkpoint.split(make_state()), {})
    unfinished = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
    unfinished.mkdir()
    with Checkpoints(str(tmp_path)) as reader:
        assert reader.latest() == 2
    assert unfinished.exists()
    with Checkpoints(str(tmp_path), keep=2) as writer:
        assert writer.latest() == 2
        writer.save(4, checkpoint.split(make_state()), {})
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["2", "4"]


def test_missing_and_foreign_checkpoints_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such folder; give the --workdir of a run"):
        Checkpoints(str(tmp_path))
    with Checkpoints(str(tmp_path), keep=2) as writer:
        with pytest.raises(BadInput, match="no checkpoint; give"):
            checkpoint.require_latest(writer, None)
        writer.save(2, checkpoint.split(make_state()), {"format_version": 99})
        writer.wait()
        with pytest.raises(BadInput, match="checkpoint format 99, this version reads 1"):
            writer.record(2)
        with pytest.raises(BadInput, match="no checkpoint of step 3"):
            checkpoint.require_latest(writer, 3)
