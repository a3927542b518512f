"""What Ansible's own loader made of an inventory: variables with precedence, vault and templates resolved. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl.errors import Problem
from k3ctl.secret import Secret


@dataclass(frozen=True)
class Variable:
    """One variable of one host. `value` is a Secret when it came from a vault or is a password by its name.

    `error` is the reason why the value is not known: an undefined name in a template, a vault without its password.
    """

    value: Any = None
    file: str = ""
    line: int | None = None
    error: str = ""

    @property
    def bare(self) -> Any:
        """The value with its secrecy taken off: for addresses, ports and users, which everybody sees anyway."""
        return self.value.reveal() if isinstance(self.value, Secret) else self.value


@dataclass(frozen=True)
class AnsibleView:
    """Hosts with their variables, groups with their hosts in file order, and what went wrong."""

    hosts: Mapping[str, Mapping[str, Variable]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def groups_of(self, host: str) -> tuple[str, ...]:
        """The groups a host is in, sorted."""
        return tuple(sorted(name for name, hosts in self.groups.items() if host in hosts and name != "all"))


# Warnings of Ansible that say nothing about what the inventory means; equal names of nodes and groups are judged.
_HARMLESS = ("Invalid characters were found in group names", "Found both group and host", "deprecat")


def view_of(reply: Mapping[str, Any], root: str, shown_root: str) -> AnsibleView:
    """The reply of `edge/ansible_dump` as a view; paths below `root` are shown below `shown_root`."""

    def shown(path: str) -> str:
        return shown_root + path[len(root) :] if path.startswith(root + "/") else path

    problems = [
        Problem(
            what=item["what"],
            found=item.get("found", ""),
            fix=item.get("fix", ""),
            file=shown(item.get("file", "")),
            line=item.get("line"),
        )
        for item in reply.get("failures", ())
    ]
    for warning in reply.get("warnings", ()):
        if not any(part.lower() in warning.lower() for part in _HARMLESS):
            text = warning.replace(root + "/", shown_root + "/").strip()
            problems.append(Problem(what=f"Ansible warns about the inventory: {text}", file=shown_root))
    hosts = {
        name: {key: _variable(item, shown) for key, item in variables.items()}
        for name, variables in reply.get("hosts", {}).items()
    }
    groups = {name: tuple(members) for name, members in reply.get("groups", {}).items()}
    return AnsibleView(hosts, groups, tuple(dict.fromkeys(problems)))


def _variable(item: Mapping[str, Any], shown: Any) -> Variable:
    value = item.get("value")
    if item.get("secret") and value is not None:
        value = Secret(value if isinstance(value, str) else json.dumps(value))
    return Variable(value, shown(item.get("file", "")), item.get("line"), item.get("error", ""))
