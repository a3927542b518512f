"""The journal of a stage: what is proven to be on disk, append-only, safe against a torn end.

A record is `length (u32 LE) | crc32 (u32 LE) | type (u8) | body (JSON)`; length counts type and body, the CRC covers
both. A record is written only after fdatasync of the data it names. Reading stops at the first record that is short or
whose CRC differs: what came after is not believed, so the worst that damage can do is that pieces are fetched again.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import Any, Dict, List, Tuple

OPENED = 1  # {id, boot, pid, time}: an agent began to work
PIECES = 2  # {f, a, n}: pieces a .. a+n-1 of file f are on disk
SEALED = 3  # {f, size, mtime_ns, inode, how}: file f is proven and has its final name
RESET = 4  # {f, why}: all pieces of file f are void
CLOSED = 5  # {time, why}: the agent left in good order

_HEAD = struct.Struct("<II")
_LIMIT = 1 << 20

Record = Tuple[int, Dict[str, Any]]


def encode(kind: int, body: Dict[str, Any]) -> bytes:
    """One record as bytes."""
    text = bytes([kind]) + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return _HEAD.pack(len(text), zlib.crc32(text)) + text


def decode(data: bytes) -> Tuple[List[Record], int]:
    """All whole records from the start, and the number of bytes they take; the rest is torn."""
    records: List[Record] = []
    at = 0
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        text = data[at + _HEAD.size : at + _HEAD.size + length]
        if not 2 < length <= _LIMIT or len(text) != length or zlib.crc32(text) != crc:
            break
        try:
            body = json.loads(text[1:].decode())
        except ValueError:
            break
        if not isinstance(body, dict):
            break
        records.append((text[0], body))
        at += _HEAD.size + length
    return records, at


def read(path: str) -> Tuple[List[Record], int]:
    """Records of a journal file and the bytes behind them that are torn; nothing when there is no file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return [], 0
    records, good = decode(data)
    return records, len(data) - good


class Journal:
    """A journal open for appending; a torn end is cut off first. Not thread-safe: its owner holds a lock."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        data = b""
        while True:
            block = os.read(self.fd, 1 << 20)
            if not block:
                break
            data += block
        self.records, good = decode(data)
        self.torn = len(data) - good
        if self.torn:
            os.ftruncate(self.fd, good)
            os.fdatasync(self.fd)
        self._end = good

    def append(self, kind: int, body: Dict[str, Any]) -> None:
        """Write one record; it counts after `sync`."""
        data = encode(kind, body)
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], self._end + done)
        self._end += len(data)

    def sync(self) -> None:
        """Everything appended is on disk after this."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)
