"""The cluster's lock on the head node: held by a process that lives exactly as long as its SSH channel.

stdin: one JSON line {"path", "owner", "silence_s"}, then any line as a heartbeat, `release` to end in order.
stdout: one JSON line {"acquired": bool, "owner": owner or null, "now": s}. When acquired, `owner` is the previous one
if it died holding the lock, else null; when not, it is the holder. An owner is what the caller gave, plus `since`
(seconds since the epoch, this host's clock, as `now`).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from typing import Any

RELEASE = b"release"


def main(argv: list[str]) -> int:
    """Acquire, say so, hold until stdin ends, stays silent too long, or says `release`."""
    del argv
    first, rest = read_line(0)
    request = json.loads(first)
    handle = open_file(request["path"])
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say({"acquired": False, "owner": read_owner(handle), "now": time.time()})
        return 0
    previous = read_owner(handle)
    write_owner(handle, dict(request["owner"], since=time.time()))
    say({"acquired": True, "owner": previous, "now": time.time()})
    if hold(0, rest, float(request.get("silence_s", 60.0))):
        write_owner(handle, None)
    # Otherwise the owner stays in the file: the next one says whose lock it takes over. The kernel frees the lock.
    return 0


def hold(stdin: int, rest: bytes, silence_s: float) -> bool:
    """Wait for the end. True when it was asked for, False when the holder went away or fell silent."""
    while True:
        if RELEASE in rest.split(b"\n"):
            return True
        rest = rest.rpartition(b"\n")[2]
        ready, _, _ = select.select([stdin], [], [], silence_s)
        if not ready:
            return False
        data = os.read(stdin, 4096)
        if not data:
            return False
        rest += data


def read_line(stdin: int) -> tuple[bytes, bytes]:
    """The first line of stdin and what came with it. Unbuffered, since `hold` asks the kernel whether there is more."""
    data = b""
    while b"\n" not in data:
        more = os.read(stdin, 65536)
        if not more:
            break
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


def open_file(path: str) -> int:
    """The lock file, made with its folder when missing. It is never removed: its inode is the lock."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def read_owner(handle: int) -> dict[str, Any] | None:
    """The owner in the file; None when there is none (released in order) or it cannot be read."""
    text = os.pread(handle, 65536, 0)
    try:
        owner = json.loads(text.decode("utf-8"))
    except ValueError:
        return {"user": "unknown"} if text.strip() else None
    return owner if isinstance(owner, dict) else None


def write_owner(handle: int, owner: dict[str, Any] | None) -> None:
    """Replace the file's content, on disk."""
    os.ftruncate(handle, 0)
    if owner is not None:
        os.pwrite(handle, json.dumps(owner, sort_keys=True).encode("utf-8"), 0)
    os.fsync(handle)


def say(reply: dict[str, Any]) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(json.dumps(reply, sort_keys=True) + "\n")
    sys.stdout.flush()
