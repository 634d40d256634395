"""Generation with the cache beside the same model without it, which reads its segment again for every token.

    python benchmarks/generation.py [--json]       minutes on two cores
    python benchmarks/generation.py --quick        tiny sizes, to try it

d_model 256, 4 layers, 32,000 pieces, segments and memory of 128 tokens, random parameters, float32, greedy: 128 tokens
after a prompt of 128, for 16 texts and for one. Both sides run in one process, take turns, and must give equal tokens.
Figures, for each number of texts:

  cached_tokens_per_second, uncached_tokens_per_second     new tokens of all texts, prompt included in the time; medians
  ratio_uncached                                           cached over uncached: median over rounds
  growth                                                   seconds of 256 tokens over seconds of 128, with the cache
  spread                                                   smallest and largest seconds of each side
  cpu_seconds, cpu_per_wall                                median of each side; CPU over wall of all turns: far below
                                                           the number of cores, the machine had other work
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

FULL = {"vocab_size": 32000, "layers": 4, "d_model": 256, "heads": 4, "head_dim": 64, "d_ff": 1024, "memory_len": 128}
QUICK = {"vocab_size": 100, "layers": 2, "d_model": 16, "heads": 2, "head_dim": 8, "d_ff": 32, "memory_len": 16}


def make(sizes: dict[str, int]) -> Any:
    """A generator of a left-to-right model with random parameters; segments are as long as its memory."""
    import flax.linen as nn
    import jax

    from xlnet_jax import config as configs
    from xlnet_jax.infer.generate import Generator, left_to_right
    from xlnet_jax.train.recipe import make_recipe

    T = sizes["memory_len"]
    config = dataclasses.replace(
        configs.Config(),
        model=configs.ModelConfig(**sizes, compute_dtype="float32", init_std=0.1),
        data=configs.DataConfig(objective="clm", segment_len=T, reuse_len=T, num_predict=T),
    )
    recipe = make_recipe(config)
    params = jax.jit(lambda: nn.meta.unbox(recipe.model.init(jax.random.key(0), recipe.example_batch(1))))()
    return Generator(left_to_right(config, "this model"), params, T, stop=None)


def without_cache(made: Any) -> Callable[[list[list[int]], int], list[list[int]]]:
    """The same texts from the model alone, for prompts of equal length: the segment is run for every token."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from xlnet_jax.batch import NEVER, forward_text
    from xlnet_jax.model.transformer import empty_memory

    model, T = made.model, made.segment_len

    @jax.jit
    def run(params: Any, tokens_BT: Any, length: Any, memory: Any) -> Any:
        place_BT = jnp.broadcast_to(jnp.arange(T)[None], tokens_BT.shape)
        rank_BT = jnp.where(place_BT < length, place_BT, NEVER)
        last_B1 = jnp.full((len(tokens_BT), 1), length - 1)
        batch = forward_text(tokens_BT, rank_BT, jnp.zeros_like(tokens_BT), last_B1, continues=True)
        out = model.transformer.apply({"params": params}, batch, memory, deterministic=True)
        return jnp.argmax(model.logits(params, out.target_vectors_BPD)[:, 0], axis=1), out.memory

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        text_BN, memory = np.array(prompts), empty_memory(model.transformer.config, len(prompts))
        start = 0
        for _ in range(tokens):
            while text_BN.shape[1] - start > T:
                _, memory = run(made.params, text_BN[:, start : start + T], T, memory)
                start += T
            part_BT = np.zeros((len(prompts), T), int)
            part_BT[:, : text_BN.shape[1] - start] = text_BN[:, start:]
            token_B, _ = run(made.params, part_BT, text_BN.shape[1] - start, memory)
            text_BN = np.concatenate([text_BN, np.asarray(token_B)[:, None]], axis=1)
        return text_BN[:, len(prompts[0]) :].tolist()

    return generate


def measure(sizes: dict[str, int], texts: int, rounds: int) -> dict[str, Any]:
    """The figures of one number of texts."""
    import numpy as np

    from xlnet_jax.infer.sampling import Sampling

    made, T = make(sizes), sizes["memory_len"]
    prompts = np.random.default_rng(0).integers(9, sizes["vocab_size"], (texts, T)).tolist()
    greedy, plain = Sampling(temperature=0), without_cache(made)
    sides: dict[str, Callable[[], Any]] = {
        "cached": lambda: made(prompts, T, greedy),
        "uncached": lambda: plain(prompts, T),
        "twice": lambda: made(prompts, 2 * T, greedy),
    }
    for run in (made, plain):  # compiles
        run(prompts, 2, *[greedy] * (run is made))
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        found = {}
        for name, run in sides.items():
            start, cpu = time.perf_counter(), time.process_time()
            found[name] = run()
            turns[name].append((time.perf_counter() - start, time.process_time() - cpu))
        assert found["cached"] == found["uncached"] == [ids[:T] for ids in found["twice"]]
    seconds, cpu_seconds = ({name: [turn[which] for turn in turns[name]] for name in sides} for which in (0, 1))
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    ratios = [slow / fast for fast, slow in zip(seconds["cached"], seconds["uncached"], strict=True)]
    return {
        "texts": texts,
        **{f"{name}_tokens_per_second": texts * T / middle[name] for name in ("cached", "uncached")},
        "ratio_uncached": statistics.median(ratios),
        "growth": middle["twice"] / middle["cached"],
        "spread": {name: [min(each), max(each)] for name, each in seconds.items()},
        "cpu_seconds": {name: statistics.median(each) for name, each in cpu_seconds.items()},
        "cpu_per_wall": sum(map(sum, cpu_seconds.values())) / sum(map(sum, seconds.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, nargs="*", default=[16, 1])
    args = parser.parse_args()
    rows = [measure(QUICK if args.quick else FULL, texts, args.rounds) for texts in args.texts]
    if not args.json:
        print(f"{'texts':>5} {'cached tokens/s':>16} {'uncached':>9} {'ratio':>6} {'growth':>6} CPU/wall  CPU seconds")
        for row in rows:
            print(
                f"{row['texts']:5} {row['cached_tokens_per_second']:16.1f} {row['uncached_tokens_per_second']:9.1f} "
                f"{row['ratio_uncached']:6.1f} {row['growth']:6.2f} {row['cpu_per_wall']:8.2f}  "
                + ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["cpu_seconds"].items())
            )
    else:
        print(json.dumps({"rows": rows, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
