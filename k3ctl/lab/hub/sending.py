"""Sends a body: whole from file to socket in the kernel, or spoiled as a fault rule says."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import BinaryIO

from k3ctl.lab.hub.faults import Rule

_CHUNK = 1 << 16


def send_file(connection: socket.socket, source: BinaryIO, first: int, length: int) -> int:
    """Send `length` bytes from `first` on; the number that the kernel took. OSError when the client went away."""
    return connection.sendfile(source, first, length) if length else 0


def send_spoiled(connection: socket.socket, source: BinaryIO, first: int, length: int, rule: Rule) -> int:
    """Send as the rule says; fewer bytes than `length` mean that the connection must be closed now."""
    if rule.kind in ("cut", "reset", "stall"):
        sent = send_file(connection, source, first, min(rule.at, length))
        if rule.kind == "stall" and not hold(connection, rule.seconds or 3600.0):
            return sent
        if rule.kind == "reset":  # linger 0: close sends RST
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return sent
    if rule.kind == "slow":
        return _trickle(connection, source, first, length, rule.rate)
    if rule.kind == "flip" and first <= rule.at < first + length:
        sent = send_file(connection, source, first, rule.at - first)
        source.seek(rule.at)
        connection.sendall(bytes([source.read(1)[0] ^ 1]))
        return sent + 1 + send_file(connection, source, rule.at + 1, first + length - rule.at - 1)
    return send_file(connection, source, first, length)


def hold(connection: socket.socket, seconds: float) -> bool:
    """Wait so long with the connection open; False as soon as the client has closed it."""
    watch = select.poll()
    watch.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return not watch.poll(int(seconds * 1000))


def _trickle(connection: socket.socket, source: BinaryIO, first: int, length: int, rate: float) -> int:
    """Ten pieces a second, so that a byte watchdog sees a steady rate."""
    piece = max(1, min(_CHUNK, int(rate / 10)))
    sent, begun = 0, time.monotonic()
    source.seek(first)
    while sent < length:
        connection.sendall(source.read(min(piece, length - sent)))
        sent += min(piece, length - sent)
        ahead = sent / rate - (time.monotonic() - begun)
        if ahead > 0 and not hold(connection, ahead):
            break
    return sent
