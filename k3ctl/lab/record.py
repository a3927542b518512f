"""What was made: the definition as it was at `create`, and the faults that are active. `destroy` needs nothing else."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from k3ctl.errors import Problem
from k3ctl.lab.definition import LabDefinition, LabHost, load
from k3ctl.lab.layout import Layout
from k3ctl.lab.process import LabFailed

_FAULTS = threading.Lock()


def encode(lab: LabDefinition) -> dict[str, Any]:
    """The definition as JSON."""
    return {
        "name": lab.name,
        "inventory": str(lab.layout.inventory),
        "prefix": lab.layout.prefix,
        "user": lab.user,
        "management": str(lab.management),
        "fabric": str(lab.fabric),
        "hub_port": lab.hub_port,
        "hosts": [{"name": h.name, "management": str(h.management), "fabric": str(h.fabric)} for h in lab.hosts],
    }


def decode(found: Mapping[str, Any]) -> LabDefinition:
    """The definition from JSON."""
    hosts = tuple(
        LabHost(index, h["name"], IPv4Address(h["management"]), IPv4Address(h["fabric"]))
        for index, h in enumerate(found["hosts"])
    )
    return LabDefinition(
        Layout(found["name"], Path(found["inventory"])),
        hosts,
        found["user"],
        IPv4Network(found["management"]),
        IPv4Network(found["fabric"]),
        found["hub_port"],
    )


def read(layout: Layout) -> LabDefinition | None:
    """What a lab of that name was made from; None when there is none."""
    try:
        return decode(json.loads(layout.record.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LabFailed(
            Problem(
                what="the lab's record cannot be read",
                found=repr(error),
                file=str(layout.record),
                fix=f"remove {layout.state} after `k3ctl lab destroy` with the inventory it was made from",
            )
        ) from error


def existing(path: str) -> LabDefinition:
    """The lab that an inventory path means: as it was made, else as the inventory says. For status, shell and fault."""
    folder = Path(path).resolve()
    known = read(Layout(folder.name, folder))
    return known if known is not None and known.layout.inventory == folder else load(path)


def judge(new: LabDefinition, old: LabDefinition | None) -> bool:
    """May `new` be made where `old` is? True when equal. More hosts are fine, anything else is refused. Pure."""
    if old is None:
        return False
    if old.layout.inventory != new.layout.inventory:
        raise LabFailed(
            Problem(
                what=f"a lab named `{new.name}` was made from another inventory",
                found=str(old.layout.inventory),
                expected=str(new.layout.inventory),
                fix=f"`k3ctl lab destroy {old.layout.inventory}` first, or name this folder otherwise",
            )
        )
    same = (old.user, old.management, old.fabric, old.hosts) == (
        new.user,
        new.management,
        new.fabric,
        new.hosts[: len(old.hosts)],
    )
    if not same:
        raise LabFailed(
            Problem(
                what="the inventory has changed since the lab was made",
                found=", ".join(f"{h.name} {h.management} {h.fabric}" for h in new.hosts),
                expected=", ".join(f"{h.name} {h.management} {h.fabric}" for h in old.hosts),
                fix=f"`k3ctl lab destroy {new.layout.inventory}`, then create it again; hosts may only be added",
                file=str(new.layout.inventory / "hosts.yml"),
            )
        )
    return old == new


def write_json(file: Path, value: object) -> None:
    """Write JSON atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    temporary.rename(file)


def faults(layout: Layout) -> dict[str, dict[str, Any]]:
    """Active faults: id -> {node, name, options}."""
    try:
        found: dict[str, dict[str, Any]] = json.loads(layout.faults.read_text())
    except FileNotFoundError:
        return {}
    return found


def forget_fault(layout: Layout, node: str, name: str) -> None:
    """Drop the record of a machine's faults of that name: something else has taken them back. Thread-safe."""
    with _FAULTS:
        active = faults(layout)
        kept = {key: fault for key, fault in active.items() if (fault["node"], fault["name"]) != (node, name)}
        if kept != active:
            write_json(layout.faults, kept)
