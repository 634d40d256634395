"""Floating-point operations of one training step, counted by hand from the shapes, and published
chip peaks.

A matrix product of [a, b] by [b, c] counts 2abc. Only matrix products count, and only what the
objective needs: recomputation (remat) and padding do not count. The backward pass costs twice the
forward pass, except that the memory gets no gradient.

With A = H E, K = M + T and N = M + 2T - 1, r query rows in a layer cost

    stream(r) = 4 r D A      projections of queries and output
              + 2 r K A      content scores
              + 2 r K A      position scores (N distances are computed, of which K are needed)
              + 4 r A        segment scores
              + 2 r K A      weighted values
              + 4 r D F      feed-forward; 6 r D F if it is gated

    forward = (L - 1) stream(T)     content stream; the output of its last layer is not used
            + L stream(P)           query stream
            + L 4 K D A             keys and values
            + 2 P D V               logits

    step    = B (3 forward - L 4 M D A) + L 4 N D A

The projection of the position table counts once per step in each pass. A model without a query
stream has L stream(T). Only XLNet, except with `clm`, has segment scores; without relative
positions there are no position scores and no table. In a layer with a window, scores and values
count only the keys inside of the window: their mean over the positions of a segment takes the place
of K. A dense layer in the head adds 2 P D C, with C the width of the embedding. An adaptive softmax
counts all its clusters and projections.
"""

from __future__ import annotations

import jax

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.model.embeddings import clusters, projections

PEAK_FLOPS = {
    # Dense bfloat16 peak per JAX device. TPU: Google Cloud "TPU system architecture" pages (for v2
    # and v3 a page lists a chip of two cores, and a JAX device is one core); NVIDIA: data sheets of
    # the SXM parts, without sparsity.
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def forward_flops(config: Config) -> dict[str, int]:
    """Returns forward FLOPs of one row, by part: content stream, query stream, key side (keys,
    values, positions), softmax, and, in models that have them, projections of the embedding and
    auxiliary losses. Auxiliary losses count even after their weight has become 0.
    """
    model, data = config.model, config.data
    T, P, M = data.segment_len, data.num_predict, model.memory_len
    D, F, W = model.d_model, model.d_ff, model.heads * model.head_dim
    parts, groups = model.member.parts_of(config.objective), clusters(model)
    # Scores of content and relative position, and values.
    attention = (3 if parts.positions == "relative" else 2) * 2 * W
    # Query and output projection, segment scores, feed-forward.
    row = 2 * 2 * D * W + 2 * 2 * W * (parts.segments == "relative") + (2 + parts.gated) * 2 * D * F
    row_L = [row + attention * keys for keys in keys_seen(model, T)]
    # With two streams nothing uses the last layer's content output: the targets attend to its
    # input.
    two_streams = parts.targets == "query"
    # `projected` counts one vector through the projections of all clusters. A softmax counts all
    # clusters, because all are computed.
    projected = sum(2 * part.width * D for part in groups) if projections(model) else 0
    columns = sum(part.size * part.width for part in groups) + (len(groups) - 1) * groups[0].width
    if parts.head.startswith("dense"):
        columns += D * groups[0].width
    softmaxes = (
        data.multi_token_prediction
        - 1
        + model.layer_losses * (model.layers - 1) * data.multi_token_prediction
    )
    return {
        "content": T * sum(row_L[: model.layers - two_streams]),
        "query": P * two_streams * sum(row_L),
        "keys": model.layers * 2 * 2 * (M + T) * D * W,
        "softmax": P * (2 * columns + projected),
        **({"embedding": T * projected} if projected else {}),
        **({"embedding": T * 2 * groups[0].width * D} if parts.projected else {}),
        **({"auxiliary": softmaxes * 2 * P * D * model.vocab_size} if softmaxes else {}),
    }


def keys_seen(model: ModelConfig, segment_len: int) -> list[int]:
    """Returns for each layer the keys that a query could see, whatever their ranks: all, or inside
    of a window the mean over the positions of a segment, rounded down.
    """
    T, M, reach = segment_len, model.memory_len, model.window // 2
    near = sum(min(T, i + reach + 1) - max(-M, i - reach) for i in range(T)) // T
    return [
        near if model.window and number % model.global_every else M + T
        for number in range(model.layers)
    ]


def step_flops(config: Config) -> int:
    """Returns FLOPs of one optimizer step of the whole batch; the projection of the position table
    counts once for all rows.
    """
    model, data = config.model, config.data
    D, W = model.d_model, model.heads * model.head_dim
    N = model.memory_len + 2 * data.segment_len - 1
    per_row = 3 * sum(forward_flops(config).values())
    into_memory = model.layers * 2 * 2 * model.memory_len * D * W
    # The sinusoids are constants: their projection has a gradient for its kernel only.
    relative = model.member.parts_of(config.objective).positions == "relative"
    table = model.layers * 2 * 2 * N * D * W * relative
    return config.train.batch_size * (per_row - into_memory) + table


def seconds_at_peak(flops: int) -> float | None:
    """Returns seconds for these FLOPs on all devices at peak; None without a published peak."""
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
    return None if peak is None else flops / (peak * jax.device_count())
