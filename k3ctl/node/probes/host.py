"""The host itself: operating system, kernel, processors, memory, identity."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

from k3ctl.node.probes.source import CannotTell, pairs, text, tool, under


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: root. Sizes in bytes, uptime in seconds; what cannot be read is None."""
    root = request.get("root") or "/"
    release = pairs(text(under(root, "/etc/os-release")))
    memory = memory_bytes(text(under(root, "/proc/meminfo")))
    uptime = (text(under(root, "/proc/uptime")) or "").split()
    return {
        "os_id": release.get("ID"),
        "os_version": release.get("VERSION_ID"),
        "os_name": release.get("PRETTY_NAME"),
        "architecture": platform.machine() or None,
        "kernel": os.uname().release,
        "hostname": socket.gethostname(),
        "boot_id": text(under(root, "/proc/sys/kernel/random/boot_id")),
        "uptime_s": float(uptime[0]) if uptime else None,
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "swap_bytes": memory.get("SwapTotal"),
        "virtualisation": _virtualisation(),
        "python": platform.python_version(),
        "is_root": os.geteuid() == 0,
    }


def memory_bytes(meminfo: str | None) -> dict[str, int]:
    """/proc/meminfo as name -> bytes; its unit is kB, meaning 1024 bytes."""
    found = {}
    for name, value in pairs(meminfo, ":").items():
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _virtualisation() -> str | None:
    try:
        return tool(["systemd-detect-virt"])[1].strip() or None  # status 1 means bare metal; it still prints "none"
    except CannotTell:
        return None
