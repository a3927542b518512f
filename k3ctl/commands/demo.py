"""`make demo`: create the lab, take it to a served model, say how to look around. One command, no questions."""

from __future__ import annotations

import os
import shutil
import sys
import time

from k3ctl.edge.program import program, run
from k3ctl.errors import ExitCode, Problem
from k3ctl.units import duration
from k3ctl.view import problems

DEFAULT = "inventories/lab"


def missing(system: str, uid: int, *, has_sudo: bool) -> Problem | None:
    """What this machine lacks to carry the demo, or None."""
    if system != "linux":
        return Problem(
            what="the demo makes two Linux machines on this computer",
            found=f"this is {system}",
            expected="Linux: the machines share its kernel (systemd-nspawn, network namespaces)",
            fix="run it on a Linux computer; `make check` runs here",
        )
    if uid != 0 and not has_sudo:
        return Problem(
            what="the demo needs root to make machines, bridges and an nftables table on this computer",
            found=f"user id {uid} and no sudo",
            expected="root, or sudo for `k3ctl lab create`; everything else runs as you",
            fix="run `make demo` as root",
        )
    return None


def main(argv: list[str]) -> int:
    """Create, up, explain. The exit status is that of the step that failed."""
    inventory = argv[1] if len(argv) > 1 else DEFAULT
    lacking = missing(sys.platform, os.getuid(), has_sudo=shutil.which("sudo") is not None)
    if lacking is not None:
        _say("\n".join(problems.lines([lacking])))
        return int(ExitCode.USAGE)
    began = time.monotonic()
    k3ctl = [sys.executable, "-m", "k3ctl"]
    _say(f"demo, step 1 of 2: two hosts on this computer (k3ctl lab create {inventory})")
    elevate = (
        [] if os.getuid() == 0 else ["sudo", "--preserve-env=XDG_STATE_HOME,PIP_INDEX_URL,PIP_FIND_LINKS,PIP_CERT"]
    )
    status = run([*elevate, *k3ctl, "lab", "create", "--install", inventory])
    if status != 0:
        return status
    _say(f"demo, step 2 of 2: from bare hosts to a served model (k3ctl up {inventory})")
    status = run([*k3ctl, "up", inventory])
    if status != 0:
        return status
    shown = program()
    _say(
        f"\ndemo: done in {duration(time.monotonic() - began)}.\n"
        f"  look around:  {shown} status {inventory}\n"
        f"                {shown} logs -f {inventory}\n"
        f"                {shown} lab shell k3lab1\n"
        f"  break it:     {shown} lab fault --list\n"
        f"  clean up:     {shown} down {inventory}      (stops serving; weights stay)\n"
        f"                {shown} lab destroy {inventory}   (removes the hosts)"
    )
    return int(ExitCode.OK)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
