"""One open SSH connection to one host, made by fabric over a socket that we open ourselves (direct, proxy or jump)."""

from __future__ import annotations

import base64
import logging
import shlex
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import fabric
from paramiko import BadHostKeyException, Channel, ChannelException, PKey, RejectPolicy, SSHClient, SSHConfig
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import IncompatiblePeer, SSHException

from k3ctl.edge import ssh_errors
from k3ctl.edge.known_hosts import HostKey, KnownHosts, host_name
from k3ctl.edge.ssh_auth import KeysOnly
from k3ctl.edge.ssh_route import Hop
from k3ctl.errors import Unreachable

KEEPALIVE_S = 10
# A peer that acknowledges nothing for this long is gone: with the keepalive this finds a dead host within 40 s.
DEAD_PEER_MS = 30_000
SESSIONS = 8  # of the 10 that sshd allows on one connection by default (MaxSessions)

# Paramiko logs failures that we report ourselves; without a handler Python would print them on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Trust:
    """Whom to believe: the cluster's known_hosts, and the inventory path that fixes name."""

    known: KnownHosts
    inventory: str


@dataclass(frozen=True)
class Dial:
    """How to connect. `home` is where default keys are looked for; times in seconds."""

    trust: Trust
    home: Path
    connect_timeout_s: float = 10.0


class Dropped(Unreachable):
    """The server closed the connection before the key exchange: worth one more try (sshd's MaxStartups)."""


class _Reject(RejectPolicy):
    """An unknown host key ends the connection, with its fingerprint."""

    def __init__(self, hop: Hop, trust: Trust, *, jump: bool) -> None:
        self.hop, self.trust, self.jump = hop, trust, jump

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> NoReturn:  # noqa: ARG002
        seen = host_key(self.hop, key)
        raise Unreachable(ssh_errors.unknown_key(self.hop, seen, self.trust.inventory, jump=self.jump))


class Link:
    """An open connection. Channels are opened one at a time: paramiko keeps only one failure per transport."""

    def __init__(self, hop: Hop, connection: fabric.Connection) -> None:
        self.hop = hop
        self._connection = connection
        self._opening = threading.Lock()
        self.limit = SESSIONS
        self.used = 0

    @property
    def alive(self) -> bool:
        """False once either side has ended the connection."""
        transport = self._connection.transport
        return bool(transport is not None and transport.is_active())

    def session(self) -> Channel:
        """A new session channel. Raises ChannelException when the server allows no more, SSHException when broken."""
        with self._opening:
            channel: Channel = self._connection.create_session()
            return channel

    def tcp(self, host: str, port: int, timeout_s: float, *, onward: bool = False) -> Channel:
        """A TCP connection from this host: `onward` as a jump host, else to a service. Raises Unreachable."""
        began = time.monotonic()
        target = Hop(host, port, "")
        try:
            with self._opening:
                channel: Channel = self._connection.transport.open_channel(
                    "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s
                )
                return channel
        except ChannelException as error:
            reason, code = error.text, error.code
        except SSHException as error:
            reason, code = ("no answer" if "Timeout" in str(error) else str(error)), 0
        spent = time.monotonic() - began
        if onward:
            raise Unreachable(ssh_errors.not_forwarded(self.hop, target, reason, code, spent))
        raise Unreachable(ssh_errors.not_answered(target, reason, spent))

    def close(self) -> None:
        """End the connection and everything on it."""
        self._connection.close()


def open_link(dial: Dial, hop: Hop, *, via: Link | None = None, proxy_command: str = "", jump: bool = False) -> Link:
    """Connect, check the host key, log in. Raises Unreachable (Dropped when another try may help)."""
    sock = open_socket(hop, dial.connect_timeout_s, via=via, proxy_command=proxy_command, jump=jump)
    connection = fabric.Connection(
        host=hop.host,
        user=hop.user,
        port=hop.port,
        config=fabric.Config(lazy=True, ssh_config=SSHConfig()),
        connect_timeout=dial.connect_timeout_s,
        connect_kwargs={
            "sock": sock,
            "auth_strategy": KeysOnly(hop, dial.home),
            "banner_timeout": dial.connect_timeout_s,
            "auth_timeout": 2 * dial.connect_timeout_s,
            "channel_timeout": 2 * dial.connect_timeout_s,
        },
    )
    client = connection.client
    client.set_missing_host_key_policy(_Reject(hop, dial.trust, jump=jump))
    for known in dial.trust.known.of_host(hop.host, hop.port):
        try:
            key = PKey.from_type_string(known.keytype, base64.b64decode(known.key))
        except UnknownKeyType:
            continue
        client.get_host_keys().add(known.name, known.keytype, key)
    try:
        connection.open()
        connection.transport.set_keepalive(KEEPALIVE_S)
    except (SSHException, EOFError, OSError, Unreachable) as error:
        client.close()
        sock.close()
        _explain(error, dial, hop, proxy_command, jump=jump)
    return Link(hop, connection)


def host_key(hop: Hop, key: PKey) -> HostKey:
    """A key that a host showed, in the form of known_hosts."""
    return HostKey(host_name(hop.host, hop.port), key.get_name(), key.get_base64())


def _explain(error: Exception, dial: Dial, hop: Hop, proxy_command: str, *, jump: bool) -> NoReturn:
    if isinstance(error, BadHostKeyException):
        raise Unreachable(
            ssh_errors.changed_key(
                hop,
                host_key(hop, error.key),
                host_key(hop, error.expected_key),
                dial.trust.inventory,
                str(dial.trust.known.path),
                jump=jump,
            )
        ) from error
    if isinstance(error, IncompatiblePeer):
        raise Unreachable(ssh_errors.no_ssh(hop, str(error), jump=jump)) from error
    if isinstance(error, Unreachable):
        raise error
    reason = str(error) or type(error).__name__
    if proxy_command:
        raise Unreachable(ssh_errors.proxy_failed(proxy_command, reason)) from error
    raise Dropped(ssh_errors.no_ssh(hop, reason, jump=jump)) from error


def open_socket(
    hop: Hop, timeout_s: float, *, via: Link | None = None, proxy_command: str = "", jump: bool = False
) -> socket.socket | Channel:
    """The byte stream to the SSH port: through the last jump host, the proxy command, or directly."""
    if via is not None:
        return via.tcp(hop.host, hop.port, timeout_s, onward=True)
    if proxy_command:
        return _proxy(proxy_command)
    return _direct(hop, timeout_s, jump=jump)


def _direct(hop: Hop, timeout_s: float, *, jump: bool) -> socket.socket:
    """Try all addresses of the name; the error of the first one is told."""
    failed: OSError | None = None
    deadline = time.monotonic() + timeout_s
    try:
        found = socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(ssh_errors.not_connected(hop, error, timeout_s, jump=jump)) from error
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failed = failed or error
            continue
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        return sock
    first = failed or OSError("no address")
    raise Unreachable(ssh_errors.not_connected(hop, first, timeout_s, jump=jump)) from first


def _proxy(command: str) -> socket.socket:
    """Run the proxy command on a socket pair.

    Not paramiko's ProxyCommand: its recv spins for ever when the program ends.
    """
    ours, theirs = socket.socketpair()
    try:
        subprocess.Popen(
            shlex.split(command),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise Unreachable(ssh_errors.proxy_failed(command, str(error))) from error
    finally:
        theirs.close()
    return ours
