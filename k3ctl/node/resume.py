"""Brings a stage's ledger to what is on disk already: journal, parts, final names, earlier revisions."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from k3ctl.node import journal as records
from k3ctl.node.digest import of_file
from k3ctl.node.journal import Journal
from k3ctl.node.leases import KEPT, MISSING, FileState, Ledger
from k3ctl.node.stagefolder import Folder, proven_elsewhere, stat_of, sync_folder, unchanged
from k3ctl.node.stagelog import StageLog

FICLONE = 0x40049409


class Resume:
    """One pass over the folder before the first byte is fetched. `go_on` is false when the agent was asked to stop."""

    def __init__(
        self, folder: Folder, ledger: Ledger, journal: Journal, log: StageLog, go_on: Callable[[], bool]
    ) -> None:
        self.folder = folder
        self.ledger = ledger
        self.journal = journal
        self.log = log
        self.go_on = go_on
        self.checking = ""
        self.reused = 0

    def run(self, reuse_roots: List[str]) -> None:
        """Fill the ledger. Every file ends up sealed, or with the pieces that the journal proves."""
        if self.journal.torn:
            self.log.event("journal", "torn end of the journal dropped (%d bytes)" % self.journal.torn)
        sealed = self._replay()
        for file in self.ledger.files:
            if not self.go_on():
                return
            self._final(file, sealed.get(file.number))
        self._elsewhere(reuse_roots)
        for file in self.ledger.files:
            if not file.sealed:
                self._part(file)
        self.journal.sync()

    def _replay(self) -> Dict[int, Dict[str, Any]]:
        """Apply the journal; returns the seals that it holds, by file number."""
        return replay(self.journal.records, self.ledger.files)

    def _final(self, file: FileState, record: Optional[Dict[str, Any]]) -> None:
        """A file under its final name: believed when it is the one that was sealed, else hashed again."""
        path = self.folder.final(file.path)
        if record is not None and unchanged(record, path):
            file.sealed = record
            return
        found = stat_of(path)
        if found is None:
            if record is not None:
                self.log.event("lost", "%s was proven and is gone: fetched again" % file.path)
            return
        if found["size"] != file.size:
            self.log.event("changed", "%s has %d bytes, %d expected" % (file.path, found["size"], file.size))
            return
        self.checking = file.path
        digest = of_file(path, file.kind, self.go_on, lambda _at: None)
        self.checking = ""
        if digest == file.digest:
            self.seal_record(file, path, "found in place")
        elif digest is not None:
            self.log.event("changed", "%s is in place with another digest: fetched again" % file.path)

    def _elsewhere(self, roots: List[str]) -> None:
        """Take files of the same sha256 from complete stages of other revisions: cloned, else hard-linked."""
        missing: Dict[Tuple[str, str], List[FileState]] = {}
        for file in self.ledger.files:
            if not file.sealed and file.size and file.pieces.count(KEPT) < len(file.pieces):
                missing.setdefault((file.kind, file.digest), []).append(file)
        if not missing:
            return
        for path, record in proven_elsewhere(self.folder.dest, roots):
            for kind in ("sha256", "git_sha1"):
                for file in missing.pop((kind, str(record.get(kind) or "-")), []):
                    if self.go_on() and record.get("size") == file.size:
                        self._take(path, file)

    def _take(self, path: str, file: FileState) -> None:
        final = self.folder.final(file.path)
        temporary = self.folder.part(file.number) + ".reuse"
        try:
            os.makedirs(os.path.dirname(final), exist_ok=True)
            how = share(path, temporary)
            os.replace(temporary, final)
            sync_folder(os.path.dirname(final))
        except OSError as error:
            self.log.event("reuse", "%s could not be taken from %s: %s" % (file.path, path, error))
            return
        self.seal_record(file, final, "%s from %s" % (how, path))
        self.reused += file.size

    def seal_record(self, file: FileState, path: str, how: str) -> None:
        """Write down that a file is proven and in place."""
        file.sealed = dict(stat_of(path) or {}, f=file.number, how=how)
        self.journal.append(records.SEALED, file.sealed)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.folder.part(file.number))

    def _part(self, file: FileState) -> None:
        """Pieces count only when the part they lie in is still there in full size; a fresh part voids them."""
        part = self.folder.part(file.number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part + ".bad")
        found = stat_of(part)
        if found is not None and found["size"] == file.size:
            return
        if file.pieces.count(MISSING) != len(file.pieces):
            self.log.event("lost", "the part of %s is gone or short: fetched again" % file.path)
            self.journal.append(records.RESET, {"f": file.number, "why": "part gone"})
            file.void()


def replay(found: List[records.Record], files: List[FileState]) -> Dict[int, Dict[str, Any]]:
    """Apply journal records to files: kept pieces are marked, the last seal of each file is returned."""
    sealed: Dict[int, Dict[str, Any]] = {}
    for kind, body in found:
        number = body.get("f", -1)
        if not isinstance(number, int) or not 0 <= number < len(files):
            continue
        file = files[number]
        if kind == records.PIECES:
            for piece in range(max(0, body["a"]), min(body["a"] + body["n"], len(file.pieces))):
                file.pieces[piece] = KEPT
        elif kind == records.RESET:
            file.void()
            sealed.pop(number, None)
        elif kind == records.SEALED:
            sealed[number] = body
            file.void()  # the part became the final file: without that file there is nothing
    return sealed


def share(source: str, target: str) -> str:
    """Make `target` hold what `source` holds without moving bytes: a clone, else a hard link. Says which."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    with open(source, "rb") as reading, open(target, "wb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())
            os.fsync(writing.fileno())
            return "cloned"
        except OSError:
            pass
    os.unlink(target)
    os.link(source, target)
    return "linked"
