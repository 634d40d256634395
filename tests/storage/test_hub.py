"""The hub of Hugging Face: a source of text, and the place of an export."""

import contextlib
import os
import signal
import subprocess
import sys

import fake_hub
import huggingface_hub
import pytest
import tiny

from xlnet_jax.convert.formats import check_output
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.storage import files

DATA = "hf://datasets/me/data"


@pytest.fixture
def hub():
    with fake_hub.serve() as server:
        text = {"a.txt": b"one\n" * 1000, "below/b.parquet": b"x", "c.md": b""}
        server.repositories["datasets/me/data"] = text
        yield server


def _all(address):
    """Everything that reading a source asks."""
    huggingface_hub.HfFileSystem.clear_instance_cache()
    found, _ = files.find(address, (".txt",))
    with files.open_to_read(found[0].path, 1 << 16) as file:
        file.seek(4)
        rest = file.read()
    with files.local_copy(found[0].path) as copy:
        assert os.path.getsize(copy) == 4000
    return files.read(found[0].path), rest


def test_a_source(hub):
    assert _all(DATA) == (b"one\n" * 1000, b"one\n" * 999)
    (found,), others = files.find(DATA, (".txt",))
    assert (found.path, found.bytes) == (f"{DATA}/a.txt", 4000)
    assert others == [f"{DATA}/below/b.parquet", f"{DATA}/c.md"]
    (parquet,), _ = files.find(f"{DATA}/**/*.parquet", ())
    assert parquet.path == f"{DATA}/below/b.parquet"
    hub.repositories["datasets/me/data"]["a.txt"] = b"two\n" * 1000
    huggingface_hub.HfFileSystem.clear_instance_cache()
    (changed,), _ = files.find(f"{DATA}/a.txt", ())
    assert changed.mtime_ns != found.mtime_ns and changed.bytes == found.bytes


@pytest.mark.parametrize("where", ["api", "resolve"])
@pytest.mark.parametrize(
    ("status", "raised"),
    [(401, BadInput), (403, BadInput), (404, BadInput), (429, RestartMe), (503, RestartMe)],
)
def test_refused(hub, where, status, raised):
    hub.refused = {where: status}
    with pytest.raises(raised, match=rf"^{DATA}.*\b{status}\b.*rerun the same command") as error:
        _all(DATA)
    assert "\n" not in str(error.value)


def test_away_and_cut(hub):
    hub.cut = 1000
    with pytest.raises(RestartMe, match=f"^{DATA}/a.txt: peer closed"):
        _all(DATA)
    hub.cut = 1
    assert _all(DATA)[0] == b"one\n" * 1000
    hub.down = True
    with pytest.raises(RestartMe, match=f"^{DATA}: Server disconnected"):
        _all(DATA)


def test_missing_and_unusable(hub):
    with pytest.raises(FileNotFoundError, match="repository not found"):
        files.find("hf://datasets/me/none", ())
    for address in ("hf://datasets/alone", "hf://"):
        with pytest.raises(BadInput, match=f"^{address}: "):
            files.find(address, ())
    with pytest.raises(BadInput, match="the hub cannot refuse to replace a file"):
        files.write_new(f"{DATA}/prepare.json", b"{}")


def _upload(address):
    check_output(address)
    with files.new_folder(address) as folder:
        os.makedirs(f"{folder}/below")
        for name in ("config.json", "README.md", "below/model.safetensors"):
            files.write(f"{folder}/{name}", b"{} " + name.encode())


def test_an_export_is_one_commit(hub):
    _upload("hf://me/model/step_1")
    _upload("hf://me/model/step_2")
    with pytest.raises(BadInput, match="me/model: is not empty; choose another"):
        _upload("hf://me/model")
    assert hub.commits == 2
    assert {*hub.repositories["me/model"]} == {".gitattributes"} | {
        f"step_{step}/{name}"
        for step in (1, 2)
        for name in ("config.json", "README.md", "below/model.safetensors")
    }
    assert files.read("hf://me/model/step_2/config.json") == b"{} config.json"
    for address in (DATA, "hf://me", "hf://me/model@dev"):
        with pytest.raises(BadInput, match="name hf://OWNER/NAME"):
            _upload(address)
    with pytest.raises(BadInput, match="^hf://other/model: .*403"):
        _upload("hf://other/model")


@pytest.mark.parametrize("where", ["create", "preupload", "lfs", "commit"])
@pytest.mark.parametrize(("status", "raised"), [(403, BadInput), (503, RestartMe)])
def test_an_export_that_fails_leaves_nothing(hub, where, status, raised):
    hub.refused = {f"(POST|PUT).*{where}": status}
    with pytest.raises(raised, match=rf"^hf://me/model: .*\b{status}\b"):
        _upload("hf://me/model")
    assert hub.repositories.get("me/model", {}).keys() <= {".gitattributes"}
    hub.refused = {}
    _upload("hf://me/model")
    assert len(hub.repositories["me/model"]) == 4 and hub.commits == 1


def test_no_token():
    with (
        fake_hub.serve(token=None),
        pytest.raises(BadInput, match="^hf://me/model: the bucket refuses .*401.*hf auth login"),
    ):
        _upload("hf://me/model")


@pytest.mark.slow
def test_killed(hub):
    """After the large file has arrived, before the commit."""
    program = """
import os, signal, huggingface_hub._commit_api as api, test_hub
api._send_commit = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
test_hub._upload("hf://me/model")
"""
    tests = f"{tiny.ROOT}/tests"
    path = os.pathsep.join([str(tiny.ROOT), tests, f"{tests}/storage"])
    environment = os.environ | hub.environment() | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert hub.large and hub.repositories["me/model"].keys() == {".gitattributes"}
    with contextlib.suppress(FileNotFoundError):
        files.sweep("hf://me/model")
    _upload("hf://me/model")
    assert len(hub.repositories["me/model"]) == 4
