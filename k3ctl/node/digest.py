"""Digests of files: sha256 for LFS files, the git blob sha1 for small ones."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Callable, Dict, Optional, Tuple

BLOCK = 4 * 1024 * 1024


def wanted(entry: Dict[str, Any]) -> Tuple[str, str]:
    """(kind, digest) of a manifest entry: sha256 if it has one, else git_sha1."""
    if entry.get("sha256"):
        return "sha256", str(entry["sha256"])
    return "git_sha1", str(entry["git_sha1"])


def begin(kind: str, size: int) -> Any:
    """A hash object to feed with the file's bytes."""
    if kind == "sha256":
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - git's own choice; identifies content, guards no secret


class Follower:
    """Hashes a file from its start as far as it is there; `at` is the number of bytes taken."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind = kind
        self.size = size
        self.restart()

    def restart(self) -> None:
        """Forget everything: the file is fetched again."""
        self.at = 0
        self._hash = begin(self.kind, self.size)
        self._buffer: Optional[bytearray] = None

    def follow(self, fd: int, end: int, go_on: Callable[[], bool]) -> None:
        """Take the bytes up to `end`; returns early when `go_on` says so. OSError when the file is shorter."""
        if self._buffer is None:
            self._buffer = bytearray(BLOCK)
        view = memoryview(self._buffer)
        while self.at < end and go_on():
            count = os.preadv(fd, [view[: min(BLOCK, end - self.at)]], self.at)
            if count == 0:
                raise OSError("file ends at byte %d, %d expected" % (self.at, end))
            self._hash.update(view[:count])
            self.at += count
        if self.at == self.size:
            self._buffer = None

    def digest(self) -> str:
        """The digest of what was taken, lower-case hex."""
        return str(self._hash.hexdigest())


def of_file(path: str, kind: str, go_on: Callable[[], bool], moved: Callable[[int], None]) -> Optional[str]:
    """The digest of a whole file; None when `go_on` ended it early. `moved` hears how many bytes were read so far."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        follower = Follower(kind, size)
        while follower.at < size:
            follower.follow(fd, min(size, follower.at + 16 * BLOCK), go_on)
            if not go_on():
                return None
            moved(follower.at)
        return follower.digest()
    finally:
        os.close(fd)
