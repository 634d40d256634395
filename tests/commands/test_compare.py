"""`compare`: two tiny systems with two seeds, killed and resumed; its page, and what it refuses."""

import json

import data_fixtures
import pytest
import tiny

from xlnet_jax.cli import main
from xlnet_jax.commands import compare as command

CONFIG = """
import sys
sys.path.insert(0, {tests!r})
import dataclasses, tiny
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(dataclasses.asdict(tiny.config({changes})))
"""
CLM = "data=dict(objective='clm', reuse_len=32, num_predict=32)"
MDM = "data=dict(objective='mdm', reuse_len=32, num_predict=32), model=dict(memory_len=0)"


@pytest.fixture
def words(tmp_path):
    """Of a comparison of two systems, with the same steps of one as of the other."""
    for name, changes in {"causal": CLM, "diffusion": MDM}.items():
        (tmp_path / f"{name}.py").write_text(CONFIG.format(tests=str(tiny.TESTS), changes=changes))
    return [
        "compare", f"--configs={tmp_path}/causal.py,{tmp_path}/diffusion.py", f"--workdir={tmp_path}/compared",
        f"--corpus={data_fixtures.corpus_path()}", "--seeds=2", "--equal=tokens", "--windows=3", "--length=16",
        "--json", "--config.train.steps=4",
    ]  # fmt: skip


def test_a_killed_comparison_goes_on_and_its_page_needs_nothing(words, tmp_path, monkeypatch, capsys):
    begun, train = [], command.train

    def once(config, folder):
        begun.append(folder)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return train(config, folder)

    monkeypatch.setattr(command, "train", once)
    assert main(words) == 130
    assert main(words) == 0
    runs = [f"{tmp_path}/compared/{name}/{seed}" for name in ("causal", "diffusion") for seed in (0, 1)]
    assert begun == [runs[0], *runs[1:2], *runs[1:]], "a run was trained again, or left out"
    capsys.readouterr()
    assert main(words) == 0 and len(begun) == 5
    result = json.loads(capsys.readouterr().out)
    print(json.dumps(result)[:3000])
