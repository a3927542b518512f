"""Limits that services get: locked memory, open files, /dev/shm."""

from __future__ import annotations

import os
import resource
from typing import Any

from k3ctl.node.probes.source import CannotTell, pairs, text, tool, under

_CAP_SYS_RESOURCE = 24  # linux/capability.h: lets a service manager raise hard limits


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: root. A limit is a number (bytes, files), "unlimited" or None (could not be read)."""
    root = request.get("root") or "/"
    defaults = _systemd_defaults()
    shm = _shm(under(root, "/dev/shm"))  # noqa: S108  looked at, not written to
    return {
        "memlock_service": limit(defaults.get("DefaultLimitMEMLOCK")),
        "memlock_own": _own(resource.RLIMIT_MEMLOCK),
        "nofile_service": limit(defaults.get("DefaultLimitNOFILE")),
        "nofile_own": _own(resource.RLIMIT_NOFILE),
        "can_raise": can_raise(text(under(root, "/proc/1/status"))),
        "shm_bytes": shm[0],
        "shm_free_bytes": shm[1],
    }


def limit(said: str | None) -> int | str | None:
    """systemd's word for a limit: 'infinity' or 2^64-1 -> 'unlimited', '8388608' -> 8388608, else None."""
    if said in ("infinity", str(2**64 - 1)):
        return "unlimited"
    return int(said) if said and said.isdigit() else None


def can_raise(status: str | None) -> bool | None:
    """May process 1, which starts every service, raise hard limits? From CapBnd in its status; None: not known."""
    mask = pairs(status, ":").get("CapBnd")
    try:
        return bool(int(mask or "", 16) >> _CAP_SYS_RESOURCE & 1)
    except ValueError:
        return None


def _own(kind: int) -> int | str:
    hard = resource.getrlimit(kind)[1]
    return "unlimited" if hard == resource.RLIM_INFINITY else hard


def _systemd_defaults() -> dict[str, str]:
    try:
        return pairs(tool(["systemctl", "show", "-p", "DefaultLimitMEMLOCK", "-p", "DefaultLimitNOFILE"])[1])
    except CannotTell:
        return {}


def _shm(path: str) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
