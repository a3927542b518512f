"""Logging in with keys only: the inventory's key, else the user's keys. Nothing is ever asked of the user."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from paramiko import Agent, AuthenticationException, BadAuthenticationType, PKey, SSHException, Transport
from paramiko.auth_strategy import AuthResult, AuthSource, AuthStrategy
from paramiko.config import SSHConfig

from k3ctl.edge.known_hosts import fingerprint
from k3ctl.edge.ssh_route import Hop
from k3ctl.errors import Problem, Unreachable

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Candidate:
    """A key to try, and how to name it in a message."""

    label: str
    key: PKey


class KeysOnly(AuthStrategy):
    """Paramiko's plug for authentication: tries keys in OpenSSH's order and fails with words.

    Order: key files of the hop, the agent's keys, the default files in ~/.ssh. With `only_keys` the first alone.
    Key files that cannot be used are errors at once when the inventory names them.
    """

    def __init__(self, hop: Hop, home: Path) -> None:
        super().__init__(ssh_config=SSHConfig())
        self.hop = hop
        self.home = home

    def get_sources(self) -> Iterator[AuthSource]:
        """Unused: `authenticate` does the whole of it, to tell refused keys from a server that wants something else."""
        yield from ()

    def authenticate(self, transport: Transport) -> AuthResult:
        """Log in or raise Unreachable: refused keys with what the server offers, or a key that cannot be used."""
        refused: list[str] = []
        locked: list[str] = []
        offers: tuple[str, ...] = ()
        with _agent_keys() as agent:
            for candidate in self._candidates(agent, locked):
                try:
                    left = transport.auth_publickey(self.hop.user, candidate.key)
                except BadAuthenticationType as error:
                    raise Unreachable(self._refused([candidate.label], locked, tuple(error.allowed_types))) from error
                except AuthenticationException:
                    refused.append(candidate.label)
                except (SSHException, EOFError) as error:
                    raise Unreachable(self._cut(refused, error)) from error
                else:
                    if left:
                        raise Unreachable(self._more_asked(candidate.label, tuple(left)))
                    return AuthResult(self)
            offers = self._offers(transport)
        raise Unreachable(self._refused(refused, locked, offers))

    def _candidates(self, agent: list[PKey], locked: list[str]) -> Iterator[Candidate]:
        files = [Path(name) for name in self.hop.keys]
        for file in files:
            if self.hop.only_keys:
                yield load_key(file, agent)
            else:
                yield from _optional(file, agent, locked)
        if self.hop.only_keys and files:
            return
        yield from (Candidate(f"agent key {key.fingerprint}", key) for key in agent)
        for name in DEFAULT_KEYS:
            file = self.home / ".ssh" / name
            if file not in files and file.exists():
                yield from _optional(file, agent, locked)

    def _offers(self, transport: Transport) -> tuple[str, ...]:
        try:
            transport.auth_none(self.hop.user)
        except BadAuthenticationType as error:
            return tuple(error.allowed_types)
        except (SSHException, EOFError):
            return ()
        return ()

    def _refused(self, refused: list[str], locked: list[str], offers: tuple[str, ...]) -> Problem:
        tried = f"tried {'; '.join(refused)}" if refused else "there is no key to try"
        skipped = f"; not usable without an agent: {', '.join(locked)}" if locked else ""
        server = f"; the server offers {', '.join(offers)}" if offers else ""
        fix = (
            f"put the public key into ~{self.hop.user}/.ssh/authorized_keys there "
            f"(`ssh-copy-id -p {self.hop.port} {self.hop.user}@{self.hop.host}`), or correct ansible_user and "
            "ansible_ssh_private_key_file in the inventory"
        )
        if not refused:
            unlock = f"`ssh-add {locked[0]}`" if locked else "`ssh-add`"
            fix = f"name a key file in the inventory (ansible_ssh_private_key_file), or load one: {unlock}"
        return Problem(
            what="the host refuses the login",
            found=f"user {self.hop.user} at {self.hop.host} port {self.hop.port}: {tried}{skipped}{server}",
            expected="a key that the host accepts (k3ctl never asks for a password)",
            fix=fix,
        )

    def _cut(self, refused: list[str], error: Exception) -> Problem:
        many = "too many authentication failures" in str(error).lower() or len(refused) > 4
        return Problem(
            what="the host closed the connection during the login",
            found=f"user {self.hop.user} at {self.hop.host} port {self.hop.port}: "
            f"{str(error) or type(error).__name__} after {len(refused)} refused keys",
            expected="a login by key",
            fix="name the one right key in the inventory (ansible_ssh_private_key_file): the agent holds too many"
            if many
            else "look into the host's own log: `journalctl -u ssh -n 50`",
        )

    def _more_asked(self, label: str, left: tuple[str, ...]) -> Problem:
        return Problem(
            what="the host wants more than a key",
            found=f"user {self.hop.user} at {self.hop.host}: {label} is accepted, then it asks for {', '.join(left)}",
            expected="a login by key alone",
            fix="allow this user to log in by key alone (AuthenticationMethods publickey in sshd_config)",
        )


def load_key(file: Path, agent: list[PKey]) -> Candidate:
    """The key of a file that the inventory names, or its twin in the agent. Raises Unreachable with the reason."""
    fix = "correct ansible_ssh_private_key_file in the inventory"
    try:
        mode = file.stat()
        data = file.read_bytes()
    except OSError as error:
        raise _unusable(file, f"it cannot be read: {error.strerror}", fix) from error
    if mode.st_uid == os.getuid() and mode.st_mode & 0o077:
        raise _unusable(file, f"its mode is {mode.st_mode & 0o777:04o}, so ssh ignores it", f"`chmod 600 {file}`")
    try:
        return _named(file, PKey.from_path(file))
    except TypeError as error:  # how cryptography says "encrypted"
        twin = _public_half(file, data)
        for key in agent:
            if twin and key.asbytes() == twin:
                return _named(file, key)
        raise _unusable(
            file, "it is protected by a passphrase and the ssh agent does not hold it", f"`ssh-add {file}`"
        ) from error
    except Exception as error:  # the parsers of foreign key files raise many kinds
        raise _unusable(file, f"it is no private key: {error}", fix) from error


def _unusable(file: Path, found: str, fix: str) -> Unreachable:
    return Unreachable(
        Problem(what=f"the key file {file} cannot be used", found=found, expected="a private key of mode 0600", fix=fix)
    )


def _optional(file: Path, agent: list[PKey], locked: list[str]) -> Iterator[Candidate]:
    """Keys nobody named in the inventory: unusable ones are only remembered."""
    try:
        yield load_key(file, agent)
    except Unreachable:
        locked.append(str(file))


def _named(file: Path, key: PKey) -> Candidate:
    return Candidate(f"key file {file} ({fingerprint(key.asbytes())})", key)


def _public_half(file: Path, data: bytes) -> bytes:
    """The public key of an encrypted private key: the .pub file beside it, else what the file itself shows."""
    try:
        text = Path(f"{file}.pub").read_text(encoding="utf-8")
        public = serialization.load_ssh_public_key(text.encode())
    except (OSError, ValueError):
        return _embedded(data)
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return _blob(line.split()[1])


def _embedded(data: bytes) -> bytes:
    """OpenSSH's own format holds the public key unencrypted: magic, cipher, kdf, kdf options, count, public key."""
    body = b"".join(line for line in data.splitlines() if not line.startswith(b"-----"))
    try:
        raw = _blob(body)
        if not raw.startswith(b"openssh-key-v1\0"):
            return b""
        rest = raw[15:]
        for _ in range(3):
            rest = rest[4 + int.from_bytes(rest[:4], "big") :]
        rest = rest[4:]
        return rest[4 : 4 + int.from_bytes(rest[:4], "big")]
    except ValueError:
        return b""


def _blob(text: bytes) -> bytes:
    return base64.b64decode(text)


@contextmanager
def _agent_keys() -> Iterator[list[PKey]]:
    """The keys of the user's ssh agent; none when there is no agent or it does not answer."""
    agent: Any = None
    try:
        agent = Agent()
        keys = list(agent.get_keys())
    except (SSHException, OSError):
        keys = []
    try:
        yield keys
    finally:
        if agent is not None:
            agent.close()
