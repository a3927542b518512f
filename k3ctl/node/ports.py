"""Listening TCP ports of this host and who holds them, from /proc."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List

from k3ctl.node import processes

LISTEN = "0A"


def listening() -> Dict[int, List[str]]:
    """Port -> socket inodes that listen on it, IPv4 and IPv6."""
    found: Dict[int, List[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = file.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == LISTEN:
                found.setdefault(int(fields[1].rpartition(":")[2], 16), []).append(fields[9])
    return found


def holders(ports: Iterable[int]) -> List[Dict[str, Any]]:
    """[{port, pid, command}] for those of `ports` on which somebody listens; pid 0 when the holder cannot be seen."""
    taken = {port: inodes for port, inodes in listening().items() if port in set(ports)}
    if not taken:
        return []
    owners = _owners({inode for inodes in taken.values() for inode in inodes})
    found = []
    for port in sorted(taken):
        pids = sorted({owners.get(inode, 0) for inode in taken[port]})
        for pid in pids:
            process = processes.read(pid) if pid else None
            command = process.title[:300] if process else "unknown (another network namespace or user)"
            found.append({"port": port, "pid": pid, "command": command})
    return found


def _owners(inodes: Iterable[str]) -> Dict[str, int]:
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    found: Dict[str, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        folder = "/proc/%s/fd" % name
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(folder + "/" + descriptor)
            except OSError:
                continue
            # The lowest pid wins: children that inherited the socket come later than its owner.
            if target in wanted and wanted[target] not in found:
                found[wanted[target]] = int(name)
    return found
