"""The two sides of `step.py`: a trainer of this package and one of `transformers`, on the same
batches.

JAX and torch are imported by the side that needs them: each has a process of its own.
"""

from __future__ import annotations

import operator
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

STEPS = 4
"""Steps of a turn; one dispatch of ours."""


class Made(NamedTuple):
    """What is known of a side once it is compiled."""

    parameters: int
    compile_cpu_seconds: float | None = None
    flops: int | None = None
    """Of a step."""
    peak: float | None = None
    """FLOPs per second that are published for the device."""


def batches(config):
    """STEPS stacked Batches, numpy: random tokens and targets, with `plm` in random factorisation
    orders; every row goes on.
    """
    import numpy as np

    from xlnet_jax.batch import Batch

    generator = np.random.default_rng(0)
    T, R, P = config.data.segment_len, config.data.reuse_len, config.data.num_predict
    leading = (STEPS, config.train.batch_size)
    tokens = generator.integers(9, config.model.vocab_size, (*leading, T)).astype(np.int32)
    places = generator.permuted(np.tile(np.arange(T), (*leading, 1)), axis=-1)
    targets = np.sort(places[..., :P]).astype(np.int32)
    rank = np.zeros_like(tokens)
    if config.data.objective == "clm":
        rank += np.arange(T, dtype=np.int32)
    if config.data.objective == "plm":
        rank -= 1
        np.put_along_axis(rank, places[..., :P], np.arange(P, dtype=np.int32)[None, None], axis=-1)
        rank[..., R:] += R + 1  # the second half sees all of the first
    return Batch(
        tokens=tokens,
        segments=np.broadcast_to((np.arange(T) >= 3 * T // 4).astype(np.int32), tokens.shape),
        rank=rank,
        direction=np.ones(leading, np.int32),
        continues=np.ones(leading, bool),
        target_positions=targets,
        target_tokens=np.take_along_axis(tokens, targets, axis=-1),
        target_weights=np.ones(targets.shape, np.float32),
        summary_position=np.full(leading, T - 1, np.int32),
        label=np.zeros(leading, np.int32),
        label_weight=np.zeros(leading, np.float32),
    )


def dispatches(config, corpus: str):
    """The dispatches of a corpus, as `xlnet-jax train` reads them, without end."""
    import numpy as np

    from xlnet_jax.data.batches.loader import TrainDispatches
    from xlnet_jax.data.batches.mixture import Mixture
    from xlnet_jax.data.batches.stream import extend_plan
    from xlnet_jax.data.corpus.corpus import Corpus

    rows = config.train.batch_size
    plan = extend_plan((), 0, rows, config.data.windows_per_block)
    return TrainDispatches(Mixture((Corpus(corpus),)), config, plan, np.arange(rows), 0, 10**6)


class Ours:
    """This package's step, as `xlnet-jax train` runs it. `example` is a dispatch with the shapes to
    compile for; None: the random rows of `batches`.
    """

    def __init__(self, config, device: str, example: Any = None) -> None:
        import jax

        from xlnet_jax.distributed.mesh import make_mesh, place
        from xlnet_jax.model import choice, flops
        from xlnet_jax.train.recipe import make_recipe
        from xlnet_jax.train.step import build_step, create_state

        attention, why = choice.choose(config.model)
        print(why, file=sys.stderr)
        recipe = make_recipe(config.changed(model={"attention": attention}))
        self.mesh = make_mesh(config.mesh, jax.devices(device)[:1])
        with jax.set_mesh(self.mesh):
            built = self.built = build_step(recipe, self.mesh)
            self.state = create_state(built)
            self.batches = place(example or batches(config), self.mesh)
            lowered = built.jitted.lower(self.state, self.batches, built.dropout_seed)
            began = time.process_time()
            self.compiled = lowered.compile()
        self.made = Made(
            parameters=sum(x.size for x in jax.tree.leaves(self.state.params)),
            compile_cpu_seconds=time.process_time() - began,
            flops=flops.step_flops(config),
            peak=flops.PEAK_FLOPS.get(jax.devices(device)[0].device_kind),
        )

    def steps(self, loaded=None) -> float:
        """STEPS steps, with the next dispatch of `loaded` or always the same; the loss of the
        last.
        """
        import jax

        from xlnet_jax.distributed.mesh import place

        with jax.set_mesh(self.mesh):
            batch = self.batches if loaded is None else place(next(loaded), self.mesh)
            self.state, metrics = jax.block_until_ready(
                self.compiled(self.state, batch, self.built.dropout_seed)
            )
        return float(metrics["loss"][-1])


class Peer:
    """XLNetLMHeadModel or ModernBertForMaskedLM, with the fused AdamW."""

    def __init__(self, config, device: str, compiled: bool, threads: int) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        from xlnet_jax.convert.fields import config_json
        from xlnet_jax.data.tokenizer import XLNET

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.torch, self.config, self.device = (
            torch,
            config,
            torch.device({"gpu": "cuda"}.get(device, device)),
        )
        model, optimizer = config.model, config.optimizer
        fields = config_json(config, XLNET, {})
        (name,) = fields.pop("architectures")
        if model.architecture == "xlnet":
            # `gelu_new`, which exports name, is the same function in eight operations instead of
            # one.
            fields["ff_activation"] = "gelu_pytorch_tanh"
        else:
            # The head only at targets, as ours.
            fields["sparse_prediction"] = True
        theirs = transformers.AutoConfig.for_model(**fields)
        self.model = getattr(transformers, name)(theirs).to(self.device).train()
        # The norm of our first layer has no effect; theirs has none.
        unused = 0 if model.member.parts.first_norm else model.d_model
        self.made = Made(unused + sum(x.numel() for x in self.model.parameters()))
        low = config.model.compute_dtype == "bfloat16"
        self.precision = torch.autocast(self.device.type, torch.bfloat16, enabled=low)
        self.forward = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.adam_b1, optimizer.adam_b2),
            eps=optimizer.adam_epsilon,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.memory = {}
        if model.memory_len:
            # Full from the start: another length would be another compilation.
            shape = (model.memory_len, config.train.batch_size, model.d_model)
            zeros = [torch.zeros(shape, device=self.device) for _ in range(model.layers)]
            self.memory = {"mems": zeros, "use_mems": True}
        self.inputs = list(self.arguments(batches(config)))

    def arguments(self, stacked) -> Iterator[dict[str, Any]]:
        """The same batches as that library wants them."""
        import jax
        import numpy as np

        for step in range(STEPS):
            batch = jax.tree.map(operator.itemgetter(step), stacked)
            if self.config.data.objective == "plm":
                given = batch.for_transformers()
            else:
                labels = np.full(batch.tokens.shape, -100)
                np.put_along_axis(labels, batch.target_positions, batch.target_tokens, axis=1)
                given = {"input_ids": batch.tokens.astype(np.int64), "labels": labels}
            yield {
                name: self.torch.tensor(value, device=self.device) for name, value in given.items()
            }

    def steps(self) -> float:
        """As of ours."""
        for inputs in self.inputs:
            with self.precision:
                out = self.forward(**inputs, **self.memory)
            out.loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.memory:
                self.memory["mems"] = out.mems
        self.torch.get_device_module(self.device).synchronize()
        return out.loss.item()
