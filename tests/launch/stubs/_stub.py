"""What the stubs of gcloud, kubectl and gcluster share: calls are recorded, and answered as a test
wants.

The folder in STUB_DIR holds `calls.jsonl`, one line per accepted call, and what a test wants
answered: `states.json` (one per describe; the last one stays), `codes.json` (one per ssh), and
names of `tables.ERRORS` in `create.json`, `delete.json`.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NoReturn

HERE = pathlib.Path(os.environ["STUB_DIR"])


def refuse(message: str) -> NoReturn:
    print(f"ERROR: {pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


def error(command: str, message: str) -> NoReturn:
    print(f"ERROR: ({command.replace('_', '.')}) {message}", file=sys.stderr)
    sys.exit(1)


def record(**call: Any) -> None:
    with open(HERE / "calls.jsonl", "a", encoding="utf-8") as file:
        file.write(
            json.dumps({"argv": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]], **call}) + "\n"
        )


def pop(name: str, default: Any, keep_last: bool = False) -> Any:
    """The next answer of a list that a test has left."""
    path = HERE / name
    answers = json.loads(path.read_text()) if path.exists() else []
    if not answers:
        return default
    first, *rest = answers
    path.write_text(json.dumps(rest or ([first] if keep_last else [])))
    return first


def on_hosts(hosts: list[pathlib.Path], command: str) -> int:
    """Runs the command in every home at once; the code is the one that gcloud ends with."""
    path = f"{HERE / 'bin'}:/usr/bin:/bin"
    started = [
        subprocess.Popen(
            ["bash", "-c", command],
            cwd=home,
            env={"HOME": str(home), "PATH": path, "STUB_DIR": str(HERE)},
        )
        for home in hosts
    ]
    # As googlecloudsdk/command_lib/compute/tpus/tpu_vm/ssh.py has it: codes are kept by the number
    # of the worker in its node, so the last node's stands, and gcloud ends with the first that is
    # not 0.
    codes = {
        home.name.rpartition("-")[2]: code
        for home, one in zip(hosts, started, strict=True)
        if (code := one.wait())
    }
    return next((codes[worker] for worker in sorted(codes)), 0)


def by_turns(command: str) -> int:
    """Without hosts: the next code that the test has left. A question gets it again, unless ssh
    itself failed.
    """
    last = HERE / "last_code"
    if "xlnet_code=" in command:
        if last.exists() and last.read_text() != "255":
            print(f"xlnet_code={last.read_text()}")
        return 0
    code = pop("codes.json", 0)
    last.write_text(str(code))
    return code
