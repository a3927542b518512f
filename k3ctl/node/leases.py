"""Who fetches which piece: the state of every piece of every file, and leases on runs of them. Thread-safe.

A piece is a fixed slice of a file (16 MiB, the last one shorter). A lease is a run of pieces of one file given to one
connection. Pieces go missing -> leased -> written -> kept (proven to be on disk by the journal).
"""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Optional, Tuple

from k3ctl.node.digest import Follower, wanted

MISSING, LEASED, WRITTEN, KEPT = 0, 1, 2, 3
LONGEST_LEASE = 16


class FileState:
    """One file of the manifest. `io` guards its descriptor against closing while it is in use."""

    def __init__(self, number: int, entry: Dict[str, Any], piece: int) -> None:
        self.number = number
        self.entry = entry
        self.path = str(entry["path"])
        self.size = int(entry["size"])
        self.piece = piece
        self.kind, self.digest = wanted(entry)
        self.pieces = bytearray((self.size + piece - 1) // piece)
        self.follower = Follower(self.kind, self.size)
        self.hashing = False
        self.sealed: Optional[Dict[str, Any]] = None
        self.failed = ""
        self.rounds = 0
        self.fd = -1
        self.io = threading.Lock()
        self._prefix = 0

    def span(self, first: int, count: int) -> Tuple[int, int]:
        """First byte and the byte behind the last one of a run of pieces."""
        return first * self.piece, min((first + count) * self.piece, self.size)

    def there(self) -> int:
        """Bytes of pieces that are written or kept."""
        full = self.pieces.count(WRITTEN) + self.pieces.count(KEPT)
        short = full and self.pieces[-1] >= WRITTEN
        return full * self.piece - ((-self.size) % self.piece if short else 0)

    def prefix(self) -> int:
        """Bytes that are there without a gap from the start."""
        while self._prefix < len(self.pieces) and self.pieces[self._prefix] >= WRITTEN:
            self._prefix += 1
        return min(self._prefix * self.piece, self.size)

    def void(self) -> None:
        """Forget all pieces."""
        self.pieces = bytearray(len(self.pieces))
        self.follower.restart()
        self._prefix = 0

    def open(self, part: str) -> int:
        """The descriptor of the part file, opened once."""
        with self.io:
            if self.fd < 0:
                self.fd = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            return self.fd

    def close(self) -> None:
        """Close the part file."""
        with self.io:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1


class Lease:
    """A run of pieces of one file; `at` is the next byte to fetch, `end` the byte behind the last one."""

    def __init__(self, file: FileState, first: int, count: int) -> None:
        self.file = file
        self.first = first
        self.count = count
        self.at, self.end = file.span(first, count)

    @property
    def whole(self) -> bool:
        """True when it is the whole file."""
        return self.count == len(self.file.pieces)

    def passed(self) -> int:
        """Number of the pieces from the lease's start that are complete at `at`."""
        if self.at >= self.end:
            return self.count
        return self.at // self.file.piece - self.first


class Ledger:
    """All files of a stage."""

    def __init__(self, entries: List[Dict[str, Any]], piece: int, connections: int) -> None:
        self.files = [FileState(number, entry, piece) for number, entry in enumerate(entries)]
        self.connections = connections
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.leases: List[Lease] = []
        self.unsynced: List[Tuple[FileState, int, int]] = []

    def take(self, *, whole: bool) -> Optional[Lease]:
        """The next run of missing pieces, in file order, or a `whole` file; None when all are leased or there."""
        with self.lock:
            for file in self.files:
                if file.sealed or file.failed:
                    continue
                lease = self._whole(file) if whole else self._run(file)
                if lease is not None:
                    for piece in range(lease.first, lease.first + lease.count):
                        if file.pieces[piece] == MISSING:
                            file.pieces[piece] = LEASED
                    self.leases.append(lease)
                    return lease
        return None

    def _run(self, file: FileState) -> Optional[Lease]:
        first = file.pieces.find(MISSING)
        if first < 0:
            return None
        longest = max(1, min(LONGEST_LEASE, self._missing() // (4 * self.connections)))
        count = 1
        while count < longest and first + count < len(file.pieces) and file.pieces[first + count] == MISSING:
            count += 1
        return Lease(file, first, count)

    @staticmethod
    def _whole(file: FileState) -> Optional[Lease]:
        if file.pieces.find(MISSING) < 0 or file.pieces.find(LEASED) >= 0:
            return None
        return Lease(file, 0, len(file.pieces))

    def _missing(self) -> int:
        """Missing pieces of all files, counted up to where the answer no longer matters."""
        enough = LONGEST_LEASE * 4 * self.connections
        count = 0
        for file in self.files:
            if not file.sealed and not file.failed:
                count += file.pieces.count(MISSING)
                if count >= enough:
                    break
        return count

    def wrote(self, lease: Lease, before: int) -> None:
        """The lease moved on; `before` is what `passed` said earlier. Pieces that became whole are announced."""
        with self.changed:
            for piece in range(lease.first + before, lease.first + lease.passed()):
                if lease.file.pieces[piece] == LEASED:
                    lease.file.pieces[piece] = WRITTEN
                    self.unsynced.append((lease.file, lease.file.rounds, piece))
            if lease.at >= lease.end and lease in self.leases:
                self.leases.remove(lease)
            self.changed.notify_all()

    def give_back(self, lease: Lease) -> None:
        """End a lease; pieces that are not whole are missing again."""
        with self.changed:
            if lease in self.leases:
                self.leases.remove(lease)
                for piece in range(lease.first, lease.first + lease.count):
                    if lease.file.pieces[piece] == LEASED:
                        lease.file.pieces[piece] = MISSING
            self.changed.notify_all()

    def to_keep(self) -> List[Tuple[FileState, int, List[int]]]:
        """Pieces written since the last call as (file, its round, pieces); the caller makes them durable."""
        with self.lock:
            found: Dict[Tuple[int, int], List[int]] = {}
            for file, rounds, piece in self.unsynced:
                found.setdefault((file.number, rounds), []).append(piece)
            self.unsynced = []
            return [(self.files[number], rounds, sorted(pieces)) for (number, rounds), pieces in found.items()]

    def kept(self, file: FileState, pieces: List[int]) -> None:
        """These pieces are in the journal now."""
        with self.lock:
            for piece in pieces:
                if file.pieces[piece] == WRITTEN:
                    file.pieces[piece] = KEPT

    def to_hash(self) -> Optional[FileState]:
        """A file with bytes to hash that nobody hashes now; it is marked as taken until `hashed`."""
        with self.lock:
            for file in self.files:
                if file.sealed or file.failed or file.hashing:
                    continue
                if file.prefix() > file.follower.at or file.size in (0, file.follower.at):
                    file.hashing = True
                    return file
        return None

    def hashed(self, file: FileState) -> None:
        """The file may be taken for hashing again."""
        with self.changed:
            file.hashing = False
            self.changed.notify_all()

    def over(self) -> bool:
        """True when every file is sealed or has failed."""
        return all(file.sealed or file.failed for file in self.files)

    def waiting_for_bytes(self) -> bool:
        """True when pieces are missing or leased: when silence means trouble."""
        with self.lock:
            return any(
                not f.sealed and not f.failed and (f.pieces.find(MISSING) >= 0 or f.pieces.find(LEASED) >= 0)
                for f in self.files
            )

    def done_bytes(self) -> int:
        """Bytes of sealed files, of written pieces, and what the leases hold beyond those."""
        with self.lock:
            done = sum(f.size if f.sealed else f.there() for f in self.files)
            for lease in self.leases:
                start = (lease.first + lease.passed()) * lease.file.piece
                if lease.at < lease.end and lease.file.pieces[lease.first + lease.passed()] == LEASED:
                    done += max(0, lease.at - start)
            return done

    def sealed_count(self) -> int:
        """Number of files that are proven and in place."""
        return sum(1 for f in self.files if f.sealed)
