"""The hosts: a frozen view of a standard Ansible inventory, judged before any host is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl.secret import Secret


@dataclass(frozen=True)
class SshTarget:
    """How one node is reached, from Ansible's own connection variables.

    `address` may be a name, IPv4 or IPv6. `jump` lists hops nearest first, as `user@host:port` (ProxyJump form).
    `key_file` is an absolute path, or empty for the agent and default keys.
    """

    address: str
    port: int = 22
    user: str = ""
    key_file: str = ""
    jump: tuple[str, ...] = ()
    proxy_command: str = ""
    become_password: Secret | None = None
    python: str = "/usr/bin/python3"


@dataclass(frozen=True)
class Node:
    """One server. `rank` is the node rank of the plan (0 = head): group `head` first, then `workers` in file order."""

    name: str
    rank: int
    ssh: SshTarget
    fabric_address: str
    fabric_interface: str = ""
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)  # all host variables as Ansible resolved them


@dataclass(frozen=True)
class Inventory:
    """All GPU nodes in rank order. `name` is the folder's name and names the cluster everywhere."""

    name: str
    path: str
    nodes: tuple[Node, ...]
    files: tuple[str, ...] = ()

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    def node(self, name: str) -> Node:
        """The node of that inventory name; KeyError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
