"""How the tests compile: fast, because almost all of their time is XLA's, or as in production.

Optimised code is tested too: `XLNET_TEST_PRODUCTION=1` leaves the flags alone, but for the order of
collectives, and `.ci/run` runs what carries the marker `production` in that way.
"""

import os

from jaxlib.version import __version_info__ as VERSION

PRODUCTION = os.environ.get("XLNET_TEST_PRODUCTION") == "1"
FAST_FLAGS = {"xla_backend_optimization_level": "0"}
if VERSION <= (0, 11, 0):  # later ones end the process: they do not know it
    FAST_FLAGS["xla_cpu_use_fusion_emitters"] = "false"
# Otherwise virtual devices may start two collectives that do not depend on each other in different
# orders, and wait for each other for ever.
ORDERED = {"xla_cpu_enable_concurrency_optimized_scheduler": "false"}
OPTIMISED: dict[str, int] = {} if PRODUCTION else {"xla_backend_optimization_level": 1}
"""`compiler_options` of one compilation that has to be optimised: the cheapest level; in production
all there is.
"""


def set_flags() -> None:
    """Adds these flags to the caller's, who wins where both name one. XLA reads them when its first
    device is made.

    Processes that the tests start inherit them. JAX's compilation cache has the flags in its keys.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = {flag.partition("=")[0] for flag in flags}
    wanted = ORDERED if PRODUCTION else ORDERED | FAST_FLAGS
    flags += [f"--{name}={value}" for name, value in wanted.items() if f"--{name}" not in given]
    os.environ["XLA_FLAGS"] = " ".join(flags)
