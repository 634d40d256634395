"""Compiled programs: compiler options by chip, and JAX's persistent cache."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

# axlearn: apple/axlearn, axlearn/common/compiler_options.py. maxtext: AI-Hypercomputer/maxtext,
# benchmarks/xla_flags_library.py. Both set xla_tpu_enable_async_collective_fusion for all-gathers
# on v6e. It is left out: libtpu 0.0.51 refuses to compile with it on any chip but v5e, because it
# "might lead to [...] incorrect results". For several slices maxtext also sets
# xla_tpu_enable_data_parallel_all_reduce_opt and xla_tpu_data_parallel_opt_different_sized_ops:
# gradients are reduced between slices while the next gradients are computed.
OPTIONS = {
    # Collectives run while the chip computes, which v5 and later do by default (axlearn).
    "TPU v4": {
        "xla_enable_async_all_gather": "true",
        "xla_enable_async_collective_permute": "true",
    },
    # On-chip memory (VMEM) for the current operation, in KiB; the rest is for prefetching
    # (axlearn).
    "TPU v5": {"xla_tpu_scoped_vmem_limit_kib": "65472"},
    # The sparse cores run collectives while the chip computes (maxtext). axlearn and maxtext also
    # set 98304 KiB of VMEM, but `compile` estimates that XLNet-Large is slower with it.
    "TPU v6 lite": {
        f"xla_tpu_enable_sparse_core_collective_offload_{name}": "true"
        for name in ("all_gather", "reduce_scatter", "all_reduce")
    },
    # VMEM, and bfloat16 in the chip's own instructions (AI-Hypercomputer/tpu-recipes,
    # training/ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4/run_recipe.sh).
    "TPU7x": {
        "xla_tpu_scoped_vmem_limit_kib": "65536",
        "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    },
    # Collectives run while the device computes (docs.nvidia.com/jax-toolbox/environment-variables).
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": "true"},
}
"""Options that other projects set, by JAX's device kind or platform. They are off by default,
because no option was measured with these models.
"""


def compiler_options(text: str, mesh: Mesh) -> dict[str, str] | None:
    """The options of `train.compiler_options` for a program on a mesh; None for an empty text.

    Raises BadInput if `OPTIONS` has no row for these devices, or if their compiler does not know an
    option or its value.
    """
    if not text:
        return None
    options: dict[str, str] = {}
    device = mesh.devices.flat[0]
    for word in text.split(","):
        if word != "chip":
            name, _, value = word.partition("=")
            options[name] = value
        elif row := OPTIONS.get(device.device_kind) or OPTIONS.get(device.platform):
            options |= row
        else:
            kinds = ", ".join(OPTIONS)
            raise BadInput(
                f"train.compiler_options={text}: there are options for {kinds}, and none for "
                f"{device.device_kind}; leave out chip"
            )
    # XLA spells True and False with a capital, and libtpu takes both.
    options = {
        name: {"true": "True", "false": "False"}.get(value, value)
        for name, value in options.items()
    }
    one = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    with refusals(text):  # before an hour of compilation
        jax.jit(jnp.negative, compiler_options=options).lower(one).compile()
    return options


@contextlib.contextmanager
def refusals(text: str) -> Iterator[None]:
    """Raises BadInput if a compiler refuses a program and `train.compiler_options` are set. A
    compiler refuses some options only when it sees the step. Too little memory is another error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not text or "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise BadInput(f"train.compiler_options={text}: {summary(error)}; leave it out") from error


def cache_folder(config: Config, workdir: str | None = None) -> str:
    """Returns the folder of compiled programs, on disk or in a bucket: the configured folder or the
    default; `none` = no cache.

    Cached programs are machine code, which runs unchecked. So a default folder that another user
    may have written to is not used. A bucket is not checked: its writers can also change
    checkpoints and the lock. In training the default is in the `workdir` of the run; otherwise it
    is in the home of this user, because another user may own a run that is only read.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    of_user = os.path.join(
        home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "xlnet_jax"
    )
    defaults = [os.path.join(workdir, "compilation_cache")] if workdir else []
    return config.log.compilation_cache or next(filter(_own, [*defaults, of_user]), "none")


def use_compilation_cache(config: Config, workdir: str | None = None) -> None:
    """Sets JAX's persistent compilation cache to `cache_folder`."""
    folder = cache_folder(config, workdir)
    try:
        if folder != "none":
            files.check_writable(folder, "log.compilation_cache")
    except BadInput as error:  # JAX would warn for every program
        log.warning("no compilation cache, so the next start compiles again: %s", error)
        folder = "none"
    jax.config.update(
        "jax_compilation_cache_dir", None if folder == "none" else files.resolve(folder)
    )
    # Otherwise every key contains the path, and no program is found in a moved or copied folder.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    # JAX chooses a folder at the first compilation of the process; this lets it choose again.
    compilation_cache.reset_cache()


@contextlib.contextmanager
def kept_for_absent_devices(config: Config) -> Iterator[bool]:
    """Stores the programs that the block compiles for absent devices in the folder
    `log.compilation_cache`; yields whether this key names a folder. `train` finds the programs by
    JAX's key: a hash of the lowered module, the compiler's options, flags and version, jaxlib's
    version, and the topology. `train` compiles all other programs.
    """
    if config.log.compilation_cache in ("", "none"):
        yield False
        return
    use_compilation_cache(config)
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", True)
    try:
        with warnings.catch_warnings():
            # A cached program cannot be loaded without its devices, so it is compiled again.
            warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
            yield True
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _own(folder: str) -> bool:
    """Whether no other user can have written into a folder; if one can, logs why."""
    if "://" in folder or not os.path.exists(folder):
        return True
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        why = f"belongs to user {status.st_uid}"
    elif status.st_mode & stat.S_IWOTH:
        why = "can be written by others"
    else:
        return True
    log.warning(
        "%s %s, and it may hold any machine code: not used; to use it anyway, name it as "
        "--config.log.compilation_cache",
        folder,
        why,
    )
    return False
