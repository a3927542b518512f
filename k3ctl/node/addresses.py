"""Which network interface holds a planned address, asked of the kernel on the node itself."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from typing import Any, List


class NoInterface(Exception):
    """No interface, or another one than planned, holds the address."""


def interface_of(address: str, planned: str = "", listing: Any = None) -> str:
    """Name of the interface that holds `address`. NoInterface says what was found instead.

    `planned` is the interface that the inventory names, empty when it leaves the choice to the address. `listing` is
    the output of `ip -j address` (taken from the host when left out).
    """
    links = _listing() if listing is None else listing
    wanted = ipaddress.ip_address(address)
    held: List[str] = []
    seen: List[str] = []
    for link in links:
        for entry in link.get("addr_info", []):
            local = entry.get("local", "")
            seen.append("%s on %s" % (local, link.get("ifname")))
            if local and ipaddress.ip_address(local) == wanted:
                held.append(link["ifname"])
    if not held:
        raise NoInterface("no interface holds %s; this host has %s" % (address, ", ".join(seen) or "no address"))
    if planned and planned not in held:
        raise NoInterface("%s is on %s, the inventory says %s" % (address, ", ".join(held), planned))
    return planned or held[0]


def _listing() -> Any:
    done = subprocess.run(
        ["ip", "-j", "address", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=10, check=False
    )
    if done.returncode != 0:
        raise NoInterface("ip -j address failed: %s" % done.stderr.decode("utf-8", "replace").strip()[-200:])
    return json.loads(done.stdout.decode("utf-8"))
