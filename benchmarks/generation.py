"""Generation by a permutation LM with the cache, beside the same model without it and beside
`transformers`.

    python benchmarks/generation.py [--json]            needs the extra `peers`; minutes on two
                                                        cores
    python benchmarks/generation.py --tiny             tiny sizes, to try it
    python benchmarks/generation.py --objective=clm     a left-to-right model with and without its
                                                        cache; no peer

d_model 256, 4 layers, 32,000 pieces, random parameters, float32, greedy: 128 tokens after a prompt
of 128, for 16 texts and for one. Segments and memory have 128 tokens. All sides run in one process
and take turns, on the same cores:

  cached      `infer.decoder.Decoder`, order left; two rows of each layer for a new token and text,
              which is asserted
  uncached    the same model, which reads the whole text again for every token; must give equal
              tokens
  peer        XLNetLMHeadModel.generate with the same weights under the names of `export`,
              use_mems=False: it reads the whole text again for every token, and lets all of it see
              all of it. That is another distribution than the chain, but its first token has the
              same one, which is asserted (logits to 1e-4)
  peer_mems   the same with use_mems=True, its approximate cache

Figures, of 16 texts; those of one text are under `one_text`:

  cached_tokens_per_second, uncached_..., peer_..., peer_mems_...     new tokens of all texts,
                                                           prompt included in the time; medians over
                                                           rounds
  ratio_uncached, ratio_peer, ratio_peer_mems              cached over the other side: median over
                                                           rounds
  growth                                                   seconds of 256 tokens over seconds of
                                                           128, cached
  growth_one_segment                                       the same with segments of 512: every new
                                                           token attends to as many slots as the
                                                           text has, not to a fixed number
  peer_mems_error                                          largest difference between the logits of
                                                           the peer with and without mems, for the
                                                           same tokens of the one text
  spread                                                   smallest and largest seconds of each side
  cpu_per_wall                                             CPU over seconds of all turns: far below
                                                           the number of cores, the machine had
                                                           other work
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

FULL = {
    "vocab_size": 32000,
    "layers": 4,
    "d_model": 256,
    "heads": 4,
    "head_dim": 64,
    "d_ff": 1024,
    "memory_len": 128,
}
TINY = {
    "vocab_size": 100,
    "layers": 1,
    "d_model": 16,
    "heads": 2,
    "head_dim": 8,
    "d_ff": 32,
    "memory_len": 8,
}

Side = Callable[[list[list[int]], int], list[list[int]]]
"""The new tokens after each prompt, so many; prompts are of equal length."""


class Sides(NamedTuple):
    """What is measured."""

    cached: Side
    others: dict[str, Side]
    one_segment: Side | None
    """`cached`, with longer segments."""
    compile: Side
    """What `uncached` compiles for such arguments."""
    mems_error: Callable[[list[list[int]], int], float] | None = None


def random_decoder(sizes: dict[str, int], objective: str) -> tuple[Any, Any]:
    """Configuration, and a Decoder of random parameters whose segments are as long as its
    memory.
    """
    import flax.linen as nn
    import jax

    from xlnet_jax import config as configs
    from xlnet_jax.data.tokenizer import XLNET
    from xlnet_jax.infer.decoder import Decoder
    from xlnet_jax.infer.orders import any_order
    from xlnet_jax.train.recipe import make_recipe

    segment_len = sizes["memory_len"]
    config = dataclasses.replace(
        configs.Config(),
        model=configs.ModelConfig(**sizes, compute_dtype="float32", init_std=0.1),
        data=configs.DataConfig(
            objective=objective,
            segment_len=segment_len,
            reuse_len=segment_len,
            num_predict=segment_len,
        ),
    )
    recipe = make_recipe(config)
    params = jax.jit(
        lambda: nn.meta.unbox(recipe.model.init(jax.random.key(0), recipe.example_batch(1)))
    )()
    return config, Decoder(any_order(config), params, XLNET, segment_len)


def continued(decoder: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The most probable new tokens."""
    import numpy as np

    from xlnet_jax.infer.options import Decoding

    texts = [
        (np.array([*ids, *[0] * tokens], np.int32), np.arange(len(ids) + tokens) < len(ids))
        for ids in prompts
    ]
    filled = decoder(texts, Decoding())
    return [one.token_N[len(ids) :].tolist() for ids, one in zip(prompts, filled, strict=True)]


def permutation_sides(sizes: dict[str, int]) -> Sides:
    """Of one random model that knows no order. Prompt and memory are as long as a segment, so the
    first new segment sees the whole prompt: it is one chain, with a fixed capacity.
    """
    config, decoder = random_decoder(sizes, "plm")
    check_rows(decoder)
    uncached = chain_without_cache(decoder)
    compile = functools.partial(uncached, most=1)
    exact, mems, error = peers(config, decoder.params, decoder)
    others = {"uncached": uncached, "peer": exact, "peer_mems": mems}
    longer = dataclasses.replace(decoder, segment_len=4 * decoder.segment_len)
    return Sides(
        functools.partial(continued, decoder),
        others,
        functools.partial(continued, longer),
        compile,
        error,
    )


def check_rows(decoder: Any) -> None:
    """Asserts that the program of a new token multiplies weights with two rows of a text, and no
    more.
    """
    import jax
    import numpy as np

    from xlnet_jax.infer import decode
    from xlnet_jax.infer.options import Decoding
    from xlnet_jax.infer.sampling import Sampling

    B, method = 16, decode.Method()
    state = decode.start(
        decoder.model, method, decoder.params, decoder.segment_len, 0, 8, np.zeros(B, np.int32)
    )
    write = functools.partial(decode.write_unknown, decoder.model, method, decoder.params)
    program = jax.make_jaxpr(write)(
        state, Sampling.of(Decoding(temperature=1.0)), np.int32(1), np.int32(-1), np.bool_(True)
    )
    rows = product_rows(program.jaxpr)
    # Queries and feed-forward have rows of both streams; keys, values and the vocabulary of one.
    assert {2 * B, B} == set(rows) and rows.count(2 * B) >= 4, rows


def product_rows(jaxpr: Any) -> list[int]:
    """The rows of every product without batch dimensions, in a program and in those inside of
    it.
    """
    found = []
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                found += product_rows(inner) if hasattr(inner, "eqns") else []
        if equation.primitive.name == "dot_general":
            (contracted, _), (batch, _) = equation.params["dimension_numbers"]
            shape, rows = equation.invars[0].aval.shape, 1
            for axis, size in enumerate(shape):
                rows *= 1 if axis in contracted else size
            found += [] if batch else [rows]
    return found


def chain_without_cache(decoder: Any) -> Side:
    """The model alone: it reads the text in the shape of the whole for every token."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from xlnet_jax.batch import NEVER, forward_text
    from xlnet_jax.model.transformer import empty_memory

    model = decoder.model

    @jax.jit
    def run(params: Any, tokens_BT: Any, prompt: Any, place: Any) -> Any:
        at_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1])[None], tokens_BT.shape)
        rank_BT = jnp.where(
            at_BT < prompt, -1, jnp.where(at_BT <= place, 1 + at_BT - prompt, NEVER)
        )
        batch = forward_text(
            tokens_BT, rank_BT, jnp.zeros_like(tokens_BT), jnp.full((len(tokens_BT), 1), place)
        )
        memory = empty_memory(model.transformer.config, len(tokens_BT), 0)
        out = model.transformer.apply({"params": params}, batch, memory)
        return jnp.argmax(model.logits(params, out.target_vectors_BPD)[:, 0], axis=1)

    def generate(prompts: list[list[int]], tokens: int, most: int | None = None) -> list[list[int]]:
        prompt = len(prompts[0])
        tokens_BT = np.pad(np.array(prompts), ((0, 0), (0, tokens)))
        for place in range(prompt, prompt + (most or tokens)):
            tokens_BT[:, place] = run(decoder.params, tokens_BT, prompt, place)
        return tokens_BT[:, prompt:].tolist()

    return generate


def peers(
    config: Any, params: Any, decoder: Any
) -> tuple[Side, Side, Callable[[list[list[int]], int], float]]:
    """`transformers` with the same weights, without and with mems, and `Sides.mems_error`."""
    import jax
    import numpy as np
    import torch
    import transformers

    from xlnet_jax.convert import names
    from xlnet_jax.infer.options import Decoding
    from xlnet_jax.members.xlnet import HUGGINGFACE

    sizes = config.model
    theirs = transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(
            vocab_size=sizes.vocab_size,
            d_model=sizes.d_model,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            d_inner=sizes.d_ff,
            ff_activation="gelu_new",
            dropout=0.0,
            mem_len=4 * sizes.memory_len,
            use_mems_eval=True,
        )
    ).eval()
    weights = names.to_foreign(HUGGINGFACE, jax.device_get(params))
    missing, unexpected = theirs.load_state_dict(
        {name: torch.tensor(np.array(x)) for name, x in weights.items()}, strict=False
    )
    assert not unexpected and set(missing) <= {"lm_loss.weight"}, (missing, unexpected)
    theirs.tie_weights()

    def run(use_mems: bool, prompts: list[list[int]], tokens: int) -> Any:
        with torch.inference_mode():
            return theirs.generate(
                torch.tensor(prompts),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                use_mems=use_mems,
                eos_token_id=None,
                return_dict_in_generate=True,
                output_logits=True,
            )

    def side(use_mems: bool, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        return run(use_mems, prompts, tokens).sequences[:, len(prompts[0]) :].tolist()

    def error(prompts: list[list[int]], tokens: int) -> float:
        """Of each text up to and including the first token that differs."""
        exact, mems = (run(use_mems, prompts, tokens) for use_mems in (False, True))
        same_BN = (exact.sequences == mems.sequences)[:, len(prompts[0]) :]
        worst, going_B = 0.0, torch.ones(len(prompts), dtype=torch.bool)
        for turn, (one, other) in enumerate(zip(exact.logits, mems.logits, strict=True)):
            worst = max([worst, *(one - other).abs().amax(dim=1)[going_B].tolist()])
            going_B &= same_BN[:, turn]
        return worst

    prompts = random_prompts(sizes.vocab_size, 1, sizes.memory_len)
    tokens_N = np.array([*prompts[0], 0], np.int32)
    (ours,) = decoder([(tokens_N, np.arange(len(tokens_N)) < sizes.memory_len)], Decoding())
    first = torch.log_softmax(run(False, prompts, 1).logits[0], dim=-1)[
        0, int(ours.token_N[-1])
    ].item()
    assert abs(first - ours.log_prob_U[0]) < 1e-4, (first, ours.log_prob_U[0])
    return functools.partial(side, False), functools.partial(side, True), error


def left_to_right_sides(sizes: dict[str, int]) -> Sides:
    """Of a left-to-right model whose segments are as long as its memory."""
    _, decoder = random_decoder(sizes, "clm")
    uncached = segments_without_cache(decoder)
    cached = functools.partial(continued, decoder)
    return Sides(cached, {"uncached": uncached}, None, lambda prompts, tokens: uncached(prompts, 2))


def segments_without_cache(decoder: Any) -> Side:
    """The same texts from the model alone: the segment is run for every token."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from xlnet_jax.batch import NEVER, forward_text
    from xlnet_jax.model.transformer import empty_memory

    model, T = decoder.model, decoder.segment_len

    @jax.jit
    def run(params: Any, tokens_BT: Any, length: Any, memory: Any) -> Any:
        place_BT = jnp.broadcast_to(jnp.arange(T)[None], tokens_BT.shape)
        rank_BT = jnp.where(place_BT < length, place_BT, NEVER)
        last_B1 = jnp.full((len(tokens_BT), 1), length - 1)
        batch = forward_text(tokens_BT, rank_BT, jnp.zeros_like(tokens_BT), last_B1, continues=True)
        out = model.transformer.apply({"params": params}, batch, memory)
        return jnp.argmax(model.logits(params, out.target_vectors_BPD)[:, 0], axis=1), out.memory

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        text_BN, memory = np.array(prompts), empty_memory(model.transformer.config, len(prompts))
        start = 0
        for _ in range(tokens):
            while text_BN.shape[1] - start > T:
                _, memory = run(decoder.params, text_BN[:, start : start + T], T, memory)
                start += T
            part_BT = np.zeros((len(prompts), T), int)
            part_BT[:, : text_BN.shape[1] - start] = text_BN[:, start:]
            token_B, _ = run(decoder.params, part_BT, text_BN.shape[1] - start, memory)
            text_BN = np.concatenate([text_BN, np.asarray(token_B)[:, None]], axis=1)
        return text_BN[:, len(prompts[0]) :].tolist()

    return generate


def random_prompts(vocab_size: int, texts: int, length: int) -> list[list[int]]:
    """Of pieces of text."""
    import numpy as np

    return np.random.default_rng(0).integers(9, vocab_size, (texts, length)).tolist()


def measure(sides: Sides, sizes: dict[str, int], texts: int, rounds: int) -> dict[str, Any]:
    """The figures of one number of texts."""
    N = sizes["memory_len"]
    prompts = random_prompts(sizes["vocab_size"], texts, N)
    runs: dict[str, Callable[[], Any]] = {
        "cached": functools.partial(sides.cached, prompts, N),
        "twice": functools.partial(sides.cached, prompts, 2 * N),
        **{name: functools.partial(side, prompts, N) for name, side in sides.others.items()},
    }
    runs["cached"](), runs["twice"](), sides.compile(prompts, N)
    if sides.one_segment is not None:
        for name, tokens in (("one_segment", N), ("one_segment_twice", 2 * N)):
            runs[name] = functools.partial(sides.one_segment, prompts, tokens)
            runs[name]()
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        found = {}
        for name, run in runs.items():
            start, cpu = time.perf_counter(), time.process_time()
            found[name] = run()
            turns[name].append((time.perf_counter() - start, time.process_time() - cpu))
        assert found["cached"] == found["uncached"] == [ids[:N] for ids in found["twice"]]
        assert found["cached"] == found.get("one_segment", found["cached"])
    seconds, cpu_seconds = (
        {name: [turn[which] for turn in turns[name]] for name in runs} for which in (0, 1)
    )
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    figures = {
        f"{name}_tokens_per_second": texts * N / middle[name] for name in ("cached", *sides.others)
    }
    for name in sides.others:
        pairs = zip(seconds["cached"], seconds[name], strict=True)
        figures[f"ratio_{name}"] = statistics.median(slow / fast for fast, slow in pairs)
    if sides.one_segment is not None:
        figures["growth_one_segment"] = middle["one_segment_twice"] / middle["one_segment"]
    if sides.mems_error is not None and texts == 1:
        figures["peer_mems_error"] = sides.mems_error(prompts, N)
    return {
        "texts": texts,
        **figures,
        "growth": middle["twice"] / middle["cached"],
        "spread": {name: [min(each), max(each)] for name, each in seconds.items()},
        "cpu_seconds": {name: statistics.median(each) for name, each in cpu_seconds.items()},
        "cpu_per_wall": sum(map(sum, cpu_seconds.values())) / sum(map(sum, seconds.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--objective", default="plm", choices=["plm", "clm"])
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    sizes = TINY if args.tiny else FULL
    sides = (permutation_sides if args.objective == "plm" else left_to_right_sides)(sizes)
    many, one = (
        measure(sides, sizes, texts, args.rounds) for texts in ((1, 1) if args.tiny else (16, 1))
    )
    if args.json:
        print(
            json.dumps(
                {
                    **many,
                    "one_text": one,
                    "cores": os.cpu_count(),
                    "load_average": os.getloadavg()[0],
                }
            )
        )
        return
    print(
        f"{'texts':>5}  {'side':<10} {'tokens/s':>9} {'cached is faster':>17} {'CPU seconds':>12}"
    )
    for row in (many, one):
        for name in ("cached", *sides.others):
            ratio = f"{row[f'ratio_{name}']:.1f} times" if name != "cached" else ""
            print(
                f"{row['texts']:5}  {name:<10} {row[f'{name}_tokens_per_second']:9.1f} {ratio:>17} "
                f"{row['cpu_seconds'][name]:12.2f}"
            )
        print(
            f"       twice as many tokens: {row['growth']:.2f} times the seconds; CPU/wall "
            f"{row['cpu_per_wall']:.2f}"
            + (f"; error of mems {row['peer_mems_error']:.3f}" if "peer_mems_error" in row else "")
        )


if __name__ == "__main__":
    main()
