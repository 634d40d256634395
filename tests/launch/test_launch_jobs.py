"""What schedulers get: the manifest of a JobSet, the workload of xpk, the image, the script for SLURM."""

import json
import pathlib
import re
import subprocess
import sys

import jsonschema
import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster
from launch_cloud import BUCKET, GKE, LAUNCH, ROOT, STUBS, TRAIN, manifest, pod_of


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((STUBS / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


SEVERAL = ["--spot", "--topology=4x4", "--chips=4", "--slices=2", "--shared-workdir", "--max-restarts=7"]


@pytest.mark.parametrize("words", [[], SEVERAL, ["--network=pod", "--service-account=xlnet"]])
def test_the_jobset_is_valid_and_filled_in(cloud, words):
    """`test_launch_golden.py` has the whole text."""
    found, spot = manifest(cloud, *words), "--spot" in words
    validator().validate(found)
    job, pod = found["spec"]["replicatedJobs"][0], pod_of(found)
    assert job["replicas"] == (2 if spot else 1)
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == (4 if spot else 1)
    # The trainer knows the time that it gets: of a Spot node 15 seconds, whatever the pod requests.
    grace = f"--config.checkpoint.grace_seconds={15 if spot else 600}"
    assert pod["containers"][0]["args"] == ["train", grace, *TRAIN[1:]]
    # The rendezvous has the port after JAX's.
    ports = [port["containerPort"] for port in pod["containers"][0]["ports"]]
    assert int(cloud_tpu_cluster.coordinator_port) in ports and int(cloud_tpu_cluster.coordinator_port) + 1 in ports
    # --print shows what kubectl gets.
    assert yaml.safe_load(cloud.run("gke.sh", *GKE, *words, "--print", "--", *TRAIN).stdout) == found


def test_a_misspelt_field_of_the_manifest_fails(cloud):
    """Every field that the API names is renamed, one at a time."""
    found, checker = manifest(cloud), validator()
    assert checker.is_valid(found)
    tried = 0

    def misspell(node):
        nonlocal tried
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(node, dict):
                node[f"{key}s"] = node.pop(key)
                assert not checker.is_valid(found), key
                tried += 1
                node[key] = node.pop(f"{key}s")
            if isinstance(value, dict | list) and key not in ("annotations", "nodeSelector", "limits"):
                misspell(value)

    misspell(found)
    assert tried > 50


def ends(rules: list[dict], code: int, disrupted: bool) -> str:
    """What the Job controller does with a failed pod: the action of the first rule that it meets, else Count."""
    for rule in rules:
        if "onPodConditions" in rule:
            if disrupted and any(one["type"] == "DisruptionTarget" for one in rule["onPodConditions"]):
                return rule["action"]
        else:
            of = rule["onExitCodes"]
            if (code in of["values"]) == (of["operator"] == "In"):
                return rule["action"]
    return "Count"


def test_42_restarts_the_jobset_and_other_codes_end_it(cloud):
    spec = manifest(cloud)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    container = job["template"]["spec"]["containers"][0]
    assert {
        rule["onExitCodes"]["containerName"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    } == {container["name"]}
    rules = job["podFailurePolicy"]["rules"]
    did = {code: ends(rules, code, False) for code in (1, 2, 3, 42, 130, 134, 137, 139, 143)}
    assert {code for code, action in did.items() if action == "FailJob"} == {1, 2, 3, 130}
    assert {code for code, action in did.items() if action == "Count"} == {42, 134, 137, 139, 143}
    assert ends(rules, 1, True) == "Count"
    # FailJob ends the Job for the reason PodFailurePolicy; Count, with no try left, for BackoffLimitExceeded.
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] > 0
    # All slices, and none before all old ones are gone.
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate" and "targetReplicatedJobs" not in rule


def test_the_image_copies_what_is_there_and_runs_the_trainer_without_a_shell():
    text = (LAUNCH / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["xlnet-jax"]
    assert "--constraint=constraints.txt" in dict(steps)["RUN"] and ".[tpu]" in dict(steps)["RUN"]
    kept = {line[1:] for line in (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for name, words in steps if name == "COPY" for word in words.split()[:-1]}
    assert copied == kept and all((ROOT / word).exists() for word in copied)


def test_gke_wants_a_claim_only_for_a_folder(cloud):
    words = [word for word in GKE if "--claim" not in word]
    done = cloud.run("gke.sh", *words, "--", *TRAIN)
    assert done.returncode == 2 and "--claim" in done.stderr and not cloud.calls()
    assert cloud.run("gke.sh", *words, "--", *BUCKET).returncode == 0
    pod = pod_of(yaml.safe_load(cloud.calls()[-1]["stdin"]))
    assert [volume["name"] for volume in pod["volumes"]] == ["shm"]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["shm"]


# As srun does: the command once on every node; the highest code.
SRUN = """highest=0
for SLURM_NODEID in 0 1; do
  export SLURM_NODEID
  "$@" || { code=$?; ((code > highest)) && highest=$code; }
done
exit $highest
"""


@pytest.mark.parametrize(
    "codes, end, again", [([0, 0], 0, 0), ([42, 42], 42, 1), ([42, 137], 137, 1), ([2, 2], 2, 0), ([3, 3], 3, 0)]
)
def test_the_slurm_script_names_every_process_and_goes_back_into_the_queue_on_42(cloud, codes, end, again):
    page = (ROOT / "docs" / "pods.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    heard, ours = cloud.folder / "heard", "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID $*"
    cloud.tools({
        "srun": SRUN,
        "scontrol": f'case $1 in show) printf "node0\\nnode1\\n" ;; *) echo "$@" >>{heard} ;; esac',
        "xlnet-jax": f'echo "{ours}" >>{heard}\ncodes=({codes[0]} {codes[1]})\nexit ${{codes[$JAX_PROCESS_ID]}}',
    })  # fmt: skip
    (cloud.folder / ".venv" / "bin").mkdir(parents=True)
    (cloud.folder / ".venv" / "bin" / "activate").touch()
    environment = cloud.environment | {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", script], cwd=cloud.folder, env=environment, timeout=60)
    assert done.returncode == end
    lines = cloud.heard()
    command = (
        "train --config=configs/xlnet_large.py --config.data.corpus=/shared/corpus --workdir=/shared/run "
        "--config.checkpoint.grace_seconds=300"
    )
    assert lines[:2] == [f"node0:61447 2 {process} {command}" for process in (0, 1)]
    assert lines[2:] == ["requeue 7"] * again
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, "--exclude=SC1091,SC2016", "-"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")
