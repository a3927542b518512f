"""What Ansible resolved, to an Inventory: who is a node, of which rank, reached how. All problems at once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from k3ctl.errors import Problem
from k3ctl.inventory import Inventory, Node
from k3ctl.inventory.fabric import fabric_address, outside
from k3ctl.inventory.ssh_target import ssh_target
from k3ctl.inventory.text import Look
from k3ctl.inventory.variables import CONNECTION, K3CTL, REFUSED
from k3ctl.inventory.view import AnsibleView, Variable
from k3ctl.nearest import did_you_mean, nearest

MAX_NODES = 16
GROUPS = ("gpu_nodes", "head", "workers")
_HOST_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
CLUSTER_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,30}$")


@dataclass(frozen=True)
class KeyFile:
    """What is known about a private key file on this machine. `path` is absolute; `kind` is what its text says."""

    path: str
    problem: str = ""  # why it cannot be used: missing, a folder, unreadable
    mode: int = 0o600
    own: bool = True  # it belongs to the user who runs k3ctl
    kind: str = "private"  # private | public | other


@dataclass(frozen=True)
class Found:
    """Everything about an inventory that the judgement needs. `files` are the files read.

    `subnet` is fabric.subnet of cluster.yml. `key_file` looks at one key file; None leaves key files unjudged (the lab
    makes its key later).
    """

    name: str
    path: str
    shown: str
    look: Look
    view: AnsibleView
    files: tuple[str, ...] = ()
    key_file: Callable[[str], KeyFile] | None = None
    subnet: IPv4Network | IPv6Network | None = None


@dataclass
class _Problems:
    found: Found
    items: list[Problem] = field(default_factory=list)

    def add(self, what: str, host: str = "", variable: str = "", **more: Any) -> None:
        """A problem, placed at the host's variable, else where the host is written, else at the inventory."""
        at = self.found.view.hosts.get(host, {}).get(variable, Variable())
        place = self.found.look.host(host) if host else None
        file, line = (at.file, at.line) if at.file else (place.file, place.line) if place else (self.found.shown, None)
        key = variable or host
        self.items.append(Problem(what=what, file=file, line=line, key=key, node=host, **more))


def judge(found: Found) -> tuple[Inventory, list[Problem]]:
    """The inventory as far as it could be read, and everything that is wrong with it."""
    problems = _Problems(found)
    problems.items += found.view.problems
    if not CLUSTER_NAME.fullmatch(found.name):
        what = "the folder's name is the cluster's name and does not fit: it names units and folders on every node"
        expected = "1 to 31 of a-z, 0-9 and -, beginning with a letter or digit"
        problems.add(what, found=found.name, expected=expected, fix="rename the folder")
    names = _members(found, problems)
    nodes = tuple(_node(found, name, rank, problems) for rank, name in enumerate(names))
    _same_way(nodes, problems)
    _same_fabric(nodes, problems)
    return Inventory(found.name, found.path, nodes, found.files), problems.items


def _members(found: Found, problems: _Problems) -> list[str]:
    """Names in rank order: head, then workers in file order."""
    groups = found.view.groups
    every, head, workers = (list(groups.get(name, ())) for name in GROUPS)
    if not every:
        _no_hosts(found, problems)
        return []
    if len(head) != 1:
        what = "group head has no host" if not head else f"group head has {len(head)} hosts"
        fix = "put one host of gpu_nodes into head" if not head else "keep one in head and put the others into workers"
        problems.add(what, found=", ".join(head) or "none", expected="exactly one", fix=fix)
    for name in (name for name in head if name in workers):
        problems.add("the host is in head and in workers", name, expected="one of them", fix="remove it from one")
    for name in dict.fromkeys(name for name in head + workers if name not in every):
        fix = "make head and workers children of gpu_nodes"
        problems.add("the host is in head or workers and not in gpu_nodes", name, fix=fix)
    for name in (name for name in every if name not in head and name not in workers):
        problems.add("the host is in gpu_nodes, and neither in head nor in workers", name, fix="put it into workers")
    if len(every) > MAX_NODES:
        expected = f"at most {MAX_NODES}"
        problems.add("too many hosts in gpu_nodes", found=str(len(every)), expected=expected)
    return list(dict.fromkeys(head + workers))


def _no_hosts(found: Found, problems: _Problems) -> None:
    others = [name for name in found.view.groups if name not in ("all", "ungrouped")]
    match = nearest("gpu_nodes", [name for name in others if name not in GROUPS])
    expected = "group gpu_nodes with the children head and workers"
    if "gpu_nodes" not in found.view.groups:
        fix = f"rename the group `{match}`" if match else "add the group"
        there = ", ".join(others) or "no group"
        problems.add("there is no group gpu_nodes: 0 hosts", found=there, expected=expected, fix=fix)
    else:
        problems.add("group gpu_nodes has 0 hosts", found="0 hosts", expected="1 to 16 hosts", fix="add hosts to head")


def _node(found: Found, name: str, rank: int, problems: _Problems) -> Node:
    variables = found.view.hosts.get(name, {})
    if not _HOST_NAME.fullmatch(name):
        expected = "letters, digits, '.', '-' and '_', at most 63"
        fix = "give the host a plain name and put its address into ansible_host"
        problems.add("this is no name for a host", name, found=name, expected=expected, fix=fix)
    if name in found.view.groups:
        problems.add("a host and a group have the same name", name, fix="rename one")
    _unknown_variables(found, name, variables, problems)
    for key in (key for key, item in variables.items() if item.error and (key in K3CTL or key in CONNECTION)):
        what = f"`{key}` has no value: {variables[key].error}"
        problems.add(what, name, key, fix="define what it refers to, or put the value here")
    ssh, wrong = ssh_target(name, variables)
    place = found.look.host(name)
    for problem in wrong:
        at_host = replace(problem, file=place.file, line=place.line) if place else problem
        problems.items.append(problem if problem.file else at_host)
    if found.key_file and ssh.key_file.startswith(("/", "~")):
        ssh = replace(ssh, key_file=_key(found.key_file(ssh.key_file), name, variables, problems))
    interface = variables.get("k3ctl_fabric_interface", Variable()).bare or ""
    if interface and not re.fullmatch(r"[^\s/:]{1,15}", str(interface)):
        what = "this is no name of a network interface"
        problems.add(what, name, "k3ctl_fabric_interface", found=str(interface)[:40])
    return Node(
        name=name,
        rank=rank,
        ssh=ssh,
        fabric_address=_fabric(name, variables, problems),
        fabric_interface=str(interface),
        groups=found.view.groups_of(name),
        variables={key: item.value for key, item in variables.items() if not item.error},
    )


def _unknown_variables(found: Found, name: str, variables: Mapping[str, Variable], problems: _Problems) -> None:
    """Variables that the text did not show: those of a vault."""
    written = {item.name for item in found.look.variables}
    for key in (key for key in variables if key not in written):
        if key.startswith("k3ctl_") and key not in K3CTL:
            problems.add(f"unknown variable `{key}`", name, key, fix=did_you_mean(key, K3CTL))
        elif key in REFUSED:
            why, fix = REFUSED[key]
            problems.add(f"`{key}` is not supported: {why}", name, key, fix=fix)


def _fabric(name: str, variables: Mapping[str, Variable], problems: _Problems) -> str:
    key = "k3ctl_fabric_address"
    variable, subnet = variables.get(key), problems.found.subnet
    if variable is None:
        fix = f"add `{key}:` with the host's address on the network between the nodes"
        problems.add(f"`{key}` is missing", name, fix=fix)
        return ""
    if variable.error:
        return ""  # said already
    address, why = fabric_address(variable.bare)
    why = why or (outside(address, subnet) if subnet else "")
    if why:
        expected = f"an address of {subnet}" if subnet else "an IPv4 or IPv6 address"
        problems.add(f"`{key}` {why}", name, key, found=str(variable.bare)[:60], expected=expected)
    return address


def _key(facts: KeyFile, name: str, variables: Mapping[str, Variable], problems: _Problems) -> str:
    variable = next((v for v in ("ansible_ssh_private_key_file", "ansible_private_key_file") if v in variables), "")
    if facts.problem:
        fix = "put the key there, or correct the path"
        if "/k3ctl-lab/" in facts.path:
            fix = "for the lab: sudo k3ctl lab create"
        problems.add(f"the key file {facts.problem}", name, variable, found=facts.path, fix=fix)
    elif facts.own and facts.mode & 0o077:
        fix = f"chmod 600 {facts.path}"
        found = f"{facts.path}, mode {facts.mode:04o}"
        problems.add("others can read the key file, and ssh refuses it", name, variable, found=found, fix=fix)
    elif facts.kind == "public":
        fix = f"name the private key: {facts.path.removesuffix('.pub')}"
        problems.add("the key file holds a public key", name, variable, found=facts.path, fix=fix)
    elif facts.kind == "other":
        problems.add("the key file holds no private key", name, variable, found=facts.path)
    return facts.path


def _same_way(nodes: Iterable[Node], problems: _Problems) -> None:
    """Two names for one host would give it two ranks."""
    first: dict[tuple[Any, ...], str] = {}
    for node in nodes:
        way = (node.ssh.address.lower(), node.ssh.port, node.ssh.jump, node.ssh.proxy_command)
        other = first.setdefault(way, node.name)
        if other != node.name:
            what = f"two names are the same host: {other} and {node.name}"
            found = f"{node.ssh.address} port {node.ssh.port}"
            variable = "ansible_host" if "ansible_host" in node.variables else ""
            problems.add(what, node.name, variable, found=found, expected="one name for each host", fix="correct one")


def _same_fabric(nodes: Iterable[Node], problems: _Problems) -> None:
    first: dict[str, str] = {}
    families: dict[bool, str] = {}
    for node in (node for node in nodes if node.fabric_address):
        key, address = "k3ctl_fabric_address", node.fabric_address
        other = first.setdefault(address, node.name)
        if other != node.name:
            problems.add(f"{other} and {node.name} have the same fabric address", node.name, key, found=address)
        families.setdefault(":" in address, node.name)
        if len(families) == 2 and families[":" in address] == node.name:
            what = "the fabric has IPv4 and IPv6 addresses"
            fix = "use one family on all hosts"
            found = f"{address}, and {families[':' not in address]} has the other family"
            problems.add(what, node.name, key, found=found, expected="one family", fix=fix)
