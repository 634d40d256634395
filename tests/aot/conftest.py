"""Tests that need the TPU compiler (extra `tpu`), and no TPU. Without it they fail: `make test-aot`
installs it.
"""

import os
import shutil

import jax
import pytest

from xlnet_jax.aot import schedule
from xlnet_jax.aot.topology import prepare_environment

# Before libtpu is loaded. JAX is there already.
prepare_environment()
jax.config.update("jax_enable_compilation_cache", False)
SCHEDULES = schedule.request_schedules()


@pytest.fixture(autouse=True, scope="session")
def production_flags():
    """What is measured here is what the compiler really does."""
    if "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", ""):
        pytest.fail(
            "these tests need the compiler flags of production: "
            "XLNET_TEST_PRODUCTION=1, or make test-aot"
        )


@pytest.fixture(autouse=True, scope="session")
def schedules_removed():
    """Those of tests that compile without `compile`."""
    yield
    shutil.rmtree(SCHEDULES, ignore_errors=True)
