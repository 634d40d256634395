"""JAX's persistent cache of compiled programs: in the work directory, or in the folder of this user."""

from __future__ import annotations

import logging
import os
import stat

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
    # JAX chooses a folder (or none) at the first compilation of the process; after this it chooses again.
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
