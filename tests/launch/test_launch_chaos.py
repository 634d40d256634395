"""Launches in a cloud that fails at random (`stubs/_weather.py`): each ends complete and with
nothing allocated.
"""

import json

import pytest
from launch_cloud import BUCKET, CODE

# Every host counts its rounds; the run is complete on a host after three. One round in five is
# killed.
TRAINER = """[[ $1 == train ]] || exit 0
steps=$STUB_DIR/steps-$(basename "$HOME")
echo x >>"$steps"
(($(wc -l <"$steps") >= 3)) || exit $((RANDOM % 5 ? 42 : 137))
"""
# What the hosts have: an installation whose every fourth command fails, a bucket, no metadata
# server, and short pauses.
INSTALLS = """[[ $1 != init && "$*" != *checkout* ]] || exit 0
echo "$*" >>$STUB_DIR/asked
(($(wc -l <$STUB_DIR/asked) % 4)) || exit 1
[[ "$*" != *"uv venv"* ]] || mkdir -p $HOME/xlnet_jax/.venv/bin
[[ "$*" != *--editable=* ]] || cp $STUB_DIR/bin/trainer $HOME/xlnet_jax/.venv/bin/xlnet-jax
"""
TOOLS = {
    "trainer": TRAINER,
    "git": INSTALLS,
    "python3": INSTALLS,
    "sudo": "",
    "curl": "exit 6",
    "sleep": "exec /bin/sleep 0.1",
    "gcloud": "cat >>$STUB_DIR/sent",
}
TWO_HOSTS = {"tpu_vm.sh": "v4-16", "queued_resource.sh": "v4-16", "mig.sh": "v5p-16"}
OVER = "its flex-start time of 7d is over"


@pytest.mark.prove
@pytest.mark.parametrize(
    "script, capacity, seed",
    [
        *((("tpu_vm.sh", "queued_resource.sh")[seed % 2], "spot", seed) for seed in range(20)),
        *(("mig.sh", "spot", seed) for seed in range(20)),
        *(("mig.sh", "flex-start", seed) for seed in range(5)),
    ],
)
def test_a_launch_survives_a_bad_day(cloud, script, capacity, seed):
    path = cloud.environment["PATH"]
    cloud.tools(TOOLS)
    cloud.environment["PATH"] = path  # the hosts alone have these; the scripts have the stub
    weather = cloud.folder / "weather.json"
    weather.write_text(json.dumps({"seed": seed, "hosts": 2}))
    words = [
        "--name=xlnet",
        "--project=p",
        "--zone=us-east5-b",
        *CODE,
        "--poll=0",
        f"--accelerator={TWO_HOSTS[script]}",
    ]
    words += [f"--capacity={capacity}", "--recreate", "--autodelete", "--logs=gs://bucket/logs"]
    done = cloud.run(script, *words, "--", *BUCKET, timeout=600)
    found = json.loads(weather.read_text())
    assert (found["states"], found["parts"]) == (["absent"], []), "something is still allocated"
    if capacity == "flex-start" and done.returncode == 1:
        assert OVER in done.stderr.splitlines()[-1]
        return
    assert done.returncode == 0, done.stderr
    steps = [path.read_text().count("x") for path in cloud.folder.glob("steps-*")]
    assert len(steps) == 2 and min(steps) >= 3, "the run is not complete"
    assert "xlnet-jax ended with 0" in (cloud.folder / "sent").read_text()
