"""What runs on the hosts: startup.sh, and how several hosts begin and end together."""

import fcntl
import os
import signal
import subprocess
import time

import pytest
from launch_cloud import (
    BUCKET,
    CODE,
    CODES,
    EACH,
    READY,
    SAVES,
    TPU,
    TRAIN,
    lines,
    wait_for,
)


@pytest.mark.parametrize(
    "codes, rounds, end",
    [
        ([[0], [0]], 1, 0),
        # Lost its peer; the other one was killed. In both orders: gcloud tells the code of the
        # first only.
        ([[42, 0], [-9, 0]], 2, 0),
        ([[-9, 0], [42, 0]], 2, 0),
        # One has a reason that will not go away, the other one only knows that it is gone.
        ([[42], [2]], 1, 2),
        ([[42], [130]], 1, 130),
        # Killed at every start.
        ([5 * [-9], 5 * [42]], 5, 137),
    ],
)
@pytest.mark.parametrize(
    "script, words, second",
    [
        ("tpu_vm.sh", ["--accelerator=v4-16"], "host0-1"),
        ("queued_resource.sh", ["--slices=2"], "host1-0"),
        ("mig.sh", ["--accelerator=v5p-16", "--project=p"], "host0-1"),
    ],
)
def test_several_hosts_end_or_go_on_together(cloud, script, words, second, codes, rounds, end):
    """The stubs reach all hosts only with the flags for it."""
    names = ["host0-0", second]
    for name, each in zip(names, codes, strict=True):
        cloud.trainer(cloud.folder / name, EACH.format(host=name, codes=each))
    cloud.answers([READY[script]], [])
    done = cloud.run(script, *TPU, *words, "--", *BUCKET)
    assert done.returncode == end, done.stderr
    assert sorted(cloud.heard()) == sorted(names * rounds)


def test_a_host_that_does_not_start_ends_the_others_wait(cloud):
    # It runs another command already: startup.sh refuses, and what it wrote in an earlier round
    # does not count.
    cloud.trainer(cloud.folder / "host0-0", EACH.format(host="first", codes=[42, 42]))
    second = cloud.folder / "host0-1"
    second.mkdir()
    (second / "xlnet_jax.pid").write_text("1\n")
    (second / "xlnet_jax.pid.command").write_text("another \n")
    (second / "xlnet_code").write_text("42\n")
    with open(second / "xlnet_jax.pid") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cloud.answers(["READY"], [])
        done = cloud.run("tpu_vm.sh", *TPU, "--accelerator=v4-16", "--", *BUCKET)
    assert done.returncode == 2 and "runs another command here" in done.stderr + done.stdout
    assert cloud.heard() == ["first"]


@pytest.mark.parametrize(
    "option, codes, deleted",
    [
        ("--autodelete=any", 5 * [-9], True),
        ("--autodelete", [2], False),
        ("--autodelete", [0], True),
    ],
)
def test_after_any_last_code_a_booted_machine_deletes_itself_if_that_is_asked_for(
    cloud, option, codes, deleted
):
    # When it is to go, the disk is full at the end, and the first deletion fails.
    cloud.answers(["absent", "READY"], [])
    assert cloud.run("tpu_vm.sh", *TPU, "--boot", option, "--", *BUCKET).returncode == 0
    script = cloud.calls()[1]["metadata"]["startup-script"].splitlines()
    (words,) = lines(script[1].partition("set -- --boot ")[2])
    asked = cloud.folder / "asked"
    cloud.tools({"sleep": "", "gcloud": f'echo "$*" >>{asked}\n(($(grep -c "" {asked}) > 1))'})
    full = f"os.makedirs({str(cloud.home / 'xlnet_jax.pid.code')!r}, exist_ok=True)\n"
    cloud.trainer(cloud.home, deleted * full + EACH.format(host="me", codes=codes))
    cloud.run("startup.sh", "--pause=0", *words)
    assert cloud.heard() == ["me"] * len(codes)
    said = asked.read_text().splitlines() if asked.exists() else []
    assert said == 2 * ["compute tpus tpu-vm delete xlnet --zone=us-east5-b --quiet"] * deleted


def test_the_boot_script_brings_its_own_arguments_and_becomes_a_service(cloud):
    cloud.answers(["absent", "READY"], [])
    assert cloud.run("tpu_vm.sh", *TPU, "--boot", "--", *TRAIN).returncode == 0
    assert cloud.commands() == ["describe", "create", "describe"]
    script = cloud.calls()[1]["metadata"]["startup-script"]
    assert not list(cloud.folder.glob("xlnet_launch.*"))
    # Run as the metadata server's agent does, with stubs of what needs root; then as systemd would
    # run the copy.
    told = {
        name: f'printf "%s\\n" {name} "$@" >>{cloud.folder}/heard'
        for name in ("install", "systemd-run")
    }
    cloud.tools(told)
    boot = cloud.folder / "boot.sh"
    boot.write_text(script)
    assert subprocess.run(["bash", boot], env=cloud.environment, timeout=60).returncode == 0
    heard = cloud.heard()
    # Fails if systemd stops the whole service when the kernel kills the trainer for want of memory.
    assert heard[heard.index("systemd-run") :][3:5] == [
        "--property=KillMode=mixed",
        "--property=OOMPolicy=continue",
    ]
    service = heard[heard.index("/opt/xlnet_jax/startup.sh", heard.index("bash")) + 1 :]
    assert service == [*CODE, "--job=us-east5-b/xlnet", "--", *TRAIN]
    (cloud.folder / "heard").unlink()
    cloud.trainer(cloud.home, CODES.format(codes=[0]))
    done = subprocess.run(
        ["bash", boot, *service], env=cloud.environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0
    assert cloud.heard() == [repr(TRAIN)]


@pytest.mark.parametrize(
    "codes, words, end",
    [
        ([42, 42, 0], [], 0),
        ([130], [], 130),
        # A killed trainer runs again, but not for ever.
        ([-9, 42, -6, 1], [], 1),
        ([-9, 42, -11, -6, -9, -9, -11], [], 139),
        ([-9], ["--once"], 137),
        ([42], ["--once"], 42),
    ],
)
def test_startup_runs_again_on_42_and_after_a_kill_and_ends_with_any_other_code(
    cloud, codes, words, end
):
    cloud.trainer(cloud.home, EACH.format(host="me", codes=codes))
    done = cloud.run("startup.sh", *CODE, "--pause=0", *words, "--", *TRAIN)
    assert done.returncode == end and cloud.heard() == ["me"] * len(codes)
    assert (cloud.home / "xlnet_jax.log").read_text() == done.stdout
    assert (cloud.home / "xlnet_jax.pid.code").read_text() == f"{end}\n"


def test_startup_forwards_sigterm_once_and_waits_for_the_save(cloud):
    cloud.trainer(cloud.home, SAVES)
    with cloud.start("--pause=0") as process:
        wait_for(cloud.folder / "up")
        assert int((cloud.home / "xlnet_jax.pid").read_text()) == process.pid
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.1)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 42 and "ended with 42" in out
    assert cloud.heard() == ["SIGTERM", "saved"]


def test_a_stop_before_the_trainer_listens_or_between_two_runs_is_42(cloud):
    cloud.trainer(cloud.home, '(here / "up").touch()\ntime.sleep(30)')
    with cloud.start("--pause=30") as process:
        wait_for(cloud.folder / "up")
        process.terminate()
        assert process.wait(30) == 42
    (cloud.home / "xlnet_jax" / ".venv" / "bin" / "xlnet-jax").write_text("#!/bin/bash\nexit 42\n")
    with cloud.start("--pause=30") as process:
        assert process.stdout is not None
        while "ended with 42" not in process.stdout.readline():
            pass
        process.terminate()
        assert process.wait(30) == 42


def test_a_broken_connection_does_not_stop_the_trainer(cloud):
    cloud.trainer(
        cloud.home,
        "for i in range(20):\n"
        '    print("x" * 9999, flush=True)\n'
        "    time.sleep(0.02)\n"
        '(here / "up").touch()',
    )
    with cloud.start("--pause=0") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(30) == 0
    wait_for(cloud.folder / "up")


def test_a_second_startup_follows_the_first_and_ends_as_it_does(cloud):
    body = '(here / "up").touch()\nwhile not (here / "over").exists():\n    time.sleep(0.02)\n'
    cloud.trainer(cloud.home, body + 'print("the last line", flush=True)\nsys.exit(3)')
    with cloud.start() as first:
        wait_for(cloud.folder / "up")
        (cloud.folder / "up").unlink()
        other = cloud.run("startup.sh", *CODE, "--", *TRAIN, "--config.train.steps=1")
        assert other.returncode == 2 and f"kill -TERM {first.pid}" in other.stderr
        with cloud.start() as second:
            assert "following" in second.stdout.readline()
            assert "xlnet-jax train" in second.stdout.readline()
            (cloud.folder / "over").touch()
            out, _ = second.communicate(timeout=60)
        assert (second.returncode, first.wait(30)) == (3, 3)
    assert "the last line" in out and not (cloud.folder / "up").exists()


def test_a_host_that_the_doctor_refuses_three_times_does_not_train(cloud):
    cloud.trainer(cloud.home, '(here / "up").touch()')
    for times, code in ((3, 2), (2, 0)):
        (cloud.folder / "ill").write_text("x" * times)
        assert cloud.run("startup.sh", *CODE, "--pause=0", "--", *TRAIN).returncode == code
        assert (cloud.folder / "up").exists() == (code == 0)


def test_startup_installs_the_commit_once(cloud):
    """`test_launch_golden.py` has the commands. Here stubs write down what they are asked."""
    assert cloud.run("startup.sh", *CODE, "--dry-run", "--", *TRAIN).returncode == 0
    assert not list(cloud.home.iterdir())
    home = cloud.home / "xlnet_jax"
    cloud.tools(
        {name: f'echo {name} "$@" >>{cloud.folder}/asked' for name in ("git", "python3", "sudo")}
    )
    cloud.trainer(cloud.home, CODES.format(codes=[0, 0]))
    (home / ".venv" / "installed-abcdef1").unlink()
    for _ in range(2):
        assert cloud.run("startup.sh", *CODE, "--", *TRAIN).returncode == 0
    asked = (cloud.folder / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["git"] * 3 + ["python3"] * 4
    assert asked[0] == f"git init --quiet {home}"


def test_a_failed_fetch_or_pip_is_tried_again_and_ten_failures_are_one_line(cloud):
    # Fails if one failure of the network ends the launch of all hosts, or if the next start finds
    # half a checkout.
    fails = 'echo "$1" >>{0}\n(($(grep -c "" {0}) > 12))'.format(cloud.folder / "asked")
    cloud.tools(
        {
            "curl": "exit 6",  # no metadata server: nobody else sleeps
            "git": f"[[ $1 == -C ]] || exit 0\n{fails}",
            "python3": fails,
            "sleep": f"echo $1 >>{cloud.folder}/slept",
        }
    )
    cloud.trainer(cloud.home, CODES.format(codes=[0]))
    (cloud.home / "xlnet_jax" / ".venv" / "installed-abcdef1").unlink()
    done = cloud.run("startup.sh", *CODE, "--", *TRAIN)
    assert done.returncode == 1 and "failed 10 times: git" in done.stdout.splitlines()[-1]
    slept = (cloud.folder / "slept").read_text().split()
    assert len(slept) == 9
    for low, pause in zip((5, 10, 20, 40, 80), map(int, slept), strict=False):
        assert low <= pause <= 2 * low
    done = cloud.run("startup.sh", *CODE, "--", *TRAIN)
    assert done.returncode == 0 and done.stdout.count("will try again") == 2


def test_the_log_is_kept_in_the_bucket_in_parts(cloud):
    # Keeps what arrives by the end of its name; nothing arrives before the second attempt.
    keeps = f"""if [[ ! -e {cloud.folder}/up ]]; then
  mkdir {cloud.folder}/first || touch {cloud.folder}/second
  echo no route >&2
  exit 1
fi
[[ "$1 $2 $3 $4" == "storage cp --quiet -" ]] || exit 1
cat >{cloud.folder}/sent-"${{5##*-}}"
echo "$5" >>{cloud.folder}/heard"""
    cloud.tools({"gcloud": keeps, "sleep": "exec /bin/sleep $(($1 < 60 ? $1 : 0)).05"})
    (cloud.home / "xlnet_jax.log").write_text("of an earlier start\n")
    body = (
        'print("early", flush=True)\nwhile not (here / "second").exists():\n    time.sleep(0.02)\n'
    )
    cloud.trainer(
        cloud.home,
        body + '(here / "up").touch()\nprint("x" * (5 << 20))\nprint("the last line")\nsys.exit(3)',
    )
    done = cloud.run(
        "startup.sh", *CODE, "--logs=gs://bucket/logs", "--at-end=echo then $1", "--", *BUCKET
    )
    assert done.returncode == 3 and done.stdout.count("no route; retrying every minute") == 1
    first, second = ((cloud.folder / f"sent-000{number}.log").read_text() for number in (0, 1))
    assert len(first) == 4 << 20 and "early" in first and "earlier" not in first
    assert "the last line" in second and second.endswith("ended with 3\n")
    assert done.stdout.endswith("then 3\n")
    host = os.uname().nodename
    assert all(line.startswith(f"gs://bucket/logs/{host}/2") for line in cloud.heard())


def test_announced_maintenance_is_a_line_in_the_log(cloud):
    window = f'[[ "$*" == *upcoming-maintenance* && -e {cloud.folder}/up ]] || exit 22\necho WINDOW'
    cloud.tools(
        {"curl": f"{window} | tee -a {cloud.folder}/heard", "sleep": "exec /bin/sleep 0.05"}
    )
    # Until the third answer, when the second has been read.
    body = '(here / "heard").touch()\n(here / "up").touch()\n'
    cloud.trainer(
        cloud.home,
        body + 'while (here / "heard").read_text().count("W") < 3:\n    time.sleep(0.02)',
    )
    done = cloud.run("startup.sh", *CODE, "--", *BUCKET)
    assert done.returncode == 0 and done.stdout.count("maintenance of this host: WINDOW") == 1


def test_a_killed_script_leaves_no_lock_behind(cloud):
    # Fails if a helper keeps the lock: the next start would follow a log that nobody writes.
    number = (
        '(here / "number").write_text(str(os.getpid()))\n(here / "number").rename(here / "up")\n'
    )
    cloud.trainer(cloud.home, number + "time.sleep(20)")
    cloud.tools({"curl": "exit 22"})
    with cloud.start("--logs=gs://bucket/logs") as process:
        wait_for(cloud.folder / "up")
        process.kill()
    os.kill(int((cloud.folder / "up").read_text()), signal.SIGKILL)
    with open(cloud.home / "xlnet_jax.pid") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
