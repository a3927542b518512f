"""How a node is reached: Ansible's connection variables to one SshTarget that k3ctl's own SSH follows. Pure.

What k3ctl's SSH cannot follow is refused, so that both go the same way to every node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from k3ctl.errors import Problem
from k3ctl.inventory import SshTarget
from k3ctl.inventory.ssh_options import SshOptions, parse_options
from k3ctl.inventory.variables import SECRETS
from k3ctl.inventory.view import Variable
from k3ctl.secret import Secret

_NAMES = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "key_file": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "become_password": ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
}
_OPTIONS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_HOST = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$")
_USER = re.compile(r"^[A-Za-z0-9_][^\s:/]*$")
_PYTHON = re.compile(r"^/[^\s]+$")
_FOUND_BY_ANSIBLE = ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent")
_DEFAULT_PYTHON = "/usr/bin/python3"


@dataclass
class _Reader:
    """Takes variables of one host and collects problems with their places."""

    host: str
    variables: Mapping[str, Variable]
    problems: list[Problem] = field(default_factory=list)

    def problem(self, name: str, what: str, *, found: str = "", expected: str = "", fix: str = "") -> None:
        """A problem with one variable, at the place where it was set."""
        at = self.variables.get(name, Variable())
        self.problems.append(
            Problem(
                what=what, found=found, expected=expected, fix=fix, node=self.host, file=at.file, line=at.line, key=name
            )
        )

    def first(self, field_name: str) -> tuple[str, Any]:
        """Name and value of the first of a field's variables that is set; two different ones are a conflict."""
        given = [(name, self.value(name)) for name in _NAMES[field_name] if name in self.variables]
        given = [(name, value) for name, value in given if value not in (None, "")]
        if not given:
            return _NAMES[field_name][0], None
        if any(value != given[0][1] for _, value in given):
            names = " and ".join(f"`{name}`" for name, _ in given)
            self.problem(given[1][0], f"{names} say different things", fix=f"keep `{given[0][0]}`")
        return given[0]

    def value(self, name: str) -> Any:
        """The resolved value of one variable; None when it is not set or not known (the judgement reports that)."""
        variable = self.variables.get(name, Variable())
        return variable.value if name in SECRETS else variable.bare

    def text(self, field_name: str) -> tuple[str, str]:
        """Name and text of a field; empty when it is not set or no text."""
        name, value = self.first(field_name)
        if value is not None and not isinstance(value, str):
            self.problem(name, f"`{name}` is text", found=repr(value)[:60], expected="text", fix="put it in quotes")
            value = None
        return name, value or ""


def ssh_target(host: str, variables: Mapping[str, Variable]) -> tuple[SshTarget, list[Problem]]:
    """The target of one host, as far as it could be read, and everything that is wrong with it."""
    reader = _Reader(host, variables)
    options = _options(reader)
    name, address = reader.text("address")
    address = _address(reader, name, address or host)
    name, user = reader.text("user")
    if user and not _USER.fullmatch(user):
        reader.problem(name, f"`{name}` is no user name", found=user)
    user = _same(reader, name, user, options.user, "-l or User")
    target = SshTarget(
        address=address,
        port=_port(reader, options),
        user=user,
        key_file=_key_file(reader, options),
        jump=options.jump,
        proxy_command=options.proxy_command,
        become_password=_become(reader, user),
        python=_python(reader),
    )
    return target, reader.problems


def _options(reader: _Reader) -> SshOptions:
    """All SSH options of the host together; Ansible passes them in this order."""
    words: list[str] = []
    asked = ""
    for name in _OPTIONS:
        value = reader.value(name)
        if not value:
            continue
        asked = name
        try:
            words += shlex.split(value if isinstance(value, str) else str(value))
        except ValueError as error:
            reader.problem(name, f"`{name}` cannot be split into words: {error}", found=str(value)[:100])
    options, problems = parse_options(words)
    for what, fix in problems:
        reader.problem(asked, f"`{asked}`: {what}", fix=fix)
    return options


def _address(reader: _Reader, name: str, text: str) -> str:
    """A host name, alias, IPv4 or IPv6 address, addresses in canonical form."""
    bare, _, zone = text.partition("%")
    try:
        return ip_address(bare).compressed + (f"%{zone}" if zone else "")
    except ValueError:
        pass
    if text.startswith("[") and text.endswith("]"):
        reader.problem(name, f"`{name}` is written in brackets", found=text, fix=f'write "{text[1:-1]}"')
    elif "@" in text:
        fix = f"put `{text.split('@', maxsplit=1)[0]}` into ansible_user"
        reader.problem(name, f"`{name}` holds a user name", found=text, fix=fix)
    elif re.fullmatch(r"[^:]+:\d+", text):
        fix = f"put {text.rpartition(':')[2]} into ansible_port"
        reader.problem(name, f"`{name}` holds a port", found=text, fix=fix)
    elif re.fullmatch(r"[0-9.]+", text) and "." in text:
        reader.problem(name, f"`{name}` is no IPv4 address", found=text, expected="four numbers from 0 to 255")
    elif not _HOST.fullmatch(text):
        reader.problem(name, f"`{name}` is no host name and no address", found=text[:80])
    return text


def _port(reader: _Reader, options: SshOptions) -> int:
    name, value = reader.first("port")
    port = 0
    if value is not None:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
            reader.problem(name, f"`{name}` is no port number", found=text[:20], expected="1 to 65535")
        else:
            port = int(text)
    return int(_same(reader, name, str(port or ""), str(options.port or ""), "-p or Port") or 22)


def _key_file(reader: _Reader, options: SshOptions) -> str:
    name, path = reader.text("key_file")
    path = _same(reader, name, path, options.key_file, "-i or IdentityFile")
    if path and not path.startswith(("/", "~")):
        fix = 'write it from the root, from ~, or as "{{ inventory_dir }}/..."'
        reader.problem(name, "the key file's path is relative", found=path, expected="an absolute path", fix=fix)
    return path


def _same(reader: _Reader, name: str, variable: str, option: str, what: str) -> str:
    """A variable and an SSH option for the same thing: either, or both when they agree."""
    if variable and option and variable != option:
        found = f"{variable} and {option}"
        reader.problem(name, f"`{name}` and the SSH option {what} say different things", found=found, fix="keep one")
    return variable or option


def _become(reader: _Reader, user: str) -> Secret | None:
    """The password for sudo. Other ways to become root are refused: k3ctl uses sudo."""
    for name, only in (("ansible_become_method", "sudo"), ("ansible_become_user", "root")):
        value = reader.value(name)
        if value not in (None, only):
            reader.problem(name, f"`{name}` is not supported", found=str(value), expected=only, fix="remove it")
    become = reader.value("ansible_become")
    if str(become).lower() in ("false", "no") and user != "root":
        what = "k3ctl needs root on the nodes, by sudo or as the user root"
        reader.problem("ansible_become", what, found="ansible_become: false", fix="remove it")
    connection = reader.value("ansible_connection")
    if connection not in (None, "ssh", "smart", "ansible.builtin.ssh"):
        what = "nodes are reached by SSH"
        reader.problem("ansible_connection", what, found=str(connection), expected="ssh", fix="remove it")
    _, password = reader.first("become_password")
    return password if isinstance(password, Secret) else None


def _python(reader: _Reader) -> str:
    value = reader.value("ansible_python_interpreter")
    if value in (None, "", *_FOUND_BY_ANSIBLE):
        return _DEFAULT_PYTHON
    if not isinstance(value, str) or not _PYTHON.fullmatch(value):
        name = "ansible_python_interpreter"
        reader.problem(name, "the Python interpreter is no path", found=str(value)[:80], expected=_DEFAULT_PYTHON)
        return _DEFAULT_PYTHON
    return value
