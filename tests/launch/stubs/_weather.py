"""A cloud that remembers what exists and fails at random, drawn from the seed in `weather.json`.

It runs out of capacity, answers UNAVAILABLE before and after it has done what was asked, breaks
connections, preempts machines while they train and between, and makes machines with a host that
never answers. What a command to a host draws does not depend on the commands to other hosts at the
same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import _stub

PATH = _stub.HERE / "weather.json"
READY = {"tpu-vm": "READY", "queued-resources": "ACTIVE", "managed": "RUNNING"}
COMING = {
    "tpu-vm": ["CREATING"],
    "queued-resources": ["WAITING_FOR_RESOURCES"],
    "managed": ["CREATING"],
}
GONE = {
    "tpu-vm": ["PREEMPTED"],
    "queued-resources": ["SUSPENDING", "SUSPENDED"],
    "managed": ["STOPPING", "EMPTY"],
}
# A request or a group may also end without machines.
FAILED = {"queued-resources": "FAILED", "managed": "FAILED HOST_STOCKOUT"}


@contextlib.contextmanager
def cloud() -> Iterator[dict[str, Any]]:
    with open(PATH, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = {
            "calls": 0,
            "states": ["absent"],
            "parts": [],
            "mute": False,
            "hosts": 1,
        } | json.load(file)
        try:
            yield found
        finally:
            file.seek(0)
            file.truncate()
            json.dump(found, file)


def fail(error: str, code: int = 1) -> None:
    print(f"ERROR: (gcloud) {_stub.ERRORS[error]}", file=sys.stderr)
    sys.exit(code)


def wipe() -> None:
    for home in _stub.HERE.glob("host*-*"):
        shutil.rmtree(home)


def before(group: str, verb: str, name: str) -> str:
    """What a command changes; returns the state. `instance-templates` and `resource-policies` are
    parts of a launch.
    """
    kind = "managed" if group == "compute" else group  # ssh to a host of a group
    with cloud() as now:
        if verb in ("scp", "ssh"):
            draw = random.Random(f"{now['seed']} {now['calls']} {verb} {name}")
            if now["states"] != [READY[kind]]:
                fail("STATE")
            if now["mute"] or draw.random() < 0.15:
                fail("SSH", 255)
            return ""
        now["calls"] += 1
        draw = random.Random(f"{now['seed']} {now['calls']}")
        if draw.random() < 0.1:
            fail("UNAVAILABLE")
        if group not in READY:
            part(now, group, verb)
        else:
            {"create": create, "delete": delete}.get(verb, describe)(now, draw, group)
        if verb in ("create", "delete") and draw.random() < 0.2:
            fail("UNAVAILABLE")
        return now["states"][0]


def part(now: dict[str, Any], group: str, verb: str) -> None:
    if verb == "create":
        if group in now["parts"]:
            fail("HAS_POLICY" if group == "resource-policies" else "HAS_TEMPLATE")
        now["parts"].append(group)
    else:
        if now["states"] != ["absent"] or group not in now["parts"]:
            fail("INTERNAL" if group in now["parts"] else "GROUP_MISSING")
        now["parts"].remove(group)


def describe(now: dict[str, Any], draw: random.Random, group: str) -> None:
    if len(now["states"]) > 1:
        now["states"].pop(0)
    elif now["states"] == [READY[group]] and draw.random() < 0.1:
        now["states"] = list(GONE[group])
    if now["states"][0] in GONE[group]:
        wipe()


def create(now: dict[str, Any], draw: random.Random, group: str) -> None:
    if now["states"] != ["absent"]:
        fail("EXISTS")
    if group == "managed" and len(now["parts"]) < 2:
        fail("GROUP_MISSING")
    if group == "tpu-vm" and draw.random() < 0.4:
        fail(draw.choice(["STOCKOUT", "INTERNAL", "QUOTA_USED"]))
    waits = ["CREATING HOST_STOCKOUT"] * draw.randrange(3) if group == "managed" else []
    end = FAILED[group] if group in FAILED and draw.random() < 0.25 else READY[group]
    now["states"] = [*COMING[group], *waits, end]
    now["mute"] = draw.random() < 0.2
    wipe()
    for number in range(now["hosts"]):
        (_stub.HERE / f"host0-{number}").mkdir()


def delete(now: dict[str, Any], draw: random.Random, group: str) -> None:
    if now["states"] == ["absent"]:
        fail("GROUP_MISSING")
    now["states"] = ["absent"]
    wipe()


def after(group: str, verb: str, name: str, command: str, code: int) -> int:
    """The end of a command over ssh: the machine was preempted, or the connection broke, or its own
    code.
    """
    if verb != "ssh" or "xlnet_startup" not in command:
        return code
    with cloud() as now:
        draw = random.Random(f"{now['seed']} {now['calls']} after {name}")
        # In Compute Engine there is a command for each host.
        if draw.random() < (0.3 / now["hosts"] if group == "compute" else 0.3):
            now["states"] = list(GONE["managed" if group == "compute" else group])
            return 255
        return 255 if draw.random() < 0.2 else code
