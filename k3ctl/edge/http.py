"""Asks HTTP endpoints from this machine, directly or through the head node's SSH connection: protocols.Http."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import httpx

from k3ctl.edge.forward import Forward, Stream
from k3ctl.errors import ConfigError, Problem, Unreachable
from k3ctl.protocols import HttpReply
from k3ctl.secret import Secret

DIRECT_S = 3.0
PORTS = {"http": 80, "https": 443}


class Tunnel(Protocol):
    """What is needed of SSH: TCP connections from a node on. FabricRemote is one."""

    def tcp(self, node: str, host: str, port: int, timeout_s: float = 10.0) -> Stream:
        """A TCP connection from the node to host:port. Raises Unreachable."""

    def behind_jump(self, node: str) -> bool:
        """True when addresses near the node may mean other machines here."""


def _quiet(text: str) -> None:
    """The default for `say`: nobody listens."""


class HttpClient:
    """protocols.Http. Ignores proxy variables: an endpoint in the rack is not behind the office proxy.

    `node` (the head) is the one whose SSH connection is used when an address does not answer within 3 s. When the node
    is itself behind a jump host that way is taken at once: the same private address may belong to another machine here,
    and that one must not get the key. `say` is told once which way is taken.
    """

    def __init__(
        self,
        tunnel: Tunnel | None = None,
        node: str = "",
        *,
        say: Callable[[str], None] = _quiet,
        direct_s: float = DIRECT_S,
    ) -> None:
        self._tunnel = tunnel
        self._node = node
        self._say = say
        self._direct_s = direct_s
        self._direct = httpx.Client(trust_env=False, follow_redirects=False)
        self._through: dict[tuple[str, int], tuple[Forward, httpx.Client]] = {}
        self._lock = threading.Lock()

    def ask(
        self,
        method: str,
        url: str,
        *,
        bearer: Secret | None = None,
        json: Any = None,
        timeout_s: float = 10.0,
        on_line: Callable[[str], None] | None = None,
    ) -> HttpReply:
        """One request, answered within `timeout_s`. `on_line` receives the lines of a streamed answer.

        Raises Unreachable when nothing answers, or not to the end.
        """
        host, port = address(url)
        request = Request(method, url, bearer, json, timeout_s, on_line)
        known = self._through.get((host, port))
        if known is None and not self._only_through():
            try:
                return request.send(self._direct, min(self._direct_s, timeout_s))
            except _NoWay as error:
                if self._tunnel is None:
                    raise Unreachable(error.problem) from error
        forward, client = known or self._forward(host, port)
        forward.failure = None
        try:
            return request.send(client, timeout_s)
        except (_NoWay, Unreachable) as error:
            if forward.failure is not None:
                raise Unreachable(*forward.failure.problems) from error
            raise Unreachable(error.problem if isinstance(error, _NoWay) else error.problems[0]) from error

    def close(self) -> None:
        """End all connections."""
        self._direct.close()
        with self._lock:
            for forward, client in self._through.values():
                client.close()
                forward.close()
            self._through.clear()

    def _only_through(self) -> bool:
        return self._tunnel is not None and self._tunnel.behind_jump(self._node)

    def _forward(self, host: str, port: int) -> tuple[Forward, httpx.Client]:
        tunnel = self._tunnel
        if tunnel is None:
            raise ValueError("no tunnel")
        with self._lock:
            if (host, port) not in self._through:
                why = "it is behind a jump host" if self._only_through() else "it does not answer directly"
                self._say(f"asking {host} port {port} through the SSH connection to {self._node}: {why}")
                forward = Forward(lambda: tunnel.tcp(self._node, host, port))
                transport = httpx.HTTPTransport(uds=forward.path, trust_env=False)
                client = httpx.Client(transport=transport, trust_env=False, follow_redirects=False)
                self._through[(host, port)] = (forward, client)
            return self._through[(host, port)]


class _NoWay(Exception):
    """The address was not reached: another way may help."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class Request:
    """One request, ready to be sent over whatever client reaches the address."""

    def __init__(
        self,
        method: str,
        url: str,
        bearer: Secret | None,
        json: Any,
        timeout_s: float,
        on_line: Callable[[str], None] | None,
    ) -> None:
        self._method = method
        self._url = url
        self._headers = {"authorization": f"Bearer {bearer.reveal()}"} if bearer else {}
        self._json = json
        self._timeout_s = timeout_s
        self._on_line = on_line

    def send(self, client: httpx.Client, connect_s: float) -> HttpReply:
        """Send it and read the whole answer. Raises _NoWay when not connected, Unreachable for everything after."""
        began = time.monotonic()
        timeout = httpx.Timeout(self._timeout_s, connect=connect_s)
        try:
            with client.stream(
                self._method, self._url, headers=self._headers, json=self._json, timeout=timeout
            ) as response:
                body = self._read(response, began + self._timeout_s)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return HttpReply(response.status_code, headers, body, round(time.monotonic() - began, 3))
        except httpx.ConnectTimeout as error:
            raise _NoWay(self._problem("does not answer", f"no connection within {connect_s:.0f} s")) from error
        except httpx.ConnectError as error:
            self._not_connected(error)
        except httpx.TimeoutException as error:
            raise Unreachable(self._problem("answers too slowly", f"no answer within {self._timeout_s:g} s")) from error
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(self._problem("broke off its answer", reason)) from error

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        body = bytearray()
        pending = b""
        for chunk in response.iter_bytes():
            body += chunk
            if self._on_line is not None:
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._on_line(line.decode(errors="replace").rstrip("\r"))
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer goes on for too long")
        if pending and self._on_line is not None:
            self._on_line(pending.decode(errors="replace"))
        return bytes(body)

    def _not_connected(self, error: httpx.ConnectError) -> NoReturn:
        cause = _root(error)
        if isinstance(cause, ConnectionRefusedError):
            raise Unreachable(self._problem("refuses the connection", "nothing listens there (yet)")) from error
        if isinstance(cause, ssl.SSLError):
            raise Unreachable(self._problem("fails the TLS handshake", str(cause))) from error
        raise _NoWay(self._problem("cannot be reached", str(cause) or str(error))) from error

    def _problem(self, what: str, found: str) -> Problem:
        host, port = address(self._url)
        return Problem(
            what=f"the endpoint {what}",
            found=f"{self._method} {self._url}: {found}",
            expected=f"an HTTP server at {host} port {port}",
            fix="see what runs there: `k3ctl status`, `k3ctl logs`",
        )


def address(url: str) -> tuple[str, int]:
    """Host and port of a URL. Raises ConfigError when it is none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise _no_url(url) from error
    if parsed.scheme not in PORTS or not parsed.host:
        raise _no_url(url)
    return parsed.host, parsed.port or PORTS[parsed.scheme]


def _no_url(url: str) -> ConfigError:
    return ConfigError(Problem(what="an endpoint address cannot be read", found=url, expected="http://host:port"))


def _root(error: BaseException) -> BaseException:
    """The first cause: httpx wraps httpcore wraps the socket's error."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return error
