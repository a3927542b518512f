"""The host's clock and whether something keeps it right."""

from __future__ import annotations

import time
from typing import Any

from k3ctl.node.probes.source import CannotTell, tool


def collect(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001  every collector is called alike
    """`synchronised` is True, False or None (nothing here could say); `by` names who said so."""
    synchronised, by = _chrony()
    if synchronised is None:
        synchronised, by = _timedatectl()
    return {"now": time.time(), "synchronised": synchronised, "by": by}


def _chrony() -> tuple[bool | None, str | None]:
    try:
        status, said = tool(["chronyc", "-c", "tracking"], 2.0)
    except CannotTell:
        return None, None
    return (chrony_says(said), "chrony") if status == 0 else (None, None)


def chrony_says(tracking: str) -> bool | None:
    """chronyc -c tracking, a line of 14 fields: the last is the leap status, the third the stratum."""
    fields = tracking.strip().split(",")
    if len(fields) != 14 or not fields[2].isdigit():
        return None
    return fields[13] == "Normal" and 0 < int(fields[2]) < 16


def _timedatectl() -> tuple[bool | None, str | None]:
    try:
        status, said = tool(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], 2.0)
    except CannotTell:
        return None, None
    return ({"yes": True, "no": False}.get(said.strip()), "timedatectl") if status == 0 else (None, None)
