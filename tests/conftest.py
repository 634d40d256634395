"""Fast compilation, eight virtual CPU devices, one cache for all tests, and strictness: where every
test starts.
"""

import gc
import logging
import os
import signal

import compiling
import documented
import fake_gcs
import jax
import pytest
import shared
from absl import flags
from jax.sharding import Mesh

from xlnet_jax import messages
from xlnet_jax.train import phases
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.step import BuiltStep


def use_compilation_cache(config: pytest.Config) -> None:
    """Keeps compiled programs in pytest's own cache folder.

    It lies in the checkout, so it holds no other machine's code; the workers of pytest-xdist and
    the next run share it; `pytest --cache-clear` and `make clean` empty it.
    """
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("xla")))


def build_once() -> None:
    """Keeps the last four steps that were built and traced, for a run that starts again in this
    process: tracing takes most of the time of such a start. A process that a test starts traces its
    own step.
    """
    build, kept = phases.build_step, {}

    def built(recipe: Recipe, mesh: Mesh) -> BuiltStep:
        def described(each: Recipe) -> str:
            form = jax.tree.map(lambda x: (x.shape, x.dtype), each.example_batch(1))
            return repr((each.config, each.model, form))

        key = (*map(described, (recipe, *recipe.others)), mesh, jax.config.jax_enable_x64)
        if key not in kept:
            kept[key] = build(recipe, mesh)
            if len(kept) > 4:
                del kept[next(iter(kept))]
        return kept[key]

    phases.build_step = built


def pytest_configure(config: pytest.Config) -> None:
    """Sets JAX up before a test module is imported: flags and devices are fixed by their first
    use.
    """
    compiling.set_flags()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    use_compilation_cache(config)
    # By default JAX keeps nothing that compiles in less than a second: most of our programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    # Of the processes that tests start.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    # What a command keeps for its user.
    os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("user"))
    # Grain reads absl flags, which nobody parses here.
    flags.FLAGS.mark_as_parsed()
    documented.check_every_line()
    if not compiling.PRODUCTION:
        build_once()


def pytest_collection_finish() -> None:
    """Collects garbage less often, and never what the imports have made: a tenth of the time of all
    tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def same_surroundings(pytestconfig: pytest.Config):
    """Undoes what the code under test sets for the whole process: compilation cache, log's stream,
    two signals, the command that is named to other processes.
    """
    use_compilation_cache(pytestconfig)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    root = logging.getLogger()
    # The command line logs to stderr, where the next test may expect nothing. The others are
    # pytest's own.
    for handler in [
        each for each in root.handlers if not type(each).__module__.startswith("_pytest")
    ]:
        root.removeHandler(handler)
    vars(messages.output).update(vars(messages.Reporting()))


@pytest.fixture
def x64():
    """float64 and int64 inside the test: for comparisons to 1e-12."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def bucket():
    """The server of `gs://` addresses, which starts empty."""
    with fake_gcs.serve() as server:
        yield server


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> shared.Undisturbed:
    """The one run that all tests of stops and restarts compare theirs with."""
    return shared.undisturbed(tmp_path_factory)
