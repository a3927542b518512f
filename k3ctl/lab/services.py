"""Programs that outlive `lab create`: a transient systemd unit where systemd runs, else a supervisor of our own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from k3ctl.errors import Problem
from k3ctl.lab import supervise
from k3ctl.lab.outer import booted_with_systemd
from k3ctl.lab.process import LabFailed, Runner, must, run, tail

NSPAWN_REBOOT = 133  # systemd-nspawn(1): the machine asked for a reboot
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_HIERARCHIES = ("", "memory", "name=systemd", "pids")  # "" is cgroup v2


@dataclass(frozen=True)
class Service:
    """One program. `folder` holds its spec, lock and log; `restart` says after which exit statuses it runs again."""

    unit: str
    argv: tuple[str, ...]
    folder: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    restart: Literal["always"] | tuple[int, ...] = (NSPAWN_REBOOT,)


class Services(Protocol):
    """Starts, finds and kills services."""

    def start(self, service: Service) -> None:
        """Start it; returns when it runs (not when it is ready). LabFailed with the log's end when it cannot."""

    def main_pid(self, service: Service) -> int | None:
        """Process id of its program, None when it does not run."""

    def kill(self, service: Service) -> None:
        """Kill it and everything it started, at once; fine when it does not run."""

    def memory(self, service: Service) -> int | None:
        """Bytes it uses, None when that cannot be told."""


def services() -> Services:
    """The kind that fits the outer machine."""
    return SystemdServices() if booted_with_systemd() else DetachedServices()


class SystemdServices:
    """Transient units: they survive the login session, as a scope of it would not."""

    def __init__(self, runner: Runner = run) -> None:
        self._run = runner

    def start(self, service: Service) -> None:
        """systemd-run; Delegate gives the machine its own cgroup subtree."""
        unit = f"{service.unit}.service"
        self._run(["systemctl", "reset-failed", unit])
        service.folder.mkdir(parents=True, exist_ok=True)
        must(self._run, systemd_run(service))

    def main_pid(self, service: Service) -> int | None:
        """MainPID of an active unit."""
        shown = self._run(["systemctl", "show", "-p", "MainPID", "--value", f"{service.unit}.service"])
        pid = shown.stdout.strip()
        return int(pid) if pid.isdigit() and pid != "0" else None

    def kill(self, service: Service) -> None:
        """SIGKILL to the whole unit: its files are removed anyway."""
        unit = f"{service.unit}.service"
        state = self._run(["systemctl", "show", "-p", "ActiveState", "--value", unit]).stdout.strip()
        if state not in ("", "inactive"):
            self._run(["systemctl", "kill", "--signal=KILL", unit])
            self._run(["systemctl", "stop", unit], timeout_s=60)
            self._run(["systemctl", "reset-failed", unit])

    def memory(self, service: Service) -> int | None:
        """MemoryCurrent of the unit."""
        shown = self._run(["systemctl", "show", "-p", "MemoryCurrent", "--value", f"{service.unit}.service"])
        return int(shown.stdout) if shown.stdout.strip().isdigit() else None


def systemd_run(service: Service) -> list[str]:
    """argv that starts a service as a transient unit. Pure."""
    properties = [
        "Type=exec",
        "Delegate=yes",
        "KillMode=mixed",
        "TimeoutStopSec=15",
        "TasksMax=16384",
        f"StandardOutput=append:{service.log}",
        f"StandardError=append:{service.log}",
    ]
    if service.restart == "always":
        properties += ["Restart=always", "RestartSec=1"]
    else:
        statuses = " ".join(map(str, service.restart))
        properties += [f"RestartForceExitStatus={statuses}", f"SuccessExitStatus={statuses}"]
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={service.unit}.service",
        f"--description=k3ctl lab: {service.unit}",
        *(f"--property={p}" for p in properties),
        *(f"--setenv={k}={v}" for k, v in service.env.items()),
        "--",
        *service.argv,
    ]


class DetachedServices:
    """A session of its own with supervise.py in it, in cgroups of its own."""

    def start(self, service: Service) -> None:
        """Start the supervisor and wait until its program runs."""
        service.folder.mkdir(parents=True, exist_ok=True)
        (service.folder / "child.pid").unlink(missing_ok=True)
        spec = {
            "argv": service.argv,
            "env": dict(service.env),
            "restart": service.restart,
            "groups": [str(group) for group in own_groups(service.unit)],
        }
        file = service.folder / "service.json"
        file.write_text(json.dumps(spec, indent=1))
        with service.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", supervise.__file__, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        end = time.monotonic() + 5
        while time.monotonic() < end and process.poll() is None:
            if self.main_pid(service) is not None:
                return
            time.sleep(0.02)
        if self.main_pid(service) is None:
            raise LabFailed(
                Problem(
                    what=f"{service.unit} did not start",
                    found=f"supervisor status {process.poll()}",
                    evidence=tail(service.log.read_text(errors="replace")),
                )
            )

    def main_pid(self, service: Service) -> int | None:
        """Pid that the supervisor wrote, while it holds its lock."""
        if _holder(service) is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            return int((service.folder / "child.pid").read_text())
        return None

    def kill(self, service: Service) -> None:
        """Kill the supervisor (the kernel then kills its child) and whatever else is in its cgroups."""
        holder = _holder(service)
        if holder:
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
        groups = own_groups(service.unit)
        for group in groups:
            with contextlib.suppress(OSError):
                (group / "cgroup.kill").write_text("1")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            _kill_members(groups)
            if all(_remove_group(group) for group in groups) and _holder(service) is None:
                return
            time.sleep(0.05)
        raise LabFailed(Problem(what=f"{service.unit} could not be killed", found="processes left after 20 s"))

    def memory(self, service: Service) -> int | None:
        """From the cgroup that accounts memory, v1 or v2: the supervisor's, which need not be below ours."""
        for group in own_groups(service.unit, str(_holder(service) or "self")):
            for name in ("memory.usage_in_bytes", "memory.current"):
                with contextlib.suppress(OSError, ValueError):
                    return int((group / name).read_text())
        return None


def own_groups(unit: str, process: str = "self") -> list[Path]:
    """Folders of the cgroups that a service of this name gets, below those of a process; v1, v2 and hybrid.

    For a process that is in them already, they are these.
    """
    found = []
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in _OWN_HIERARCHIES:
            continue
        mount = controllers.removeprefix("name=")
        if not controllers:
            mount = "" if (_CGROUPS / "cgroup.controllers").exists() else "unified"
        parent = _CGROUPS / mount / path.partition(f"/{unit}")[0].lstrip("/")
        if (parent / "cgroup.procs").exists():
            found.append(parent / unit)
    return found


def _holder(service: Service) -> int | None:
    """Pid of the supervisor that holds the service's lock; None when nobody does."""
    file = service.folder / "supervisor.lock"
    if not file.exists():
        return None
    with file.open("r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = handle.read().strip()
            return int(text) if text.isdigit() else 0
    return None


def _kill_members(groups: list[Path]) -> None:
    for group in groups:
        for file in group.glob("**/cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in file.read_text().split():
                    if pid != "0":
                        os.kill(int(pid), signal.SIGKILL)


def _remove_group(group: Path) -> bool:
    """Remove an empty cgroup with all below it; False while somebody is in it."""
    folders = sorted((p for p in group.glob("**/") if p.is_dir()), key=lambda p: len(p.parts), reverse=True)
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not group.exists()
