"""What schedulers get: the manifest of a JobSet, the image, the batch file of SLURM."""

import json
import re
import shlex
import subprocess

import jsonschema
import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster
from launch_cloud import (
    BUCKET,
    GKE,
    LAUNCH,
    ROOT,
    SAVES,
    STUBS,
    TRAIN,
    check_refused,
    manifest,
    pod_of,
    wait_for,
)


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((STUBS / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


SEVERAL = [
    "--capacity=spot",
    "--topology=4x4",
    "--chips=4",
    "--slices=2",
    "--shared-workdir",
    "--max-restarts=7",
]


@pytest.mark.parametrize("words", [[], SEVERAL, ["--network=pod", "--service-account=xlnet"]])
def test_the_jobset_is_valid_and_filled_in(cloud, words):
    """`test_launch_golden.py` has the whole text."""
    found = manifest(cloud, *words)
    validator().validate(found)
    pod = pod_of(found)
    # The rendezvous has the port after JAX's.
    ports = {port["containerPort"] for port in pod["containers"][0]["ports"]}
    port = int(cloud_tpu_cluster.coordinator_port)
    assert {port, port + 1} <= ports
    # --print shows what kubectl gets.
    shown = cloud.run("gke.sh", *GKE, *words, "--print", "--", *TRAIN).stdout
    assert yaml.safe_load(shown) == found


def test_a_jobset_waits_in_a_queue_that_has_capacity_on_demand_first(cloud):
    found = manifest(cloud, "--queue=xlnet")
    validator().validate(found)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "xlnet"}
    *flavors, cluster, local = yaml.safe_load_all((LAUNCH / "gke" / "queue.yaml").read_text())
    (group,) = cluster["spec"]["resourceGroups"]
    names = [flavor["metadata"]["name"] for flavor in flavors]
    assert names == [flavor["name"] for flavor in group["flavors"]] == ["on-demand", "flex-start"]
    assert (
        group["coveredResources"] == ["google.com/tpu"] and cluster["metadata"]["name"] == "xlnet"
    )
    assert local["metadata"]["name"] == local["spec"]["clusterQueue"] == "xlnet"
    limits = pod_of(found)["containers"][0]["resources"]["limits"]
    assert [*limits] == group["coveredResources"]


def test_one_grace_time_of_spot_nodes_reaches_node_pod_and_trainer(cloud):
    nodes = yaml.safe_load((LAUNCH / "gke" / "spot_nodes.yaml").read_text())["kubeletConfig"]
    most = nodes["shutdownGracePeriodSeconds"] - nodes["shutdownGracePeriodCriticalPodsSeconds"]
    pod = pod_of(manifest(cloud, "--capacity=spot", f"--grace={most}"))
    assert pod["terminationGracePeriodSeconds"] == most == 105
    assert f"--config.checkpoint.grace_seconds={most}" in pod["containers"][0]["args"]
    words = [*GKE, "--capacity=spot", f"--grace={most + 1}"]
    check_refused(cloud.run("gke.sh", *words, "--", *TRAIN), "105")


def ends(rules: list[dict], code: int, disrupted: bool) -> str:
    """What the Job controller does with a failed pod: the action of the first rule that it meets,
    else Count.
    """
    lost = {"type": "DisruptionTarget", "status": "True"}
    for rule in rules:
        if disrupted and lost in rule.get("onPodConditions", []):
            return rule["action"]
        of = rule.get("onExitCodes")
        if of and (code in of["values"]) == (of["operator"] == "In"):
            return rule["action"]
    return "Count"


def test_42_restarts_the_jobset_and_other_codes_end_it(cloud):
    spec = manifest(cloud)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    container = job["template"]["spec"]["containers"][0]
    rules = job["podFailurePolicy"]["rules"]
    of_codes = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
    assert {rule["containerName"] for rule in of_codes} == {container["name"]}
    assert all(ends(rules, code, False) == "FailJob" for code in (1, 2, 3, 130))
    assert all(ends(rules, code, False) == "Count" for code in (42, 134, 137, 139, 143))
    assert ends(rules, 1, True) == "Count"
    # FailJob ends the Job for the reason PodFailurePolicy; Count, with no try left, for
    # BackoffLimitExceeded.
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] > 0
    # All slices, and none before all old ones are gone.
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    assert "targetReplicatedJobs" not in rule


def test_the_image_copies_what_is_there_and_runs_the_trainer_without_a_shell():
    text = (LAUNCH / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["xlnet-jax"]
    assert "--constraint=constraints.txt" in dict(steps)["RUN"] and ".[tpu]" in dict(steps)["RUN"]
    kept = {
        line[1:]
        for line in (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {word for name, words in steps if name == "COPY" for word in words.split()[:-1]}
    assert copied == kept and all((ROOT / word).exists() for word in copied)


def test_a_pod_is_checked_first_and_then_its_shell_is_the_trainer(cloud):
    (container,) = pod_of(manifest(cloud))["containers"]
    command = [*container["command"], *container["args"]]
    cloud.trainer(cloud.home, SAVES)
    trainer = f'exec {cloud.home}/xlnet_jax/.venv/bin/xlnet-jax "$@"'
    cloud.tools({"xlnet-jax": f'echo "$*" >>{cloud.folder}/told\n{trainer}'})
    (cloud.folder / "ill").write_text("x")
    (cloud.folder / "heard").touch()  # a trainer would end at once
    assert subprocess.run(command, env=cloud.environment, timeout=60).returncode == 2
    (cloud.folder / "heard").unlink()
    with subprocess.Popen(command, env=cloud.environment) as pod:
        wait_for(cloud.folder / "up")
        pod.terminate()
        assert pod.wait(30) == 42
    check = "doctor --workdir=/mnt/xlnet/run --corpus=/mnt/xlnet/it's a"
    trained = " ".join(["train", "--config.checkpoint.grace_seconds=600", *TRAIN[1:]])
    assert (cloud.folder / "told").read_text().splitlines() == [check, check, trained]
    assert cloud.heard() == ["SIGTERM", "saved"]


def test_gke_wants_a_claim_only_for_a_folder(cloud):
    words = [word for word in GKE if "--claim" not in word]
    check_refused(cloud.run("gke.sh", *words, "--", *TRAIN), "--claim")
    assert not cloud.calls()
    assert cloud.run("gke.sh", *words, "--", *BUCKET).returncode == 0


# As srun does: the command once on every node; the highest code.
SRUN = """highest=0
for SLURM_PROCID in 0 1; do
  export SLURM_PROCID
  "$@" || { code=$?; ((code > highest)) && highest=$code; }
done
exit $highest
"""


@pytest.mark.parametrize(
    "codes, array, restarts, again",
    [
        ([0, 0], "", 0, False),
        ([2, 2], "", 0, False),
        ([130, 130], "", 0, False),
        ([42, 42], "", 49, True),
        ([42, 42], "", 50, False),
        ([42, 137], "7", 0, True),
    ],
)
def test_a_slurm_job_goes_back_into_the_queue_on_42(cloud, codes, array, restarts, again):
    """`test_slurm.py` has the real one."""
    heard = cloud.folder / "heard"
    cloud.tools(
        {
            "srun": SRUN,
            "scontrol": f'echo "$@" >>{heard}',
            "trainer": (
                f'echo "$XLNET_JOB_ID $*" >>{heard}\n'
                f"codes=({codes[0]} {codes[1]})\n"
                "exit ${codes[$SLURM_PROCID]}"
            ),
        }
    )
    environment = {
        "SLURM_JOB_ID": "12",
        "SLURM_RESTART_COUNT": str(restarts),
        "XLNET_JAX": "trainer --nv",
    }
    if array:
        environment |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": array}
    batch = cloud.folder / "slurm_script"  # SLURM runs a copy
    batch.write_bytes((LAUNCH / "slurm.sbatch").read_bytes())
    done = subprocess.run(
        ["bash", batch, *BUCKET], cwd=ROOT, env=cloud.environment | environment, timeout=60
    )
    assert done.returncode == max(codes)
    job = "12_7" if array else "12"
    command = (
        f"slurm/{job} --nv train --config.checkpoint.grace_seconds=300 {shlex.join(BUCKET[1:])}"
    )
    seeds = "/7 --config.seeds.init=21 --config.seeds.data=22 --config.seeds.dropout=23"
    requeued = [f"requeue {job}"] * again
    assert cloud.heard() == [command + (seeds if array else "")] * 2 + requeued
    # The time before the limit is the one that the trainer knows.
    assert "--signal=TERM@300" in (LAUNCH / "slurm.sbatch").read_text()
