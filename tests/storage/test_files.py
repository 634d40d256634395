"""Files on disk and in a bucket: whole or not at all, nothing left behind, one line where they
cannot be written.
"""

import contextlib
import errno
import inspect
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest.mock

import fake_gcs
import fake_s3
import pytest
import s3fs
from fsspec.registry import _registry

from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.storage import files
from xlnet_jax.storage.bucket import Bucket
from xlnet_jax.storage.local import Local


@pytest.fixture(params=["disk", "bucket", "s3"])
def folder(request, tmp_path):
    if request.param == "disk":
        yield str(tmp_path)
    else:
        with (fake_gcs if request.param == "bucket" else fake_s3).serve() as server:
            yield f"{server.kind}://bucket/folder"


def test_the_same_on_disk_and_in_a_bucket(folder, tmp_path_factory):
    path = os.path.join(folder, "below", "a")
    files.make_folder(os.path.join(folder, "below"))
    assert files.listing(os.path.join(folder, "nowhere")) == {}
    assert files.listing(os.path.join(folder, "below")) == {}
    with pytest.raises(FileNotFoundError):
        files.read(path)
    files.write(path, b"first")
    files.write(path, b"second")
    assert files.read(path) == b"second"
    assert not files.write_new(path, b"third") and files.read(path) == b"second"
    assert files.write_new(path + "new", b"") and files.read(path + "new") == b""
    files.rename(path, path + "moved")
    with pytest.raises(FileNotFoundError):
        files.rename(path, path + "moved")
    assert files.listing(os.path.join(folder, "below")) == {"anew": 0, "amoved": 6}
    assert list(files.listing(folder)) == ["below/"]
    large = os.urandom(6_000_000)
    with files.scratch(os.path.join(folder, "scratch")) as place:
        with open(os.path.join(place, "x"), "wb") as file:
            file.write(large)
        files.rename(os.path.join(place, "x"), path)
    assert files.read(path) == large and not os.path.exists(place)
    with files.on_disk(os.path.join(folder, "below")) as place:
        os.makedirs(os.path.join(place, "b", "c"))
        files.write(os.path.join(place, "b", "c", "d"), b"deep")
    assert files.read(os.path.join(folder, "below", "b", "c", "d")) == b"deep"
    files.remove(path)
    files.remove(path)
    files.remove(os.path.join(folder, "below"))
    assert files.listing(folder) == {}


def test_disks_and_buckets_have_one_interface():
    """A method that one lacks, or that takes other arguments there, would fail only with such a
    path.
    """

    def interface(kind):
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in methods
            if name[0] != "_"
        }

    assert interface(Local) == {
        name: each for name, each in interface(Bucket).items() if name != "read_ranges"
    }


def test_links_have_the_size_of_their_file(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10_000))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "nowhere").symlink_to("b")
    (tmp_path / "loop").symlink_to("loop")
    assert files.listing(str(tmp_path)) == {
        "a": 10_000,
        "link": 10_000,
        "nowhere": 1,
        "loop": 4,
    }


def test_an_empty_object_in_place_of_a_folder(bucket):
    bucket.objects |= {"bucket/c/": b"", "bucket/d": b"xx"}
    for name in ("c", "c/", "d"):
        assert files.listing(f"gs://bucket/{name}") == {}
    assert files.listing("gs://bucket") == files.listing("gs://bucket/") == {"c/": 0, "d": 2}


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [("gs", "gcsfs", "tpu"), ("s3", "s3fs", "s3"), ("hf", "huggingface_hub", "hub")],
)
def test_the_package_is_named_where_it_is_missing(monkeypatch, address, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with (
        unittest.mock.patch.dict(_registry, clear=True),
        pytest.raises(
            BadInput, match=f"^{address}://b/a/c: {address}:// needs the extra `{extra}`"
        ),
    ):
        files.read(f"{address}://b/a/c")


@pytest.mark.parametrize("place", ["s4://bucket/a", "s3://", "://a"])
def test_unknown_addresses(place):
    with pytest.raises(BadInput, match=f"^{place}: [^\n]*$"):
        files.read(place)


@pytest.fixture(params=[fake_gcs, fake_s3])
def store(request):
    with request.param.serve() as server:
        yield server


def test_a_bucket_that_does_not_answer(store):
    address = f"{store.kind}://bucket/a"
    store.down = True
    with pytest.raises(RestartMe, match=f"{address}: .*rerun the same command"):
        files.write(address, b"")
    store.down = False
    store.fail_next(2, 503)
    files.write(address, b"a")
    assert store.objects == {"bucket/a": b"a"}


@pytest.mark.parametrize(
    ("status", "raised"),  # 401: without credentials gcsfs asks anonymously
    [(400, BadInput), (401, BadInput), (403, BadInput), (429, RestartMe), (503, RestartMe)],
)
def test_a_bucket_that_refuses_is_not_asked_again(store, status, raised):
    address = f"{store.kind}://bucket/a"
    store.fail_next(100, status)
    with (
        pytest.raises(raised, match=f"^{address}: .*rerun") as error,
        files.translate_errors(address),
    ):
        files.read(address)
    assert "\n" not in str(error.value)


def test_a_connection_lost_in_the_middle():
    """All bytes arrive at a later attempt, or the line says that the bucket is away."""
    with fake_s3.serve() as store:
        files.write("s3://bucket/a", bytes(range(250)) * 4000)
        store.cut = 100
        with pytest.raises(RestartMe, match="^s3://bucket/a: .*rerun"):
            files.read("s3://bucket/a")
        with pytest.raises(RestartMe), files.local_copy("s3://bucket/a"):
            pass
        with (
            pytest.raises(RestartMe, match="^s3://bucket/a: .*rerun"),
            files.open_to_read("s3://bucket/a", 1 << 16) as file,
        ):
            file.read()
        store.cut = 1
        assert files.read("s3://bucket/a") == bytes(range(250)) * 4000
        store.http.shutdown()
        store.http.server_close()  # no connection at all
        with pytest.raises((RestartMe, BadInput)) as gone:
            files.read("s3://bucket/a")
        assert gone.type is RestartMe and "Could not connect" in str(gone.value)


def test_no_credentials(monkeypatch):
    with fake_s3.serve():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(BadInput, match="^s3://bucket/a: the bucket refuses .*credentials"):
            files.write("s3://bucket/a", b"")


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    path = str(tmp_path / "a")
    files.write(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(BadInput, match="a: File too large; fix this"),
            files.translate_errors(path),
        ):
            files.write(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files.read(path) == b"old" and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "elsewhere"),
            "elsewhere: No space left on device; fix",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "place: Disk quota exceeded; fix"),
        (
            RuntimeError("write() failed: No space left on device; writing /x"),
            r"place: write\(\) failed: No .* /x; fix",
        ),
    ],
)
def test_one_line(error, line):
    with pytest.raises(BadInput, match=f"^{line}"), files.translate_errors("place"):
        raise error


def test_a_bug_and_a_file_in_place_of_a_folder(tmp_path):
    with pytest.raises(RuntimeError, match="a bug"), files.translate_errors("place"):
        raise RuntimeError("a bug")
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with (
            pytest.raises(BadInput, match=f"{path}: Not a directory"),
            files.translate_errors("place"),
        ):
            files.make_folder(str(tmp_path / path))


def _killed(folder, function, tmp_path, monkeypatch):
    """The folder of `scratch` or `new_folder` that a killed process leaves, old, with a file half
    written.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = f"""
import os, signal
from xlnet_jax.storage import files
if {"://" not in folder and function == "scratch"}:
    open(files.temporary({os.path.join(folder, "file")!r}), "w").close()
with files.{function}({os.path.join(folder, "export")!r}) as place:
    open(os.path.join(place, "x"), "w").close()
    print(place, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = done.stdout.strip()
    assert os.listdir(left) == ["x"]
    os.utime(left, (1, 1))


def test_sweep(folder, tmp_path, monkeypatch):
    _killed(folder, "scratch", tmp_path, monkeypatch)
    (tmp_path / "thesis.tmp").write_text("")
    with (
        files.scratch(os.path.join(folder, "mine"))
        if "://" in folder
        else contextlib.nullcontext("") as place
    ):
        if place:
            os.utime(place, (1, 1))
        files.sweep(folder)
        assert not place or os.path.exists(place)  # in use
    assert os.listdir(tmp_path) == ["thesis.tmp"]
    files.sweep(os.path.join(folder, "nowhere"))


def test_a_new_folder_removes_that_of_a_killed_process_and_no_other(folder, tmp_path, monkeypatch):
    """Of an export: a gigabyte each."""
    _killed(folder, "new_folder", tmp_path, monkeypatch)
    (tmp_path / "export.tmp").mkdir()
    output = os.path.join(folder, "export")
    with files.new_folder(output) as partial:
        assert os.listdir(partial) == []
        files.write(os.path.join(partial, "config.json"), b"{}")
        if "://" not in folder:
            with (
                pytest.raises(BadInput, match="another process writes it"),
                files.new_folder(output),
            ):
                pass
    assert files.read(f"{output}/config.json") == b"{}"
    assert {*os.listdir(tmp_path)} - {"export"} == {"export.tmp"}
    with contextlib.suppress(KeyError), files.new_folder(output + "2") as partial:
        raise KeyError
    assert not os.path.exists(partial) and files.listing(output + "2") == {}


def test_locked(tmp_path):
    with (
        files.locked(str(tmp_path), "in use"),
        pytest.raises(BadInput, match="in use; wait for it"),
        files.locked(str(tmp_path), "in use"),
    ):
        pass
    with files.locked("gs://bucket/a", "in use"), files.locked("gs://bucket/a", "in use"):
        pass
