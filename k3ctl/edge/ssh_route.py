"""The way to a host: hops with users and keys, from the inventory's connection variables and the ssh config."""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramiko import SSHConfig
from paramiko.ssh_exception import SSHException

from k3ctl.edge.known_hosts import SSH_PORT
from k3ctl.errors import ConfigError, Problem
from k3ctl.inventory import SshTarget


@dataclass(frozen=True)
class Hop:
    """One SSH server on the way. `keys` are files to try first; with `only_keys` nothing else is tried."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    only_keys: bool = False

    @property
    def label(self) -> str:
        """As people write it: `user@host port 22`."""
        return f"{self.user}@{self.host} port {self.port}"


@dataclass(frozen=True)
class Route:
    """Jump hosts, nearest first, then the host itself. `proxy_command` replaces the first TCP connection."""

    jumps: tuple[Hop, ...]
    end: Hop
    proxy_command: str = ""


def user_config(file: Path, say: Callable[[str], None]) -> SSHConfig:
    """The user's ssh config, because Ansible's ssh obeys it too; empty when there is none.

    One that paramiko cannot read is left out, which is said: most clusters do not need it.
    """
    try:
        text = file.read_text(encoding="utf-8")
        return SSHConfig.from_text(text)
    except (FileNotFoundError, NotADirectoryError):
        return SSHConfig()
    except (OSError, ValueError, SSHException) as error:
        say(f"{file} is left out, since it cannot be read: {error}")
        return SSHConfig()


def route(target: SshTarget, config: SSHConfig, local_user: str = "") -> Route:
    """The way to a target. What the inventory says wins over the ssh config, which wins over OpenSSH's defaults.

    `local_user` is the fallback user (empty: the user who runs this). Raises ConfigError for an unreadable jump.
    """
    me = local_user or getpass.getuser()
    found = config.lookup(target.address)
    end = _hop(target.address, target.port, target.user, found, me, key=target.key_file)
    jump = target.jump
    command = target.proxy_command
    if not jump and not command:
        jump = _jump_of(found)
        command = "" if jump else _text(found, "proxycommand")
    if not jump and (plain := jump_of_command(command)):
        jump, command = (plain,), ""
    hops = tuple(_jump_hop(text, config, me, target.key_file) for text in jump)
    return Route(hops, end, command.replace("%h", end.host).replace("%p", str(end.port)).replace("%r", end.user))


def parse_jump(text: str) -> tuple[str, str, int]:
    """(user or '', host, port or 0) of a hop as ProxyJump writes it: `[user@]host[:port]`, IPv6 in brackets."""
    user, _, rest = text.rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if not host or (port and not port.isdigit()) or (port and not 0 < int(port) < 65536):
        raise ConfigError(
            Problem(
                what="a jump host cannot be read",
                found=f"`{text}`",
                expected="[user@]host[:port], IPv6 addresses in brackets",
                fix="correct ProxyJump in ansible_ssh_common_args",
            )
        )
    return user, host, int(port or 0)


def jump_of_command(command: str) -> str:
    """The jump host of a plain `ssh -W %h:%p [-q] [-p PORT] [-l USER] [USER@]HOST`, else ''.

    As a jump host its key is checked by the cluster's known_hosts; as a command ssh would use the user's own.
    """
    words = shlex.split(command) if command else []
    if not words or words[0].rpartition("/")[2] != "ssh":
        return ""
    user = port = host = ""
    forwards = False
    rest = iter(words[1:])
    for word in rest:
        if word == "-W" and next(rest, "") == "%h:%p":
            forwards = True
        elif word == "-p":
            port = next(rest, "")
        elif word == "-l":
            user = next(rest, "")
        elif word == "-q":
            continue
        elif word.startswith("-") or host:
            return ""
        else:
            host = word
    if not (forwards and host):
        return ""
    name = host if "@" in host or not user else f"{user}@{host}"
    return f"{name}:{port}" if port else name


def _jump_hop(text: str, config: SSHConfig, me: str, key: str) -> Hop:
    user, host, port = parse_jump(text)
    hop = _hop(host, port or SSH_PORT, user, config.lookup(host), me, key=key)
    # The inventory's key belongs to the target; a jump host may well want another one of the user's.
    return Hop(hop.host, hop.port, hop.user, hop.keys, only_keys=False)


def _hop(host: str, port: int, user: str, found: Mapping[str, Any], me: str, *, key: str) -> Hop:
    identities = tuple(str(Path(name).expanduser()) for name in found.get("identityfile", ()))
    return Hop(
        host=_text(found, "hostname") or host,
        port=int(_text(found, "port") or port) if port == SSH_PORT else port,
        user=user or _text(found, "user") or me,
        keys=(key,) if key else identities,
        only_keys=bool(key) or _text(found, "identitiesonly").lower() == "yes",
    )


def _jump_of(found: Mapping[str, Any]) -> tuple[str, ...]:
    text = _text(found, "proxyjump")
    return () if text.lower() in ("", "none") else tuple(part.strip() for part in text.split(","))


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key) or ""
    return "" if key == "proxycommand" and value == "none" else str(value)
