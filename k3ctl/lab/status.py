"""`lab status`: what each machine is doing, judged from outside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from k3ctl import fanout
from k3ctl.lab import access, machine, record
from k3ctl.lab.definition import LabDefinition
from k3ctl.lab.services import Services, services


@dataclass(frozen=True)
class MachineStatus:
    """One machine. `state` is systemd's own word, `down` or `unknown`; None is what cannot be told."""

    name: str
    management: str
    fabric: str
    up: bool
    ssh: bool
    state: str
    uptime_s: float | None
    memory_bytes: int | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class LabStatus:
    """The lab and its machines. `hub` is its address when it answers."""

    name: str
    inventory: str
    prefix: str
    hub: str | None
    machines: tuple[MachineStatus, ...]

    @property
    def healthy(self) -> bool:
        """Every machine is up and can be logged in to."""
        return all(m.up and m.ssh for m in self.machines)

    def json(self) -> dict[str, Any]:
        """For -o json."""
        return asdict(self)


def look(lab: LabDefinition) -> LabStatus:
    """Ask all machines at once."""
    from k3ctl.lab.extras import Hub  # noqa: PLC0415 - heavy, and a lab may have no hub

    faults = record.faults(lab.layout)
    kind = services()

    def one(name: str) -> MachineStatus:
        return _machine(lab, name, kind, faults)

    machines = tuple(fanout.each([h.name for h in lab.hosts], one).all().values())
    hub = Hub.find(lab)
    address = f"http://{lab.gateway}:{lab.hub_port}" if hub is not None and hub.answers() else None
    return LabStatus(lab.name, str(lab.layout.inventory), lab.layout.prefix, address, machines)


def _machine(lab: LabDefinition, name: str, kind: Services, faults: Mapping[str, Mapping[str, Any]]) -> MachineStatus:
    host = lab.host(name)
    service = machine.service(lab, host)
    pid = kind.main_pid(service)
    state, ssh = ("unknown", False) if pid else ("down", False)
    if pid and access.answers(host):
        asked = access.ask(lab, host, ["systemctl", "is-system-running"], timeout_s=10)
        ssh = asked.status not in (124, 255)
        state = asked.stdout.strip() or "unknown"
    active = tuple(_fault_text(f) for f in faults.values() if f["node"] == name)
    return MachineStatus(
        name,
        str(host.management),
        str(host.fabric),
        pid is not None,
        ssh,
        state,
        uptime(machine.leader(pid)) if pid else None,
        kind.memory(service) if pid else None,
        active,
    )


def _fault_text(fault: Mapping[str, Any]) -> str:
    options = " ".join(f"{k}={v}" for k, v in fault["options"].items())
    return f"{fault['name']} {options}".strip()


def uptime(pid: int | None) -> float | None:
    """Seconds since a process started (proc(5), field 22 of stat)."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        since_boot = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    return round(since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 1)
