"""Every command in a fenced block of pods.md and pods_mig.md is one that its program takes, by tables or its parser."""

import pathlib
import re
import shlex

import pytest
import tables
from launch_cloud import LAUNCH, LAUNCHES, READY, ROOT, Cloud

from xlnet_jax import cli

PAGE = "\n".join((ROOT / "docs" / name).read_text() for name in ("pods.md", "pods_mig.md"))
BLOCKS = [block for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
OTHERS = {"cat", "export", "git", "pip", "ssh-add", "tail"}
SUBSTITUTION = r"\$\(((?:[^()]|\([^()]*\))*)\)"


def commands_of(block: str) -> list[list[str]]:
    """The words of each command, also of those in $(...); variables and substitutions become words without meaning."""
    text = "\n".join([re.sub(SUBSTITUTION, "abcdef1", block), *re.findall(SUBSTITUTION, block)]).replace("\\\n", " ")
    lexer = shlex.shlex(re.sub(r"\$\w+", "x", text).replace("\n", ";"), posix=True, punctuation_chars=";|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&"):
            found.append([])
        elif found[-1] or not re.match(r"\w+=", word):  # NAME=value before a command
            found[-1].append(word)
    return [command for command in found if command]


COMMANDS = [command for block in BLOCKS for command in commands_of(re.sub(r"(?m)(^|\s)#\s.*$", "", block))]


def refusal(command: list[str]) -> str:
    """Why the program would refuse the command; empty if it takes it."""
    program = command[0]
    if program == "xlnet-jax":
        try:
            rest = cli.make_parser().parse_known_args(command[1:])[1]
        except Exception as error:
            return str(error)
        return "".join(word for word in rest if not word.startswith("--config."))
    if program.startswith("launch/"):  # the next test runs these
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
    assert [(shlex.join(command), said) for command in COMMANDS if (said := refusal(command))] == []
    # The page has what a newcomer needs, in this order.
    order = [
        "gcloud auth login", "gcloud services enable", "gcloud auth application-default login",
        "gcloud storage buckets create", "gcloud iam service-accounts create", "gcloud beta quotas info list",
        "gcloud billing budgets create", "gcloud compute tpus queued-resources list", "xlnet-jax compile",
        "xlnet-jax train", "launch/queued_resource.sh", "gcloud storage cat", "launch/tpu_vm.sh",
        "gcloud artifacts repositories create", "launch/image.sh",
        "gcloud container clusters create", "kubectl apply", "gcloud container node-pools create", "launch/gke.sh",
        "kubectl logs", "gcloud container clusters delete", "xpk cluster create", "launch/xpk.sh", "xpk cluster delete",
        "sbatch",
    ]  # fmt: skip
    found = [shlex.join(command) for command in COMMANDS]
    first = [next(i for i, command in enumerate(found) if command.startswith(start)) for start in order]
    assert first == sorted(first)


def test_the_scripts_take_their_commands_and_give_the_tools_ones_that_these_take(tmp_path: pathlib.Path):
    cloud = Cloud(tmp_path)
    cloud.environment |= {
        "ZONE": "us-east5-b", "BUCKET": "b", "MAIL": "m@p.iam.gserviceaccount.com", "IMAGE": "eu/p/x:1", "PROJECT": "p",
    }  # fmt: skip
    text = "\n".join(BLOCKS).replace("\\\n", " ")
    lines = re.findall(r"^(launch/(\w+\.sh) .*)", text, re.MULTILINE)
    assert {script for _, script in lines} == set(LAUNCHES)
    for line, script in lines:
        # As the page says, by itself; then for true, against the stubs.
        cloud.answers(["absent", READY.get(script, "")], [0])
        for words in ("", " --dry-run"):
            done = cloud.stub("bash", "-c", re.sub(r"( -- |$)", words + r"\1", line, count=1))
            assert done.returncode == 0, done.stderr
    assert len(cloud.calls()) > len(lines)


@pytest.mark.parametrize(
    "command",
    [
        "gcloud container node-pools create x --cluster=c --tpu-toplogy=8x8",
        "gcloud storage cat",
        "kubectl logs --max-log-request=5",
        "xpk workload list --cluster=c --workload=w",
        "xlnet-jax compile --config=c --topologie=v6e:8x8",
        "launch/gek.sh --name=x",
        "sbatch --node=2 launch/slurm.sbatch train --config=c --workdir=w",
        "sbatch --nodes=2 launch/slurm.sbatch train --configs=c --workdir=w",
    ],
)
def test_a_misspelt_command_is_found(command, capsys):
    (words,) = commands_of(command)
    assert refusal(words)
