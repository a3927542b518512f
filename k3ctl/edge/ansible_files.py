"""The inventory of one play as data: connection variables, role variables, and secrets in a file of their own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from k3ctl.cluster import Cluster
from k3ctl.inventory import Node
from k3ctl.secret import Secret

GROUP = "gpu_nodes"


class _Literal(str):
    """Text that Ansible must take as it is, although it may hold {{ }}: role variables are data, never templates."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """SafeDumper that knows Ansible's `!unsafe` tag and repeats values instead of anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML asks about each value
        return True


_Dumper.add_representer(_Literal, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style='"'))


def inventory_files(
    cluster: Cluster, nodes: tuple[str, ...], variables: Mapping[str, Mapping[str, Any]], ssh_args: str
) -> dict[str, str]:
    """File name -> YAML text of an inventory folder. Only the second file holds values of type Secret, revealed."""
    plain: dict[str, dict[str, Any]] = {}
    secret: dict[str, dict[str, Any]] = {}
    for name in nodes:
        given = variables.get(name, {})
        hidden = {key for key, value in given.items() if holds_secret(value)}
        plain[name] = {
            **connection(cluster.inventory.node(name), ssh_args),
            **{key: _literal(value) for key, value in given.items() if key not in hidden},
        }
        secret[name] = {key: _literal(given[key]) for key in sorted(hidden)}
    return {"10-hosts.yml": _text(plain), "20-secrets.yml": _text(secret)}


def connection(node: Node, ssh_args: str) -> dict[str, Any]:
    """Variables that say how Ansible reaches a node: the inventory's own, completed from what k3ctl made of them.

    `ssh_args` come first: OpenSSH takes the first value of an option, so no later argument can weaken them.
    """
    own = {
        # ansible_* are resolved already: a password may well hold {{. All others are as the user wrote them.
        str(key): _literal(value) if str(key).startswith("ansible_") else _plain(value)
        for key, value in node.variables.items()
        if not str(key).startswith("k3ctl_")
    }
    ssh = node.ssh
    derived = {
        "ansible_host": ssh.address,
        "ansible_port": ssh.port,
        "ansible_user": ssh.user,
        "ansible_ssh_private_key_file": ssh.key_file,
        "ansible_become_password": ssh.become_password.reveal() if ssh.become_password else "",
        "ansible_ssh_common_args": _jump_args(node),
    }
    users_args = own.pop("ansible_ssh_args", "")
    return {
        **{key: value for key, value in derived.items() if value},
        **own,
        # A fixed interpreter: discovery takes the first python it meets (conda's, say), which has no apt bindings.
        "ansible_python_interpreter": ssh.python,
        "ansible_ssh_args": f"{ssh_args} {users_args}".strip(),
        "ansible_host_key_checking": True,
    }


def ssh_options(known_hosts: Path, config: Path) -> str:
    """Arguments of every ssh of a play.

    The rules are also in the file that -F names, since ssh hands -F, and not -o, to the ssh of a jump host.
    """
    options = (
        f"UserKnownHostsFile={known_hosts}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "ControlMaster=auto",
        "ControlPersist=30s",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
    )
    return shlex.join(["-F", str(config), *(part for option in options for part in ("-o", option))])


def ssh_config(known_hosts: Path, keys: Iterable[str]) -> str:
    """Our rules first, then the user's own configuration: the first value of an option wins.

    `keys` are the inventory's key files, which jump hosts may want as well.
    """
    return "\n".join(
        (
            f'UserKnownHostsFile "{known_hosts}"',
            "GlobalKnownHostsFile /dev/null",
            "StrictHostKeyChecking yes",
            "Include ~/.ssh/config",
            "Match all",
            "Include /etc/ssh/ssh_config",
            "Match all",
            *(f'IdentityFile "{key}"' for key in dict.fromkeys(keys)),
            "",
        )
    )


def holds_secret(value: object) -> bool:
    """True when a Secret is in it, at any depth."""
    return bool(list(secrets_in(value)))


def secrets_in(value: object) -> Iterable[Secret]:
    """Every Secret in nested mappings and sequences."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from secrets_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from secrets_in(inner)


def _jump_args(node: Node) -> str:
    ssh = node.ssh
    if ssh.jump:
        return f"-o ProxyJump={','.join(ssh.jump)}"
    return shlex.join(["-o", f"ProxyCommand={ssh.proxy_command}"]) if ssh.proxy_command else ""


def _text(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    tree = {"all": {"children": {GROUP: {"hosts": dict(hosts)}}}}
    return str(yaml.dump(tree, Dumper=_Dumper, allow_unicode=True, width=10_000))


def _plain(value: Any) -> Any:
    """The value as plain YAML types; Ansible's loader hands out subclasses of them."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return str.__str__(value)
    return value


def _literal(value: Any) -> Any:
    """Like _plain, with every text marked as no template."""
    plain = _plain(value)
    if isinstance(plain, dict):
        return {key: _literal(inner) for key, inner in plain.items()}
    if isinstance(plain, list):
        return [_literal(inner) for inner in plain]
    return _Literal(plain) if isinstance(plain, str) else plain
