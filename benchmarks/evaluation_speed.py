"""How fast a language model with memory is evaluated, beside a Vanilla Transformer that slides, in
one run.

    python benchmarks/evaluation_speed.py [--json] [--lengths=800,1800,2800,3800]
    python benchmarks/evaluation_speed.py --tiny             tiny sizes, to try it

To predict a token from A tokens of context, a model without memory computes a window of A tokens
for this one token. A model with A slots of memory computes it once, with a whole segment
(Transformer-XL, section 4.5 and table 9). Both sides have the same layers, widths and vocabulary;
they differ in the parameters of their positions. Each takes the batch that is fastest for it, the
memory side also the segment length. The sliding side is jitted, and computes the logits for the
last position only (`train.sliding`). The memory side sees at least as much: A slots, and the tokens
before in its segment. It is the pass with memory of `xlnet-jax evaluate` alone, without
`loss_without_memory`. Both forward passes only; compilation is not in the figures; the sides take
turns.

Figures, by attention length:

  lengths             tokens per second with memory over those of sliding: median over rounds
  cpu_seconds         the same of CPU seconds, for a CPU with other work; null on an accelerator
  flops               the same ratio of FLOPs per token, counted from the shapes (`model.flops`)
  published           the ratio of table 9 of the paper
  memory, sliding     tokens_per_second, and the batch and the segment_len that were chosen

An accelerator has the sizes of the paper's 12-layer enwik8 model in bfloat16; a CPU a small model
in float32, as otherwise one window takes half a minute: `sizes` says which.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import Memory
from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.model import choice, flops
from xlnet_jax.train import sliding
from xlnet_jax.train.recipe import example_batch, make_recipe

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENTS = 4
"""Of a call of the memory side."""


class Sizes(NamedTuple):
    """The model of both sides, and what each side tries."""

    model: dict[str, Any]
    segments: Sequence[int]
    rows: Sequence[int]
    """Streams of the memory side."""
    windows: Sequence[int]
    """Batches of the sliding side."""


CPU = Sizes(
    dict(
        vocab_size=205,
        layers=4,
        d_model=64,
        heads=2,
        head_dim=32,
        d_ff=256,
        compute_dtype="float32",
    ),
    segments=(512,),
    rows=(1, 4),
    windows=(1, 4),
)
ACCELERATOR = Sizes(
    dict(
        vocab_size=205,
        layers=12,
        d_model=512,
        heads=8,
        head_dim=64,
        d_ff=2048,
        compute_dtype="bfloat16",
    ),
    segments=(512, 1024),
    rows=(8, 32),
    windows=(4, 16, 64),
)
TINY = Sizes(
    dict(
        vocab_size=50, layers=2, d_model=16, heads=2, head_dim=8, d_ff=32, compute_dtype="float32"
    ),
    segments=(32,),
    rows=(2,),
    windows=(2,),
)


class Side(NamedTuple):
    """A compiled side: a call predicts `tokens` tokens."""

    call: Callable[[], Any]
    tokens: int
    batch: int
    segment_len: int

    def rates(self) -> tuple[float, float]:
        """Tokens per second, and per second of this process's CPU time."""
        began, cpu_began = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.call())
        return self.tokens / (time.perf_counter() - began), self.tokens / (
            time.process_time() - cpu_began
        )


def settings(sizes: Sizes, segment_len: int, memory_len: int, member: str) -> Config:
    """A left-to-right model without dropout, with the attention that this device has."""
    model = ModelConfig(
        member, **sizes.model, memory_len=memory_len, dropout=0, attention_dropout=0
    )
    model = dataclasses.replace(model, attention=choice.choose(model)[0])
    data = DataConfig(
        objective="clm", segment_len=segment_len, reuse_len=segment_len, num_predict=segment_len
    )
    return Config(model=model, data=data)


def random_tokens(sizes: Sizes, *shape: int) -> np.ndarray:
    """int32; their values have no effect on the speed."""
    return np.random.default_rng(0).integers(0, sizes.model["vocab_size"], shape).astype(np.int32)


def initial(recipe: Any) -> Any:
    """Parameters."""
    return jax.jit(lambda: nn.meta.unbox(recipe.init_params()))()


def with_memory(sizes: Sizes, length: int, segment_len: int, rows: int) -> Side:
    """Segments one after the other, with a full memory of `length` slots."""
    config = settings(sizes, segment_len, length, "transformer_xl")
    recipe = make_recipe(config)
    text = random_tokens(sizes, SEGMENTS, rows, segment_len + 1)
    place = np.broadcast_to(np.arange(segment_len, dtype=np.int32), (rows, segment_len))
    segment = dataclasses.replace(
        example_batch(config, rows),
        rank=place,
        target_positions=place,
        direction=np.ones(rows, np.int32),
        continues=np.ones(rows, bool),
        target_weights=np.ones((rows, segment_len), np.float32),
    )
    batches = jax.tree.map(lambda x: np.broadcast_to(x, (SEGMENTS, *x.shape)), segment)
    batches = jax.device_put(
        dataclasses.replace(batches, tokens=text[..., :-1], target_tokens=text[..., 1:])
    )
    full = Memory(recipe.empty_memory(rows).hidden_LBMD, jnp.full(rows, length, jnp.int32))

    def run(params: Any, memory: Memory, batches: Any) -> jax.Array:
        def step(memory: Memory, batch: Any) -> tuple[Memory, jax.Array]:
            found = recipe.model.row_losses(params, batch, memory)
            return found.memory, found.sums["tokens"][0]

        return jax.lax.scan(step, memory, batches)[1]

    given = (initial(recipe), full, batches)
    compiled = jax.jit(run).lower(*given).compile()
    return Side(lambda: compiled(*given), SEGMENTS * rows * segment_len, rows, segment_len)


def by_sliding(sizes: Sizes, length: int, windows: int) -> Side:
    """A window of `length` tokens with absolute positions for every token."""
    recipe = make_recipe(settings(sizes, length, 0, "vanilla"))
    given = (initial(recipe), jax.device_put(random_tokens(sizes, windows, length + 1)))
    compiled = (
        jax.jit(functools.partial(sliding.window_nll, recipe.model, slots=1))
        .lower(*given)
        .compile()
    )
    return Side(lambda: compiled(*given), windows, windows, length)


def fastest(name: str, candidates: Sequence[Callable[[], Side]]) -> Side:
    """The side with the most tokens per second; those that need too much memory are left out."""
    found = []
    for make in candidates:
        try:
            side = make()
            found.append((side.rates()[0], side))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"{name}: a batch does not fit into the memory of the device", file=sys.stderr)
    rate, side = max(found, key=lambda pair: pair[0])
    print(
        f"{name}: {rate:,.1f} tokens/s, batch {side.batch}, segment {side.segment_len}",
        file=sys.stderr,
    )
    return side


def flops_of(sizes: Sizes, length: int, memory: Side) -> float:
    """FLOPs per token of sliding over those with memory."""
    config = settings(sizes, memory.segment_len, length, "transformer_xl")
    D, F, V, L = (sizes.model[name] for name in ("d_model", "d_ff", "vocab_size", "layers"))
    W = sizes.model["heads"] * sizes.model["head_dim"]
    # The table of positions is projected once for all rows.
    table = L * 2 * (length + 2 * memory.segment_len - 1) * D * W
    ours = (sum(flops.forward_flops(config).values()) + table / memory.batch) / memory.segment_len

    # Queries, keys, values, output, scores, weighted values and feed-forward of all rows.
    layer = length * (8 * D * W + 4 * length * W + 4 * D * F)
    return (L * layer + 2 * D * V) / ours


def main() -> None:
    """Prints a table, and one JSON line with --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--lengths", default="")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    device = jax.devices()[0]
    sizes = TINY if args.tiny else CPU if device.platform == "cpu" else ACCELERATOR
    lengths = [int(word) for word in args.lengths.split(",") if word] or (
        [64, 128] if args.tiny else list(PUBLISHED)
    )
    result: dict[str, Any] = {
        name: {} for name in ("lengths", "cpu_seconds", "flops", "published", "memory", "sliding")
    }
    for length in lengths:
        tried = itertools.product(sizes.segments, sizes.rows)
        ours = fastest(
            f"memory {length}",
            [functools.partial(with_memory, sizes, length, *each) for each in tried],
        )
        windows = [functools.partial(by_sliding, sizes, length, batch) for batch in sizes.windows]
        theirs = fastest(f"sliding {length}", windows)
        # Each round: tokens per second and per CPU second, of both sides.
        rounds = [(ours.rates(), theirs.rates()) for _ in range(args.rounds)]
        key = str(length)
        result["lengths"][key] = statistics.median(one[0] / other[0] for one, other in rounds)
        of_cpu = statistics.median(one[1] / other[1] for one, other in rounds)
        result["cpu_seconds"][key] = of_cpu if device.platform == "cpu" else None
        result["flops"][key] = flops_of(sizes, length, ours)
        result["published"][key] = PUBLISHED.get(length)
        for name, side, turns in (("memory", ours, 0), ("sliding", theirs, 1)):
            rate = statistics.median(pair[turns][0] for pair in rounds)
            result[name][key] = {
                "tokens_per_second": rate,
                "batch": side.batch,
                "segment_len": side.segment_len,
            }
    result |= {"device": device.device_kind, "sizes": sizes.model, "jax": jax.__version__}
    print(
        f"{'attention':>9} {'memory tok/s':>13} {'sliding tok/s':>13} {'ratio':>8} "
        f"{'FLOPs':>8} {'published':>9}"
    )
    for key, ratio in result["lengths"].items():
        rates = [result[name][key]["tokens_per_second"] for name in ("memory", "sliding")]
        published = result["published"][key] or "-"
        print(
            f"{key:>9} {rates[0]:13,.0f} {rates[1]:13,.3g} {ratio:8,.0f} "
            f"{result['flops'][key]:8,.0f} {published:>9}"
        )
    print(f"on {device.device_kind}, segments of {list(sizes.segments)} tokens, {sizes.model}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
