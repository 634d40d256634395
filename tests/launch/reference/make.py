"""Makes the tables of flags in this folder again, from the help of the programs on PATH.

    python tests/launch/reference/make.py [gcloud kubectl sbatch gcluster docker]

Without names: every program on PATH. A table is PROGRAM_COMMAND.txt: its line `words LEAST-MOST`
stays, its flags become those of the help. For a new command make a file with that line first.
Versions and dates are in SOURCES.md alone; a program older than there is refused, and nothing is
written.
"""

import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = {
    "gcloud": "gcloud version",
    "kubectl": "kubectl version --client",
    "sbatch": "sbatch --version",
    "gcluster": "gcluster --version",
    "docker": "docker buildx version",
}
# Of the table in SOURCES.md; a version of - is older than all.
ROW = r"(?m)^\| {} \| (\S+) \| (\S+) \|"


def flags_of(text: str) -> list[str]:
    """The flags in the help of gcloud (markdown), kubectl, cobra or sbatch: `--flag=`
    takes a value.
    """
    found = set()
    specs = re.findall(r"^\*(-.*?):{2,}$", text, re.MULTILINE)
    specs = [re.sub(r"[*]|\[no-\]|; default=.*", "", spec) for spec in specs]
    specs = specs or re.findall(r"^ {1,8}(-.*?)(?: {2,}.*|:?)$", text, re.MULTILINE)
    for spec in specs:
        names = re.findall(r"(?:^|, )(--?[A-Za-z][\w-]*)", spec)
        rest = re.sub(r"(?:^|, )--?[A-Za-z][\w-]*", "", spec).strip()
        # kubectl prints the default of a switch.
        value = bool(rest) and rest not in ("=true", "=false")
        found |= {name + "=" * value for name in names}
        found |= {name for name in names if rest.startswith("[=")}  # an optional value
    return sorted(found - {"--help", "-h"})


def run(command: str) -> str:
    # sbatch prints no help without one.
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as slurm:
        slurm.write("ClusterName=none\nSlurmctldHost=localhost\n")
        slurm.flush()
        environment = os.environ | {"SLURM_CONF": slurm.name, "COLUMNS": "200"}
        done = subprocess.run(
            command.split(),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"make.py: {command} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def help_of(command: str) -> str:
    if command == "kubectl":
        return run("kubectl options")
    return run(
        f"{command} --document=style=markdown"
        if command.startswith("gcloud")
        else f"{command} --help"
    )


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def main(programs: list[str]) -> None:
    programs = programs or [program for program in VERSION if shutil.which(program)]
    sources, written = (HERE / "SOURCES.md").read_text(), {}
    for program in programs:
        version = re.search(r"\d+(\.\d+)+", run(VERSION[program]))
        row = re.search(ROW.format(program), sources)
        if not version or not row:
            sys.exit(f"make.py: no version of {program}, or no row in SOURCES.md")
        if numbers(version[0]) < numbers(row[1]):
            sys.exit(
                f"make.py: {program} {version[0]} is older than the tables, "
                f"which are of {row[1]} ({row[2]})"
            )
        row = f"| {program} | {version[0]} | {datetime.date.today()} |"
        sources = re.sub(ROW.format(program), row, sources)
        for table in sorted(HERE.glob(f"{program}*.txt")):
            if re.fullmatch(rf"{program}(_(?!errors).*)?", table.stem):
                command = table.stem.replace("_", " ")
                words = re.findall(r"^words .*$", table.read_text(), re.MULTILINE)
                flags = flags_of(help_of(command))
                if not flags and not words:
                    sys.exit(f"make.py: no flag in the help of {command}")
                written[table] = "\n".join([f"# {command}", *words, *flags, ""])
    for table, text in (written | {HERE / "SOURCES.md": sources}).items():
        table.write_text(text)
        print(table.name)


if __name__ == "__main__":
    main(sys.argv[1:])
