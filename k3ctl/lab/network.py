"""Two bridges, one namespace per machine with two links, and address translation to the outside.

Each link is made with its machine end already inside the namespace, so that a half-made one is found by its outer end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from k3ctl.errors import Problem
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.layout import STATE_ROOT
from k3ctl.lab.process import Runner, must, run

READY = "k3ctl lab: complete"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARD_WAS_OFF = STATE_ROOT / ".ip_forward-was-off"


@dataclass(frozen=True)
class Link:
    """One link of the outer machine."""

    up: bool = True
    master: str = ""
    alias: str = ""


@dataclass(frozen=True)
class Seen:
    """What the kernel has: links, namespaces, nft tables as (family, name), (network, link) of its IPv4 routes.

    `mtu` is that of the way out, 1500 at most.
    """

    links: Mapping[str, Link]
    namespaces: frozenset[str]
    tables: frozenset[tuple[str, str]]
    routes: tuple[tuple[IPv4Network, str], ...]
    mtu: int = 1500


def look(runner: Runner = run) -> Seen:
    """Ask the kernel (four short commands)."""
    links: list[dict[str, Any]] = json.loads(must(runner, ["ip", "-j", "link", "show"]))
    spaces = json.loads(must(runner, ["ip", "-j", "netns", "list"]) or "[]")
    tables = json.loads(must(runner, ["nft", "-j", "list", "tables"]) or "{}").get("nftables", [])
    entries = json.loads(must(runner, ["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]")
    routes, way_out = [], ""
    for entry in entries:
        destination, device = entry.get("dst", ""), entry.get("dev", "")
        if destination == "default":
            way_out = way_out or device
        elif entry.get("type", "unicast") in ("unicast", "local") and device:
            routes.append((IPv4Network(destination, strict=False), device))
    return Seen(
        {k["ifname"]: Link("UP" in k["flags"], k.get("master", ""), k.get("ifalias", "")) for k in links},
        frozenset(space["name"] for space in spaces),
        frozenset((t["table"]["family"], t["table"]["name"]) for t in tables if "table" in t),
        tuple(routes),
        min([1500, *(link["mtu"] for link in links if link["ifname"] == way_out)]),
    )


def clashes(lab: LabDefinition, seen: Seen) -> list[Problem]:
    """Routes of somebody else that overlap the lab's networks. Pure."""
    own = {lab.layout.management_bridge, lab.layout.fabric_bridge}
    problems = []
    for key, network in (("ansible_host", lab.management), ("k3ctl_fabric_address", lab.fabric)):
        for route, device in seen.routes:
            if device not in own and route.overlaps(network):
                problems.append(
                    Problem(
                        what=f"the lab's network {network} is already in use on this machine",
                        found=f"{route} on {device}",
                        expected="a network that no link of this machine has",
                        fix=f"give {key} of all hosts another /24"
                        + (" (and weights.endpoint in cluster.yml)" if key == "ansible_host" else ""),
                        file=str(lab.layout.inventory / "hosts.yml"),
                        key=key,
                    )
                )
    return problems


def mac(lab: LabDefinition, what: str) -> str:
    """A MAC address of its own for each end, always the same.

    Neighbours would go on using the old one for up to a minute when it changes: a bridge without an address takes
    that of a new port, and udev gives a link that has a random one another (MACAddressPolicy=persistent).
    """
    digest = hashlib.sha256(f"{lab.layout.prefix} {what}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def bridge_commands(lab: LabDefinition, seen: Seen) -> list[list[str]]:
    """What the bridges lack. Pure. The route to the machines appears with the last command of each."""
    layout, commands = lab.layout, []
    routed = {device for _, device in seen.routes}
    for bridge in (layout.fabric_bridge, layout.management_bridge):
        if bridge not in seen.links:
            new = ("ip", "link", "add", bridge, "address", mac(lab, bridge))
            commands.append([*new, "type", "bridge", "stp_state", "0", "forward_delay", "0"])
        if bridge == layout.management_bridge and bridge not in routed:
            commands.append(["ip", "addr", "replace", f"{lab.gateway}/{lab.management.prefixlen}", "dev", bridge])
        if bridge not in seen.links or not seen.links[bridge].up:
            commands.append(["ip", "link", "set", bridge, "up"])
    return commands


def is_whole(lab: LabDefinition, host: LabHost, seen: Seen) -> bool:
    """Has the machine its namespace and both links, made to the end and still on their bridges? Pure."""
    layout = lab.layout
    management = seen.links.get(layout.management_link(host.index), Link())
    fabric = seen.links.get(layout.fabric_link(host.index), Link())
    return (
        layout.unit(host.name) in seen.namespaces
        and (management.master, management.alias) == (layout.management_bridge, READY)
        and fabric.master == layout.fabric_bridge
    )


def host_commands(lab: LabDefinition, host: LabHost, seen: Seen) -> list[list[str]]:
    """What makes one machine's namespace and links; what is not whole is made anew. Pure."""
    layout = lab.layout
    space = layout.unit(host.name)
    links = (layout.management_link(host.index), layout.fabric_link(host.index))
    commands = removal_commands(lab, host, seen)
    commands.append(["ip", "netns", "add", space])
    for link, inner, bridge, address, network, mtu in (
        (links[0], "eth0", layout.management_bridge, host.management, lab.management, seen.mtu),
        (links[1], "eth1", layout.fabric_bridge, host.fabric, lab.fabric, 1500),
    ):
        peer = ("peer", "name", inner, "address", mac(lab, f"{host.name}/{inner}"), "mtu", str(mtu), "netns", space)
        commands += [
            [*("ip", "link", "add", link, "mtu", str(mtu), "type", "veth"), *peer],
            ["ip", "link", "set", link, "master", bridge, "up"],
            ["ip", "-n", space, "addr", "add", f"{address}/{network.prefixlen}", "dev", inner],
            ["ip", "-n", space, "link", "set", inner, "up"],
        ]
    commands += [
        ["ip", "-n", space, "link", "set", "lo", "up"],
        # a metric, so that a second default route (a fault) can win over it
        ["ip", "-n", space, "route", "add", "default", "via", str(lab.gateway), "metric", "100"],
        ["ip", "link", "set", links[0], "alias", READY],  # last: what lacks it was left half made
    ]
    return commands


def removal_commands(lab: LabDefinition, host: LabHost, seen: Seen) -> list[list[str]]:
    """What removes one machine's links, then its namespace. Pure."""
    layout = lab.layout
    links = (layout.management_link(host.index), layout.fabric_link(host.index))
    commands = [["ip", "link", "del", link] for link in links if link in seen.links]
    space = layout.unit(host.name)
    return commands + ([["ip", "netns", "del", space]] if space in seen.namespaces else [])


def translation(lab: LabDefinition) -> str:
    """nftables text: the lab's own table, with one rule."""
    network = lab.management
    return (
        f"table ip {lab.layout.prefix} {{\n  chain post {{\n"
        "    type nat hook postrouting priority srcnat; policy accept;\n"
        f"    ip saddr {network} ip daddr != {network} masquerade\n  }}\n}}\n"
    )


def ensure(lab: LabDefinition, seen: Seen, say: Callable[[str], None], runner: Runner = run) -> list[str]:
    """Make what is missing; what was made: names of hosts, `bridges`, `way out`. Hosts named so must boot again."""
    made = []
    commands = bridge_commands(lab, seen)
    if commands:
        made.append("bridges")
    for host in lab.hosts:
        if not is_whole(lab, host, seen):
            commands += host_commands(lab, host, seen)
            made.append(host.name)
    for command in commands:
        must(runner, command)
    if ("ip", lab.layout.prefix) not in seen.tables:
        must(runner, ["nft", "-f", "-"], stdin=translation(lab))
        made.append("way out")
    if _FORWARD.read_text().strip() == "0":
        _FORWARD_WAS_OFF.parent.mkdir(parents=True, exist_ok=True)
        _FORWARD_WAS_OFF.touch()
        _FORWARD.write_text("1")
        say("network: turned net.ipv4.ip_forward on; destroying the last lab turns it off again")
    if _open_firewall(lab, runner):
        made.append("firewall")
    return made


def _firewall_rules(lab: LabDefinition) -> list[list[str]]:
    hub = f"{lab.hub_port},{lab.hub_port + 1}"  # the hub and its content network
    bridge, mark = lab.layout.management_bridge, ["-m", "comment", "--comment", lab.layout.prefix]
    return [
        ["FORWARD", "-i", bridge, *mark, "-j", "ACCEPT"],
        ["FORWARD", "-o", bridge, *mark, "-j", "ACCEPT"],
        ["INPUT", "-i", bridge, "-p", "tcp", "-m", "multiport", "--dports", hub, *mark, "-j", "ACCEPT"],
    ]


def _open_firewall(lab: LabDefinition, runner: Runner) -> bool:
    """Docker and ufw set the chains' policy to DROP, which no rule of another table can lift."""
    changed = False
    policies = runner(["iptables", "-S"]).stdout.splitlines()
    for rule in _firewall_rules(lab):
        closed = f"-P {rule[0]} DROP" in policies
        if closed and not runner(["iptables", "-C", *rule]).ok:
            must(runner, ["iptables", "-I", *rule])
            changed = True
    return changed


def remove(lab: LabDefinition, seen: Seen, runner: Runner = run) -> bool:
    """Remove everything with the lab's prefix, also of hosts no longer in the inventory. True if there was any."""
    prefix = lab.layout.prefix
    bridges = {lab.layout.management_bridge, lab.layout.fabric_bridge}
    links = sorted((link for link in seen.links if link.startswith(prefix)), key=lambda link: link in bridges)
    spaces = sorted(space for space in seen.namespaces if space.startswith(prefix + "-"))
    tables = sorted(table for table in seen.tables if table[1].startswith(prefix))
    for link in links:
        must(runner, ["ip", "link", "del", link])
    for space in spaces:
        must(runner, ["ip", "netns", "del", space])
    for family, table in tables:
        must(runner, ["nft", "delete", "table", family, table])
    for rule in _firewall_rules(lab):
        if prefix in runner(["iptables", "-S", rule[0]]).stdout:
            runner(["iptables", "-D", *rule])
    return bool(links or spaces or tables)


def close_forwarding(say: Callable[[str], None]) -> None:
    """Turn forwarding off again, if a lab turned it on and no lab is left."""
    if _FORWARD_WAS_OFF.exists() and not any(path.is_dir() for path in STATE_ROOT.iterdir()):
        _FORWARD.write_text("0")
        _FORWARD_WAS_OFF.unlink()
        say("network: turned net.ipv4.ip_forward off again")
