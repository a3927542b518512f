"""Logging in to the machines with the lab's own key, and waiting until they are ready."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Sequence

from k3ctl.errors import Problem
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.process import Ended, LabFailed, Runner, run, tail

_STATES = ("running", "degraded")
# `systemctl is-system-running --wait` may miss the signal when it is asked this early, and then waits for ever
_WAIT = """while :; do
  state=$(systemctl is-system-running 2>/dev/null)
  case $state in running|degraded|maintenance|stopping) break;; esac
  sleep 0.1
done
echo "$state"; systemctl --failed --plain --no-legend"""


def ssh(lab: LabDefinition, host: LabHost, command: Sequence[str] = (), *, user: str = "") -> list[str]:
    """argv of an SSH session; no command means a shell. Nothing of the user's own SSH configuration is read. Pure.

    As with ssh itself, the words of `command` are joined and read by the shell of the machine.
    """
    return [
        "ssh",
        *("-F", "/dev/null"),
        *("-i", str(lab.layout.key)),
        *("-o", "IdentitiesOnly=yes"),
        *("-o", "BatchMode=yes"),
        *("-o", f"UserKnownHostsFile={lab.layout.ssh / 'known_hosts'}"),
        *("-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", "ConnectTimeout=5"),
        *("-o", "LogLevel=ERROR"),
        f"{user or lab.user}@{host.management}",
        *(("--", *command) if command else ()),
    ]


def ask(
    lab: LabDefinition, host: LabHost, command: Sequence[str], *, timeout_s: float = 20.0, runner: Runner = run
) -> Ended:
    """Run an argv as root on a machine. SSH's own failure is status 255."""
    return runner(ssh(lab, host, [shlex.join(command)], user="root"), timeout_s=timeout_s)


def answers(host: LabHost, timeout_s: float = 0.3) -> bool:
    """Does anything listen on the SSH port?"""
    try:
        with socket.create_connection((str(host.management), 22), timeout=timeout_s):
            return True
    except OSError:
        return False


def wait_running(
    lab: LabDefinition, host: LabHost, *, timeout_s: float, runner: Runner = run
) -> tuple[str, tuple[str, ...]]:
    """Wait until systemd says that booting is over: (state, failed units). LabFailed after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not answers(host):
        if time.monotonic() > end:
            raise _not_ready(lab, host, f"no answer on {host.management}:22 after {timeout_s:.0f} s")
        time.sleep(0.1)
    last = Ended((), 1, "", "")
    while time.monotonic() < end:
        left = max(1.0, end - time.monotonic())
        last = ask(lab, host, ["timeout", f"{left:.0f}", "sh", "-c", _WAIT], timeout_s=left + 5, runner=runner)
        lines = last.stdout.split("\n")
        if lines[0] in _STATES:
            return lines[0], tuple(line.split()[0] for line in lines[1:] if line.strip())
        time.sleep(0.2)
    raise _not_ready(lab, host, tail(last.stderr or last.stdout) or "no state")


def _not_ready(lab: LabDefinition, host: LabHost, found: str) -> LabFailed:
    console = lab.layout.machine(host.name) / "console.log"
    return LabFailed(
        Problem(
            what=f"machine {host.name} did not come up",
            found=found,
            expected="systemctl is-system-running = running",
            node=host.name,
            file=str(console),
            evidence=tail(console.read_text(errors="replace")) if console.is_file() else "",
        )
    )
