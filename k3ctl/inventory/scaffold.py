"""The files of a new inventory folder as text: hosts.yml, group_vars/all.yml, cluster.yml, README.md. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface

import yaml

from k3ctl.profiles.types import Platform

UNKNOWN = "CHANGE_ME"
_RANGE = re.compile(r"\[(\d+):(\d+)\]")
_TARGET = re.compile(r"^(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^:@\s]+)(?::(?P<port>\d{1,5}))?$")
_LABEL = re.compile(r"^[a-z][a-z0-9-]{0,61}$")
_PLAIN = re.compile(r"^[A-Za-z0-9_./][A-Za-z0-9_./@:-]*$")
_MOST = 64  # hosts that one range may name


@dataclass(frozen=True)
class Host:
    """One server as it will stand in hosts.yml. What is not known is UNKNOWN; `port` 0 and `user` empty: not said."""

    name: str
    address: str = UNKNOWN
    port: int = 0
    user: str = ""
    fabric: str = UNKNOWN


@dataclass(frozen=True)
class Scaffold:
    """Everything a new inventory says. `subnet` is the fabric's network, empty when it is not known.

    `folder` is how commands name it; `schema` is the path of cluster.yml's JSON Schema as seen from the folder, empty
    when there is none.
    """

    name: str
    platform: Platform
    model: str
    engine: str
    hosts: tuple[Host, ...]
    folder: str
    subnet: str = ""
    schema: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return self.platform.gpus_per_node * len(self.hosts)


def expand(text: str) -> tuple[str, ...]:
    """`gpu-[01:04]` to four texts, keeping leading zeros; any other text alone. Raises ValueError on a bad range."""
    match = _RANGE.search(text)
    if not match:
        return (text,)
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + _MOST:
        raise ValueError(f"the range {match[0]} must rise, over at most {_MOST} hosts")
    width = len(match[1])
    return tuple(text[: match.start()] + str(n).zfill(width) + text[match.end() :] for n in range(first, last + 1))


def host(text: str) -> Host:
    """`user@address:port` to a Host without a name; an IPv6 address with a port stands in brackets."""
    try:
        return Host("", ip_address(text).compressed)
    except ValueError:
        match = _TARGET.fullmatch(text)
    if not match or (match["port"] and not 0 < int(match["port"]) < 65536):
        raise ValueError("not of the form user@address:port")
    address = match["host"].strip("[]")
    if match["host"].startswith("["):
        address = ip_address(address).compressed
    return Host("", address, int(match["port"] or 0), match["user"] or "")


def fabric(text: str) -> tuple[str, str]:
    """`198.51.100.11/24` to its address and network; the network is empty when no prefix length is given."""
    interface = ip_interface(text)
    return interface.ip.compressed, str(interface.network) if "/" in text else ""


def named(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Every host with a name: the first part of its DNS name where all have a fit and different one, else gpu-01."""
    labels = [_label(item.address) for item in hosts]
    if not all(labels) or len(set(labels)) < len(labels):
        labels = [f"gpu-{number:02d}" for number in range(1, len(hosts) + 1)]
    return tuple(replace(item, name=label) for item, label in zip(hosts, labels, strict=True))


def _label(address: str) -> str:
    """The first part of a DNS name when it can name a node; empty for addresses, UNKNOWN and group names."""
    label = address.partition(".")[0]
    known = address != UNKNOWN and _LABEL.fullmatch(label) and label not in ("all", "ungrouped", "head", "workers")
    return label if known and ":" not in address else ""


def files(made: Scaffold) -> dict[str, str]:
    """Path below the folder -> text."""
    return {
        "hosts.yml": _hosts(made),
        "group_vars/all.yml": _group_vars(made),
        "cluster.yml": _cluster(made),
        "README.md": _readme(made),
    }


def _hosts(made: Scaffold) -> str:
    lines = [
        f"# {_what(made)}.",
        "# The first host is the head: it takes requests, and its rank is 0.",
        "# k3ctl_fabric_address is the host's own address on the network between the nodes.",
        "all:",
        "  children:",
        "    gpu_nodes:",
        "      children:",
        "        head:",
        "          hosts:",
        *_host(made.hosts[0], made),
    ]
    if made.hosts[1:]:
        lines += ["        workers:", "          hosts:"]
        for item in made.hosts[1:]:
            lines += _host(item, made)
    return "\n".join(lines) + "\n"


def _host(item: Host, made: Scaffold) -> Iterator[str]:
    yield f"            {_scalar(item.name)}:"
    yield f"              ansible_host: {_scalar(item.address)}"
    if item.port:
        yield f"              ansible_port: {item.port}"
    if item.user and not _one_user(made):
        yield f"              ansible_user: {_scalar(item.user)}"
    yield f"              k3ctl_fabric_address: {_scalar(item.fabric)}"


def _one_user(made: Scaffold) -> str:
    """The user of all hosts; empty when they differ or none is known."""
    users = {item.user for item in made.hosts if item.address != UNKNOWN}
    return users.pop() if len(users) == 1 else ""


def _group_vars(made: Scaffold) -> str:
    user = _one_user(made)
    lines = [
        "# How every host is reached. A key file goes into ansible_ssh_private_key_file; without one, the keys and the",
        "# agent of your own ssh are used.",
    ]
    if user:
        lines.append(f"ansible_user: {_scalar(user)}")
    lines += ["ansible_become: true", "ansible_python_interpreter: /usr/bin/python3"]
    return "\n".join(lines) + "\n"


def _cluster(made: Scaffold) -> str:
    lines = [f"# yaml-language-server: $schema={made.schema}"] if made.schema else []
    lines += [
        f"# {_what(made)}.",
        "# `k3ctl plan` shows the layout that follows, and why.",
        f"platform: {made.platform.name}",
        f"model: {made.model}",
        f"engine: {made.engine}",
        "fabric:" if made.subnet else "# fabric:",
        f"  subnet: {made.subnet} # the network between the nodes"
        if made.subnet
        else "#   subnet: 198.51.100.0/24 # the network between the nodes: with it, a wrong address is found early",
        "endpoint:",
        "  port: 8000 # on the head; clients reach it at the head's SSH address unless `address` says otherwise",
        "security:",
        "  api_key: generated # made on the first `k3ctl up`; or the absolute path of a file that holds one",
        "# weights:",
        "#   token_file: /home/me/hub-token # Kimi-K3 needs none; a token raises the hub's rate limits",
        "# paths:",
        "#   weights: /srv/k3ctl/weights # on every node: local NVMe",
    ]
    return "\n".join(lines) + "\n"


def _what(made: Scaffold) -> str:
    count = len(made.hosts)
    return f"{count} nodes with {made.gpus} GPUs, each: {made.platform.title}" if count > 1 else made.platform.title


def missing(made: Scaffold) -> tuple[str, ...]:
    """What was written as UNKNOWN, as `hosts.yml: ansible_host of gpu-01`."""
    found = [f"hosts.yml: ansible_host of {item.name}" for item in made.hosts if item.address == UNKNOWN]
    found += [f"hosts.yml: k3ctl_fabric_address of {item.name}" for item in made.hosts if item.fabric == UNKNOWN]
    return tuple(found)


def _readme(made: Scaffold) -> str:
    verdict = made.platform.verdict
    gaps = missing(made)
    said = f"The platform `{made.platform.name}` is marked {verdict.status}: {verdict.source}."
    if verdict.note:
        said += f" {verdict.note[0].upper()}{verdict.note[1:]}."
    edit = [f"- {item}" for item in gaps] or [
        "- nothing is left open; look over `group_vars/all.yml` and `cluster.yml`"
    ]
    return "\n".join(
        [
            f"# {made.name}: {_what(made)}",
            "",
            f"Written by `k3ctl init` for {made.model} on {made.engine}.",
            "",
            *textwrap.wrap(said, 118),
            "",
            "To fill in:",
            "",
            *edit,
            "",
            "Then:",
            "",
            f"    k3ctl validate {made.folder}",
            f"    k3ctl plan {made.folder}",
            f"    k3ctl trust {made.folder}",
            f"    k3ctl up {made.folder}",
            "",
        ]
    )


def _scalar(text: str) -> str:
    """Text as YAML reads it back: plain where that is safe, else in double quotes (101, 1e3, no, ::1)."""
    return text if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)
