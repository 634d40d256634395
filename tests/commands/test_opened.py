"""How a trained model is opened by those who only read it: the attention of this machine, and no
program of the run.
"""

import json
import os
import warnings

import data_fixtures
import jax
import pytest
import tiny
from test_texts import write_workdir

from xlnet_jax.cli import main
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import decoder, score
from xlnet_jax.model import choice
from xlnet_jax.run import programs
from xlnet_jax.run import workdir as workdirs


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """Its config.json names the kernel of another machine and a folder with programs."""
    folder = tmp_path_factory.mktemp("opened") / "run"
    config = tiny.config(
        model={"attention": "fused"},
        data={"corpus": data_fixtures.corpus_path()},
        log={"compilation_cache": str(folder / "programs")},
    )
    return write_workdir(str(folder), config)


@pytest.mark.parametrize(
    "words",
    [
        ["score", "--workdir=RUN", "Bado kilu."],
        ["fill", "--workdir=RUN", "Bado [MASK]."],
        ["generate", "--workdir=RUN", "--prompt=Bado"],
        ["evaluate", "--workdir=RUN", "--target_share=0.5", "--windows=1"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_decides_the_attention_and_leaves_the_programs_of_the_run(
    fused, monkeypatch, words, capsys
):
    asked, computed = [], []

    def choose(config, absent=None):
        asked.append(config.attention)
        return "xla", "attention: xla, says the test"

    def seen(self, *args, **kwargs):
        attention = self.model.transformer.config.attention
        computed.append((attention, jax.config.jax_compilation_cache_dir))
        raise BadInput("seen")  # before anything is compiled

    monkeypatch.setattr(choice, "choose", choose)
    monkeypatch.setattr(score.Scorer, "log_prob", seen)
    monkeypatch.setattr(decoder.Decoder, "__call__", seen)
    assert main([word.replace("RUN", fused) for word in words]) == 2
    assert "seen" in capsys.readouterr().err
    users = os.path.join(os.environ["XDG_CACHE_HOME"], "xlnet_jax")
    assert asked == ["auto"] and computed == [("xla", users)]


def test_what_a_run_says_of_its_machine_does_not_count_here(tmp_path):
    folder = str(tmp_path)
    identity = workdirs.identity(tiny.config(), "", "")
    identity["config"] |= {
        "distributed.coordinator": "far:1234",
        "distributed.processes": 2,
        "log.compilation_cache": folder,
    }
    (tmp_path / "config.json").write_text(json.dumps(identity))
    config = workdirs.load_config(folder)
    assert config.distributed == tiny.config().distributed and config.log.compilation_cache == ""
    chosen = workdirs.load_config(folder, [f"--config.log.compilation_cache={folder}"])
    assert chosen.log.compilation_cache == folder


def cache(*arguments):
    programs.use_compilation_cache(*arguments)
    return jax.config.jax_compilation_cache_dir


def test_whose_programs_are_used(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "xlnet_jax")
    workdir, config = str(tmp_path / "run"), tiny.config()
    own, users = os.path.join(workdir, "compilation_cache"), str(tmp_path / "cache" / "xlnet_jax")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache(config, workdir) == own, "a new run"
    assert cache(config) == users
    os.makedirs(own)
    os.makedirs(users)
    assert cache(config, workdir) == own and caplog.text == ""
    os.chmod(own, 0o777)
    assert cache(config, workdir) == users
    assert f"{own} can be written by others, and it may hold any" in caplog.text
    os.chmod(own, 0o755)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert cache(config, workdir) is None, "neither folder is this user's"
        assert cache(tiny.config(log={"compilation_cache": own}), workdir) == own, (
            "who names it trusts it"
        )
    os.chmod(users, 0o777)
    assert cache(config) is cache(tiny.config(log={"compilation_cache": "none"})) is None


@pytest.mark.parametrize("home", ["file/cache", "relative"])
def test_no_folder_for_programs_is_no_error(tmp_path, monkeypatch, caplog, home):
    caplog.set_level("INFO", "xlnet_jax")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", home if home == "relative" else str(tmp_path / home))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache(tiny.config()) is None
    (line,) = caplog.messages
    assert line.startswith(
        "no compilation cache, so the next start compiles again: log.compilation_cache="
    )
