"""Interfaces, default routes and listening ports."""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import Any

from k3ctl.node.probes.source import CannotTell, listing, number, text, tool_json, under

_LISTEN = "0A"
_UNIT = re.compile(r"/([^/]+\.service)")


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: root, ports = planned ports (their owners are looked up). MTU in bytes, speed in Mb/s."""
    root = request.get("root") or "/"
    found = {
        "interfaces": interfaces(tool_json(["ip", "-j", "addr"]), under(root, "/sys")),
        "listening": listening(under(root, "/proc"), set(request.get("ports") or [])),
        "ephemeral": ephemeral(text(under(root, "/proc/sys/net/ipv4/ip_local_port_range"))),
    }
    try:
        routes = tool_json(["ip", "-j", "route", "show", "default"])
        found["default_routes"] = [{"via": r.get("gateway"), "interface": r.get("dev")} for r in routes]
    except CannotTell:
        found["default_routes"] = None
    return found


def interfaces(said: list[dict[str, Any]], sys_root: str) -> list[dict[str, Any]]:
    """`ip -j addr` as our list. `up` means usable: administratively up and with carrier."""
    found = []
    for link in said:
        name = link.get("ifname")
        if not name:
            continue
        flags = link.get("flags") or []
        speed = number(os.path.join(sys_root, "class/net", name, "speed"))
        found.append(
            {
                "name": name,
                "up": "UP" in flags and "LOWER_UP" in flags,
                "state": link.get("operstate"),
                "loopback": "LOOPBACK" in flags,
                "mtu": link.get("mtu"),
                "speed_mbps": speed if speed and speed > 0 else None,  # -1: the driver does not know
                "addresses": [a["local"] for a in link.get("addr_info") or [] if a.get("local")],
            }
        )
    return found


def ephemeral(said: str | None) -> list[int] | None:
    """'32768\\t60999' -> [32768, 60999], or None."""
    words = (said or "").split()
    return [int(word) for word in words] if len(words) == 2 and all(word.isdigit() for word in words) else None


def listening(proc: str, asked: set[int]) -> list[dict[str, Any]]:
    """Every listening TCP port; for the asked ones also the owner's pid, program and systemd unit where visible."""
    found: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    tables = [text(os.path.join(proc, "net", name)) for name in ("tcp", "tcp6")]
    if tables[0] is None:  # tcp6 is missing where IPv6 is off; without tcp, no port could be called free
        raise CannotTell("%s cannot be read" % os.path.join(proc, "net/tcp"))
    for table in tables:
        for line in (table or "").splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTEN:
                continue
            address, port = endpoint(words[1])
            if (address, port) not in seen:
                seen.add((address, port))
                found.append({"address": address, "port": port, "inode": words[9]})
    owners = _owners(proc, {entry["inode"] for entry in found if entry["port"] in asked})
    for entry in found:
        nobody = {"pid": None, "program": None, "unit": None}
        entry.update(owners.get(entry.pop("inode"), nobody))
    return found


def endpoint(words: str) -> tuple[str, int]:
    """The kernel's hex form, 32-bit words in host order: '0100007F:1F90' -> ('127.0.0.1', 8080)."""
    address, port = words.split(":")
    raw = b"".join(struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _owners(proc: str, inodes: set[str]) -> dict[str, dict[str, Any]]:
    """inode -> {"pid", "program", "unit"} by looking through the open files of all processes; root sees them all."""
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    owners = {}
    for pid in listing(proc) if wanted else ():
        if not pid.isdigit():
            continue
        folder = os.path.join(proc, pid, "fd")
        for descriptor in listing(folder):
            try:
                inode = wanted.get(os.readlink(os.path.join(folder, descriptor)))
            except OSError:
                continue
            if inode:
                owners[inode] = {
                    "pid": int(pid),
                    "program": text(os.path.join(proc, pid, "comm")),
                    "unit": unit(text(os.path.join(proc, pid, "cgroup"))),
                }
    return owners


def unit(cgroup: str | None) -> str | None:
    """The service of a process, from its cgroup file: '0::/system.slice/a.service' -> 'a.service'; else None."""
    names = _UNIT.findall((cgroup or "") + "\n")
    return names[-1] if names else None
