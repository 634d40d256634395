"""Silent data corruption: detects a chip that sometimes computes wrong results.

Every `watchdog.sdc_every` steps the gradient of the next step is computed twice by the same program from the same
parameters, memory and batch, and checksums of the bits are compared. Only the checksums are kept: there is no second
state. The same program on the same device gives the same bits (on a GPU with `--xla_gpu_deterministic_ops`).

The gradients of replicated parameters are sums over all devices, so a difference appears on all of them. The losses and
the memory of a row come from the devices that hold the row: if those differ, the host is known.
"""

from __future__ import annotations

import logging
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

log = logging.getLogger("xlnet_jax")


class CorruptionCheck:
    """The check; compiled at the first use.

    Args:
      compute: (State, Batch) -> (gradient, arrays with rows first), the first part of a step, which is computed twice.
    """

    def __init__(self, config: Config, mesh: Mesh, compute: Callable[[Any, Batch], Any]) -> None:
        self._every = config.watchdog.sdc_every
        self._rows = meshes.training_rows(config.train, mesh)
        self._mesh = mesh

        def sums(state: Any, batches: Batch) -> dict[str, Any]:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                grads, of_rows = compute(state, jax.tree.map(lambda x: x[0], batches))
            rows_B4 = sum(map(jax.vmap(sums_of), jax.tree.leaves(of_rows)))
            # uint32: [4] by parameter, and [B, 4].
            return {"gradient": jax.tree.map(sums_of, grads), "rows": rows_B4}

        self._sums = jax.jit(sums, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def due(self, steps: range) -> bool:
        """Whether the steps of a dispatch include a multiple of `every`; step 0 does not count."""
        return bool(self._every) and any(step and step % self._every == 0 for step in steps)

    def __call__(self, state: Any, batches: Batch, step: int) -> None:
        """Checks the first step of a dispatch before it is sent, in all processes. Raises RestartMe on a difference."""
        first, again = (jax.device_get(self._sums(state, batches)) for _ in range(2))
        differ = jax.tree.map(lambda one, two: (one != two).any(), first["gradient"], again["gradient"])
        wrong = [jax.tree_util.keystr(path) for path, bad in jax.tree_util.tree_leaves_with_path(differ) if bad]
        rows_B = np.flatnonzero((first["rows"] != again["rows"]).any(axis=1))
        if not wrong and not len(rows_B):
            return
        line = (
            f"silent data corruption on {self._where(rows_B)} at step {step}: computed twice, {len(wrong)} gradients "
            f"({', '.join(wrong[:3]) or 'none'}) and {len(rows_B)} rows of the batch differ in their bits; nothing "
            "was saved since. Take the host out of service and rerun the same command: it resumes from the newest "
            "checkpoint"
        )
        log.error("%s", line)
        raise RestartMe(line)

    def _where(self, rows_B: np.ndarray) -> str:
        """The processes whose devices hold the rows."""
        if not len(rows_B):
            return f"one of {jax.process_count()} hosts"
        rows_of = meshes.batch_sharding(self._mesh).devices_indices_map((self._rows,))
        wrong_B = np.isin(np.arange(self._rows), rows_B)
        processes = {device.process_index for device, (rows,) in rows_of.items() if wrong_B[rows].any()}
        return "process " + ", ".join(map(str, sorted(processes)))
