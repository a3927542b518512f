"""RDMA devices and their ports, from sysfs."""

from __future__ import annotations

import os
from typing import Any

from k3ctl.node.probes.source import CannotTell, listing, number, text


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: sysfs_root (default /sys). Rate in Gb/s; states are the kernel's words ('ACTIVE', 'LinkUp')."""
    root = request.get("sysfs_root") or "/sys"
    if not os.path.isdir(root):
        raise CannotTell("there is no folder %s" % root)
    folder = os.path.join(root, "class/infiniband")
    return {"devices": [_device(os.path.join(folder, name), name) for name in listing(folder)]}


def _device(folder: str, name: str) -> dict[str, Any]:
    ports = os.path.join(folder, "ports")
    return {
        "name": name,
        "type": text(os.path.join(folder, "hca_type")) or None,
        "firmware": text(os.path.join(folder, "fw_ver")) or None,
        "board": text(os.path.join(folder, "board_id")) or None,
        "node_guid": text(os.path.join(folder, "node_guid")) or None,
        "netdevs": listing(os.path.join(folder, "device/net")),
        "ports": [_port(os.path.join(ports, port), port) for port in listing(ports) if port.isdigit()],
    }


def _port(folder: str, name: str) -> dict[str, Any]:
    return {
        "port": int(name),
        "state": word(text(os.path.join(folder, "state"))),
        "physical": word(text(os.path.join(folder, "phys_state"))),
        "link_layer": text(os.path.join(folder, "link_layer")) or None,
        "rate_gbps": rate(text(os.path.join(folder, "rate"))),
        "link_downed": number(os.path.join(folder, "counters/link_downed")),
    }


def word(said: str | None) -> str | None:
    """'4: ACTIVE' -> 'ACTIVE'; the kernel numbers its states."""
    return (said or "").partition(":")[2].strip() or None


def rate(said: str | None) -> float | None:
    """'400 Gb/sec (4X NDR)' -> 400.0. Only the number counts: the words in brackets differ between drivers."""
    try:
        return float((said or "").split()[0])
    except (IndexError, ValueError):
        return None
