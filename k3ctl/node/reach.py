"""`reach`: can every node open connections to every other one, and does a large payload come back?

Run on all nodes at once. Each listens on its own cluster address, connects from that address to all its peers, sends
them `bytes` of data and waits for the echo: a small handshake passes where a switch port with a smaller MTU swallows
full packets. It ends when every peer was reached and has reached us, or after `seconds`; nothing is left listening.

Payload: own = {"name", "address"}, peers = [{"name", "address"}], ports, seconds, bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from typing import Any, NamedTuple

_SECONDS = 6.0
_BYTES = 65536
_MOST_BYTES = 1 << 20
_TRY_S = 2.0
_PAUSE_S = 0.05
_KINDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route",
    errno.EADDRNOTAVAIL: "no_address",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
}


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """Reply: listening = [{"port", "error"}], links = one entry per peer and port (see `_link`).

    A link's `result` is ok, or refused, timeout, no_route, no_address, forbidden, failed (no connection), stalled (a
    connection, but the echo did not come back), wrong_echo (something else answered there).
    """
    own, peers, ports = payload["own"], payload["peers"], payload["ports"]
    until = time.monotonic() + float(payload.get("seconds") or _SECONDS)
    size = min(int(payload.get("bytes") or _BYTES), _MOST_BYTES)
    terms = _Terms(own["address"], size, until)
    doors = [_Door(own["address"], port, {peer["address"] for peer in peers}, until) for port in ports]
    links: list[dict[str, Any]] = []
    calls = [
        threading.Thread(target=_call, args=(terms, peer, port, links), daemon=True) for peer in peers for port in ports
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(max(until + _TRY_S - time.monotonic(), 0.0))
    while time.monotonic() < until and not all(door.done() for door in doors):
        time.sleep(_PAUSE_S)
    for door in doors:
        door.close()
    return {
        "node": own["name"],
        "listening": [{"port": door.port, "error": door.error} for door in doors],
        "links": sorted(links, key=lambda link: (link["to"], link["port"])),
    }


class _Door:
    """One listening socket that sends back what the peers send, and counts which of them came."""

    def __init__(self, address: str, port: int, peers: set[str], until: float) -> None:
        self.port = port
        self.peers = peers
        self.until = until
        self.came: set[str] = set()
        self.error: str | None = None
        self.socket = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((address, port))
            self.socket.listen(64)
        except OSError as error:
            self.error = os.strerror(error.errno) if error.errno else str(error)
            self.socket.close()
            return
        threading.Thread(target=self._accept, daemon=True).start()

    def done(self) -> bool:
        return self.error is not None or self.came >= self.peers

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept; closing alone leaves it listening
        self.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                link, source = self.socket.accept()
            except OSError:  # closed: the verb ends
                return
            threading.Thread(target=self._echo, args=(link, str(source[0])), daemon=True).start()

    def _echo(self, link: socket.socket, source: str) -> None:
        with link:
            if source not in self.peers:
                return
            link.settimeout(max(self.until - time.monotonic(), 0.1))
            try:
                link.sendall(_receive(link, _MOST_BYTES))
                self.came.add(source)
            except OSError:  # the caller reports what it saw; here it only means that this peer has not come yet
                return


def _receive(link: socket.socket, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < most:
        part = link.recv(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class _Terms(NamedTuple):
    """What every call of this node goes by: own address, bytes to send, and when to give up (monotonic seconds)."""

    own: str
    size: int
    until: float


def _call(terms: _Terms, peer: dict[str, Any], port: int, links: list[dict[str, Any]]) -> None:
    """Try until it works or the time is up: the peer's listener may start a moment after ours."""
    tries = 0
    while True:
        tries += 1
        link = dict(_link(terms, peer["address"], port), to=peer["name"], port=port, tries=tries)
        if link["result"] in ("ok", "wrong_echo", "no_address") or time.monotonic() + _PAUSE_S >= terms.until:
            links.append(link)
            return
        time.sleep(_PAUSE_S)


def _link(terms: _Terms, address: str, port: int) -> dict[str, Any]:
    """One try: {"result", "detail", "connect_s", "echo_s", "echoed_bytes"}; times in seconds, None when not reached."""
    found: dict[str, Any] = {"result": "ok", "detail": "", "connect_s": None, "echo_s": None, "echoed_bytes": 0}
    began = time.monotonic()
    limit = max(min(_TRY_S, terms.until - began), 0.2)
    try:
        link = socket.create_connection((address, port), timeout=limit, source_address=(terms.own, 0))
    except OSError as error:
        kind = "timeout" if isinstance(error, socket.timeout) else _KINDS.get(error.errno or 0, "failed")
        return dict(found, result=kind, detail=str(error))
    with link:
        found["connect_s"] = round(time.monotonic() - began, 6)
        began = time.monotonic()
        link.settimeout(max(min(_TRY_S, terms.until - began), 0.2))
        sent = os.urandom(terms.size)
        try:
            link.sendall(sent)
            link.shutdown(socket.SHUT_WR)
            echo = _receive(link, terms.size)
        except OSError as error:
            return dict(found, result="stalled", detail=str(error))
        found.update(echo_s=round(time.monotonic() - began, 6), echoed_bytes=len(echo))
        if echo != sent:
            found.update(result="wrong_echo", detail="sent %d bytes, got %d bytes back" % (terms.size, len(echo)))
    return found


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
