"""The command line: help, exit codes, one clear line, one JSON object."""

import contextlib
import errno
import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from unittest import mock

import data_fixtures
import jax
import pytest
import tiny
import tiny_tpu

from xlnet_jax import cli, messages
from xlnet_jax.cli import main
from xlnet_jax.command_list import COMMANDS
from xlnet_jax.commands import inspect, quickstart
from xlnet_jax.commands.corpus import show_samples
from xlnet_jax.commands.texts import read_lines
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.distributed import mesh
from xlnet_jax.errors import BadInput, Diverged
from xlnet_jax.messages import print_lines
from xlnet_jax.options import Command, call, imported
from xlnet_jax.run import workdir

HERE = str(tiny.TESTS)
CONFIG, TPU = f"--config={HERE}/tiny_config.py", f"--config={tiny_tpu.__file__}"


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in out for word in ("example:", f"xlnet-jax {command}", "--json"))


def test_help_answers_without_loading_jax():
    code = (
        "import sys; from xlnet_jax.cli import make_parser; make_parser(); "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(HERE)).returncode == 0


@pytest.mark.parametrize(("words", "listed"), [([], COMMANDS), (["corpus"], COMMANDS[1:4])])
def test_a_command_that_is_left_out_is_answered_by_the_list(capsys, words, listed):
    assert main(words) == 0
    shown = capsys.readouterr()
    lines = {line.strip().partition(" ")[0] for line in shown.out.splitlines()}
    assert {command.name.split()[len(words)] for command in listed} <= lines
    assert shown.err == ""


@pytest.fixture
def left(tmp_path):
    """A work directory as a run has left it, of which only the identity is read."""

    def make(**sections):
        config = tiny.config(
            data={"corpus": data_fixtures.corpus_path(), **sections.pop("data", {})}, **sections
        )
        mixture = open_mixture(config)
        identity = workdir.identity(config, mixture.sha256, mixture.tokenizer.sha256)
        (tmp_path / "config.json").write_text(json.dumps(identity))
        return str(tmp_path)

    return make


def test_a_run_is_resumed_by_its_work_directory_alone(left, tmp_path, capsys):
    words = ["train", f"--workdir={left(train={'steps': 12})}", "--dry_run", "--json"]
    assert main([*words, "--config.train.batch_size=16"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["parameters"] > 1000
    assert "resuming with another elastic key: train.batch_size: 8 -> 16" in said.err
    assert main([*words, "--config.model.d_ff=16"]) == 2
    assert "model.d_ff" in capsys.readouterr().err
    for command in ("train", "finetune"):
        assert main([command, f"--workdir={tmp_path}/new"]) == 2
        line = capsys.readouterr().err
        assert f"--workdir={tmp_path}/new holds no run that could be resumed; give the" in line


CLM = {"objective": "clm", "reuse_len": 32, "num_predict": 32}


@pytest.mark.parametrize(
    ("sections", "step", "command"),
    [
        ({}, 40, "fill"),
        ({}, 20, "train"),
        ({"data": CLM}, 40, "generate"),
        ({"data": CLM, "model": {"architecture": "vanilla", "memory_len": 0}}, 40, "evaluate"),
    ],
)
def test_training_ends_with_the_command_that_goes_on(left, capsys, sections, step, command):
    folder = left(**sections)
    train_command = next(command for command in COMMANDS if command.name == "train")
    show = imported(train_command.show)
    show({"step": step, "loss": 5.0, "workdir": folder})
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said.keys() >= {"step", "command"}
    words = shlex.split(said["command"])
    assert words[:2] == ["xlnet-jax", command] and words[-1] == f"--workdir={folder}"
    assert cli.make_parser().parse_known_args(words[1:])[1] == []
    show({"step": 0, "loss": None, "workdir": f"{folder}/dry"})
    assert "command" not in capsys.readouterr().out


def corpus_option():
    return f"--config.data.corpus={data_fixtures.corpus_path()}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", CONFIG, "--workdir=W"], "data.corpus is empty"),
        (
            ["train", CONFIG, "--workdir=W", "--config.data.corpus=nowhere"],
            "if it has moved, name its folder (key",
        ),
        (["train", CONFIG, "--workdir=W", "--bogus"], "unknown option '--bogus'"),
        (
            ["export", "--workdir=W", "--output=X", "--steps=2"],
            "unknown option '--steps=2'. Did you mean '--step'?",
        ),
        (["train", CONFIG, "--workdr=W"], "unknown option '--workdr=W'. Did you mean '--workdir'?"),
        (
            ["train", CONFIG, "--workdir=W", "--lr=3"],
            "Did you mean '--config.optimizer.learning_rate'?",
        ),
        (
            ["generate", "--workdir=W", "one", "--seed=1", "two"],
            "unknown word 'two'; give all texts side by side",
        ),
        (
            ["train", f"--config={HERE}/tiny_cofnig.py", "--workdir=W"],
            f"Did you mean '{HERE}/tiny_config.py'?",
        ),
        (["train", CONFIG, "--workdir="], "--workdir is empty; give a value"),
        (["configure", "corpus", "--output="], "--output is empty; give a value, or leave it out"),
        (["configure", "CORPUS", "--minutes=nan"], "--minutes=nan must lie in"),
        (["configure", "CORPUS", "--output=config.json"], "give a file that ends in .py"),
        (["configure", "CORPUS", "--output=no/config.py"], "in a folder that exists"),
        (["configure", "CORPUS", "--config.train.steps=3"], "unknown option"),
        (["configure", ""], "corpus is empty; give a value"),
        (["compile", TPU, "--topology=v9:2x2"], "no such TPU; use for example v3:16x16, v4:8x8x4"),
        (
            ["compile", TPU, "--topology=v5e:3x5"],
            "v5e:3x5: no slice has this shape; v5e:16x16 exists, and v5e has 1x1, 2x2, 2x4, ",
        ),
        (["compile", TPU, "--topology=v5p:16x16x28"], "2x4x4, or multiples of 4, up to 6144 chips"),
        (
            ["compile", TPU, "--topology=v3:16x16", "--slices=2"],
            "--slices=2: v3 slices cannot be joined",
        ),
        (
            ["inspect", CONFIG, "--workdir=W"],
            "give --config=FILE, or the --workdir of a run, not both",
        ),
        (["inspect"], "give --config=FILE, or the --workdir of a run"),
        (["inspect", CONFIG, "--parameters", "--output=x.png"], "leave it out with --parameters"),
        (["train", "--config=--", "--workdir=W"], "'--config=--' has no value"),
        (
            ["corpus", "sample", "CORPUS", "--count=100000", "--length=1000000"],
            "must be at most 10,000,000 tokens",
        ),
        (["inspect", CONFIG, "--row=99", "CORPUS"], "--row=99 is not in [0, train.batch_size=8)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    corpus = data_fixtures.corpus_path() if words[0] in ("corpus", "configure") else corpus_option()
    words = [corpus if word == "CORPUS" else word for word in words]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert captured.err.startswith(f"xlnet-jax {words[0]}: ")
    assert os.listdir(tmp_path) == []


def test_every_whole_number_of_every_command_has_a_range(monkeypatch):
    monkeypatch.setattr(messages, "accept", lambda **_: None, raising=False)
    numbers = [
        (command, option)
        for command in COMMANDS
        for option in command.options
        if option.keywords.get("type") is int
    ]
    for command, option in numbers:
        options = {one.keywords.get("dest", one.name.lstrip("-")): None for one in command.options}
        accepts = command._replace(run="messages:accept")
        bounds = option.field.metadata["bounds"]
        for value in (bounds["at least"] - 1, bounds["at most"] + 1):
            with pytest.raises(BadInput, match=f"^{option.name}={value} must be .*at "):
                call(accepts, options | {option.name.lstrip("-"): value}, [])


def test_a_mistyped_file_or_folder_is_told_the_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "first.txt").write_text("text")
    for words, near in (
        (["corpus", "info", "boks"], "books"),
        (["configure", "boks/"], "books"),
        (["prepare", "--input=books/frist.txt", "--output=X"], "books/first.txt"),
        (["evaluate", "--workdir=book"], "books"),
        (["import", "books/first.tx", "--workdir=W"], "books/first.txt"),
    ):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert ". Did you mean '" in err and err.endswith(f"{near}'?\n")
    with pytest.raises(BadInput, match="no such file. Did you mean 'books/first.txt'"):
        read_lines("books/frst.txt")
    with monkeypatch.context() as closed, pytest.raises(BadInput, match="stdin is closed"):
        closed.setattr(sys, "stdin", None)
        read_lines("-")
    # Nothing is near a name that is there, or in a folder that is not.
    assert {messages.suggest_file(name) for name in ("books", "nowhere/first.txt", "")} == {""}


def test_a_pipe_is_no_file_of_text(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["prepare", f"--input={tmp_path}/pipe", f"--output={tmp_path}/X"]) == 2
    assert f"input {tmp_path}/pipe: a pipe or a device, not a file" in capsys.readouterr().err


def test_inspect_prints_the_example_as_json_and_draws_it(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "masks.png"
    words = ["inspect", CONFIG, corpus_option(), "--step=5", "--row=2"]
    assert main([*words, f"--output={picture}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["step"], shown["row"], shown["continues"]) == (5, 2, True)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*words, f"--output={picture}"]) == 2
    assert "--output needs matplotlib: run `pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"), [("large", 360_300_800, 319), ("base", 116_750_336, 163)]
)
def test_inspect_counts_parameters_as_the_original_names_them(capsys, name, parameters, tensors):
    """Also of a model whose attention needs another device."""
    path = os.path.join(HERE, "..", "configs", f"xlnet_{name}.py")
    words = ["inspect", f"--config={path}", "--parameters", "--json"]
    assert main([*words, "--config.model.attention=fused"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["parameters"], shown["tensors"]) == (parameters, tensors)
    assert shown["families"][0] == "xlnet"


def test_prepare_train_evaluate_and_export_from_the_command_line(tmp_path, capsys):
    """The documented path, with the JSON keys that scripts rely on."""
    corpus, run, exported = (str(tmp_path / name) for name in ("my corpus", "run", "exported"))
    prepared = [
        "prepare",
        f"--input={data_fixtures.text_folder()}",
        f"--output={corpus}",
        "--heldout=0.2",
        f"--tokenizer={data_fixtures.tokenizer_path()}",
        "--workers=1",
    ]
    assert main(prepared) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["vocabulary"] == str(data_fixtures.tokenizer().vocab_size)
    words = shlex.split(lines["command"])[1:]
    assert words[:2] == ["configure", corpus] and cli.make_parser().parse_known_args(words)[1] == []
    assert main([*prepared, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["dropped"] == {"marks": 0, "hangul": 0} and again["letters"] > 1000
    assert lines["letters"] == str(again["letters"]) and lines["dropped.marks"] == "0"
    words = [CONFIG, f"--config.data.corpus={corpus}", f"--workdir={run}", "--stop_at=4", "--json"]
    assert main(["train", *words]) == 0
    keys = "step loss tokens_per_second workdir seconds goodput heldout_loss heldout_share picture"
    trained = json.loads(capsys.readouterr().out)
    assert trained.keys() == {*keys.split(), "unigram_cross_entropy"}
    assert main(["evaluate", f"--workdir={run}", "--batch_size=8", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    keys = "heldout_loss perplexity loss_without_memory targets heldout_share"
    assert {*keys.split()} <= scores.keys() and scores["step"] == 4
    assert main(["evaluate", f"--workdir={run}", "--config.model.attention=fused"]) == 2
    assert "model.attention=fused: there is no kernel for cpu" in capsys.readouterr().err
    shutil.rmtree(corpus)  # the work directory has the tokenizer
    assert main(["export", f"--workdir={run}", f"--output={exported}", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert f"{exported}/model.safetensors" in files and f"{exported}/tokenizer.json" in files
    assert main(["export", f"--workdir={run}", f"--output={exported}"]) == 2
    assert exported in capsys.readouterr().err


@pytest.fixture
def command(monkeypatch):
    """Puts a command `x` in the place of all others: `command(run, show)`."""

    def put(run, show=print_lines):
        monkeypatch.setattr(cli, "TOPICS", {"data": ("x",)})
        for name, function in (("run", run), ("show", show)):
            monkeypatch.setattr(messages, f"{name}_x", function, raising=False)
        fake = Command("x", "Does §.", "xlnet-jax x", "messages:run_x", show="messages:show_x")
        monkeypatch.setattr(cli, "COMMANDS", (fake,))

    return put


def caused(error, by):
    """The error, as if raised from another one."""
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadInput("no\nsuch \x1b[31mfile"), 2, "no\\nsuch \\x1b[31mfile"),
        (Diverged("three bad steps"), 3, "three bad steps"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\n"),
            2,
            "out of memory: RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.; use a smaller ",
        ),
        (
            caused(MemoryError("1 GiB"), by=RuntimeError("the traceback of a worker")),
            2,
            "out of memory (1 GiB); use a machine with more, fewer workers, or smaller inputs",
        ),
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/psm_1"),
            2,
            "Too many open files; raise the limit of open files (`ulimit -n`, or ",
        ),
    ],
)
def test_an_error_is_one_line_and_with_json_an_object_as_well(command, capsys, error, code, said):
    command(mock.Mock(side_effect=error))
    assert main(["x"]) == code
    captured = capsys.readouterr()
    line = captured.err.removeprefix("xlnet-jax x: ").removesuffix("\n")
    assert line.startswith(said) and captured.out == "" and captured.err.count("\n") == 1
    assert main(["x", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": line, "exit_code": code}
    assert captured.err.count("\n") == 1


def test_what_workers_leave_in_shared_memory_is_removed_without_a_word():
    program = """from multiprocessing.shared_memory import SharedMemory
from xlnet_jax import cli
cli.main = lambda: print(SharedMemory(create=True, size=1).name, flush=True) or 0
cli.program()"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tiny.ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout and not os.path.exists(f"/dev/shm/{done.stdout.strip()}")


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        cli._open_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_bug_keeps_its_traceback_and_tells_json_too(command, capsys):
    command(mock.Mock(side_effect=ZeroDivisionError("division by zero")))
    assert main(["x", "--json"]) == 1
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["exit_code"] == 1 and "ZeroDivisionError: division by zero" in told["error"]
    assert captured.err.startswith("Traceback")


def test_a_process_that_is_ended_from_a_thread_tells_json_too():
    code = "from xlnet_jax import messages; messages.output.json = True; messages.end(42, 'x')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=os.path.dirname(HERE), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (42, "xlnet-jax: x\n")
    assert json.loads(done.stdout) == {"error": "x", "exit_code": 42}


def test_numbers_are_for_scripts_and_durations_for_people(command, capsys):
    result = {
        "step": 8,
        "loss": 0.123456789,
        "seconds": {"steps": 3720.0, "data": 12.34},
        "tokens_per_second": 59.0,
    }
    command(lambda overrides: result)
    assert main(["x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["x"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines == {
        "step": "8",
        "loss": "0.123457",
        "seconds.steps": "1 h 02 min",
        "seconds.data": "12.3 s",
        "tokens_per_second": "59",
    }
    print_lines({"step": 0, "loss": None, "seconds": None, "nothing": {}})
    assert capsys.readouterr().out.split() == ["step", "0"]
    assert messages.quantity(1, "document") == "1 document"
    assert messages.quantity(2000, "token") == "2,000 tokens"
    assert messages.quantity(2, "batch") == "2 batches"
    for seconds, said in ((59.94, "59.9 s"), (59.96, "1 min 00 s"), (3599.6, "1 h 00 min")):
        assert messages.duration(seconds) == said


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_json_is_readable_wherever_stdout_can_hold_it(command, encoding):
    text, plain = "中文 é 🙂 \x9b \u2028 \udc80", "中文 é 🙂"

    def output(*words, code=0):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding)
        with contextlib.redirect_stdout(stdout):
            assert main(["x", *words]) == code
        return stdout.buffer.getvalue().decode(encoding)

    for several in (False, True):
        result = {"text": text}
        command(mock.Mock(return_value=[result] if several else result))
        line = output("--json")
        assert json.loads(line) == result and len(line.splitlines()) == 1
        assert (plain in line) == (encoding == "utf-8") and "\x9b" not in line
    command(mock.Mock(return_value=text), show=print)
    assert output().startswith(plain.encode(encoding, "backslashreplace").decode(encoding))
    command(mock.Mock(side_effect=BadInput(plain)))
    line = output("--json", code=2)
    assert json.loads(line)["error"] == plain and (plain in line) == (encoding == "utf-8")
    with pytest.raises(SystemExit, match="0"):
        output("--help")


@pytest.mark.parametrize("words", [["corpus", "info", "CORPUS"], ["--help"]])
def test_a_closed_pipe_is_quiet_and_a_full_device_is_one_line(words):
    words = [data_fixtures.corpus_path() if word == "CORPUS" else word for word in words]

    # Without a buffer argparse itself passes over what it cannot write.
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONPATH": os.path.dirname(HERE)}
    program = [sys.executable, "-m", "xlnet_jax"]

    def run(stdout):
        done = subprocess.run(
            [*program, *words], env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        return done.returncode, done.stderr

    read, write = os.pipe()
    os.close(read)
    assert run(write) == (cli.OUTPUT_CLOSED, "")
    os.close(write)
    with open("/dev/full", "wb") as full:
        assert run(full) == (2, "xlnet-jax: cannot write the output: No space left on device\n")
        # A closed log, or one on a full disk, does not change the exit code.
        if "--help" not in words:
            shell = ["bash", "-c", '"$@" 2>&-', "bash", *program, "corpus", "info", "nowhere"]
            assert subprocess.run(shell, env=environment).returncode == 2
            assert subprocess.run(shell[4:], env=environment, stderr=full).returncode == 2


def test_a_platform_that_is_not_here(monkeypatch):
    words = [sys.executable, "-m", "xlnet_jax", "inspect", CONFIG, "--parameters"]
    environment = {**os.environ, "JAX_PLATFORMS": "junk"}
    done = subprocess.run(words, cwd=tiny.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert "JAX_PLATFORMS=junk: Unable to initialize backend 'junk'" in done.stderr
    # A platform of GPUs without its plugin: JAX only asserts.
    monkeypatch.setattr(jax, "devices", lambda: (_ for _ in ()).throw(AssertionError()))
    with pytest.raises(BadInput, match="no such platform here; set JAX_PLATFORMS"):
        mesh.available_devices()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/below", "/file is a file"),
        ("link", "link is a link to "),
        ("full", "holds other files (a.pdf, photo.jpg, ...) and no run"),
    ],
)
def test_a_work_directory_that_cannot_be_one_is_refused_before_anything_is_written(
    tmp_path, capsys, name, why
):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    (tmp_path / "full").mkdir()
    for other in ("thesis.tex", "a.pdf", "photo.jpg"):
        (tmp_path / "full" / other).write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", CONFIG, corpus_option(), f"--workdir={tmp_path}/{name}"]) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before


def test_the_quick_start_writes_only_into_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "speeches", lambda: pytest.fail("it began"))
    words = ["quickstart", f"--config={HERE}/../configs/quickstart.py"]
    shutil.copytree(data_fixtures.corpus_path(), tmp_path / "corpus")
    assert main([*words, f"--workdir={tmp_path}/corpus"]) == 2
    assert (
        "and no quick start; name a new folder, or that of a quick start" in capsys.readouterr().err
    )
    with pytest.raises(pytest.fail.Exception, match="it began"):
        main([*words, f"--workdir={tmp_path}"])


def test_a_work_directory_may_hold_what_systems_and_killed_runs_leave(tmp_path):
    workdir.check_folder(str(tmp_path / "new" / "below"))
    for name in ("lost+found", ".snapshot", "train.log", "compilation_cache"):
        (tmp_path / name).mkdir()
    workdir.check_folder(str(tmp_path))
    (tmp_path / "notes").mkdir()
    with pytest.raises(BadInput, match="notes"):
        workdir.check_folder(str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    workdir.check_folder(str(tmp_path))


def test_links_to_nothing_are_named(tmp_path, capsys):
    (tmp_path / "link").symlink_to("missing")
    link = f"{tmp_path}/link"
    for words in (
        ["inspect", f"--config={link}"],
        ["evaluate", f"--workdir={link}"],
        ["prepare", f"--input={link}", f"--output={tmp_path}/corpus"],
        ["corpus", "info", link],
    ):
        assert main(words) == 2
        assert f"{link} is a link to missing, which does not exist" in capsys.readouterr().err


def test_texts_of_a_corpus_cannot_command_a_terminal(capsys):
    text = "red \x1b[31m, bell \a, right to left \u202e, ن\u200cخ, हिन्दी"
    show_samples({"samples": [{"split": "train", "start": 3, "text": text}]})
    assert (
        "red \\x1b[31m, bell \\x07, right to left \\u202e, ن\u200cخ, हिन्दी\n"
        in capsys.readouterr().out
    )
    shown = inspect.example(
        tiny.config(data={"corpus": data_fixtures.corpus_path()}), step=0, row=0
    )
    shown["pieces"][0] = "[/bold]\x1b"  # nor is it markup
    inspect.print_example(shown)
    assert "[/bold]\\x1b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "near"),
    [("trian", "train"), ("corpus vrify", "verify"), ("corpus trian", None)],
)
def test_a_mistyped_command_is_told_the_nearest_and_json_too(words, near, capsys):
    assert main([*words.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 2 and ("usage: " in err) == (near is None)
    assert err.endswith(f". Did you mean '{near}'?\n") == bool(near)
