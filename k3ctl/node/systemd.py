"""What systemd says about a unit, and the few things that are asked of it."""

from __future__ import annotations

import subprocess
from typing import Any, Dict, List, Sequence

SHOWN = (
    "LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "Result", "ExecMainStatus", "NRestarts",
    "ActiveEnterTimestampMonotonic", "InactiveEnterTimestampMonotonic", "ControlGroup", "NeedDaemonReload",
)  # fmt: skip
RUNNING = ("active", "activating", "reloading", "deactivating")


class SystemdError(Exception):
    """systemctl refused; the text is its own."""


def show(unit: str) -> Dict[str, Any]:
    """State of one unit: {load, active, sub, enabled, main_pid, result, exit_status, restarts, ...}.

    A unit that is not there has load `not-found`. Timestamps are monotonic seconds, 0 for never.
    """
    said = ctl(["show", "--property=" + ",".join(SHOWN), "--", unit])
    fields = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return {
        "load": fields.get("LoadState", ""),
        "active": fields.get("ActiveState", ""),
        "sub": fields.get("SubState", ""),
        "enabled": fields.get("UnitFileState", ""),
        "main_pid": int(fields.get("MainPID") or 0),
        "result": fields.get("Result", ""),
        "exit_status": int(fields.get("ExecMainStatus") or 0),
        "restarts": int(fields.get("NRestarts") or 0),
        "active_since": int(fields.get("ActiveEnterTimestampMonotonic") or 0) / 1e6,
        "inactive_since": int(fields.get("InactiveEnterTimestampMonotonic") or 0) / 1e6,
        "cgroup": fields.get("ControlGroup", ""),
        "stale": fields.get("NeedDaemonReload", "no") == "yes",
    }


def ctl(arguments: Sequence[str], timeout_s: float = 30.0) -> str:
    """Run systemctl; its stdout. SystemdError when it fails or takes too long."""
    argv: List[str] = ["systemctl", "--no-ask-password", "--no-pager", *arguments]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=timeout_s, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemdError("%s took longer than %g s" % (" ".join(argv), timeout_s)) from None
    except OSError as error:
        raise SystemdError("systemctl cannot be run: %s" % error) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or "status %d" % done.returncode
        raise SystemdError("%s: %s" % (" ".join(argv), said[-600:]))
    return done.stdout.decode("utf-8", "replace")
