"""Silent data corruption: detects a chip that sometimes computes wrong results.

Every `watchdog.sdc_every` steps the gradient of the next step is computed twice by the same program from the same
parameters, memory and batch, and checksums of the bits are compared. Only the checksums are kept: there is no second
state. The same program on the same device gives the same bits (on a GPU with `--xla_gpu_deterministic_ops`).

The gradients of replicated parameters are sums over all devices, so a difference appears on all of them. The losses and
the memory of a row come from the devices that hold the row: if those differ, the host is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.batch import Batch
from xlnet_jax.checkpoint.checksums import sums_of
from xlnet_jax.config import Config
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import RestartMe


class CorruptionCheck:
    """The check; compiled at the first use.

    Args:
      compute: (State, Batch) -> (gradient, arrays with rows first), the first part of a step, which is computed twice.
    """

    def __init__(self, config: Config, mesh: Mesh, compute: Callable[[Any, Batch], Any]) -> None:
        self._every = config.watchdog.sdc_every
        self._mesh = mesh

        def sums(state: Any, batches: Batch) -> tuple[list[jax.Array], jax.Array]:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                grads, of_rows = compute(state, jax.tree.map(lambda x: x[0], batches))
            rows_B4 = sum(map(jax.vmap(sums_of), jax.tree.leaves(of_rows)), jax.numpy.uint32(0))
            return list(map(sums_of, jax.tree.leaves(grads))), rows_B4

        self._sums = jax.jit(sums, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def due(self, steps: range) -> bool:
        """Whether the steps of a dispatch include a multiple of `every`; step 0 does not count."""
        return bool(self._every) and any(step and step % self._every == 0 for step in steps)

    def __call__(self, state: Any, batches: Batch, step: int) -> None:
        """Checks the first step of a dispatch before it is sent, in all processes. Raises RestartMe on a difference."""
        (grads, rows_B4), (grads_again, rows_again_B4) = (jax.device_get(self._sums(state, batches)) for _ in range(2))
        wrong_B = (rows_B4 != rows_again_B4).any(axis=1)
        wrong = int((np.stack(grads) != np.stack(grads_again)).any(axis=1).sum())
        if not wrong and not wrong_B.any():
            return
        rows_of = meshes.batch_sharding(self._mesh).devices_indices_map(wrong_B.shape)
        processes = sorted({device.process_index for device, (rows,) in rows_of.items() if wrong_B[rows].any()})
        where = f"process {', '.join(map(str, processes))}" if processes else f"one of {jax.process_count()} hosts"
        raise RestartMe(
            f"silent data corruption on {where} at step {step}: computed twice, {wrong} gradients and {wrong_B.sum()} "
            "rows of the batch differ in their bits; nothing was saved since. Take the host out of service and rerun "
            "the same command: it resumes from the newest checkpoint"
        )
