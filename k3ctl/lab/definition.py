"""The lab is defined by an inventory: its hosts with their addresses, and the hub's address in cluster.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from k3ctl.errors import ConfigError, Problem
from k3ctl.lab.layout import Layout

MAX_HOSTS = 8
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
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
    model: str

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
    """Read an inventory folder as a lab. ConfigError with every problem found."""
    folder = Path(path).resolve()
    hosts_file = folder / "hosts.yml"
    if not hosts_file.is_file():
        raise ConfigError(
            Problem(
                what="no lab inventory there",
                file=str(hosts_file),
                found="no such file",
                expected="a folder with hosts.yml",
                fix="pass the folder, for example `k3ctl lab create inventories/lab`",
            )
        )
    variables = _hosts(_mapping(hosts_file), folder / "group_vars")
    spec_file = folder / "cluster.yml"
    spec = _mapping(spec_file) if spec_file.is_file() else {}
    return define(folder, variables, spec, str(hosts_file), str(spec_file))


def define(
    folder: Path,
    variables: Mapping[str, Mapping[str, Any]],
    spec: Mapping[str, Any],
    hosts_file: str,
    spec_file: str,
) -> LabDefinition:
    """Judge host variables (in rank order) and cluster.yml. Pure; ConfigError with every problem found."""
    problems: list[Problem] = []
    if not _LAB_NAME.fullmatch(folder.name):
        problems.append(Problem(what="the folder's name cannot name a lab", found=folder.name, file=str(folder)))
    if not 1 <= len(variables) <= MAX_HOSTS:
        problems.append(
            Problem(what="a lab has 1 to 8 hosts", found=str(len(variables)), file=hosts_file, key="gpu_nodes")
        )
    hosts: list[LabHost] = []
    for index, (name, values) in enumerate(variables.items()):
        if not _HOST_NAME.fullmatch(name):
            problems.append(
                Problem(
                    what="not a host name",
                    found=name,
                    expected="lower-case letters, digits and -, up to 32",
                    file=hosts_file,
                )
            )
        management = _address(name, "ansible_host", values, hosts_file, problems)
        fabric = _address(name, "k3ctl_fabric_address", values, hosts_file, problems)
        if management and fabric:
            hosts.append(LabHost(index, name, management, fabric))
    if problems:
        raise ConfigError(*problems)
    networks = _networks(hosts, hosts_file, problems)
    users = {str(v.get("ansible_user", "")) for v in variables.values()}
    if len(users) != 1 or "" in users:
        problems.append(
            Problem(
                what="a lab has one login user",
                found=", ".join(sorted(users)),
                file=hosts_file,
                key="ansible_user",
                fix="set ansible_user in group_vars/all.yml",
            )
        )
    layout = Layout(folder.name, folder)
    _judge_key(variables, layout, hosts_file, problems)
    port = _hub_port(spec, networks[0][1], spec_file, problems) if networks else 0
    if problems or not networks:
        raise ConfigError(*problems)
    return LabDefinition(layout, tuple(hosts), users.pop(), networks[0], networks[1], port, str(spec.get("model", "")))


def _address(host: str, key: str, values: Mapping[str, Any], file: str, problems: list[Problem]) -> IPv4Address | None:
    text = str(values.get(key, ""))
    try:
        return IPv4Address(text)
    except AddressValueError:
        problems.append(
            Problem(
                what=f"{key} of a lab host must be an IPv4 address",
                found=text or "nothing",
                expected="an IPv4 address",
                node=host,
                file=file,
                key=key,
            )
        )
        return None


def _networks(hosts: list[LabHost], file: str, problems: list[Problem]) -> tuple[IPv4Network, IPv4Network] | tuple[()]:
    found: list[IPv4Network] = []
    for key, addresses in (
        ("ansible_host", [h.management for h in hosts]),
        ("k3ctl_fabric_address", [h.fabric for h in hosts]),
    ):
        networks = {IPv4Network((int(a) & ~0xFF, 24)) for a in addresses}
        if len(networks) != 1:
            names = ", ".join(sorted(str(n) for n in networks))
            problems.append(Problem(what=f"{key} of all lab hosts must be in one /24", found=names, file=file, key=key))
        twice = sorted({str(a) for a in addresses if addresses.count(a) > 1})
        if twice:
            problems.append(Problem(what=f"{key} given twice", found=", ".join(twice), file=file, key=key))
        taken = [str(a) for a in addresses if int(a) & 0xFF in (0, 1, 255)]
        if taken:
            problems.append(
                Problem(
                    what=f"{key} may not be the network, gateway (.1) or broadcast address",
                    found=", ".join(taken),
                    file=file,
                    key=key,
                )
            )
        found.append(networks.pop())
    if found[0] == found[1]:
        problems.append(
            Problem(
                what="management and fabric must be different networks",
                found=str(found[0]),
                file=file,
                key="k3ctl_fabric_address",
            )
        )
    return () if problems else (found[0], found[1])


def _judge_key(variables: Mapping[str, Mapping[str, Any]], layout: Layout, file: str, problems: list[Problem]) -> None:
    for host, values in variables.items():
        found = str(values.get("ansible_ssh_private_key_file", ""))
        if found != str(layout.key):
            problems.append(
                Problem(
                    what="the lab makes its own key; the inventory must name it",
                    found=found or "nothing",
                    expected=str(layout.key),
                    node=host,
                    file=file,
                    key="ansible_ssh_private_key_file",
                )
            )


def _hub_port(spec: Mapping[str, Any], gateway: IPv4Address, file: str, problems: list[Problem]) -> int:
    weights = spec.get("weights")
    endpoint = str(weights.get("endpoint", "")) if isinstance(weights, Mapping) else ""
    if not endpoint:
        return 0
    parts = urlsplit(endpoint)
    if parts.hostname != str(gateway) or not parts.port:
        problems.append(
            Problem(
                what="the lab's hub listens on the gateway address of the management network",
                found=endpoint,
                expected=f"http://{gateway}:PORT",
                file=file,
                key="weights.endpoint",
            )
        )
        return 0
    return parts.port


def _mapping(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            Problem(
                what="not YAML",
                found=str(getattr(error, "problem", error)),
                file=str(file),
                line=mark.line + 1 if mark else None,
            )
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            Problem(what="not a mapping", found=type(found).__name__, expected="a mapping", file=str(file))
        )
    return found


def _hosts(tree: Mapping[str, Any], group_vars: Path) -> dict[str, dict[str, Any]]:
    """Hosts of head, then of workers, each with its variables: all, gpu_nodes, own group, host."""
    found: dict[str, dict[str, Any]] = {}
    groups = dict(_groups("all", tree.get("all") or {}))
    common = _group_variables(("all", "gpu_nodes"), groups, group_vars)
    for group in ("head", "workers"):
        own = _group_variables((group,), groups, group_vars)
        hosts = (groups.get(group) or {}).get("hosts") or {}
        for name, values in hosts.items():
            found[str(name)] = {**common, **own, **(values or {})}
    return found


def _groups(name: str, group: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield name, group
    for child, content in (group.get("children") or {}).items():
        yield from _groups(str(child), content or {})


def _group_variables(names: tuple[str, ...], groups: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in names:
        merged.update((groups.get(name) or {}).get("vars") or {})
        file = folder / f"{name}.yml"
        if file.is_file():
            merged.update(_mapping(file))
    return merged
