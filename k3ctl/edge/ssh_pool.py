"""Keeps connections open and shares them: one a host as a rule, more only where sshd allows too few sessions on one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from paramiko import Channel, ChannelException
from paramiko.ssh_exception import SSHException

from k3ctl.edge import ssh_errors
from k3ctl.edge.ssh_link import Dial, Dropped, Link, open_link
from k3ctl.edge.ssh_route import Hop, Route
from k3ctl.errors import K3ctlError, Problem, Unreachable

MAX_LINKS = 4
# How long a command waits without any session becoming free until one more connection is opened (long-lived sessions
# hold them all, say), and how long until it gives up.
PATIENCE_S = 2.0
GIVE_UP_S = 60.0
# A server that drops a connection before the login is asked again: sshd does so at random under load (MaxStartups).
RETRY_AFTER_S = (0.5, 1.5)

Opener = Callable[[], Link]


class Line:
    """All connections to one host over one way. A failed attempt to connect fails everyone who waited for it."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._changed = threading.Condition()
        self._links: list[Link] = []
        self._opening = False
        self._attempts = 0
        self._failure: K3ctlError | None = None
        self._freed_at = 0.0

    def link(self) -> Link:
        """An open connection; opens one when there is none."""
        with self._changed:
            return self._first()

    @contextmanager
    def session(self) -> Iterator[Channel]:
        """A session channel, closed afterwards. Reconnects once when the connection turns out to be broken."""
        link, channel = self._acquire()
        try:
            yield channel
        finally:
            channel.close()
            with self._changed:
                link.used -= 1
                self._freed_at = time.monotonic()
                self._changed.notify_all()

    def close(self) -> None:
        """End all connections."""
        with self._changed:
            for link in self._links:
                link.close()
            self._links.clear()

    def _acquire(self) -> tuple[Link, Channel]:
        broken = False
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            link = self._slot(deadline)
            try:
                return link, link.session()
            except ChannelException as error:
                with self._changed:
                    link.used -= 1
                    link.limit = link.used  # what sshd allows; found out, not configured
                    if link.used == 0:
                        raise Unreachable(ssh_errors.no_session(error.text)) from error
            except (SSHException, EOFError, OSError) as error:
                with self._changed:
                    self._drop(link)
                if broken:
                    raise Unreachable(ssh_errors.no_session(str(error) or type(error).__name__)) from error
                broken = True

    def _slot(self, deadline: float) -> Link:
        """Reserve a session on a connection that has one to spare."""
        began = time.monotonic()
        with self._changed:
            while True:
                first = self._first()
                for link in self._links:
                    if link.used < link.limit:
                        link.used += 1
                        return link
                now = time.monotonic()
                if now >= deadline:
                    raise Unreachable(ssh_errors.no_session(f"all {first.used} sessions stayed busy"))
                if (
                    now >= max(began, self._freed_at) + PATIENCE_S
                    and len(self._links) < MAX_LINKS
                    and not self._opening
                ):
                    self._dial()
                else:
                    self._changed.wait(0.25)

    def _first(self) -> Link:
        """The first live connection. Call with the lock held; it is given up while connecting."""
        while True:
            for link in [link for link in self._links if not link.alive]:
                self._drop(link)
            if self._links:
                return self._links[0]
            if self._opening:
                attempt = self._attempts
                while self._opening and self._attempts == attempt:
                    self._changed.wait(0.25)
                if self._failure is not None:
                    raise self._failure
            else:
                self._dial()

    def _dial(self) -> None:
        self._opening, self._failure = True, None
        self._attempts += 1
        self._changed.release()
        link: Link | None = None
        failure: K3ctlError | None = None
        try:
            link = self._open()
        except K3ctlError as error:
            failure = error
        finally:
            self._changed.acquire()
            self._opening, self._failure = False, failure
            if link is not None:
                self._links.append(link)
            self._changed.notify_all()
        if failure is not None:
            raise failure

    def _drop(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)
        link.close()


class Pool:
    """The lines of one cluster; nodes behind the same jump host share the connection to it."""

    def __init__(self, dial: Dial, say: Callable[[str], None]) -> None:
        self._dial = dial
        self._say = say
        self._lines: dict[tuple[tuple[Hop, ...], str], Line] = {}
        self._lock = threading.Lock()

    def session(self, way: Route) -> AbstractContextManager[Channel]:
        """A session on the host at the end of that way."""
        return self.line((*way.jumps, way.end), way.proxy_command).session()

    def link(self, way: Route) -> Link:
        """The connection to the host at the end of that way."""
        return self.line((*way.jumps, way.end), way.proxy_command).link()

    def before(self, way: Route) -> Link | None:
        """The connection to the last jump host of that way, if it has one."""
        return self.line(way.jumps, way.proxy_command, jump=True).link() if way.jumps else None

    def line(self, hops: tuple[Hop, ...], proxy_command: str, *, jump: bool = False) -> Line:
        """The line over these hops; the proxy command stands before the first."""
        key = (hops, proxy_command)
        with self._lock:
            if key not in self._lines:
                self._lines[key] = Line(lambda: self._connect(hops, proxy_command, jump=jump))
            return self._lines[key]

    def close(self) -> None:
        """End all connections, the farthest first."""
        with self._lock:
            for key in sorted(self._lines, key=lambda key: -len(key[0])):
                self._lines[key].close()

    def _connect(self, hops: tuple[Hop, ...], proxy_command: str, *, jump: bool) -> Link:
        *before, hop = hops
        via = self.line(tuple(before), proxy_command, jump=True).link() if before else None
        command = "" if before else proxy_command
        for pause in RETRY_AFTER_S:
            try:
                return open_link(self._dial, hop, via=via, proxy_command=command, jump=jump)
            except Dropped as error:
                self._say(f"{hop.label}: {_reason(error.problems)}; trying again in {pause} s")
                time.sleep(pause)
        return open_link(self._dial, hop, via=via, proxy_command=command, jump=jump)


def _reason(problems: tuple[Problem, ...]) -> str:
    return problems[0].found or problems[0].what
