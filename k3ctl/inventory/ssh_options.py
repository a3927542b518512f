"""SSH command line options of an inventory (ansible_ssh_common_args and its like), read as ssh reads them. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address


@dataclass(frozen=True)
class SshOptions:
    """What the options say about the way to a host. `jump` is nearest first; `port` 0 and empty texts = not said."""

    jump: tuple[str, ...] = ()
    proxy_command: str = ""
    user: str = ""
    port: int = 0
    key_file: str = ""


# Options that change neither the way to the host nor the trust in it: k3ctl's own SSH may leave them out.
_NEUTRAL = frozenset(
    {
        "addkeystoagent", "addressfamily", "batchmode", "ciphers", "compression", "connectionattempts",
        "connecttimeout", "controlmaster", "controlpath", "controlpersist", "forwardagent", "gssapiauthentication",
        "hostkeyalgorithms", "identitiesonly", "ipqos", "kbdinteractiveauthentication", "kexalgorithms", "loglevel",
        "macs", "numberofpasswordprompts", "passwordauthentication", "preferredauthentications",
        "pubkeyacceptedalgorithms", "pubkeyauthentication", "rekeylimit", "requesttty", "serveralivecountmax",
        "serveraliveinterval", "tcpkeepalive", "updatehostkeys",
    }
)  # fmt: skip
_TRUST = frozenset(
    {"stricthostkeychecking", "userknownhostsfile", "globalknownhostsfile", "checkhostip", "hostkeyalias"}
)
_FLAGS = "46AaCfGgKkMNnqsTtVvXxYy"  # ssh(1): options without a value
_VALUES = "BbcDEeFIiJLlmOoPpQRSWw"
_HOP = re.compile(
    r"^(?:ssh://)?(?:(?P<user>[^\s@:/]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?/?$"
)
_TRUST_FIX = "remove it; k3ctl keeps its own known hosts and asks once, see `k3ctl trust`"
Wrong = tuple[str, str]  # what, fix


def parse_options(words: list[str]) -> tuple[SshOptions, list[Wrong]]:
    """Options in the order given; as for ssh, the first of a kind wins."""
    given: dict[str, str] = {}
    problems: list[Wrong] = []
    for name, value in _settings(words, problems):
        lower = name.lower()
        if lower in _TRUST:
            problems.append((f"{name} would switch off the check of host keys", _TRUST_FIX))
        elif lower in ("proxyjump", "proxycommand", "user", "port", "identityfile"):
            given.setdefault(lower, value)
        elif lower not in _NEUTRAL:
            problems.append((f"k3ctl's own SSH does not know the option {name}", "remove it"))
    return _options(given, problems), problems


def _settings(words: list[str], problems: list[Wrong]) -> Iterator[tuple[str, str]]:
    """Each option as (name of ssh_config, value)."""
    short = {"J": "ProxyJump", "l": "User", "p": "Port", "i": "IdentityFile", "S": "ControlPath"}
    short |= {"c": "Ciphers", "m": "MACs"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or len(word) < 2:
            problems.append((f"`{word}` is no SSH option", "quote what belongs together, as '-o \"ProxyCommand=...\"'"))
            continue
        letters = word[1:]
        while letters and letters[0] in _FLAGS:
            letters = letters[1:]
        if not letters:
            continue
        if letters[0] not in _VALUES:
            problems.append((f"`{word}` is no SSH option", "remove it"))
            continue
        value = letters[1:] or (rest.pop(0) if rest else "")
        if not value:
            problems.append((f"the option -{letters[0]} has no value", "give it one"))
        elif letters[0] == "o":
            name, _, setting = re.sub(r"\s*=\s*|\s+", "=", value.strip(), count=1).partition("=")
            yield name, setting.strip().strip('"')
        elif letters[0] in short:
            yield short[letters[0]], value
        elif letters[0] == "F":
            problems.append(("k3ctl's own SSH does not read another configuration file (-F)", "use ~/.ssh/config"))
        else:
            problems.append((f"k3ctl's own SSH does not know the option -{letters[0]}", "remove it"))


def _options(given: dict[str, str], problems: list[Wrong]) -> SshOptions:
    jump_text, command = given.get("proxyjump", ""), given.get("proxycommand", "")
    jump: tuple[str, ...] = ()
    if jump_text and command:
        problems.append(("ProxyJump and ProxyCommand are both given", "keep one"))
    if jump_text and jump_text.lower() != "none":
        jump = _hops(jump_text, problems)
    elif command.lower() == "none":
        command = ""
    elif command and (hop := _as_jump(command)):
        jump, command = (hop,), ""
    port = given.get("port", "")
    if port and not (port.isdecimal() and 0 < int(port) <= 65535):
        problems.append((f"{port} is no port number", "use 1 to 65535"))
        port = ""
    if "%" in command.replace("%h", "").replace("%p", "").replace("%r", "").replace("%%", ""):
        problems.append(("ProxyCommand uses a %-token other than %h, %p, %r", "write the value itself"))
    return SshOptions(jump, command, given.get("user", ""), int(port or 0), given.get("identityfile", ""))


def _hops(text: str, problems: list[Wrong]) -> tuple[str, ...]:
    """ProxyJump: hops separated by commas, nearest first."""
    hops = []
    for part in text.split(","):
        hop = _hop(part.strip())
        if hop:
            hops.append(hop)
        else:
            problems.append((f"`{part}` is no jump host", "write user@host:port, an IPv6 address in brackets"))
    return tuple(hops)


def _hop(text: str) -> str:
    """One hop as `user@host:port` with what was given of it; empty when it is none."""
    match = _HOP.fullmatch(text)
    if not match or (match["port"] and not 0 < int(match["port"]) <= 65535):
        return ""
    host = match["host"]
    if host.startswith("["):
        try:
            host = f"[{IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return ""
    user = f"{match['user']}@" if match["user"] else ""
    return user + host + (f":{match['port']}" if match["port"] else "")


def _as_jump(command: str) -> str:
    """`ssh -W %h:%p -q [-p N] [user@]host` does what ProxyJump does: its hop, or empty for any other command.

    As a hop, "cannot reach the jump host" and "the jump host cannot reach the node" can be told apart.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if not words or words[0] not in ("ssh", "/usr/bin/ssh"):
        return ""
    forwards, port, user, host = False, "", "", ""
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if word == "-q":
            continue
        if word in ("-W", "-p", "-l") and rest:
            value = rest.pop(0)
            forwards = forwards or (word == "-W" and value in ("%h:%p", "[%h]:%p"))
            port = value if word == "-p" else port
            user = value if word == "-l" else user
        elif word.startswith("-") or host:
            return ""  # another option or a remote command: not a plain jump
        else:
            host = word
    if user and "@" not in host:
        host = f"{user}@{host}"
    return _hop(f"{host}:{port}" if port else host) if forwards and host else ""
