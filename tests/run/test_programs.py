"""The options of the compiler: which ones a configuration takes, and that the step is compiled with
them.
"""

import jax
import pytest
import tiny

from xlnet_jax.config import override
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.run import programs
from xlnet_jax.train import step
from xlnet_jax.train.loop import compile_step
from xlnet_jax.train.recipe import make_recipe

KNOWN = "xla_cpu_enable_fast_math"


def here():
    return meshes.make_mesh(tiny.config().mesh, jax.devices()[:1])


def test_options_of_the_chip_and_of_ones_own_the_last_of_two_counts(monkeypatch):
    assert programs.compiler_options("", here()) is None
    monkeypatch.setitem(
        programs.OPTIONS, "cpu", {KNOWN: "true", "xla_backend_optimization_level": "1"}
    )
    assert programs.compiler_options("chip,xla_backend_optimization_level=0", here()) == {
        KNOWN: "True",
        "xla_backend_optimization_level": "0",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chip", "for TPU v4, .* and none for cpu; leave out chip"),
        ("xla_no_such=1", "No such compile option"),
        (f"{KNOWN}=perhaps", "'perhaps' is not a valid bool"),
    ],
)
def test_what_the_compiler_does_not_know_is_refused_when_the_step_is_built(text, words):
    config = override(tiny.config(), [f"--config.train.compiler_options={text}"])
    with pytest.raises(BadInput, match=f"^train.compiler_options={text}: .*{words}"):
        step.build_step(make_recipe(config), here())


@pytest.mark.parametrize("text", ["fast", "chip,", "a=", "a=1=2"])
def test_a_word_that_is_no_option_is_refused_with_the_configuration(text):
    with pytest.raises(
        BadInput, match=f"^train.compiler_options={text} must be chip, or NAME=VALUE"
    ):
        override(tiny.config(), [f"--config.train.compiler_options={text}"])


def test_the_step_is_compiled_with_them(monkeypatch):
    """One that passes the check, and that the compiler of the step then finds."""
    monkeypatch.setattr(
        step, "compiler_options", lambda text, mesh: {"xla_no_such": "1"} if text else None
    )
    mesh, config = here(), tiny.config(train={"compiler_options": "xla_no_such=1"})
    with jax.set_mesh(mesh):
        built = step.build_step(make_recipe(config), mesh)
        with pytest.raises(
            BadInput,
            match="^train.compiler_options=xla_no_such=1: .*No such compile option.*; leave it",
        ):
            compile_step(built, built.abstract_state, built.abstract_batch)
