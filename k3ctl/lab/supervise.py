"""Keeps one program of a lab running where no systemd does: `python3 -I supervise.py SPEC.json`.

Stands alone (standard library, no import of k3ctl), because it outlives the command that starts it, and perhaps the
checkout. It holds a lock on SPEC's folder for its whole life: whoever wants to know if it lives tries that lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_QUICK = 5.0  # a run shorter than this many seconds counts as a crash
_CRASHES = 5  # so many in a row and it gives up


def join_groups(groups: list[str]) -> None:
    """Move this process into cgroups of its own: two machines that share one would stop each other's services."""
    for group in groups:
        with contextlib.suppress(OSError):
            folder = Path(group)
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(os.getpid()))


def supervise(spec: dict[str, Any], folder: Path) -> int:
    """Run spec[argv] until it ends for good. Exit status: that of the last run."""
    asked = False
    child: subprocess.Popen[bytes] | None = None

    def end(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    crashes, status = 0, 0
    while not asked and crashes < _CRASHES:
        began = time.monotonic()
        # the kernel kills the program when this supervisor is killed
        argv = ["setpriv", "--pdeathsig", "KILL", *spec["argv"]]
        child = subprocess.Popen(argv, env={**os.environ, **spec["env"]}, cwd="/")
        (folder / "child.pid").write_text(str(child.pid))
        status = child.wait()
        sys.stderr.write(f"{time.strftime('%FT%TZ', time.gmtime())} ended with status {status}\n")
        sys.stderr.flush()
        if spec["restart"] != "always" and status not in spec["restart"]:
            break
        crashes = crashes + 1 if time.monotonic() - began < _QUICK else 0
        time.sleep(0.2)
    return status


def main(argv: list[str]) -> int:
    """Take the lock, then supervise; status 75 when somebody else has it."""
    file = Path(argv[1])
    folder = file.parent
    spec = json.loads(file.read_text())
    with (folder / "supervisor.lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 75
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        join_groups(spec["groups"])
        return supervise(spec, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
