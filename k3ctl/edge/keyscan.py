"""Fetches the host keys of a cluster, through its jump hosts, and remembers them: phases.trust.HostKeys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paramiko import Transport
from paramiko.ssh_exception import SSHException

from k3ctl.cluster import Cluster
from k3ctl.edge import ssh_errors
from k3ctl.edge.known_hosts import HostKey, KnownHosts, host_name
from k3ctl.edge.ssh_link import Dial, Trust, host_key, open_socket
from k3ctl.edge.ssh_pool import Pool
from k3ctl.edge.ssh_route import Hop, Route, route, user_config
from k3ctl.errors import Unreachable
from k3ctl.phases.trust import Door, ShownKey

# What to ask for when nothing is trusted yet: the type that ssh itself prefers.
PREFERRED = ("ssh-ed25519",)


class KeyScan:
    """phases.trust.HostKeys for one cluster. state_dir: the cluster's folder on the controller (holds known_hosts)."""

    def __init__(
        self, cluster: Cluster, state_dir: Path, *, connect_timeout_s: float = 10.0, home: Path | None = None
    ) -> None:
        home = home or Path.home()
        config = user_config(home / ".ssh" / "config", lambda _: None)
        self._hosts = KnownHosts.of(state_dir)
        self._dial = Dial(Trust(self._hosts, cluster.inventory.path), home, connect_timeout_s)
        self._pool = Pool(self._dial, lambda _: None)
        self._ways: dict[str, Route] = {}
        self._groups: list[list[Door]] = []
        for node in cluster.inventory.nodes:
            way = route(node.ssh, config)
            for depth in range(len(way.jumps)):
                self._add(depth, "", Route(way.jumps[:depth], way.jumps[depth], way.proxy_command))
            self._add(len(way.jumps), node.name, way)

    def doors(self) -> Sequence[Sequence[Door]]:
        """The doors, nearest first; a jump host of several nodes once."""
        return self._groups

    def known(self, door: Door) -> tuple[ShownKey, ...]:
        """The trusted keys of a door."""
        return tuple(_shown(key) for key in self._hosts.of_host(door.address, door.port))

    def fetch(self, door: Door) -> ShownKey:
        """The key that the door shows now, of a type that is trusted already if it has one."""
        way = self._ways[door.id]
        hop, jump = way.end, not door.node
        via = self._pool.before(way)
        command = "" if via else way.proxy_command
        sock = open_socket(hop, self._dial.connect_timeout_s, via=via, proxy_command=command, jump=jump)
        transport = None
        try:
            transport = Transport(sock)
            transport.banner_timeout = self._dial.connect_timeout_s
            self._prefer(transport, hop)
            transport.start_client(timeout=2 * self._dial.connect_timeout_s)
            return _shown(host_key(hop, transport.get_remote_server_key()))
        except (SSHException, EOFError, OSError) as error:
            reason = str(error) or type(error).__name__
            problem = ssh_errors.proxy_failed(command, reason) if command else ssh_errors.no_ssh(hop, reason, jump=jump)
            raise Unreachable(problem) from error
        finally:
            if transport is not None:
                transport.close()
            sock.close()

    def remember(self, keys: Sequence[tuple[Door, ShownKey]]) -> None:
        """Trust these from now on."""
        self._hosts.put([HostKey(host_name(door.address, door.port), key.keytype, key.key) for door, key in keys])

    def close(self) -> None:
        """End the connections to jump hosts."""
        self._pool.close()

    def _prefer(self, transport: Transport, hop: Hop) -> None:
        options = transport.get_security_options()
        trusted = [key.keytype for key in self._hosts.of_host(hop.host, hop.port)] or list(PREFERRED)
        first = [kind for kind in options.key_types if any(_same_family(kind, name) for name in trusted)]
        options.key_types = (*first, *(kind for kind in options.key_types if kind not in first))

    def _add(self, depth: int, node: str, way: Route) -> None:
        id = f"{node}|{'|'.join(hop.label for hop in (*way.jumps, way.end))}"
        while len(self._groups) <= depth:
            self._groups.append([])
        if id not in self._ways:
            self._ways[id] = way
            self._groups[depth].append(Door(id, node, way.end.host, way.end.port))


def _same_family(kind: str, trusted: str) -> bool:
    """RSA keys are called ssh-rsa, but negotiated as rsa-sha2-*."""
    return kind == trusted or (trusted == "ssh-rsa" and kind.startswith("rsa-sha2-"))


def _shown(key: HostKey) -> ShownKey:
    return ShownKey(key.keytype, key.key, key.fingerprint)
