"""Every command in a fenced block of docs/pods*.md is one that its program takes, by tables or its
own parser, and a newcomer can run those of his route in their order.
"""

import pathlib
import re
import shlex
import subprocess

import pytest
import tables
from launch_cloud import LAUNCH, ROOT, STUBS

from xlnet_jax import cli

PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text()
    for name in ("pods", "pods_tpu_vm", "pods_mig", "pods_gke", "pods_gpu")
}


def blocks_of(text: str) -> list[str]:
    """The fenced commands, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"(?m)(^|\s)#\s.*$", "", block) for block in blocks]


OTHERS = {"cat", "curl", "export", "git", "mkdir", "pip", "sed", "ssh-add", "tail", "tar"}
SUBSTITUTION = r"\$\(((?:[^()]|\([^()]*\))*)\)"


def commands_of(block: str) -> list[list[str]]:
    """The words of each command, also of those in $(...); variables and substitutions become words
    without meaning.
    """
    text = "\n".join(
        [re.sub(SUBSTITUTION, "abcdef1", block), *re.findall(SUBSTITUTION, block)]
    ).replace("\\\n", " ")
    lexer = shlex.shlex(
        re.sub(r"\$\w+", "x", text).replace("\n", ";"), posix=True, punctuation_chars=";|&"
    )
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&"):
            found.append([])
        elif found[-1] or not re.match(r"\w+=", word):  # NAME=value before a command
            found[-1].append(word)
    return [command for command in found if command]


COMMANDS = [
    command
    for text in PAGES.values()
    for block in blocks_of(text)
    for command in commands_of(block)
]


def refusal(command: list[str]) -> str:
    """Why the program would refuse the command; empty if it takes it."""
    program = command[0]
    if program == "xlnet-jax":
        try:
            rest = cli.make_parser().parse_known_args(command[1:])[1]
        except Exception as error:
            return str(error)
        return "".join(word for word in rest if not word.startswith("--config."))
    if program.startswith("launch/"):  # the test of the routes runs these
        return "" if (LAUNCH.parent / program).exists() else "no such script"
    if program in OTHERS:
        return ""
    if program == "sbatch":
        end = command.index("launch/slurm.sbatch")
        flags = [re.sub("=.*", "=", word) for word in command[1:end]]
        wrong = [flag for flag in flags if flag not in tables.lines_of("sbatch")]
        return wrong[0] if wrong else refusal(["xlnet-jax", *command[end + 1 :]])
    try:
        tables.parse(command)
    except tables.Refused as refused:
        return str(refused)
    return ""


def test_every_command_of_the_page_is_taken_by_its_program():
    assert {page.stem for page in (ROOT / "docs").glob("pods*.md")} == set(PAGES)
    assert [(shlex.join(command), said) for command in COMMANDS if (said := refusal(command))] == []


NEW, GONE = "create|deploy|submit", "delete|destroy|cancel"
# A person answers the questions of gcloud, and sees machines come and go.
PERSON = """
case "$*" in
  "projects describe"*) echo 123456; exit;;
  "compute tpus locations list" | *"managed list "*) exit;;  # no --zone
  *list-instances*--format=*) ;;
  *list-instances*) exit;;  # the person looked while there were some
esac
{stubs}/gcloud "$@" --quiet || exit
case "$*" in
  *queued-resources*create*) echo '["ACTIVE"]' >{folder}/states.json;;
  *tpu-vm*create*) echo '["READY"]' >{folder}/states.json;;
  *groups*managed*create*) echo '["RUNNING"]' >{folder}/states.json;;
  *tpus*delete* | *groups*managed*delete*) echo '["absent"]' >{folder}/states.json;;
esac"""
KEPT = ("buckets", "service-accounts", "repositories", "budgets")
"""What costs little and stays."""
# The part of Cluster Toolkit's blueprint that the page changes.
BLUEPRINT = """vars:
  num_slices:
  reservation:
modules:
- settings:
      num_slices: $(vars.num_slices)
      topology: [$(vars.machine_type), $(vars.tpu_topology), $(vars.enable_pathways_for_tpus)]
      cidr_block: $(vars.authorized_cidr)
      reservation_affinity:
        specific_reservations:
        - name: $(vars.reservation)
"""
# Prints the bundle of Cluster Toolkit, or the address of this machine.
CURL = """
case "$*" in
  *gcluster_bundle*) tar --create --gzip --directory={folder}/bundle examples;;
  *) echo 192.0.2.1;;
esac"""


def part(page: str, first: str, last: str = "$") -> str:
    found = re.search(rf"(?ms)^## {first}$.*?(?=^## {last}$|\Z)", PAGES[page])
    assert found, (page, first)
    return found[0]


ROUTES = {
    "TPU VM": part("pods_tpu_vm", "Without the queue", "Several slices"),
    "queued resource": part("pods_tpu_vm", "With the queue", "Without the queue"),
    "Compute Engine": PAGES["pods_mig"],
    "GKE": part("pods_gke", "The image", "With Cluster Toolkit")
    + part("pods_gke", "With gke.sh", "Identity and queue"),
    "Cluster Toolkit": part("pods_gke", "The image", "With gke.sh"),
}


def script_of(route: str) -> str:
    """The commands before every route and those of the route; Cluster Toolkit's run is resumed."""
    blocks = blocks_of(ROUTES[route])
    if route == "Cluster Toolkit":
        blocks.insert(-1, blocks[-2])
    return "".join(blocks_of(PAGES["pods"]) + blocks)


@pytest.mark.parametrize(
    "route",
    [
        one
        if one in ("TPU VM", "GKE", "Cluster Toolkit")
        else pytest.param(one, marks=pytest.mark.slow)
        for one in ROUTES
    ],
)
def test_a_newcomer_runs_the_commands_of_his_route_in_their_order_and_leaves_nothing_that_costs(
    cloud, route
):
    path = cloud.environment["PATH"]
    cloud.tools(
        {"gcloud": PERSON.format(stubs=STUBS, folder=cloud.folder)}
        | {"curl": CURL.format(folder=cloud.folder)}
        | dict.fromkeys(("xlnet-jax", "ssh-add", "pip"), "exit 0")
    )
    cloud.environment["PATH"] = f"{cloud.folder}/bin:{path}"
    blueprint = cloud.folder / "bundle" / "examples" / "gke-tpu-v6e" / "gke-tpu-v6e.yaml"
    blueprint.parent.mkdir(parents=True)
    blueprint.write_text(BLUEPRINT)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script_of(route)],
        cwd=ROOT,
        env=cloud.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    there, gone = set(), set()
    for call in cloud.calls():
        command, words, given = tables.parse(call["argv"])
        jobset = re.search(r"kind: JobSet\nmetadata:\n  name: (\S+)", call.get("stdin", ""))
        if not jobset and not re.search(rf"_({NEW}|{GONE})(_|$)", command):
            continue
        new = not re.search(f"_({GONE})", command)
        kind = re.sub(f"_({NEW}|{GONE}|apply|alpha|workload-policy)", "", command)
        named = jobset or re.search(r"deployment_name=([\w-]+)", str(given.get("--vars")))
        word = (words or given.get("--name") or [""])[-1]
        thing = (kind, named[1] if named else pathlib.Path(word).name)
        if not new and "_compute_" in command and thing in gone:
            continue  # the page: delete, if --autodelete did not
        assert (thing in there) != new, (
            f"{thing} is {'there already' if new else 'not there'}: {call['argv']}"
        )
        (there.add if new else there.remove)(thing)
        (gone.discard if new else gone.add)(thing)
    assert [thing for thing in there if not thing[0].endswith(KEPT)] == []
    assert gone


PLACE = "--cluster=tpus --project=p --location=us-east5"


@pytest.mark.parametrize(
    "command, said",
    [
        ("deploy none.yaml --vars=project_id=p", '"none.yaml" does not exist'),
        ("deploy {blueprint} --vars=spare=2", 'the variable "spare" was not used'),
        ("destroy none", '"none" must be a directory'),
        ("job config set zone us-east5-b", "invalid configuration key: zone"),
        ("job list", "project is required"),
        (f"job list {PLACE}", "failed to describe GKE cluster tpus"),
        (f"job submit {PLACE} --name=x --command=c", 'required flag(s) "compute-type" not set'),
        (f"job submit {PLACE} --names=x", "unknown flag: --names"),
    ],
)
def test_the_stub_of_gcluster_refuses_as_the_real_one_does(cloud, command, said):
    blueprint = cloud.folder / "gke-tpu-v6e.yaml"
    blueprint.write_text(BLUEPRINT)
    done = subprocess.run(
        [STUBS / "gcluster", *command.format(blueprint=blueprint).split()],
        env=cloud.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and said in done.stderr
    assert not cloud.calls()


@pytest.mark.parametrize(
    "command",
    [
        "xlnet-jax compile --config=c --topologie=v6e:8x8",
        "launch/gek.sh --name=x",
        "gcloud compute tpus tpu-vm create x --zone=z --acelerator-type=v6e-8",
        "sbatch --node=2 launch/slurm.sbatch train --config=c --workdir=w",
        "gcluster job submit --name=x --max-restarts=50",
    ],
)
def test_a_misspelt_command_is_found(command, capsys):
    (words,) = commands_of(command)
    assert refusal(words)
