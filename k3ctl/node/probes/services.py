"""What systemd says: the state of the system, failed units, and our own units."""

from __future__ import annotations

from typing import Any

from k3ctl.node.probes.source import CannotTell, pairs, tool, tool_json


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: units = names to look at. `state` is systemd's word: running, degraded, starting, maintenance."""
    return {
        "state": tool(["systemctl", "is-system-running"])[1].strip() or None,  # its status is 1 unless running
        "failed": _failed(),
        "units": [_unit(name) for name in request.get("units") or []],
    }


def _failed() -> list[str] | None:
    try:
        listed = tool_json(["systemctl", "list-units", "--state=failed", "--output=json"])
    except CannotTell:
        return None
    return [str(entry.get("unit")) for entry in listed if isinstance(entry, dict)]


def _unit(name: str) -> dict[str, Any]:
    said = pairs(tool(["systemctl", "show", "-p", "LoadState", "-p", "ActiveState", "-p", "SubState", name])[1])
    return {
        "name": name,
        "load": said.get("LoadState"),
        "active": said.get("ActiveState"),
        "sub": said.get("SubState"),
    }
