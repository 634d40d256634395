"""Eight virtual CPU devices, one compilation cache for all tests, and strictness: what every test starts from."""

import logging

import jax
import pytest
from absl import flags


def use_compilation_cache(config: pytest.Config) -> None:
    """Keeps compiled programs in pytest's own cache folder.

    It lies in the checkout, so it holds no other machine's code; the workers of pytest-xdist and the next run share it;
    `pytest --cache-clear` and `make clean` empty it.
    """
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("xla")))


def pytest_configure(config: pytest.Config) -> None:
    """Sets JAX up before a test module is imported: the devices are fixed by their first use."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    use_compilation_cache(config)
    # By default JAX keeps nothing that compiles in less than a second: most of our programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    # Grain reads absl flags, which nobody parses here.
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True)
def same_surroundings(pytestconfig: pytest.Config):
    """Undoes what the code under test sets for the whole process: the compilation cache and the log's stream."""
    use_compilation_cache(pytestconfig)
    yield
    root = logging.getLogger()
    # The command line logs to the stderr of its test, which is closed when the next test logs. pytest's own handlers
    # are of other classes.
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture
def x64():
    """float64 and int64 inside the test: for comparisons to 1e-12."""
    with jax.enable_x64(True):
        yield
