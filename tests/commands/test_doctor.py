"""Doctor: every check reports what is wrong on a host that has this fault, and the others go on."""

import json
import os
import resource
import socket
import subprocess
import time
import types

import data_fixtures
import fake_gcs
import pytest

from xlnet_jax.cli import main
from xlnet_jax.commands import doctor
from xlnet_jax.commands.doctor import Host
from xlnet_jax.distributed.links import ProcessInfo
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.storage import files


def _probe(monkeypatch, *found):
    """Devices that the other process would report; starting it takes seconds."""

    def run(argv, **_):
        return subprocess.CompletedProcess(argv, 0, f"a library's own line\n{json.dumps(found)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)


def _host(folder=None, **values):
    return Host(folder and str(folder), None, "", **values)


def _examined(check, host):
    """The status and the text."""
    result = doctor.examined(check, host)
    return result["status"], result["text"]


def test_a_healthy_host(tmp_path, monkeypatch, capsys):
    _probe(monkeypatch, "cpu", "cpu", 1)
    monkeypatch.setattr(doctor, "_chips", lambda: 0)
    words = ["doctor", f"--workdir={tmp_path / 'new' / 'run'}", f"--corpus={data_fixtures.corpus_path()}"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    found = {each["check"]: each for each in result["checks"]}
    assert {each["status"] for each in found.values()} <= {"ok", "warning"}, found  # the disk may be rather full
    assert list(found) == [check.__name__ for check in doctor.CHECKS]
    assert "tokens" in found["corpus"]["text"] and f"{tmp_path}: list, write" in found["rights"]["text"]
    assert not list(tmp_path.iterdir())


def test_a_fault_ends_with_2_and_the_other_checks_go_on(monkeypatch, capsys):
    def broken(host):
        raise KeyError("unforeseen")

    def silent(host):
        raise RestartMe("the server does not answer")

    def hangs(host):
        time.sleep(5)

    def wrong(host):
        raise BadInput("no disk; buy one")

    monkeypatch.setattr(doctor, "LIMIT", 0.05)
    monkeypatch.setattr(doctor, "CHECKS", (broken, silent, hangs, wrong))
    assert main(["doctor"]) == 2
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.err.splitlines()] == [
        ["warning", "broken"], ["warning", "silent"], ["stop", "hangs"], ["stop", "wrong"], ["xlnet-jax", "doctor:"],
    ]  # fmt: skip
    assert "Traceback" not in shown.err and "no answer within" in shown.err and "no disk; buy one" in shown.err
    assert shown.err.endswith("a launch would fail here: see hangs, wrong\n") and shown.out == ""
    assert main(["doctor", "--json"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["exit_code"] == 2 and [each["check"] for each in result["checks"]][-1] == "wrong"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workdir=gs://b/run", "--bucket=gs://b"], "give one of both"),
        (["--bucket=/disk"], "--bucket=/disk is not of the form gs://"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    assert main(["doctor", *words]) == 2 and message in capsys.readouterr().err


def test_versions_that_do_not_fit(monkeypatch):
    found = {"jax": "0.10.2", "jaxlib": "0.9.0", "gcsfs": None}
    installed = doctor._version
    # Whether libtpu is installed here must not matter: `make install` does not bring it.
    monkeypatch.setattr(doctor, "_version", lambda name: found[name] if name in found else installed(name) and "9999")
    status, text = _examined(doctor.versions, _host())
    # The package's own bounds, JAX's bounds for jaxlib; gcsfs is of an extra that this host does not need.
    assert status == "stop" and "jax 0.10.2 needs jaxlib" in text and "found 0.9.0" in text and "gcsfs" not in text
    monkeypatch.setattr(doctor, "_chips", lambda: 4)
    assert "needs gcsfs, it is missing" in _examined(doctor.versions, _host())[1]
    monkeypatch.setattr(doctor, "_version", installed)
    monkeypatch.setattr(doctor, "_misfits", lambda *_: iter(()))
    monkeypatch.setattr(doctor, "_tested", lambda: {"jax": "0.0.1"})
    status, text = _examined(doctor.versions, _host())
    assert status == "warning" and "tested with jax 0.0.1" in text


def test_the_versions_of_constraints_are_read():
    assert set(doctor.PACKAGES) <= doctor._tested().keys()
    assert all(version[0].isdigit() for version in doctor._tested().values())


def test_tpus_without_libtpu_or_held(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_chips", lambda: 4)
    monkeypatch.setattr(doctor, "TPU_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(doctor, "_HELD_SECONDS", 0)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, text = _examined(doctor.libtpu, _host())
    assert status == "stop" and "libtpu is not installed; run `pip install" in text
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    assert _examined(doctor.libtpu, _host())[0] == "ok"
    monkeypatch.setattr(doctor, "_holders", lambda paths: [123])
    assert "held by process 123" in _examined(doctor.libtpu, _host())[1]


def test_a_process_that_has_a_device_open_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "TPU_LOCK", str(tmp_path / "lock"))  # a compilation for TPUs may have the real one
    device = tmp_path / "accel0"
    device.touch()
    with device.open() as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as other:
        try:
            assert doctor._holders([str(device)]) == [other.pid]  # this process has it open, too
        finally:
            other.kill()
    assert doctor._holders([str(device)]) == []


def test_devices(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(doctor, "_chips", lambda: 4)
    _probe(monkeypatch, "cpu", "cpu", 1)
    status, text = _examined(doctor.devices, _host(alone=True))
    assert status == "stop" and "the machine has a tpu" in text
    _probe(monkeypatch, "tpu", "TPU v5 lite", 4)
    assert _examined(doctor.devices, _host(alone=True)) == ("ok", "4 x TPU v5 lite (tpu)")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    _probe(monkeypatch, "cpu", "cpu", 1)
    assert _examined(doctor.devices, _host(alone=True))[0] == "warning"
    monkeypatch.setenv("JAX_PLATFORMS", "")

    def run(argv, timeout, **_):
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert "no device within 100 s" in _examined(doctor.devices, _host(alone=True))[1]
    # The TPU runtime waits for the other hosts, which may still be installing.
    assert _examined(doctor.devices, _host())[0] == "ok"


@pytest.mark.slow
def test_the_platform_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "rocm")
    status, text = _examined(doctor.devices, _host())
    assert status == "stop" and "JAX_PLATFORMS=rocm: " in text and "Traceback" not in text


def test_ports(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        used = taken.getsockname()[1]
        for process, status in ((0, "stop"), (1, "ok")):
            place = ProcessInfo(f"localhost:{used}", 2, process, None)
            assert _examined(doctor.ports, _host(process=place))[0] == status
    assert _examined(doctor.ports, _host(process=ProcessInfo(f"localhost:{used}", 2, 0, None)))[0] == "ok"
    status, text = _examined(doctor.ports, _host(process=ProcessInfo("nowhere.invalid:1", 2, 1, None)))
    assert status == "warning" and "of nowhere.invalid: " in text


def test_disk_and_open_files(monkeypatch, tmp_path):
    usage = {"free": 10**6}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), usage))
    status, text = _examined(doctor.disk, _host(tmp_path / "new"))
    assert status == "stop" and f"--workdir {tmp_path}: 0.0 GB free" in text
    usage["free"] = 10**10
    assert _examined(doctor.disk, _host(tmp_path))[0] == "warning"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    status, text = _examined(doctor.open_files, _host(process=ProcessInfo("h:1", 300, 0, None)))
    assert status == "stop" and "1624 are needed" in text


@pytest.mark.parametrize(
    ("refused", "doing"),
    [
        ("GET /storage/v1/b/bucket/o($|[?])", "list"),
        ("POST /upload", "write"),
        ("GET .*doctor.*alt=media", "read"),
        ("DELETE ", "delete"),
    ],
)
def test_a_right_that_a_bucket_refuses(refused, doing):
    with fake_gcs.serve() as server:
        server.refused[refused] = 403
        status, text = _examined(doctor.rights, Host(None, "gs://bucket/run", ""))
        left = list(server.objects)
    assert status == "stop" and text.startswith(f"cannot {doing}: gs://bucket/run") and "roles/storage" in text
    assert len(left) == (doing == "delete")


def test_a_bucket_that_is_as_it_should_be(monkeypatch):
    with fake_gcs.serve() as server:
        host = _host("gs://bucket/run")
        assert _examined(doctor.rights, host) == ("ok", "gs://bucket/run: list, write, read and delete")
        assert not server.objects and _examined(doctor.lock, host) == ("ok", "free")
        assert _examined(doctor.clock, host)[0] == "ok"
        # Not `time.time` itself, which the server uses as well.
        monkeypatch.setattr(doctor, "time", types.SimpleNamespace(time=lambda: time.time() - 400))
        status, text = _examined(doctor.clock, host)
        assert status == "warning" and "s slow" in text
    status, text = _examined(doctor.clock, host)  # nothing listens there
    assert status == "warning"


def test_rights_of_a_folder_on_disk(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")  # beside a new folder it does not matter
    assert _examined(doctor.rights, _host(tmp_path / "new" / "run"))[0] == "ok"

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_new", full)
    assert _examined(doctor.rights, _host(tmp_path / "new"))[1].startswith(f"cannot write: {tmp_path}/.doctor-")
    (tmp_path / "file").touch()
    status, text = _examined(doctor.rights, _host(tmp_path / "file"))
    assert status == "stop" and "file is a file" in text


def test_the_lock_of_a_folder(tmp_path):
    with files.locked(str(tmp_path), "in use"):
        status, text = _examined(doctor.lock, _host(tmp_path))
        assert status == "stop" and f"process {os.getpid()} on this machine" in text
    assert _examined(doctor.lock, _host(tmp_path)) == ("ok", "free") == _examined(doctor.lock, _host(tmp_path / "new"))


def test_the_lock_of_a_bucket(monkeypatch):
    held = {"token": "t", "job": "j", "folder": "/x", "name": "process 1 on h"}
    monkeypatch.setenv("XLNET_JOB_ID", "mine")
    with fake_gcs.serve() as server:

        def examine(content):
            server.objects["bucket/run/lock.json"] = json.dumps(content).encode()
            return _examined(doctor.lock, _host("gs://bucket/run"))

        assert "`train` refuses if that run lives" in examine(held | {"renewed": time.time()})[1]
        assert "renewed 0 s ago" in examine(held)[1]  # just taken
        assert "stale; `train` waits" in examine(held | {"renewed": time.time() - 1000})[1]
        assert examine(held | {"job": "mine"}) == ("ok", "free")
        assert examine({"token": "t"})[0] == "stop"
        assert len(server.objects) == 1
