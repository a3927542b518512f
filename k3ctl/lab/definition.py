"""The lab is defined by an inventory: its hosts with their addresses, and the hub's address in cluster.yml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from k3ctl.errors import ConfigError, Problem
from k3ctl.lab.layout import Layout

if TYPE_CHECKING:
    from k3ctl.cluster import Cluster
    from k3ctl.inventory import Inventory, Node

MAX_HOSTS = 8
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_LAB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")


@dataclass(frozen=True)
class LabHost:
    """One machine. `index` counts from 0 in rank order and is part of its link names."""

    index: int
    name: str
    management: IPv4Address
    fabric: IPv4Address


@dataclass(frozen=True)
class LabDefinition:
    """What `lab create` makes. Both networks are the /24 around the hosts' addresses; .1 is the outer machine."""

    layout: Layout
    hosts: tuple[LabHost, ...]
    user: str
    management: IPv4Network
    fabric: IPv4Network
    hub_port: int

    @property
    def name(self) -> str:
        """The inventory folder's name; also the cluster's name."""
        return self.layout.name

    @property
    def gateway(self) -> IPv4Address:
        """Address of the outer machine on the management network: gateway of the machines, and the hub's."""
        return self.management[1]

    def host(self, name: str) -> LabHost:
        """The host of that name; ConfigError that lists the names when there is none."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = ", ".join(h.name for h in self.hosts)
        raise ConfigError(
            Problem(what=f"no machine `{name}` in lab `{self.name}`", found=name, expected=f"one of {names}")
        )


def load(path: str | Path) -> LabDefinition:
    """Read an inventory folder as a lab. ConfigError with every problem found.

    The key files are not judged: the lab makes the key.
    """
    from k3ctl.edge.ansible_inventory import load_cluster  # noqa: PLC0415 - pydantic: only those who load pay for it

    return define(load_cluster(str(path), check_keys=False))


def define(cluster: Cluster) -> LabDefinition:
    """Judge a cluster as a lab. Pure; ConfigError with every problem found."""
    inventory, file = cluster.inventory, str(Path(cluster.inventory.path) / "hosts.yml")
    layout = Layout(inventory.name, Path(inventory.path))
    problems = _names(inventory, file)
    hosts: list[LabHost] = []
    for index, node in enumerate(inventory.nodes):
        management = _address(node, "ansible_host", node.ssh.address, file, problems)
        fabric = _address(node, "k3ctl_fabric_address", node.fabric_address, file, problems)
        if management and fabric:
            hosts.append(LabHost(index, node.name, management, fabric))
        problems += _login_problems(node, layout, file)
    users = {node.ssh.user for node in inventory.nodes}
    if len(users) > 1:
        found = ", ".join(sorted(users))
        problems.append(Problem(what="a lab has one login user", found=found, file=file, key="ansible_user"))
    if problems:
        raise ConfigError(*problems)
    management_net, fabric_net = _networks(hosts, file)
    port = _hub_port(cluster, management_net)
    return LabDefinition(layout, tuple(hosts), users.pop(), management_net, fabric_net, port)


def _names(inventory: Inventory, file: str) -> list[Problem]:
    problems = []
    if not _LAB_NAME.fullmatch(inventory.name):
        what = "the folder's name cannot name a lab"
        problems.append(
            Problem(what=what, found=inventory.name, expected="letters, digits, - _ and .", file=inventory.path)
        )
    count = len(inventory.nodes)
    if not 1 <= count <= MAX_HOSTS:
        problems.append(Problem(what=f"a lab has 1 to {MAX_HOSTS} hosts", found=str(count), file=file, key="gpu_nodes"))
    expected = "lower-case letters, digits and -, up to 32"
    for node in inventory.nodes:
        if not _HOST_NAME.fullmatch(node.name):
            problems.append(Problem(what="not a host name", found=node.name, expected=expected, file=file))
    return problems


def _address(node: Node, key: str, text: str, file: str, problems: list[Problem]) -> IPv4Address | None:
    try:
        found = IPv4Address(text)
    except AddressValueError:
        what = f"{key} of a lab host must be an IPv4 address"
        problems.append(
            Problem(what=what, found=text or "nothing", expected="an IPv4 address", node=node.name, file=file, key=key)
        )
        return None
    if int(found) & 0xFF in (0, 1, 255):
        what = f"{key} may not be the network, gateway (.1) or broadcast address of its /24"
        problems.append(Problem(what=what, found=text, node=node.name, file=file, key=key))
    return found


def _login_problems(node: Node, layout: Layout, file: str) -> list[Problem]:
    problems = []
    if node.ssh.key_file != str(layout.key):
        problems.append(
            Problem(
                what="the lab makes its own key; the inventory must name it",
                found=node.ssh.key_file or "nothing",
                expected=str(layout.key),
                node=node.name,
                file=file,
                key="ansible_ssh_private_key_file",
            )
        )
    if not _USER.fullmatch(node.ssh.user) or node.ssh.user == "root":
        found = node.ssh.user or "nothing"
        expected = "a user that the lab makes, with sudo"
        problems.append(
            Problem(
                what="not a login user of a lab",
                found=found,
                expected=expected,
                node=node.name,
                file=file,
                key="ansible_user",
            )
        )
    if node.ssh.port != 22:
        problems.append(
            Problem(
                what="lab hosts listen on port 22",
                found=str(node.ssh.port),
                node=node.name,
                file=file,
                key="ansible_port",
            )
        )
    return problems


def _networks(hosts: list[LabHost], file: str) -> tuple[IPv4Network, IPv4Network]:
    """The /24 of each network. ConfigError when the hosts of one are in several, or both are the same."""
    problems = []
    by_key = {
        "ansible_host": [h.management for h in hosts],
        "k3ctl_fabric_address": [h.fabric for h in hosts],
    }
    found = {key: {IPv4Network((int(a) & ~0xFF, 24)) for a in addresses} for key, addresses in by_key.items()}
    for key, networks in found.items():
        twice = sorted({str(a) for a in by_key[key] if by_key[key].count(a) > 1})
        if twice:
            problems.append(Problem(what=f"{key} given twice", found=", ".join(twice), file=file, key=key))
        if len(networks) > 1:
            names = ", ".join(sorted(map(str, networks)))
            problems.append(Problem(what=f"{key} of all lab hosts must be in one /24", found=names, file=file, key=key))
    management, fabric = (min(networks) for networks in found.values())
    if management == fabric:
        what = "management and fabric must be different networks"
        problems.append(Problem(what=what, found=str(fabric), file=file, key="k3ctl_fabric_address"))
    if problems:
        raise ConfigError(*problems)
    return management, fabric


def _hub_port(cluster: Cluster, management: IPv4Network) -> int:
    """Port of the lab's hub; 0 when the weights come from elsewhere. ConfigError for another address of the lab."""
    endpoint = cluster.spec.weights.endpoint
    parts = urlsplit(endpoint)
    try:
        inside = IPv4Address(parts.hostname or "") in management
    except AddressValueError:
        inside = False
    if not inside:
        return 0
    if parts.hostname != str(management[1]) or not parts.port:
        raise ConfigError(
            Problem(
                what="the lab's hub listens on the gateway address of the management network",
                found=endpoint,
                expected=f"http://{management[1]}:PORT",
                file=cluster.spec_file,
                key="weights.endpoint",
            )
        )
    return parts.port
