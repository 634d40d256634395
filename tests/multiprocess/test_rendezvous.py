"""The rendezvous and the watch without JAX: who is missing or differs is named, and all stop at the
same step.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import hosts
import pytest
from jax._src.clusters import cloud_tpu_cluster
from shared import train_words, wait_until

from xlnet_jax import cli, messages
from xlnet_jax.config import Config, DistributedConfig
from xlnet_jax.distributed import processes, rendezvous
from xlnet_jax.distributed.links import ENVIRONMENT, ProcessInfo, find_process_info
from xlnet_jax.distributed.rendezvous import COMMAND, COUNT, Watch
from xlnet_jax.errors import BadInput, RestartMe, XLNetError

SOON = DistributedConfig(rendezvous_seconds=60)


def at_once(*actions, apart=0.0):
    """Calls each in a thread of its own; what it returned or raised, in order."""

    def caught(action):
        try:
            return action()
        except XLNetError as error:
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        calls = []
        for action in actions:
            calls.append(pool.submit(caught, action))
            time.sleep(apart)
        return [call.result(120) for call in calls]


def watch(process, values, port, processes=2, settings=SOON):
    return Watch(ProcessInfo(f"localhost:{port}", processes, process), values, settings)


def together(*sides, processes=None, settings=SOON, apart=0.0, port=None):
    """Runs `meet` of (process, values) in threads; what each returned or raised, in order."""
    port = port or hosts.free_port()
    meets = [
        lambda side=side: watch(*side, port, processes or len(sides), settings).meet()
        for side in sides
    ]
    return at_once(*meets, apart=apart)


def after(happened, *watches):
    """What `meet` of each raises when the time of all is over: as soon as this has happened,
    however long it took.
    """

    def over():
        wait_until(happened)
        for one in watches:
            one._began -= 2 * SOON.rendezvous_seconds

    return at_once(*(one.meet for one in watches), over)[:-1]


def check(errors, kind, *words):
    """All are errors of this kind, and have these words."""
    for error in errors:
        assert isinstance(error, kind), repr(error)
        assert all(word in str(error) for word in words), str(error)


def hello(process, values, **more):
    """The first message of a process."""
    said = {"process": process, "host": "elsewhere", "values": values, "token": "0", **more}
    return json.dumps(said).encode() + b"\n"


def knock(port):
    """A connection of a stranger to process 0, as soon as that listens."""
    ends = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("localhost", port + 1), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < ends
            time.sleep(0.01)


def close(results):
    """All end as at the end of a run."""
    at_once(*(lambda one=one: one.leave(0, "") for one in results))
    for one in results:
        one.close()


def test_a_missing_process_is_named_again_and_again_and_ends_in_42(caplog):
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        port, soon = hosts.free_port(), dataclasses.replace(SOON, report_seconds=0.1)
        said = "waiting for processes 1, 3 of 4 (here: 0 on "

        def told():
            by = [
                record.thread for record in caplog.records if record.getMessage().startswith(said)
            ]
            return len(by) >= 4 and len(set(by)) == 2

        results = after(told, *(watch(process, {}, port, 4, soon) for process in (0, 2)))
    check(results, RestartMe, "processes 1, 3 did not come within 60 s (here: 0 on ")


@pytest.mark.parametrize("to_itself", [False, True])
def test_a_missing_coordinator_is_named_also_by_one_that_reaches_itself(
    monkeypatch, caplog, to_itself
):
    """Fails if it takes its own signs of life for those of process 0: it waited for ever, and kept
    the port.
    """
    tries = []

    def itself(address, timeout):
        """The system does so by chance, once in 20,000 tries."""
        tries.append(address)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(address)
        connection.connect(address)
        return connection

    if to_itself:
        monkeypatch.setattr(socket, "create_connection", itself)

    def told():
        return (
            "waiting for process 0 of 2 (localhost:" in caplog.text and len(tries) >= 2 * to_itself
        )

    settings = dataclasses.replace(SOON, report_seconds=0.1)
    errors = after(told, watch(1, {}, hosts.free_port(), settings=settings))
    said = "process 0 did not come within 60 s (localhost:"
    check(errors, RestartMe, said, "Connection refused); start it, then restart all")


def test_a_process_number_that_comes_twice_or_is_out_of_range_ends_all_with_2(monkeypatch):
    """Number 0 twice: on one host, and on two, where the second one can listen, and no other
    process comes to it.
    """
    one, _, again = together((0, {}), (1, {}), (1, {}), apart=0.3)
    check((one, again), BadInput, "process 1 of 3 came from")
    said = f"distributed.process_id=77 ({socket.gethostname()}) must lie in [0, "
    check(together((0, {}), (77, {}), processes=2), BadInput, said)
    for listen_at in (rendezvous.listen_at, listen_at_separate_port):
        monkeypatch.setattr(rendezvous, "listen_at", listen_at)
        results = together((0, {"a": 1}), (0, {"a": 1}), apart=0.3)
        said = "distributed.process_id (or JAX_PROCESS_ID)"
        check(results, BadInput, "process 0 of 2 came from", said)


def listen_at_separate_port(port):
    """The two processes of a test are on hosts of their own."""
    with contextlib.suppress(OSError):
        return socket.create_server(("127.0.0.1", port))
    return socket.create_server(("127.0.0.2", port))


def test_an_unknown_host_of_process_0_is_asked_for_again_and_ends_all_with_2(monkeypatch):
    """A pod's name may be unknown for a while. A wrong one stays so; what the cluster gave is not
    the user's fault, and neither is a name server that does not answer.
    """
    tries = []

    def unknown(address, timeout):
        tries.append(address)
        raise error

    monkeypatch.setattr(socket, "create_connection", unknown)
    monkeypatch.setattr(rendezvous, "TICK_SECONDS", 0.02)
    cure = ("nowhere", "not known", "set distributed.coordinator (or JAX_COORDINATOR_ADDRESS)")
    for process in (0, 1):
        for configured, number, kind, said in (
            (True, socket.EAI_NONAME, BadInput, cure),
            (False, socket.EAI_NONAME, RestartMe, ()),
            (True, socket.EAI_AGAIN, RestartMe, ()),
        ):
            tries.clear()
            error = socket.gaierror(number, "Name or service not known")
            place = ProcessInfo(f"nowhere:{hosts.free_port()}", 2, process, configured=configured)
            check(after(lambda: len(tries) > 1, Watch(place, {}, SOON)), kind, *said)


def test_strangers_are_ignored_or_refused_alone(caplog):
    port = hosts.free_port()
    meets = [watch(process, {"train.steps": 4}, port).meet for process in range(2)]
    pool = ThreadPoolExecutor(1)
    first = pool.submit(meets[0])
    for words in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1]\n",
        b'{"process": "x"}\n',
        b"[" * 99_999 + b"\n",
        b"",
        b'{"process": 1, "host": "h", "values": {}, "token": "0"}\n',
    ):
        with knock(port) as stranger:
            stranger.sendall(words)
    other = {COUNT: 2, COMMAND: "", "train.steps": 5}
    for words, said in (
        (hello(77, other), "distributed.process_id=77 (elsewhere) must lie in"),
        (hello(-1, other), "distributed.process_id=-1 (elsewhere) must lie in"),
        (hello(1, other | {COUNT: 3}), "distributed.processes is 2 in process 0"),
        (hello(0, other), "another run is here"),
        (
            hello(1, {COUNT: 2, COMMAND: "score"}, end=2, why="no text"),
            "process 1 (elsewhere) ended: no text",
        ),
    ):
        with knock(port) as stranger:
            stranger.sendall(words)
            answer = json.loads(stranger.makefile().readline())
            assert answer["end"] == 2 and said in answer["why"]
    results = [meets[1](), first.result(30)]
    assert results[1].links[1].hello["values"]["train.steps"] == 4
    # One that is still connected at the end of the run.
    with socket.create_connection(("localhost", port + 1), timeout=5), pool:
        time.sleep(0.1)
        close(results)
    assert not caplog.records


def test_a_second_run_at_the_same_port_is_refused_in_one_line_and_the_first_stays():
    """JAX would let its processes in, and abort those of the first run."""
    port = hosts.free_port()
    first = together((0, {"data.corpus": "a"}), (1, {"data.corpus": "a"}), port=port)
    second = together((0, {"data.corpus": "b"}), (1, {"data.corpus": "b"}), port=port)
    said = f"port {port + 1} of {socket.gethostname()}: another run is here; wait for its end"
    check(second, BadInput, said)
    # A process of the same run that is back before the run has ended: it comes again.
    check(together((1, {"data.corpus": "a"}), processes=2, port=port), RestartMe)
    assert [sorted(watch.links) for watch in first] == [[1], [0]]
    close(first)
    # The port is free again, also that of the coordinator.
    close(together((0, {}), (1, {}), port=port))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("for_good", [True, False])
def test_a_port_that_another_program_keeps_ends_all_with_2_unless_it_is_free_after_a_while(
    monkeypatch, caplog, shift, for_good
):
    """Fails if a scheduler starts it again after 42 for ever, or if a restart fails at what is left
    before it.
    """
    monkeypatch.setattr(rendezvous, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(rendezvous, "TICK_SECONDS", 0.02)
    # Process 1 meets the other program, or process 0.
    silent = 0.2 if for_good and shift else 60
    settings = dataclasses.replace(SOON, report_seconds=0.01, heartbeat_seconds=silent)
    port = hosts.free_port()
    watches = [watch(process, {}, port, settings=settings) for process in range(2)]
    with socket.create_server(("", port + shift)) as other:
        if not for_good:
            threading.Timer(0.5, other.close).start()
            return close(at_once(*(one.meet for one in watches)))
        met = (lambda: "silent for 0.2 s" in caplog.text) if shift else (lambda: watches[0].links)
        results = after(met, *watches)
    said = "process 0 did not come within "
    check(results, BadInput, said, "stop what listens there, or set another distributed.coord")
    check(results[:1], BadInput, f"(port {port + shift} of ", "Address already in use)")
    check(results[1:], BadInput, "silent for 0.2 s" if shift else "Address already in use")


def test_a_port_that_needs_other_rights_is_bad_input(monkeypatch):
    def denied(port):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(rendezvous, "listen_at", denied)
    said = "Permission denied; set another distributed.coordinator"
    check(together((0, {})), BadInput, said)


@pytest.mark.parametrize(
    ("more", "seconds", "said"),
    [
        # A process whose host went away and is back: its old connection is half open, says nothing
        # more, stays open.
        ({}, 31, ""),
        ({"train.steps": 5}, 0, "another run is here"),
    ],
)
def test_who_has_a_number_and_is_gone_or_a_stranger_gives_way_to_the_right_process(
    more, seconds, said
):
    port = hosts.free_port()
    watches = [watch(process, {"train.steps": 4}, port, 3) for process in range(3)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(watches[0].meet)
        with knock(port) as other:
            other.sendall(hello(1, {COUNT: 3, COMMAND: "", **more}))
            wait_until(lambda: 1 in watches[0].links)
            watches[0].links[1].heard -= seconds  # of 60 until it is lost
            results = [*at_once(watches[1].meet, watches[2].meet), first.result(20)]
            assert said in other.makefile().read()
    assert sorted(len(one.links) for one in results) == [1, 1, 2]
    close(results)


@pytest.mark.parametrize("failed", [(1,), (0,), (0, 1), (0, 1, 2)])
def test_a_process_that_fails_before_the_meeting_ends_all(failed):
    port, began = hosts.free_port(), time.monotonic()
    watches = [watch(process, {}, port, 3) for process in range(3)]
    results = at_once(
        *(
            functools.partial(one.announce, 1, f"no corpus in {one.process}")
            if one.process in failed
            else one.meet
            for one in watches
        ),
        apart=0.1,
    )
    for process in failed:
        watches[process].close()
    assert time.monotonic() - began < SOON.rendezvous_seconds / 2
    assert [process for process in range(3) if results[process] is None] == list(failed)
    host = socket.gethostname()
    said = [f"process {one} ({host}) ended: no corpus in {one}" for one in failed]
    for process in {0, 1, 2} - set(failed):
        assert results[process].exit_code == 1 and str(results[process]) in said


@pytest.fixture
def command():
    """The command line as a process of its own would have it."""
    messages.output.command = "train"


@pytest.mark.parametrize(
    "wrong",
    [
        "--config=nix.py",
        "--config.data.corpus=/nix",
        "--config.distributed.process_id=77",
    ],
)
def test_whatever_stops_a_command_before_the_meeting_reaches_process_0(
    command, tmp_path, capsys, wrong
):
    port = hosts.free_port()
    place = [
        f"--config.distributed.coordinator=localhost:{port}",
        "--config.distributed.processes=2",
        "--config.distributed.process_id=1",
        "--config.distributed.rendezvous_seconds=20",
    ]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(together, (0, {}), processes=2, port=port)
        code = cli.main([*train_words(tmp_path, *place, wrong)])
        (error,) = first.result(30)
    _, _, line = capsys.readouterr().err.partition("xlnet-jax train: ")
    line = line.splitlines()[0]
    assert code == 2 and isinstance(error, BadInput)
    if "process_id" in wrong:
        assert line in str(error).replace(f" ({socket.gethostname()})", "")
    else:
        assert str(error) == f"process 1 ({socket.gethostname()}) ended: {line}"


@pytest.mark.parametrize("code, signals", [(2, True), (42, False)])
def test_a_failed_process_does_not_wait_for_ever(monkeypatch, code, signals):
    monkeypatch.setattr(processes, "GRACE_SECONDS", -4.5)
    place = [
        f"--config.distributed.coordinator=localhost:{hosts.free_port()}",
        "--config.distributed.processes=2",
        "--config.distributed.process_id=1",
    ]
    announce = Watch.announce

    def with_signal(watch, *why):
        # Not before: without the handler the signal would end the tests.
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        announce(watch, *why)

    if signals:
        monkeypatch.setattr(Watch, "announce", with_signal)
    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    processes.announce(None, place, code, "why")
    assert 0.4 < time.monotonic() - began < 10 and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("process", [0, 1, None])
def test_a_signal_before_or_in_the_meeting_ends_all_with_42(process):
    """The thread that received it says so, while the main thread starts (in the meeting: None).
    Fails if the number of a process that has come already counts as taken: 2.
    """
    port = hosts.free_port()
    watches = [watch(number, {}, port, 3) for number in range(2)]

    def signalled():
        wait_until(lambda: 1 in watches[0].links)
        if process is None:
            watches[1].leave(42, "SIGTERM")
        else:
            again = watch(process, {}, port, 3)
            again.announce(42, "SIGTERM")
            again.close()

    *ended, _ = at_once(*(one.meet for one in watches), signalled)
    said = f"process {1 if process is None else process} ({socket.gethostname()}) ended: SIGTERM"
    assert [(error.exit_code, str(error)) for error in ended] == [(42, said)] * 2


@pytest.fixture
def ends(monkeypatch):
    """What ends the processes of a test, by process number."""
    said = {}
    monkeypatch.setattr(
        rendezvous.Watch,
        "_exit",
        lambda self, code, why: said.setdefault(self.process, (code, why)),
    )
    monkeypatch.setattr(rendezvous, "GRACE_SECONDS", 0.2)
    return said


@pytest.mark.parametrize("lost", [False, True])
def test_the_end_of_a_process_is_passed_on_with_its_code_and_a_lost_one_is_named_to_all(ends, lost):
    first = together((0, {}), (1, {}), (2, {}))
    if not lost:
        first[1].leave(3, "diverged")
    first[1].close()
    wait_until(lambda: len(ends) == 2)
    who = f"process 1 ({socket.gethostname()})"
    end = (3, f"{who} ended: diverged")
    if lost:
        end = (42, f"lost {who}: its connection closed; rerun the same command on all hosts")
    assert ends == {0: end, 2: end}
    close([first[0], first[2]])


def test_an_error_is_printed_before_the_others_are_told(capsys):
    """Fails if a launcher that kills all processes at the end of the first takes the reason with
    it.
    """
    said = []
    messages.inform(lambda *how: said.append((*how, capsys.readouterr().err)))
    messages.error("xlnet-jax", "why", 3)
    messages.inform(None)
    assert said == [(3, "why", "xlnet-jax: why\n")]


@pytest.fixture
def nowhere(monkeypatch):
    """An environment without any cluster."""
    for name in (
        *ENVIRONMENT.values(),
        "JAX_LOCAL_DEVICE_IDS",
        "SLURM_JOB_ID",
        "TPU_SKIP_MDS_QUERY",
        "TPU_WORKER_HOSTNAMES",
    ):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_place_comes_from_keys_or_the_environment(nowhere):
    def find(**keys):
        return find_process_info(Config(distributed=DistributedConfig(**keys)))

    assert find() is None and find(processes=1) is None
    wanted = ProcessInfo("host:1234", 4, 3)
    assert find(coordinator="host:1234", processes=4, process_id=3) == wanted
    nowhere.setenv("JAX_COORDINATOR_ADDRESS", "host:1234")
    nowhere.setenv("JAX_NUM_PROCESSES", "4")
    with pytest.raises(BadInput, match="neither distributed.process_id nor JAX_PROCESS_ID is set"):
        find()
    nowhere.setenv("JAX_PROCESS_ID", "3")
    assert find() == wanted
    for junk in ("host", "a..b:4000", "host:\u00b2", "host:70000"):
        with pytest.raises(BadInput, match="must be HOST:PORT"):
            find(coordinator=junk)
    assert find(coordinator="[::1]:4000").coordinator == "[::1]:4000"
    with pytest.raises(BadInput, match="must lie in"):
        find(process_id=4)


SLURM = {
    "SLURM_JOB_ID": "4096",
    "SLURM_STEP_NODELIST": "node[003-006]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
GKE = {
    "TPU_WORKER_HOSTNAMES": "a.test,b.test",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1:8080",
}
TWO = {
    "agent-worker-number": "1",
    "worker-network-endpoints": "x:y:127.0.0.1,x:y:127.0.0.2",
    "tpu-env": "",
}
ALONE = TWO | {"agent-worker-number": "0", "worker-network-endpoints": "x:y:127.0.0.1"}
ONE_TASK = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("environment", "metadata", "keys", "found"),
    [
        (SLURM, None, {}, ProcessInfo("node003:61440", 4, 2, [0])),
        (SLURM, None, {"detect": False}, None),
        (
            SLURM,
            None,
            {"coordinator": "other:1", "process_id": 3},
            ProcessInfo("other:1", 4, 3, [0]),
        ),
        (SLURM | {"JAX_LOCAL_DEVICE_IDS": "0,1"}, None, {}, ProcessInfo("node003:61440", 4, 2)),
        # The only task of its node has all of its devices.
        (SLURM | {"SLURM_STEP_NUM_NODES": "4"}, None, {}, ProcessInfo("node003:61440", 4, 2)),
        (SLURM | ONE_TASK, None, {}, None),
        ({}, TWO, {}, ProcessInfo("127.0.0.1:8482", 2, 1)),
        # A machine of its own, and a pod of Kubernetes without TPUs: one process, as ever.
        ({}, ALONE, {}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None, {}, None),
        # Slices after each other.
        (GKE, TWO, {}, ProcessInfo("127.0.0.1:8482", 4, 3)),
    ],
)
def test_a_cluster_is_detected(nowhere, environment, metadata, keys, found):
    for name, value in environment.items():
        nowhere.setenv(name, value)
    if metadata:
        nowhere.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
        nowhere.setattr(cloud_tpu_cluster, "get_metadata", lambda key: (metadata[key], 200))
    assert find_process_info(Config(distributed=DistributedConfig(**keys))) == found


def test_a_cluster_that_does_not_answer_ends_in_42(nowhere):
    def refuse(key):
        raise ConnectionError("no route to host")

    nowhere.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    nowhere.setattr(cloud_tpu_cluster, "get_metadata", refuse)
    with pytest.raises(RestartMe, match="no route to host; set distributed.detect=false"):
        find_process_info(Config())
