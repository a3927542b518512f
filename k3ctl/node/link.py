"""One worker's HTTP connections: kept alive, one for each origin, with limits on every wait."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import urllib.parse
from typing import Any, Dict, Optional, Tuple

from k3ctl.node.httpjudge import Cut, Refused

AGENT_NAME = "k3ctl-node/1"


def origin_of(url: str) -> Tuple[str, str, int]:
    """(scheme, host, port) of a URL."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def bare(url: str) -> str:
    """A URL as it may be shown: without query (signatures) and user part."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return "%s://%s%s" % (parts.scheme, host, parts.path)


class Closed(Cut):
    """The other side closed the connection before it answered."""


class Reply:
    """An answer whose body is still on the wire."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read_into(self, view: memoryview) -> int:
        """Take what one receive brings, at most the size of `view`; 0 at the end.

        HTTPResponse.readinto would wait until the whole view is full, so that a trickle of bytes never times out.
        """
        response = self._response
        left = response.length
        try:
            if response.chunked or left is None:
                data = response.read1(len(view))
                view[: len(data)] = data
                return len(data)
            if left == 0:
                return 0
            count = int(response.fp.readinto1(view[: min(left, len(view))]))
        except (OSError, http.client.HTTPException) as error:
            raise Cut(reason(error)) from error
        response.length = left - count
        return count

    def end(self) -> bool:
        """Finish a body that was read to its end, so that the connection is free again; False when there is more."""
        if self._response.length:
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._response.read()
            return True
        return False

    def snippet(self) -> str:
        """The first 200 characters of the body, for people; signatures in URLs are left out."""
        view = memoryview(bytearray(200))
        try:
            count = self.read_into(view)
        except Cut:
            return ""
        text = bytes(view[:count]).decode("utf-8", "replace")
        words = "".join(c if c.isprintable() else " " for c in text).split()
        return " ".join(word.split("?", 1)[0] + "?..." if "://" in word and "?" in word else word for word in words)


class Link:
    """Connections of one worker. `limits`: connect_s, first_byte_s, silence_s."""

    def __init__(self, limits: Dict[str, float], proxies: Dict[str, str]) -> None:
        self.limits = limits
        self.proxies = proxies
        self._open: Dict[Tuple[str, str, int], http.client.HTTPConnection] = {}
        self._socket: Optional[socket.socket] = None

    def get(self, url: str, headers: Dict[str, str]) -> Reply:
        """Ask for a URL; redirects are not followed. Raises Cut, or Refused when the certificate is not trusted."""
        kept = origin_of(url) in self._open
        try:
            return self._get(url, headers)
        except Closed:
            if not kept:
                raise
            # The server may have closed a kept connection in the meantime, which is no fault: once more on a new one.
            return self._get(url, headers)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()
        self._socket = None

    def abort(self) -> None:
        """End the wait of the worker, from another thread."""
        waiting = self._socket
        if waiting is not None:
            with contextlib.suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def _get(self, url: str, headers: Dict[str, str]) -> Reply:
        origin = origin_of(url)
        try:
            connection, target = self._connection(url)
            wire = connection.sock
            self._socket = wire
            wire.settimeout(self.limits["first_byte_s"])
            connection.request("GET", target, headers=dict({"User-Agent": AGENT_NAME}, **headers))
            response = connection.getresponse()
            wire.settimeout(self.limits["silence_s"])
        except ssl.SSLCertVerificationError as error:
            self._drop(origin)
            raise Refused("certificate of %s: %s" % (origin[1], error.verify_message)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop(origin)
            kind = Closed if isinstance(error, (ConnectionResetError, BrokenPipeError)) else Cut
            raise kind("%s: %s" % (origin[1], reason(error))) from error
        return Reply(response)

    def _drop(self, origin: Tuple[str, str, int]) -> None:
        connection = self._open.pop(origin, None)
        if connection is not None:
            connection.close()

    def _connection(self, url: str) -> Tuple[http.client.HTTPConnection, str]:
        """A connected connection for the URL, and the request target."""
        origin = scheme, host, port = origin_of(url)
        parts = urllib.parse.urlsplit(url)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        proxy = self._proxy(scheme, host, port)
        if proxy and scheme == "http":
            target = url
        connection = self._open.get(origin)
        if connection is None or connection.sock is None:
            self._drop(origin)
            if len(self._open) >= 2:  # the hub and one store behind it are in use at a time
                self.close()
            connection = self._new(scheme, host, port, proxy)
            self._open[origin] = connection
            connection.connect()
        return connection, target

    def _proxy(self, scheme: str, host: str, port: int) -> str:
        """URL of the proxy for this origin, or nothing."""
        if not self.proxies.get(scheme):
            return ""
        for name in self.proxies.get("no", "").lower().replace(" ", "").split(","):
            plain = name.lstrip("*").lstrip(".")
            if name == "*" or (plain and (host == plain or host.endswith("." + plain))):
                return ""
            if name == "%s:%d" % (host, port):
                return ""
        return self.proxies[scheme]

    def _new(self, scheme: str, host: str, port: int, proxy: str) -> http.client.HTTPConnection:
        via = urllib.parse.urlsplit(proxy) if proxy else None
        to = (via.hostname or "", via.port or 3128) if via else (host, port)
        options: Dict[str, Any] = {"timeout": self.limits["connect_s"]}
        if scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                to[0], to[1], context=context, **options
            )
        else:
            connection = http.client.HTTPConnection(to[0], to[1], **options)
        if via and scheme == "https":
            connection.set_tunnel(host, port, headers=_proxy_headers(via))
        return connection


def _proxy_headers(via: urllib.parse.SplitResult) -> Dict[str, str]:
    if not via.username:
        return {}
    pair = "%s:%s" % (urllib.parse.unquote(via.username), urllib.parse.unquote(via.password or ""))
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def reason(error: BaseException) -> str:
    """An error of the way to a source, in words."""
    if isinstance(error, socket.timeout):
        return "silent for too long"
    if isinstance(error, socket.gaierror):
        return "name not resolved (%s)" % error.strerror
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "connection cut"
    return "%s: %s" % (type(error).__name__, error)
