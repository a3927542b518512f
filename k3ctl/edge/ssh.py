"""Runs commands on the nodes of a cluster over SSH: protocols.Remote on fabric connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from paramiko import Channel
from paramiko.ssh_exception import SSHException

from k3ctl.cluster import Cluster
from k3ctl.edge import ssh_errors
from k3ctl.edge.known_hosts import KnownHosts
from k3ctl.edge.ssh_channel import Ended, Talk
from k3ctl.edge.ssh_command import (
    BEGIN,
    KILL_AFTER_S,
    Sudo,
    judged_status,
    open_text,
    run_text,
    stdin_of,
    stream_text,
)
from k3ctl.edge.ssh_link import Dial, Trust
from k3ctl.edge.ssh_pool import Pool
from k3ctl.edge.ssh_route import Route, route, user_config
from k3ctl.errors import K3ctlError, Unreachable
from k3ctl.inventory import SshTarget
from k3ctl.protocols import Command, CommandResult, Stop

# The host's own limit acts first; this is for a host that does not answer any more.
SLACK_S = 10.0


def _quiet(text: str) -> None:
    """The default for `say`: nobody listens."""


class FabricRemote:
    """protocols.Remote for one cluster. Thread-safe; connections are opened on first use and kept until `close`.

    state_dir: the cluster's folder on the controller, which holds known_hosts. say: takes one line about a retry.
    home: whose ~/.ssh (config, default keys) counts; by default the user's.
    """

    def __init__(
        self,
        cluster: Cluster,
        state_dir: Path,
        *,
        connect_timeout_s: float = 10.0,
        say: Callable[[str], None] = _quiet,
        home: Path | None = None,
    ) -> None:
        home = home or Path.home()
        config = user_config(home / ".ssh" / "config", say)
        self._targets: dict[str, SshTarget] = {node.name: node.ssh for node in cluster.inventory.nodes}
        self.routes: dict[str, Route] = {name: route(target, config) for name, target in self._targets.items()}
        trust = Trust(KnownHosts.of(state_dir), cluster.inventory.path)
        self._pool = Pool(Dial(trust, home, connect_timeout_s), say)
        self._sudo: dict[str, Sudo] = {}

    def run(self, node: str, command: Command) -> CommandResult:
        """Run to the end; a non-zero status is a result, not an exception. Raises Unreachable, with the node's name."""
        limit = command.timeout_s + KILL_AFTER_S + SLACK_S if command.timeout_s else 0.0
        sudo = self._sudo_of(node, command)
        with self._session(node) as channel:
            ended = Talk(channel, limit).run(run_text(command, sudo), sudo.stdin() + stdin_of(command))
        return self._judge(node, command, sudo, ended)

    def lines(self, node: str, command: Command, on_line: Callable[[str], None], stop: Stop) -> CommandResult:
        """Run and hand over each line of stdout as it comes; when `stop` is set the host ends the command.

        The command also ends when the connection or this process does: nothing is left on the host.
        """
        limit = command.timeout_s + KILL_AFTER_S + SLACK_S if command.timeout_s else 0.0
        sudo = self._sudo_of(node, command)
        with self._session(node) as channel:
            stdin = sudo.stdin() + stdin_of(command)
            ended = Talk(channel, limit).stream(stream_text(command, sudo), stdin, on_line, stop)
        return self._judge(node, command, sudo, ended, stopped=stop.is_set())

    def converse(self, node: str, command: Command) -> Conversation:
        """Start a command and keep talking with it; it must end by itself when its stdin ends. Close it afterwards."""
        sudo = self._sudo_of(node, command)
        with ExitStack() as stack:
            channel = stack.enter_context(self._session(node))
            try:
                channel.exec_command(open_text(command, sudo))
            except (SSHException, EOFError, OSError) as error:
                raise Unreachable(replace(ssh_errors.no_session(str(error)), node=node)) from error
            channel.settimeout(SLACK_S)
            # A command that ended at once takes no input; what it said tells why.
            with suppress(SSHException, EOFError, OSError):
                channel.sendall(sudo.stdin() + stdin_of(command))
            return Conversation(channel, stack.pop_all().close)

    def tcp(self, node: str, host: str, port: int, timeout_s: float = 10.0) -> Channel:
        """A TCP connection from the node to `host:port`, through the open SSH connection."""
        with named(node):
            return self._pool.link(self.routes[node]).tcp(host, port, timeout_s)

    def behind_jump(self, node: str) -> bool:
        """True when the node is not connected to directly, so its addresses may mean other machines here."""
        way = self.routes[node]
        return bool(way.jumps or way.proxy_command)

    def close(self) -> None:
        """End all connections."""
        self._pool.close()

    @contextmanager
    def _session(self, node: str) -> Iterator[Channel]:
        with named(node), self._pool.session(self.routes[node]) as channel:
            yield channel

    def _sudo_of(self, node: str, command: Command) -> Sudo:
        """How to become root there. With a password in the inventory it is found out once whether it is needed."""
        password = self._targets[node].become_password
        if not command.sudo or self.routes[node].end.user == "root":
            return Sudo(needed=False)
        if password is None:
            return Sudo(needed=True)
        if node not in self._sudo:
            probe = Command(("true",), timeout_s=command.timeout_s or 30.0)
            with self._session(node) as channel:
                ended = Talk(channel, probe.timeout_s + SLACK_S).run(run_text(probe, Sudo(needed=True)), b"")
            free = ended.began and ended.status == 0
            self._sudo[node] = Sudo(needed=True, password=None if free else password)
        return self._sudo[node]

    def _judge(self, node: str, command: Command, sudo: Sudo, ended: Ended, *, stopped: bool = False) -> CommandResult:
        stderr = ended.stderr.decode(errors="replace")
        with named(node):
            if not ended.began and not stopped:
                self._never_began(node, command, sudo, ended, stderr)
            if ended.status == -1 and not ended.cut and not stopped:
                raise Unreachable(ssh_errors.lost(command.argv, ended.seconds, command.timeout_s))
        status = 124 if ended.cut else judged_status(ended.status, ended.seconds, command.timeout_s)
        return CommandResult(
            node, command.argv, status, ended.output.decode(errors="replace"), stderr, round(ended.seconds, 3)
        )

    def _never_began(self, node: str, command: Command, sudo: Sudo, ended: Ended, stderr: str) -> None:
        if ended.cut or ended.status == -1:
            raise Unreachable(ssh_errors.lost(command.argv, ended.seconds, command.timeout_s))
        if sudo.needed and ("sudo" in stderr or "Sorry" in stderr):
            user = self.routes[node].end.user
            raise Unreachable(ssh_errors.no_sudo(user, stderr, with_password=sudo.password is not None))
        raise Unreachable(ssh_errors.no_shell(ended.stdout.decode(errors="replace"), stderr))


class Conversation:
    """A running command with its stdin open: lines in, lines out."""

    def __init__(self, channel: Channel, release: Callable[[], None]) -> None:
        self._channel = channel
        self._release = release
        self._buffer = b""
        self._begun = False

    def send(self, data: bytes) -> bool:
        """Write to the command's stdin; False when it is gone."""
        try:
            self._channel.sendall(data)
        except (OSError, SSHException, EOFError):
            return False
        return not self._channel.closed and not self._channel.exit_status_ready()

    def line(self, timeout_s: float) -> str | None:
        """The next line of stdout; None when the command has ended or said nothing for that long."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._begun and BEGIN in self._buffer:
                self._begun, self._buffer = True, self._buffer.partition(BEGIN)[2]
            if self._begun and b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                return line.decode(errors="replace")
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._channel.settimeout(left)
            try:
                data = self._channel.recv(65536)
            except TimeoutError:
                return None
            if not data:
                return None
            self._buffer += data

    @property
    def alive(self) -> bool:
        """False once the command has ended or the connection is gone."""
        return not (self._channel.closed or self._channel.eof_received or self._channel.exit_status_ready())

    def errors(self) -> str:
        """What the command has said on stderr so far."""
        text = b""
        while self._channel.recv_stderr_ready():
            text += self._channel.recv_stderr(65536)
        return text.decode(errors="replace")

    def close(self, wait_s: float = 5.0) -> None:
        """End the command by the end of its stdin, and wait for it."""
        try:
            self._channel.shutdown_write()
            self._channel.settimeout(wait_s)
            while self._channel.recv(65536):
                pass
        except (OSError, SSHException, EOFError):
            pass  # gone already, or it does not end: the host's own limits see to it
        finally:
            self._release()


@contextmanager
def named(node: str) -> Iterator[None]:
    """Puts the node's name on problems that know only addresses."""
    try:
        yield
    except K3ctlError as error:
        raise type(error)(*(replace(problem, node=problem.node or node) for problem in error.problems)) from error
