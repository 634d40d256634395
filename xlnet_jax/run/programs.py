"""JAX's persistent cache of compiled programs: in the work directory, or in the folder of this user."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import warnings
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")


def use_compilation_cache(config: Config, workdir: str | None = None) -> None:
    """Sets JAX's persistent compilation cache to the configured folder, on disk or in a bucket, or to the default.

    Its programs are machine code, which runs as it is found. So only this user may have written them; in a bucket, who
    may write there writes checkpoints and the lock, too. The default is in the `workdir` of a run that is trained, and
    otherwise in the folder of this user: a run that is only read may be anyone's.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    of_user = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "xlnet_jax")
    defaults = [os.path.join(workdir, "compilation_cache")] if workdir else []
    folder = config.log.compilation_cache or next(filter(_own, [*defaults, of_user]), "none")
    try:
        if folder != "none":
            files.check_writable(folder, "log.compilation_cache")
    except BadInput as error:  # JAX would warn for every program
        log.warning("no compilation cache, so the next start compiles again: %s", error)
        folder = "none"
    jax.config.update("jax_compilation_cache_dir", None if folder == "none" else files.resolve(folder))
    # Else the path is part of every key, and no program is found in a folder that was moved or copied.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    # JAX chooses a folder (or none) at the first compilation of the process; after this it chooses again.
    compilation_cache.reset_cache()


@contextlib.contextmanager
def kept_for_absent_devices(config: Config) -> Iterator[bool]:
    """Programs that are compiled in this block, for devices that are not here, are kept in the configured folder, if
    one is named. `train` finds them there by JAX's key: a hash of the lowered module, the compiler's options and flags,
    its version and that of jaxlib, and the topology. What it does not find it compiles. Yields whether one is named.
    """
    if config.log.compilation_cache in ("", "none"):
        yield False
        return
    use_compilation_cache(config)
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", True)
    try:
        with warnings.catch_warnings():
            # What is there already cannot be loaded without its devices: it is compiled and written again.
            warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
            yield True
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _own(folder: str) -> bool:
    """Whether no other user can have written into a folder; logs why not."""
    if "://" in folder or not os.path.exists(folder):
        return True
    status = os.stat(folder)
    if status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH:
        return True
    why = "can be written by others" if status.st_uid == os.geteuid() else f"belongs to user {status.st_uid}"
    log.warning("%s %s, and it may hold any machine code: not used; to use it all the same, name it as "
                "--config.log.compilation_cache", folder, why)  # fmt: skip
    return False
