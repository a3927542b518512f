"""The inventory variables that k3ctl reads, and what is wrong with one as written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl.errors import Problem
from k3ctl.nearest import did_you_mean, nearest
from k3ctl.yaml_source import Place, Vaulted

Kind = Literal["text", "port", "secret", "flag", "other"]

K3CTL: dict[str, Kind] = {"k3ctl_fabric_address": "text", "k3ctl_fabric_interface": "text"}

CONNECTION: dict[str, Kind] = {
    "ansible_host": "text",
    "ansible_ssh_host": "text",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "text",
    "ansible_ssh_user": "text",
    "ansible_ssh_private_key_file": "text",
    "ansible_private_key_file": "text",
    "ansible_ssh_args": "text",
    "ansible_ssh_common_args": "text",
    "ansible_ssh_extra_args": "text",
    "ansible_sftp_extra_args": "text",
    "ansible_scp_extra_args": "text",
    "ansible_ssh_pipelining": "flag",
    "ansible_pipelining": "flag",
    "ansible_ssh_timeout": "other",
    "ansible_timeout": "other",
    "ansible_ssh_retries": "other",
    "ansible_ssh_transfer_method": "text",
    "ansible_remote_tmp": "text",
    "ansible_shell_type": "text",
    "ansible_shell_executable": "text",
    "ansible_connection": "text",
    "ansible_become": "flag",
    "ansible_become_user": "text",
    "ansible_become_method": "text",
    "ansible_become_exe": "text",
    "ansible_become_flags": "text",
    "ansible_become_password": "secret",
    "ansible_become_pass": "secret",
    "ansible_sudo_pass": "secret",
    "ansible_python_interpreter": "text",
}

_KEYS_ONLY = "k3ctl logs in with keys only: it never types a password, so that nothing can wait for one"
_KEY_IN_FILE = "k3ctl reads keys from files or from an SSH agent"
REFUSED: dict[str, tuple[str, str]] = {  # name -> (why, fix)
    "ansible_password": (_KEYS_ONLY, "set ansible_ssh_private_key_file, or use an SSH agent"),
    "ansible_ssh_pass": (_KEYS_ONLY, "set ansible_ssh_private_key_file, or use an SSH agent"),
    "ansible_ssh_password": (_KEYS_ONLY, "set ansible_ssh_private_key_file, or use an SSH agent"),
    "ansible_private_key": (_KEY_IN_FILE, "set ansible_ssh_private_key_file"),
    "ansible_ssh_private_key": (_KEY_IN_FILE, "set ansible_ssh_private_key_file"),
    "ansible_private_key_passphrase": (_KEY_IN_FILE, "load the key into an SSH agent"),
    "ansible_ssh_private_key_passphrase": (_KEY_IN_FILE, "load the key into an SSH agent"),
    "ansible_ssh_executable": ("k3ctl's own SSH would go another way than Ansible's", "remove it"),
    "ansible_host_key_checking": ("k3ctl always checks host keys", "remove it; accept new hosts with `k3ctl trust`"),
    "ansible_ssh_host_key_checking": ("k3ctl always checks host keys", "remove it; see `k3ctl trust`"),
}

SECRETS = frozenset(name for name, kind in CONNECTION.items() if kind == "secret") | frozenset(
    name for name in REFUSED if "pass" in name or name.endswith("private_key")
)
PLACEHOLDER = re.compile(r"CHANGE[_-]?ME|REPLACE[_-]?ME|<your[^>]*>", re.IGNORECASE)
_FLAG_WORDS = ("true", "false", "yes", "no")
_MISTYPED = 0.87  # how like a known name an unknown ansible_* variable must be to be called mistyped


@dataclass(frozen=True)
class Written:
    """One variable as it stands in a file. `private`: only the file's owner can read it."""

    name: str
    value: Any
    place: Place
    file: str
    key: str
    private: bool = False


def check(written: Written) -> list[Problem]:
    """What is wrong with a variable as written: unknown, refused, of another type than meant, a bare secret."""
    name = written.name
    known = {**K3CTL, **CONNECTION}
    if name.startswith("k3ctl_") and name not in K3CTL:
        expected = ", ".join(K3CTL)
        return [_problem(written, f"unknown variable `{name}`", expected=expected, fix=did_you_mean(name, K3CTL))]
    if name in REFUSED:
        why, fix = REFUSED[name]
        return [_problem(written, f"`{name}` is not supported: {why}", fix=fix)]
    if name not in known:
        match = nearest(name, known, _MISTYPED) if name.startswith("ansible_") else ""
        return [_problem(written, f"unknown variable `{name}`", fix=f"did you mean `{match}`?")] if match else []
    problem = _type_problem(written, known[name])
    return [problem] if problem else []


def _type_problem(written: Written, kind: Kind) -> Problem | None:
    value, name = written.value, written.name
    template = isinstance(value, str) and "{{" in value
    problem: tuple[str, str, str, str] | None = None  # what, found, expected, fix
    if isinstance(value, Vaulted) or kind == "other":
        problem = None
    elif value is None:
        problem = (f"`{name}` is empty", "", "", "give it a value or remove the line")
    elif isinstance(value, dict | list):
        problem = (f"`{name}` is {_named(value)}", "", "one value", "")
    elif kind == "port":
        problem = None if template else _port_problem(written)
    elif kind == "flag":
        if not (isinstance(value, bool) or template or str(value).lower() in _FLAG_WORDS):
            problem = (f"`{name}` is neither true nor false", _shown(written), "true or false", "")
    elif not isinstance(value, str):
        what = f"`{name}` is text, and written like this it is read as {_named(value)}"
        problem = (what, "***" if kind == "secret" else _shown(written), "text", "put the value in quotes")
    elif kind == "secret" and not template and not written.private:
        what = f"`{name}` stands in clear in a file that others can read"
        problem = (what, "***", "", "encrypt it with ansible-vault, or make the file's mode 0600")
    return _problem(written, *problem) if problem else None


def _port_problem(written: Written) -> tuple[str, str, str, str] | None:
    raw = written.place.raw.strip()
    if re.fullmatch(r"[1-9][0-9]{0,4}", raw) and int(raw) <= 65535:
        return None
    return (f"`{written.name}` is no port number", _shown(written), "1 to 65535", "")


def _shown(written: Written) -> str:
    """The value as written and, where YAML changed it, as read."""
    raw = written.place.raw
    return f"{raw} (read as {written.value})" if raw != str(written.value) else raw


def _named(value: Any) -> str:
    kinds = {"bool": "true or false", "int": "a number", "float": "a number", "dict": "a mapping", "list": "a list"}
    return kinds.get(type(value).__name__, f"a {type(value).__name__}")


def _problem(written: Written, what: str, found: str = "", expected: str = "", fix: str = "") -> Problem:
    return Problem(
        what=what, found=found, expected=expected, fix=fix, file=written.file, line=written.place.line, key=written.key
    )
