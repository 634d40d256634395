"""`benchmarks/step.py` compares two sides that do the same work, and its ratios are the right way
up.

The run needs torch and transformers; without them it is skipped.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys

import compiling
import pytest
import tiny

SCRIPT = tiny.ROOT / "benchmarks" / "step.py"


def load():
    spec = importlib.util.spec_from_file_location("step_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))  # for _texts
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_ratios_are_ours_over_the_peers_round_by_round():
    """A ratio upside down, of medians instead of rounds, or of the wrong dropout rate."""
    benchmark = load()

    def turns(*seconds):
        return [benchmark.Turn(s, 2 * s, 1.0) for s in seconds]

    # The second round was slowed down for both sides: its ratio is still 4.
    measured = dict(
        ours=turns(1, 10, 1),
        peer=turns(4, 40, 2),
        ours_no_dropout=turns(1),
        peer_no_dropout=turns(3),
        ours_xla=turns(2, 20, 4),
    )
    result = benchmark.report(measured, tokens=120)
    assert (result["ratio"], result["ratio_no_dropout"], result["ratio_xla"]) == (4, 3, 2)
    assert (result["ours_tokens_per_second"], result["peer_tokens_per_second"]) == (120, 30)
    assert result["ratio_compiled"] is result["peer_compiled_tokens_per_second"] is None
    assert result["cpu_per_wall"] == {"ours": 2, "ours_xla": 2, "peer": 2}
    assert result["spread"]["peer"] == [3, 60]
    assert result["tokens_per_cpu_second"]["ours_no_dropout"] == 60


def run(tmp_path, *words):
    """The result and the messages of the script."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    environment = os.environ | {
        "PYTHONPATH": str(tiny.ROOT),
        "CXX": str(tmp_path / "none"),
        # Else a program compiled before would do.
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in compiling.FAST_FLAGS.items()),
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, "--tiny", "--rounds=1", "--json", *words],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_both_sides_train_and_a_missing_compiler_is_said(tmp_path):
    """Another model on one side (the script compares the parameters), a loss over other targets, no
    finite loss.
    """
    names = [
        "ours",
        "ours_with_loader",
        "peer",
        "peer_compiled",
        "ours_no_dropout",
        "peer_no_dropout",
    ]
    result, said = run(tmp_path, "--figures", *names)
    assert {"mfu", "compile_cpu_seconds", "device"} <= set(result)
    # Before much is learnt, all pieces are as likely.
    assert result["loss"].keys() == {*names} - {"peer_compiled"}
    assert all(abs(loss - math.log(400)) < 0.15 for loss in result["loss"].values())
    assert result["ratio"] > 0 and result["ratio_no_dropout"] > 0 and result["dropout"] == 0.1
    assert result["ratio_compiled"] is result["peer_compiled_tokens_per_second"] is None
    assert "torch.compile does not work here: " in said


def test_modernbert_trains_beside_its_peer(tmp_path):
    """As above, for masked tokens; a configuration without dropout has none."""
    config = f"--config={tiny.ROOT / 'configs' / 'modern' / 'small_mlm.py'}"
    small = ["model.d_model=16", "model.d_ff=8", "model.heads=2", "model.head_dim=8"]
    words = [*small, "data.segment_len=32", "optimizer.learning_rate=1e-6"]
    result, _ = run(
        tmp_path, config, *(f"--config.{word}" for word in words), "--figures", "ours", "peer"
    )
    assert all(abs(loss - math.log(2000)) < 0.15 for loss in result["loss"].values())
    assert result["ratio"] > 0 and result["dropout"] == 0
