"""tests/launch/reference/make.py makes the tables of flags again from installed programs, and never
from older ones.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from launch_cloud import STUBS

REFERENCE = STUBS.parent / "reference"
HELP = {
    "gcloud storage ls": """\
*--recursive*, *-R*, *-r*::
Lists *--prose*.
*--zone*=_ZONE_, *-z* _ZONE_::
*--[no-]autoclass*::
*--local-ssd*[=[_count_=_COUNT_]]::
*--num-nodes*=_N_; default=3::
*link:gcloud/x[x]*::
*--help*:::
""",
    "kubectl logs": """\
  kubectl logs --flag-of-an-example=x

Options:
    -A, --all=false:
\t--prose
    -f, --filename=[]:
\tprose
    --dry-run='none':
""",
    "gcluster job submit": """\
Flags:
  -c, --cluster string   The cluster
      --num-slices int   Number (default 1)
      --verbose          Prints
  -h, --help             help for submit
""",
    "sbatch": """\
  -a, --array=indexes         job array
      --exclusive[=user]      allocate
      --wrap[=command string] wrap
      --requeue               if set
                              --mem >= 1 is prose
""",
}
FLAGS = {
    "gcloud storage ls": (
        "--autoclass --local-ssd --local-ssd= --num-nodes= --recursive --zone= -R -r -z="
    ),
    "kubectl logs": "--all --dry-run= --filename= -A -f=",
    "gcluster job submit": "--cluster= --num-slices= --verbose -c=",
    "sbatch": "--array= --exclusive --exclusive= --requeue --wrap --wrap= -a=",
}


@pytest.mark.parametrize("version", ["1.9.0", "1.10.0", "1.11.2"])
@pytest.mark.parametrize("command", HELP)
def test_a_table_is_made_again_from_a_program_that_is_not_older(
    tmp_path: pathlib.Path, command, version
):
    program, table = command.split()[0], tmp_path / f"{command.replace(' ', '_')}.txt"
    made = tmp_path / "make.py"
    made.write_text((REFERENCE / "make.py").read_text())
    table.write_text("# old\nwords 0-1\n--gone=\n")
    (tmp_path / "SOURCES.md").write_text(
        f"| {program} | 1.10.0 | 2026-01-01 |\n| other | 9.9 | 2026-01-01 |\n"
    )
    (tmp_path / "help").write_text(HELP[command])
    (tmp_path / program).write_text(
        f'#!/bin/sh\n[ "${{1#*version}}" = "$1" ] && exec cat {tmp_path}/help\necho v{version}\n'
    )
    (tmp_path / program).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, made, program], env=environment, capture_output=True, text=True, timeout=60
    )
    sources = (tmp_path / "SOURCES.md").read_text()
    if version == "1.9.0":
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"make.py: {program} 1.9.0 is older than the tables, which are of 1.10.0 (2026-01-01)\n"
        )
        assert "--gone=" in table.read_text() and "1.10.0 | 2026-01-01" in sources
    else:
        assert done.returncode == 0, done.stderr
        assert table.read_text().split("\n") == [
            f"# {command}",
            "words 0-1",
            *FLAGS[command].split(),
            "",
        ]
        assert re.fullmatch(
            rf"\| {program} \| {version} \| 20\d\d-\d\d-\d\d \|\n"
            r"\| other \| 9.9 \| 2026-01-01 \|\n",
            sources,
        )
