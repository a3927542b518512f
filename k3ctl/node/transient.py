"""Transient systemd units: long work that outlives SSH and the controller."""

from __future__ import annotations

import subprocess
from typing import Dict, List

TIMEOUT_S = 30
# A unit that dies goes on after 2 s, but not for ever, and not when it said why it cannot.
PROPERTIES = (
    "Restart=on-failure",
    "RestartSec=2",
    "RestartPreventExitStatus=2 3 4 5 6 7 8",
    "StartLimitIntervalSec=300",
    "StartLimitBurst=20",
    "TimeoutStopSec=45",
    "KillMode=mixed",
    "UMask=0022",
    "LimitNOFILE=65536",
)
SHOWN = ("Id", "LoadState", "ActiveState", "SubState", "Result", "NRestarts", "MainPID")


def run_argv(unit: str, description: str, argv: List[str]) -> List[str]:
    """The systemd-run command that starts `argv` as `unit`; the unit is forgotten when it ends, failed or not."""
    properties = ["--property=" + text for text in PROPERTIES]
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        "--unit=" + unit,
        "--description=" + description,
        *properties,
        "--",
        *argv,
    ]


def start(unit: str, description: str, argv: List[str]) -> bool:
    """Start the unit; False when it runs already. Raises RuntimeError with systemd's reason."""
    if active(states([unit]).get(unit, {})):
        return False
    done = _call(run_argv(unit, description, argv))
    if done.returncode == 0:
        return True
    if active(states([unit]).get(unit, {})):
        return False  # somebody else was faster
    raise RuntimeError("systemd-run %s: %s" % (unit, done.stderr.strip()))


def states(units: List[str]) -> Dict[str, Dict[str, str]]:
    """What systemd says of each unit, by name; ActiveState is `inactive` for one that is not there."""
    if not units:
        return {}
    done = _call(["systemctl", "show", "--property=" + ",".join(SHOWN), *units])
    if done.returncode != 0:
        raise RuntimeError("systemctl show: %s" % done.stderr.strip())
    found = {}
    for block in done.stdout.strip().split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in fields:
            found[fields["Id"]] = fields
    return found


def active(fields: Dict[str, str]) -> bool:
    """True while the unit runs, starts, or waits to be restarted."""
    return fields.get("ActiveState") in ("active", "activating", "reloading", "deactivating")


def stop(units: List[str]) -> None:
    """Stop units and wait for their end; those that are not there are no error."""
    for unit, fields in states(units).items():
        if fields.get("LoadState") == "loaded":
            done = _call(["systemctl", "stop", unit], timeout_s=90)
            if done.returncode != 0:
                raise RuntimeError("systemctl stop %s: %s" % (unit, done.stderr.strip()))


def _call(argv: List[str], timeout_s: float = TIMEOUT_S) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
