"""What schedulers get: the manifest of a JobSet, the workload of xpk, the image, the script for SLURM."""

import copy
import json
import pathlib
import re
import shlex
import subprocess
import sys

import jsonschema
import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster
from launch_cloud import BUCKET, GKE, LAUNCH, ROOT, STUBS, TRAIN, XPK, manifest, pod_of


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((STUBS / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_jobset_is_valid_and_filled_in(cloud):
    several = ["--topology=4x4", "--chips=4", "--slices=2", "--shared-workdir"]
    found = manifest(cloud, "--spot", *several, "--max-restarts=7", "--flags=v6e")
    validator().validate(found)
    assert not re.search(r"@[A-Z_]+@", json.dumps(found))
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 7
    job = found["spec"]["replicatedJobs"][0]
    assert job["replicas"] == 2
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 4
    assert found["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    pod = pod_of(found)
    # The trainer knows the time that it gets: of a Spot node 15 seconds, whatever the pod requests.
    assert pod["containers"][0]["args"] == ["train", "--config.checkpoint.grace_seconds=15", *TRAIN[1:]]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] >= 300
    # The rendezvous has the port after JAX's.
    ports = [port["containerPort"] for port in pod["containers"][0]["ports"]]
    assert int(cloud_tpu_cluster.coordinator_port) in ports and int(cloud_tpu_cluster.coordinator_port) + 1 in ports
    plain = manifest(cloud)
    assert "cloud.google.com/gke-spot" not in pod_of(plain)["nodeSelector"]
    assert pod_of(plain)["containers"][0]["args"][1] == "--config.checkpoint.grace_seconds=600"
    # --print shows what kubectl gets.
    printed = cloud.run("gke.sh", *GKE, "--print", "--", *TRAIN)
    assert yaml.safe_load(printed.stdout) == plain


def test_on_the_host_network_pods_have_the_identity_of_the_node_and_otherwise_their_own(cloud):
    """Catches a Kubernetes service account on the host network: GKE ignores it there, and the bucket answers 403."""
    metadata = "iam.gke.io/gke-metadata-server-enabled"
    host, own = pod_of(manifest(cloud)), pod_of(manifest(cloud, "--network=pod", "--service-account=xlnet"))
    for found in (manifest(cloud), manifest(cloud, "--network=pod", "--service-account=xlnet")):
        validator().validate(found)
        # Either way the names of the headless service lead from pod to pod.
        assert found["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert host["hostNetwork"] is True and host["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "serviceAccountName" not in host and metadata not in host["nodeSelector"]
    assert "hostNetwork" not in own and own["dnsPolicy"] == "ClusterFirst"
    assert own["serviceAccountName"] == "xlnet" and own["nodeSelector"][metadata] == "true"
    # Nothing else differs.
    for pod in (host, own):
        for field in ("hostNetwork", "dnsPolicy", "serviceAccountName"):
            pod.pop(field, None)
        pod["nodeSelector"].pop(metadata, None)
    assert host == own


@pytest.mark.parametrize(
    "words, said",
    [
        (["--service-account=xlnet"], "--network=pod"),
        (["--network=host", "--service-account=xlnet"], "--network=pod"),
        (["--network=pod"], "--service-account"),
        (["--network=bridge"], "host|pod"),
    ],
)
def test_a_network_on_which_the_identity_has_no_effect_is_refused_in_one_line(cloud, words, said):
    done = cloud.run("gke.sh", *GKE, *words, "--", *BUCKET)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr and not cloud.calls()


@pytest.mark.parametrize(
    "argv, code, said",
    [
        (["kubectl", "apply", "--fielname=-"], 1, "unknown flag: --fielname"),
        (["kubectl", "apply"], 1, "must specify one of -f and -k"),
        (["kubectl", "delete", "jobsets", "x"], 1, "doesn't have a resource type"),
        (["kubectl", "launch"], 1, "no such command"),
        (["xpk", "workload", "create", "--cluster=c", "--workload=w", "--tpu-type=v6e-8"], 2, "--command"),
        (["xpk", "workload", "delete", "--cluster=c"], 2, "--workload"),
        (["xpk", "workload", "delete", "--cluster=c", "--workload=w", "--num-slices=2"], 2, "--num-slices=2"),
        (["xpk", "workload", "delete", "--cluster=c", "--workload=w", "more"], 2, "0-0 names"),
    ],
)
def test_the_stubs_refuse_what_the_tables_of_flags_do_not_have(cloud, argv, code, said):
    done = cloud.stub(*argv)
    assert done.returncode == code and said in done.stderr and not cloud.calls()


def test_eight_chips_of_xpk_are_two_hosts(cloud):
    """Its node pools have four chips per host; a folder would be another one on each (as on Cloud TPU: one host)."""
    for kind in ("v5litepod-8", "v6e-2x4"):
        done = cloud.run("xpk.sh", *XPK, f"--tpu-type={kind}", "--dry-run", "--", *TRAIN)
        assert done.returncode == 2 and "2 hosts" in done.stderr


def test_a_misspelt_field_of_the_manifest_fails(cloud):
    found = manifest(cloud)
    checker = validator()
    assert checker.is_valid(found)
    names = []

    def misspell(node, path):
        """Renames every field that the API names, one at a time."""
        if isinstance(node, dict):
            for key in node:
                names.append((*path, key))
                misspell(node[key], (*path, key))
        elif isinstance(node, list):
            for i, each in enumerate(node):
                misspell(each, (*path, i))

    misspell(found, ())
    free = {"annotations", "nodeSelector", "limits"}
    tried = 0
    for path in names:
        if free & set(path[:-1]):
            continue
        wrong = copy.deepcopy(found)
        place = wrong
        for step in path[:-1]:
            place = place[step]
        place[path[-1] + "s"] = place.pop(path[-1])
        assert not checker.is_valid(wrong), path
        tried += 1
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


def test_xpk_gets_the_restart_code_and_puts_the_trainer_in_the_place_of_the_shell(cloud):
    assert cloud.run("xpk.sh", *XPK, "--max-restarts=9", "--", *TRAIN).returncode == 0
    (call,) = cloud.calls()
    flags = dict(word.split("=", 1) for word in call["argv"] if word.startswith("--"))
    assert flags["--restart-on-exit-codes"] == "42" and flags["--max-restarts"] == "9"
    assert int(flags["--termination-grace-period-seconds"]) >= 300
    assert shlex.split(flags["--command"]) == [
        "exec", "xlnet-jax", "train", "--config.checkpoint.grace_seconds=600", *TRAIN[1:]
    ]  # fmt: skip


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
