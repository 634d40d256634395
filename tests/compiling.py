"""How the tests compile: fast, because almost all of their time is XLA's, or as in production.

Optimised code is tested too: `XLNET_TEST_PRODUCTION=1` leaves the flags alone, and `.ci/run` runs what carries the
marker `production` in that way.
"""

import os

PRODUCTION = os.environ.get("XLNET_TEST_PRODUCTION") == "1"
FAST_FLAGS = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "false"}
PRODUCTION_OPTIONS = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
"""XLA's defaults, as `compiler_options` of one compilation: for bits that only optimised code promises."""


def set_flags() -> None:
    """Adds the fast flags to the caller's, who wins where both name one. XLA reads them when its first device is made.

    Processes that the tests start inherit them. JAX's compilation cache has the flags in its keys.
    """
    if PRODUCTION:
        return
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = {flag.partition("=")[0] for flag in flags}
    flags += [f"--{name}={value}" for name, value in FAST_FLAGS.items() if f"--{name}" not in given]
    os.environ["XLA_FLAGS"] = " ".join(flags)
