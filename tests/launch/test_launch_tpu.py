"""tpu_vm.sh, queued_resource.sh and mig.sh from the request to the last exit code: what is retried,
and what ends them.
"""

import re
import shutil
import signal
import subprocess

import pytest
from launch_cloud import (
    BUCKET,
    CODES,
    COMPLETE,
    EACH,
    GKE,
    LAUNCH,
    MIG,
    READY,
    ROOT,
    SAVES,
    TPU,
    TRAIN,
    WHERE,
    check_refused,
    wait_for,
)
from tables import ERRORS

TPU_VM, QUEUE = ("tpu_vm.sh", "READY"), ("queued_resource.sh", "ACTIVE")
RECREATE = ["--recreate"]
FLEX = ["--capacity=flex-start", *RECREATE]
AGAIN = ["delete", "create"]
RUN = ["scp", "ssh"]
ASKED = [*RUN, "ssh"]  # for the exit code of the host
GROUP_CREATE, GROUP_DELETE = 2 * ["create"], 3 * ["delete"]
LIVES = {
    # Words, states of the machine, codes of the connections; end, what was done, what was said.
    "interrupted": ("tpu_vm.sh", [], ["READY"], [42, 42, 0], 0, [*2 * ASKED, *RUN], ""),
    "a broken connection": (
        "queued_resource.sh",
        [],
        ["ACTIVE"],
        [255, 42, 255, 2],
        2,
        4 * ASKED,
        "the training ended with 2",
    ),
    "killed": ("tpu_vm.sh", [], ["READY"], [255, 137], 137, 2 * ASKED, "ended with 137"),
    "kept after an error": (
        "tpu_vm.sh",
        ["--autodelete"],
        ["READY"],
        [42, 3],
        3,
        2 * ASKED,
        "--delete deletes it",
    ),
    "deleted after an error": (
        "tpu_vm.sh",
        ["--autodelete=any"],
        ["READY"],
        [3],
        3,
        [*ASKED, "delete"],
        "deleting xlnet",
    ),
    "given up": (
        "tpu_vm.sh",
        ["--give-up-after=0s"],
        ["READY"],
        [255],
        1,
        ASKED,
        "gave up after 1 failures: no connection to xlnet; if xlnet still exists, --delete",
    ),
    "given up and deleted": (
        "tpu_vm.sh",
        ["--give-up-after=0s", "--autodelete=any"],
        ["READY"],
        [255],
        1,
        [*ASKED, "delete"],
        "deleting xlnet",
    ),
    "a preempted machine": ("tpu_vm.sh", [], ["PREEMPTED"], [], 1, [], "--recreate"),
    "one that is there, and preempted later": (
        "tpu_vm.sh",
        RECREATE,
        ["CREATING", "READY", "PREEMPTED", "PREEMPTED", "absent", "READY"],
        [255, 0],
        0,
        [*RUN, *AGAIN, *RUN],
        "",
    ),
    "a queue": (
        "queued_resource.sh",
        [],
        [
            "absent",
            "CREATING",
            "ACCEPTED",
            *2 * ["WAITING_FOR_RESOURCES"],
            "PROVISIONING",
            "ACTIVE",
        ],
        [0],
        0,
        ["create", *RUN],
        "WAITING_FOR_RESOURCES",
    ),
    **{
        state: ("queued_resource.sh", [], ["PROVISIONING", state], [], 1, [], state)
        for state in ("FAILED", "SUSPENDED", "SUSPENDING", "MELTED")
    },
    # Suspended during the training: the connection breaks.
    "suspended": (
        "queued_resource.sh",
        RECREATE,
        ["ACTIVE", *2 * ["SUSPENDING"], "SUSPENDED", "DELETING", "absent", "ACTIVE"],
        [255, 0],
        0,
        [*RUN, *AGAIN, *RUN],
        "",
    ),
    # It is not asked for again.
    "flex-start": (
        "queued_resource.sh",
        FLEX,
        ["absent", "ACTIVE", "SUSPENDED", "SUSPENDED"],
        [255],
        1,
        ["create", *RUN, "delete"],
        "its flex-start time of 7d is over",
    ),
    "it never answers": (
        "tpu_vm.sh",
        RECREATE,
        [*10 * ["READY"], "absent", "READY"],
        [*5 * [255], 0],
        0,
        [*5 * [*RUN, "ssh"], *AGAIN, *RUN],
        "did not answer 5 times",
    ),
    "a failed request": (
        "queued_resource.sh",
        RECREATE,
        ["PROVISIONING", "FAILED", "8\tno more capacity", "absent", "ACTIVE"],
        [0],
        0,
        [*AGAIN, *RUN],
        "",
    ),
    # Their reasons stay.
    **{
        reason: ("queued_resource.sh", RECREATE, ["FAILED", reason], [], 1, [], reason)
        for reason in (
            "7\tno right",
            "8\tQuota limit 'X' has been exceeded. Limit: 0 in region us-east5.",
        )
    },
    "no right for a group": ("mig.sh", RECREATE, ["ROLE"], [], 1, [], ERRORS["ROLE"]),
    "no quota for a group": (
        "mig.sh",
        RECREATE,
        ["CREATING HOST_QUOTA"],
        [],
        1,
        GROUP_DELETE,
        "xlnet has no hosts and was deleted: QUOTA_EXCEEDED",
    ),
    "a preempted group": (
        "mig.sh",
        [],
        ["RUNNING", "TERMINATED"],
        [255],
        1,
        RUN,
        "--recreate creates it again",
    ),
    "a group that is created again": (
        "mig.sh",
        RECREATE,
        ["RUNNING", *2 * ["SUSPENDED"], "absent", "RUNNING"],
        [255, 0],
        0,
        [*RUN, *GROUP_DELETE, *GROUP_CREATE, *RUN],
        "1 preemptions",
    ),
    # What follows the end is there for a launch that would ask again.
    "flex-start of a group": (
        "mig.sh",
        [*FLEX, "--max-run-duration=3d"],
        ["absent", "EMPTY", "RUNNING", *2 * ["STOPPING"], "absent", "RUNNING"],
        [255, 0],
        1,
        [*GROUP_CREATE, *RUN, *GROUP_DELETE],
        "its flex-start time of 3d is over",
    ),
    "flex-start of an earlier launch": (
        "mig.sh",
        FLEX,
        ["EMPTY", "absent", "RUNNING"],
        [0],
        1,
        GROUP_DELETE,
        "its flex-start time of 7d is over",
    ),
}


@pytest.mark.parametrize(
    "script, words, states, codes, end, did, said", LIVES.values(), ids=[*LIVES]
)
def test_a_machine_is_asked_for_waited_for_and_replaced_where_that_is_allowed(
    cloud, script, words, states, codes, end, did, said
):
    cloud.answers(states, codes)
    done = cloud.run(script, *COMPLETE[script], *words, "--", *BUCKET)
    assert done.returncode == end, done.stderr
    # Each state is told once, and a reason to end last.
    assert said in done.stderr.splitlines()[-1] if end else not said or done.stderr.count(said) == 1
    assert [command for command in cloud.commands() if command != "describe"] == did
    starts = [call["argv"] for call in cloud.calls() if "bash xlnet_startup.sh" in str(call)]
    assert all(start == starts[0] for start in starts)


@pytest.mark.parametrize(
    "script, state, error, did",
    [
        ("tpu_vm.sh", "DENIED", "DENIED", ["describe"]),
        ("tpu_vm.sh", "absent", "NO_TYPE", ["describe", "create"]),
        ("queued_resource.sh", "absent", "QUOTA_ZERO", ["describe", "create"]),
        ("mig.sh", "absent", "GROUP_MISSING", ["describe", "create"]),
    ],
)
def test_a_failure_that_stays_ends_the_script_with_one_line(cloud, script, state, error, did):
    cloud.answers([state], [])
    cloud.fails(create=[error])
    done = cloud.run(script, *COMPLETE[script], "--recreate", "--", *TRAIN)
    assert done.returncode == 1 and ERRORS[error] in done.stderr and done.stderr.count("\n") == 1
    assert cloud.commands() == did


@pytest.mark.parametrize("script, ready", [TPU_VM, QUEUE])
def test_failures_that_may_pass_are_retried_with_a_line_each(cloud, script, ready):
    # Fails if a stock-out, a quota in use, UNAVAILABLE, or a request that was made all the same
    # ends the launch.
    gone = "PREEMPTED" if ready == "READY" else "SUSPENDED"
    cloud.answers(["UNAVAILABLE", gone, *["absent"] * 5, "UNAVAILABLE", ready], [0])
    cloud.fails(create=["STOCKOUT", "INTERNAL", "QUOTA_USED", "EXISTS"], delete=["UNAVAILABLE"])
    done = cloud.run(script, *TPU, "--capacity=spot", "--recreate", "--autodelete", "--", *TRAIN)
    assert done.returncode == 0, done.stderr
    did = [command for command in cloud.commands() if command != "describe"]
    assert did == ["delete"] * 2 + ["create"] * 5 + ["scp", "ssh", "delete"]
    assert done.stderr.count("next try in 0 s") == 7 and "no more capacity" in done.stderr


@pytest.mark.slow
def test_failures_with_a_long_wait_between_them_are_not_in_a_row(cloud):
    # The first one must not count two seconds later, when the request still waits in the queue.
    cloud.answers(
        ["UNAVAILABLE", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "UNAVAILABLE", "ACTIVE"],
        [0],
    )
    done = cloud.run("queued_resource.sh", *TPU, "--poll=1", "--give-up-after=2s", "--", *BUCKET)
    assert done.returncode == 0, done.stderr


def test_without_gcloud_nothing_is_retried(cloud):
    cloud.answers(["absent"], [])
    (cloud.folder / "bin").mkdir()
    for name in ("bash", "basename", "dirname", "awk", "sed", "mktemp", "cp", "rm"):
        (cloud.folder / "bin" / name).symlink_to(shutil.which(name))
    cloud.environment["PATH"] = str(cloud.folder / "bin")
    done = cloud.run("tpu_vm.sh", *TPU, "--recreate", "--", *BUCKET)
    assert done.returncode == 1
    assert done.stderr == "tpu_vm.sh: gcloud is not installed, or not on PATH\n"


@pytest.mark.slow
def test_a_local_checkout_travels_as_a_bundle_and_secrets_as_a_file(cloud):
    host = cloud.folder / "host0-0"
    cloud.trainer(host, '(here / "heard").write_text(os.environ["TOKEN"])')
    cloud.environment["TOKEN"] = "it's a $secret"
    head = subprocess.check_output(
        ["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], text=True
    ).strip()
    (host / "xlnet_jax" / ".venv" / f"installed-{head}").touch()
    words = [*WHERE, "--accelerator=v6e-8", f"--repo={ROOT}", f"--commit={head}", "--poll=0"]
    cloud.answers(["READY"], [])
    assert cloud.run("tpu_vm.sh", *words, "--env=TOKEN", "--", *BUCKET).returncode == 0
    assert cloud.heard() == ["it's a $secret"]
    assert "secret" not in (cloud.folder / "calls.jsonl").read_text()
    assert not (host / "xlnet_env").exists() and not list(cloud.folder.glob("xlnet_launch.*"))
    # What a host reads it with.
    fetched = cloud.folder / "fetched"
    subprocess.run(["git", "clone", "--quiet", host / "xlnet_jax.bundle", fetched], check=True)
    assert (fetched / "launch" / "startup.sh").exists()
    # At boot nothing is copied by scp: the bundle comes from a bucket, and a secret has no way.
    boot = [*words, "--boot", "--staging=gs://bucket/code"]
    cloud.answers(["absent", "READY"], [])
    assert cloud.run("tpu_vm.sh", *boot, "--", *BUCKET).returncode == 0
    assert (cloud.folder / f"xlnet_jax-{head}.bundle").exists()
    script = cloud.calls()[-2]["metadata"]["startup-script"].splitlines()[1]
    assert f"--repo=gs://bucket/code/xlnet_jax-{head}.bundle" in script
    for wrong, said in (
        ([*boot, "--env=TOKEN"], "Secret Manager"),
        ([*words, "--boot"], "--staging"),
        ([*words, "--env=NOT_SET"], "NOT_SET"),
        ([*words, "--commit=0000000"], "--commit=0000000"),
    ):
        check_refused(cloud.run("tpu_vm.sh", *wrong, "--", *BUCKET), said)


def test_from_gcloud_to_the_trainer_every_word_and_the_id_of_the_job_arrive(cloud):
    """`test_launch_golden.py` has the IDs that the other scripts give."""
    host = cloud.folder / "host0-0"
    job = '(here / "job").write_text(os.environ["XLNET_JOB_ID"])\n'
    cloud.trainer(host, job + CODES.format(codes=[0]))
    cloud.answers(["READY"], [])
    done = cloud.run("tpu_vm.sh", *TPU, "--", *TRAIN, "--config.a=$HOME;\"x\" & 'y'")
    assert done.returncode == 0, done.stderr
    assert cloud.heard() == [repr([*TRAIN, "--config.a=$HOME;\"x\" & 'y'"])]
    assert (cloud.folder / "job").read_text() == "us-east5-b/xlnet"
    assert cloud.commands() == ["describe", "scp", "ssh"]
    assert "xlnet-jax ended with 0" in (host / "xlnet_jax.log").read_text()


BUILDS = ["--repository=r-docker.pkg.dev/p/x"]


@pytest.mark.parametrize(
    "script, words, name, left",
    [
        ("tpu_vm.sh", TPU, "SIGINT", "xlnet stays, may still run, and costs money"),
        ("mig.sh", MIG, "SIGTERM", "xlnet stays, may still run, and costs money"),
        ("gke.sh", GKE, "SIGINT", "its nodes cost money; --delete deletes it"),
        ("image.sh", BUILDS, "SIGTERM", "stay in r-docker.pkg.dev/p/x; the same command goes on"),
    ],
)
def test_a_signal_ends_the_script_at_once_with_one_line_and_leaves_the_training(
    cloud, script, words, name, left
):
    waits = f"touch {cloud.folder}/up\nsleep 30\ntouch {cloud.folder}/over"
    if script in READY:
        cloud.trainer(cloud.folder / "host0-0", SAVES)
        cloud.answers([READY[script]], [])
    else:
        cloud.tools(dict.fromkeys(("kubectl", "docker"), waits) | {"gcloud": ""})
    command = [LAUNCH / script, *words, *([] if script == "image.sh" else ["--", *BUCKET])]
    # A shell without job control starts what is in the background with SIGINT ignored, and bash
    # cannot trap that.
    process = subprocess.Popen(
        ["env", "--default-signal", *command],
        env=cloud.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(cloud.folder / "up")
    process.send_signal(signal.Signals[name])
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.Signals[name]
    assert said.startswith(f"{script}: ended by {name}: ") and left in said
    assert said.count("\n") == 1


def test_the_account_at_the_end_has_the_time_by_state_preemptions_and_the_cost(cloud):
    account = (
        r"time: waiting (\d+) s, set-up (\d+) s, training (\d+) s, restarting (\d+) s; (\d+) "
        r"preemptions; 8 chips for (\d+) s at 900 = (\d+)\.00"
    )
    cloud.trainer(
        cloud.folder / "host0-0", "time.sleep(1)\n" + EACH.format(host="me", codes=[3, 0])
    )
    # Preempted when the training ends for the first time.
    cloud.answers(["READY", "PREEMPTED", "PREEMPTED", "absent", "READY"], [])
    words = [*TPU, "--recreate", "--price-per-chip-hour=900", "--", *BUCKET]
    (found,) = re.findall(account, cloud.run("tpu_vm.sh", *words).stderr)
    _, setup, training, restarting, preemptions, held, cost = map(int, found)
    assert training >= 2 and held == setup + training + restarting
    assert cost == 2 * held and preemptions == 1
