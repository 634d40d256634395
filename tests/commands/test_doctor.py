"""Doctor: every check reports what is wrong on a host that has this fault, and the others go on."""

import importlib
import json
import socket
import subprocess
import time
from unittest import mock

import data_fixtures
import fake_gcs
import hosts
import pytest

from xlnet_jax.cli import main
from xlnet_jax.commands import doctor
from xlnet_jax.commands.doctor import Host
from xlnet_jax.distributed.links import ProcessInfo
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.storage import files


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine without TPUs, whose other process finds one CPU: to start one takes seconds."""
    monkeypatch.setattr(doctor, "_chips", lambda: 0)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found_by_probe(monkeypatch, "cpu", "cpu", 1)


def found_by_probe(monkeypatch, *found):
    done = subprocess.CompletedProcess(
        "probe", 0, f"a library's own line\n{json.dumps(found)}\n", ""
    )
    monkeypatch.setattr(subprocess, "run", mock.Mock(return_value=done))


def examined(check, folder=None, alone=True):
    result = doctor.run_check(check, Host(folder and str(folder), "", alone))
    return result["status"], result["text"]


def test_a_healthy_host(tmp_path, capsys):
    words = [
        "doctor",
        f"--workdir={tmp_path / 'new' / 'run'}",
        f"--corpus={data_fixtures.corpus_path()}",
    ]
    assert main([*words, "--json"]) == 0
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    # The disk may be rather full.
    assert {each["status"] for each in found.values()} <= {"ok", "warning"}, found
    assert list(found) == [check.__name__ for check in doctor.CHECKS]
    assert "tokens" in found["corpus"]["text"]
    assert f"{tmp_path}: list, write" in found["rights"]["text"]
    assert not list(tmp_path.iterdir())


def test_a_fault_ends_with_2_and_the_other_checks_go_on(monkeypatch, capsys):
    faults = {
        "broken": KeyError("unforeseen"),
        "silent": RestartMe("no answer"),
        "wrong": BadInput("no disk; buy one"),
    }
    checks = [mock.Mock(side_effect=fault, __name__=name) for name, fault in faults.items()]
    hangs = mock.Mock(side_effect=lambda host: time.sleep(5), __name__="hangs")

    def one_after_the_other():
        monkeypatch.setattr(doctor, "LIMIT", 60.0)
        yield from checks
        monkeypatch.setattr(doctor, "LIMIT", 0.05)
        yield hangs

    monkeypatch.setattr(doctor, "CHECKS", one_after_the_other())
    assert main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert [" ".join(line.split()[:2]) for line in err.splitlines()] == [
        "warning broken",
        "warning silent",
        "stop wrong",
        "stop hangs",
        "xlnet-jax doctor:",
    ]
    assert "Traceback" not in err and "no answer within" in err and "no disk; buy one" in err
    assert err.endswith("a launch would fail here: see wrong, hangs\n") and out == ""
    monkeypatch.setattr(doctor, "CHECKS", one_after_the_other())
    assert main(["doctor", "--json"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["exit_code"] == 2 and [each["check"] for each in result["checks"]][-1] == "hangs"


def test_versions_that_do_not_fit(monkeypatch):
    pins = (
        b"# tested\njax==0.0.1 ; python_version >= '3'\n"
        b"jax==0.0.2 ; python_version < '3'\nother==1\n"
    )
    monkeypatch.setattr(files, "read_if_there", lambda path: pins)
    status, text = examined(doctor.versions)
    assert status == "warning" and "tested with jax==0.0.1: run `pip install" in text

    older = RuntimeError("jaxlib is older than jax")
    monkeypatch.setattr(importlib, "import_module", mock.Mock(side_effect=older))
    status, text = examined(doctor.versions)
    assert status == "stop" and text.startswith(
        "RuntimeError: jaxlib is older than jax; run `pip install"
    )


def test_a_slice_without_libtpu(monkeypatch):
    monkeypatch.setattr(doctor, "_chips", lambda: 4)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, text = examined(doctor.devices, alone=False)
    assert status == "stop" and "libtpu is not installed; run `pip install" in text
    # The TPU runtime waits for the other hosts, which may still be installing.
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    assert examined(doctor.devices, alone=False)[0] == "ok"


def test_devices(monkeypatch):
    monkeypatch.setattr(doctor, "_chips", lambda: 4)
    status, text = examined(doctor.devices)
    assert status == "stop" and "the machine has a tpu" in text
    found_by_probe(monkeypatch, "tpu", "TPU v5 lite", 4)
    assert examined(doctor.devices) == ("ok", "4 x TPU v5 lite (tpu)")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    found_by_probe(monkeypatch, "cpu", "cpu", 1)
    assert examined(doctor.devices)[0] == "warning"
    said = "Traceback\nxlnet_jax.errors.BadInput: no such platform\n"
    ends = [subprocess.TimeoutExpired("probe", 100), subprocess.CompletedProcess("", 1, "", said)]
    monkeypatch.setattr(subprocess, "run", mock.Mock(side_effect=ends))
    assert "no device within 100 s" in examined(doctor.devices)[1]
    assert examined(doctor.devices) == ("stop", "JAX finds no device: no such platform")


@pytest.mark.slow
def test_the_platform_that_is_missing_is_named(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("JAX_PLATFORMS", "rocm")
    status, text = examined(doctor.devices)
    assert status == "stop" and "JAX_PLATFORMS=rocm: " in text and "Traceback" not in text


def test_ports(monkeypatch):
    def of(process, host):
        monkeypatch.setattr(
            doctor, "find_process_info", lambda config: ProcessInfo(host, 2, process)
        )
        return examined(doctor.processes)

    used = hosts.free_port()
    with socket.create_server(("", used)):
        assert of(0, f"localhost:{used}")[0] == "stop" and of(1, f"localhost:{used}")[0] == "ok"
    assert of(0, f"localhost:{used}")[0] == "ok"
    status, text = of(1, "nowhere.invalid:1")
    assert status == "warning" and "of nowhere.invalid: " in text


def test_disk(monkeypatch, tmp_path):
    usage = {"free": 10**6}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), usage))
    status, text = examined(doctor.disk, tmp_path / "new")
    assert status == "stop" and f"--workdir {tmp_path}: 0.0 GB free" in text
    usage["free"] = 10**10
    assert examined(doctor.disk, tmp_path)[0] == "warning"


@pytest.mark.parametrize(
    ("refused", "doing"),
    [
        ("GET /storage/v1/b/bucket/o($|[?])", "list"),
        ("POST /upload", "write"),
        ("GET .*doctor.*alt=media", "read"),
        ("DELETE ", "delete"),
        ("nothing", None),
    ],
)
def test_a_right_that_a_bucket_refuses(refused, doing):
    with fake_gcs.serve() as server:
        server.refused[refused] = 403
        status, text = examined(doctor.rights, "gs://bucket/run")
        left = list(server.objects)
    if doing is None:
        assert (status, text) == ("ok", "gs://bucket/run: list, write, read and delete")
    else:
        assert status == "stop" and text.startswith(f"cannot {doing}: gs://bucket/run")
        assert "roles/storage" in text
    assert len(left) == (doing == "delete")


def test_rights_of_a_folder_on_disk(tmp_path, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(files, "write_new", mock.Mock(side_effect=full))
    _, text = examined(doctor.rights, tmp_path / "new")
    assert text.startswith(f"cannot write: {tmp_path}/.doctor-")
    (tmp_path / "file").touch()
    status, text = examined(doctor.rights, tmp_path / "file")
    assert status == "stop" and "file is a file" in text
