"""The tests really compile without optimisation, unless they are told not to."""

import os

import compiling
import pytest


def test_the_flags_are_added_to_the_callers_who_wins(monkeypatch):
    monkeypatch.setattr(compiling, "PRODUCTION", False)
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_backend_optimization_level=2")
    for _ in range(2):  # a worker of pytest-xdist finds those of its parent
        compiling.set_flags()
        words = os.environ["XLA_FLAGS"].split()
        assert words[:2] == ["--a=1", "--xla_backend_optimization_level=2"]
        assert words[2:] in ([], ["--xla_cpu_use_fusion_emitters=false"])
    monkeypatch.setattr(compiling, "PRODUCTION", True)
    monkeypatch.setenv("XLA_FLAGS", "--a=1")
    compiling.set_flags()
    assert os.environ["XLA_FLAGS"] == "--a=1"


@pytest.mark.production
def test_this_session_has_them_or_production_has_none():
    given = "--xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    assert given != compiling.PRODUCTION
