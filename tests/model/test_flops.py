"""FLOPs against a count by hand."""

import dataclasses

import jax
import pytest

from xlnet_jax.config import Config, DataConfig, ModelConfig, TrainConfig
from xlnet_jax.model import flops


def test_one_layer_by_hand():
    """D=4, one head of 4, F=8, V=10, T=6, M=2 (K=8 keys, N=13 distances), P=2; multiply-adds
    times 2.
    """
    config = Config(
        model=ModelConfig(
            vocab_size=10, layers=1, d_model=4, heads=1, head_dim=4, d_ff=8, memory_len=2
        ),
        data=DataConfig(segment_len=6, reuse_len=1, num_predict=2),
        train=TrainConfig(batch_size=3),
    )
    query_rows = 2 * (2 * 4 * 4 + 2 * 4 * 4)  # query and output projection
    query_rows += 2 * 2 * 8 * 4  # content scores
    # Position scores: those of the 8 keys, though 13 distances are computed.
    query_rows += 2 * 2 * 8 * 4
    query_rows += 2 * 2 * 2 * 4  # segment scores
    query_rows += 2 * 2 * 8 * 4  # weighted values
    query_rows += 2 * (2 * 4 * 8 + 2 * 8 * 4)  # feed-forward
    keys = 8 * (2 * 4 * 4) * 2
    softmax = 2 * 2 * 4 * 10
    forward = flops.forward_flops(config)
    assert forward == {"content": 0, "query": query_rows, "keys": keys, "softmax": softmax}
    no_memory_gradient = 2 * (2 * 4 * 4) * 2
    table = 2 * (13 * 2 * 4 * 4)  # forward, and the gradient of the kernel
    per_row = 3 * (query_rows + keys + softmax) - no_memory_gradient
    assert flops.step_flops(config) == 3 * per_row + table


def test_a_left_to_right_model_has_all_clusters_and_no_segment_scores():
    """Clusters of 4, 3 and 3 words with widths 4, 2 and 1; the first has a column for each of the
    other two.
    """
    model = ModelConfig(
        vocab_size=10, layers=1, d_model=4, heads=1, head_dim=4, d_ff=8, memory_len=2
    )
    data = DataConfig(objective="clm", segment_len=6, reuse_len=6, num_predict=6)
    plain = flops.forward_flops(Config(model=model, data=data))
    model = dataclasses.replace(model, cutoffs="4,7", div_val=2)
    forward = flops.forward_flops(Config(model=model, data=data))
    # Projections, scores and values of 8 keys, feed-forward.
    row = 2 * (2 * 4 * 4 + 3 * 8 * 4 + 2 * 4 * 8)
    assert plain == {
        "content": 6 * row,
        "query": 0,
        "keys": 8 * 2 * 2 * 4 * 4,
        "softmax": 6 * 2 * 4 * 10,
    }
    projections = 2 * 4 * (4 + 2 + 1)
    softmax = 6 * (2 * ((4 + 2) * 4 + 3 * 2 + 3 * 1) + projections)
    assert forward == plain | {"softmax": softmax, "embedding": 6 * projections}


def test_a_layer_with_a_window_counts_the_keys_inside_of_it():
    """Layers 0 and 2 are global (6 keys); in layer 1 the six queries see 2, 3, 3, 3, 3 and 2 keys
    within a distance of 1, and with a memory of 8 the first query sees 3. The feed-forward layer
    has three products.
    """
    model = ModelConfig(
        architecture="modernbert",
        vocab_size=10,
        layers=3,
        d_model=4,
        heads=1,
        head_dim=4,
        d_ff=8,
        memory_len=0,
        window=2,
        global_every=2,
    )
    data = DataConfig(objective="mlm", segment_len=6, reuse_len=4, num_predict=2)
    config = Config(model=model, data=data, train=TrainConfig(batch_size=3))
    forward = flops.forward_flops(config)
    rows = 6 * 3 * 2 * (2 * 4 * 4 + 3 * 4 * 8) + 6 * 2 * 2 * 4 * (6 + (2 + 3 * 4 + 2) // 6 + 6)
    assert forward == {
        "content": rows,
        "query": 0,
        "keys": 3 * 6 * 2 * 2 * 4 * 4,
        "softmax": 2 * 2 * (4 * 10 + 4 * 4),
    }
    assert flops.step_flops(config) == 3 * 3 * sum(forward.values())
    wide = dataclasses.replace(model, window=4, memory_len=8)
    assert flops.keys_seen(wide, 6) == [14, (5 + 5 + 5 + 5 + 4 + 3) // 6, 14]


def test_utilisation_is_needed_flops_over_the_peak_of_all_devices(monkeypatch):
    assert flops.seconds_at_peak(10**9) is None
    monkeypatch.setitem(flops.PEAK_FLOPS, jax.devices()[0].device_kind, 1e12)
    assert flops.seconds_at_peak(10**9) == pytest.approx(1e-3 / jax.device_count())
