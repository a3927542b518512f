"""The engine of a stage on one node: connections fetch pieces, one thread makes them durable, others hash and seal.

Order of truth: a piece counts after fdatasync and a journal record; a file gets its final name after its whole digest
was proven; COMPLETE.json is written when every file has its final name. Nothing else is believed after a crash.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from k3ctl.node import journal as records
from k3ctl.node.carrier import Carrier
from k3ctl.node.journal import Journal
from k3ctl.node.leases import FileState, Ledger
from k3ctl.node.resume import Resume
from k3ctl.node.seal import complete_record, seal, still_true
from k3ctl.node.source import Source
from k3ctl.node.space import NETWORK, NO_SPACE, file_system, free_bytes, needed, preallocate
from k3ctl.node.stagefolder import SCHEMA, Folder, boot_id, now_text, read_json, write_json
from k3ctl.node.stagelog import Meter, StageLog

LIMITS: Dict[str, float] = {
    "connect_s": 10,
    "first_byte_s": 15,
    "silence_s": 10,
    "slow_s": 20,
    "slow_bytes_s": 16384,
    "backoff_s": 0.5,
    "backoff_cap_s": 30,
    "give_up_first_s": 120,
    "give_up_s": 1800,
    "sync_s": 1.0,
    "space_retry_s": 10,
    "status_s": 0.5,
    "digest_rounds": 2,
}
HASHERS = 2


class Failure(Exception):
    """The stage cannot go on. `code`: space, source, digest, stalled, disk, manifest."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class Engine:
    """One run of one stage. `job` is described in k3ctl.node.fetch; the caller holds the stage's lock."""

    def __init__(self, job: Dict[str, Any], folder: Folder, stop: threading.Event) -> None:
        self.job = job
        self.manifest = job["manifest"]
        self.folder = folder
        self.stop = stop
        self.limits = dict(LIMITS, **job.get("limits", {}))
        self.log = StageLog(folder)
        self.meter = Meter()
        self.connections = int(job.get("connections", 4))
        self.ledger = Ledger(self.manifest["files"], int(self.manifest["piece"]), self.connections)
        self.sources = [Source(s, self.manifest["repo"], self.manifest["commit"]) for s in job["sources"]]
        self.journal = Journal(folder.own("journal"))
        self.journal_lock = threading.Lock()
        self.resume = Resume(folder, self.ledger, self.journal, self.log, lambda: not self.stop.is_set())
        self.failure: Optional[Failure] = None
        self.carriers: List[Carrier] = []
        self.state = "running"
        self.shape: Callable[[Dict[str, Any]], Dict[str, Any]] = lambda status: status
        self.status_path = folder.own("status.json")
        self._finished = threading.Event()

    def run(self) -> str:
        """Work until complete, failed or stopped; returns that word. status.json says the same."""
        self.meter.last_byte = time.monotonic()
        teller = threading.Thread(target=self._tell, name="status", daemon=True)
        teller.start()
        try:
            self._prepare()
            if not self.ledger.over() and not self.ended():
                self._fetch()
            self._conclude()
        except Failure as failure:
            self.failure = failure
        except OSError as error:
            self.failure = Failure("space" if error.errno in NO_SPACE else "disk", str(error))
        self.state = "failed" if self.failure else ("complete" if self.ledger.over() else "stopped")
        self._leave()
        self._finished.set()
        teller.join()
        self.write_status()
        return self.state

    def ended(self) -> bool:
        """True when every thread shall leave."""
        return self.leaving() or self.ledger.over()

    def leaving(self) -> bool:
        """True when the run was stopped or has failed."""
        return self.stop.is_set() or self.failure is not None

    def fail(self, code: str, why: str) -> None:
        """End the run with a reason; the first one stays."""
        with self.ledger.changed:
            if self.failure is None:
                self.failure = Failure(code, why)
                self.log.event("failed", why)
            self.ledger.changed.notify_all()

    def _prepare(self) -> None:
        """Everything before the first byte: what is there, room, parts."""
        with self.journal_lock:
            self.journal.append(
                records.OPENED, {"id": self.folder.id, "boot": boot_id(), "pid": os.getpid(), "time": now_text()}
            )
            self.resume.run(self.job.get("reuse_roots", []))
        done = self.ledger.done_bytes()
        if done:
            self.log.event("resumed", "%d of %d bytes are here already" % (done, self.manifest["total"]))
        if not self.ledger.over():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder.own("COMPLETE.json"))
        self._check_room()
        for file in self.ledger.files:
            if file.sealed or self.stop.is_set():
                continue
            try:
                preallocate(self.folder.part(file.number), file.size)
            except OSError as error:
                code = "space" if error.errno in NO_SPACE else "disk"
                raise Failure(code, "no room for %s (%d bytes): %s" % (file.path, file.size, error.strerror)) from error

    def _check_room(self) -> None:
        kind = file_system(self.folder.dest)
        if kind in NETWORK and not self.job.get("allow_network_fs"):
            raise Failure(
                "disk", "%s is on %s: each node needs the weights on a disk of its own" % (self.folder.dest, kind)
            )
        need = needed(self.folder, self.ledger.files, int(self.job.get("reserve", 0)))
        pretended = self.job.get("free_bytes")
        free = free_bytes(self.folder.root) if pretended is None else int(pretended)
        if need > free:
            raise Failure(
                "space", "%d bytes needed at %s, %d free: %d short" % (need, self.folder.dest, free, need - free)
            )

    def _fetch(self) -> None:
        """Run the threads until everything is sealed, or until somebody ends it."""
        self.carriers = [Carrier(self, number) for number in range(self.connections)]
        threads = [threading.Thread(target=self._guarded, args=(c.work,), name="carrier") for c in self.carriers]
        threads += [threading.Thread(target=self._guarded, args=(self._hash,), name="hash") for _ in range(HASHERS)]
        threads.append(threading.Thread(target=self._guarded, args=(self._keep,), name="keep"))
        self.meter.last_byte = time.monotonic()
        for thread in threads:
            thread.start()
        while not self.ended():
            with self.ledger.changed:
                self.ledger.changed.wait(0.2)
            self._watch()
        for carrier in self.carriers:
            carrier.abort()
        for thread in threads:
            thread.join()

    def _guarded(self, target: Callable[[], None]) -> None:
        """A thread that dies takes the run with it, with its reason."""
        try:
            target()
        except Failure as failure:
            self.fail(failure.code, str(failure))
        except OSError as error:
            self.fail("space" if error.errno in NO_SPACE else "disk", "%s" % error)
        except BaseException as error:
            self.fail("internal", "%s: %s" % (type(error).__name__, error))
            raise

    def _watch(self) -> None:
        """Give up after a long time without any byte, when bytes are what is waited for."""
        silent = time.monotonic() - self.meter.last_byte
        limit = self.limits["give_up_s"] if self.meter.total else self.limits["give_up_first_s"]
        paused = any(s.paused_until > time.monotonic() for s in self.sources)
        if silent > limit and not paused and self.ledger.waiting_for_bytes():
            last = self.log.recent[-1] if self.log.recent else "no answer"
            self.fail("stalled", "no byte for %d s; last: %s" % (silent, last))

    def backoff(self, tries: int) -> float:
        """Seconds to wait before try number `tries` without progress (0 = at once)."""
        if tries <= 0:
            return 0.0
        longest = float(min(self.limits["backoff_cap_s"], self.limits["backoff_s"] * 2 ** min(tries - 1, 16)))
        return longest * (0.75 + random.random() / 4)  # noqa: S311 - jitter, no secret

    def _keep(self) -> None:
        """Make written pieces durable, then write them down."""
        while not self.ended():
            self.stop.wait(self.limits["sync_s"])
            self.keep_now()

    def keep_now(self) -> None:
        """One round of fdatasync and journal records."""
        for file, rounds, pieces in self.ledger.to_keep():
            with file.io:
                if file.fd < 0:
                    continue
                os.fdatasync(file.fd)
            with self.journal_lock:
                if file.sealed or file.rounds != rounds:
                    continue
                for first, count in runs(pieces):
                    self.journal.append(records.PIECES, {"f": file.number, "a": first, "n": count})
                self.journal.sync()
            self.ledger.kept(file, pieces)

    def _hash(self) -> None:
        """Follow files with their digest as they grow; seal those that are whole."""
        while not self.ended():
            file = self.ledger.to_hash()
            if file is None:
                with self.ledger.changed:
                    self.ledger.changed.wait(0.2)
                continue
            try:
                fd = file.open(self.folder.part(file.number))
                with self.ledger.lock:
                    end = file.prefix()
                file.follower.follow(fd, end, lambda: not self.leaving())
                if file.follower.at == file.size and end == file.size:
                    self._whole(file)
            finally:
                self.ledger.hashed(file)

    def _whole(self, file: FileState) -> None:
        """A file's last byte was hashed: seal it, fetch it again, or give it up."""
        found = file.follower.digest()
        if found == file.digest:
            with self.journal_lock:
                record = seal(self.folder, file)
                self.journal.append(records.SEALED, record)
                self.journal.sync()
                file.sealed = record
            return
        names = ", ".join(s.name for s in self.sources if not s.down)
        what = "%s: %s is %s, expected %s (from %s)" % (file.path, file.kind, found, file.digest, names)
        with self.journal_lock, self.ledger.lock:
            file.rounds += 1
            self.journal.append(records.RESET, {"f": file.number, "why": "digest"})
            self.journal.sync()
            if file.rounds <= self.limits["digest_rounds"]:
                file.void()
        if file.rounds <= self.limits["digest_rounds"]:
            self.log.retry("%s; fetched again (round %d)" % (what, file.rounds + 1))
            return
        file.close()
        os.replace(self.folder.part(file.number), self.folder.part(file.number) + ".bad")
        file.failed = "%s, %d times" % (what, file.rounds)
        self.log.event("digest", file.failed)

    def _conclude(self) -> None:
        """After the work: COMPLETE.json, or the reasons."""
        bad = [f.failed for f in self.ledger.files if f.failed]
        if bad and self.failure is None:
            self.failure = Failure("digest", "; ".join(bad))
        if self.failure is None and self.ledger.over():
            record = complete_record(self.manifest, self.ledger.files)
            if not still_true(read_json(self.folder.own("COMPLETE.json")), record):
                write_json(self.folder.own("COMPLETE.json"), record)
            shutil.rmtree(self.folder.parts, ignore_errors=True)
            self.log.event("complete", "%d files, %d bytes proven" % (len(self.ledger.files), self.manifest["total"]))

    def _leave(self) -> None:
        """Leave the journal in good order."""
        self.keep_now()
        for file in self.ledger.files:
            file.close()
        with self.journal_lock:
            self.journal.append(records.CLOSED, {"time": now_text(), "why": self.state})
            self.journal.sync()
            self.journal.close()

    def _tell(self) -> None:
        """Keep status.json fresh; on a full disk the old one stays."""
        while not self._finished.wait(self.limits["status_s"]):
            with contextlib.suppress(OSError):
                self.write_status()

    def write_status(self) -> None:
        """Write status.json; not durable on purpose, it is rewritten twice a second."""
        write_json(self.status_path, self.shape(self.status()), durable=False)

    def status(self) -> Dict[str, Any]:
        """How far it has come. Bytes; rate in bytes per second over the last half minute; times in UTC."""
        done = self.ledger.done_bytes()
        rate = self.meter.rate()
        left = self.manifest["total"] - done
        now = time.monotonic()
        note = self.resume.checking and "checking %s" % self.resume.checking
        for source in self.sources:
            if source.paused_until > now:
                note = "%s: next try in %d s" % (source.paused_why, source.paused_until - now + 1)
        return {
            "schema": SCHEMA,
            "id": self.folder.id,
            "repo": self.manifest["repo"],
            "commit": self.manifest["commit"],
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "state": self.state,
            "code": self.failure.code if self.failure else "",
            "reason": str(self.failure) if self.failure else "",
            "total": self.manifest["total"],
            "done": done,
            "fetched": self.meter.total,
            "reused": self.resume.reused,
            "files": len(self.ledger.files),
            "sealed": self.ledger.sealed_count(),
            "rate": rate,
            "eta_s": left / rate if rate > 0 and left > 0 else None,
            "silent_s": round(now - self.meter.last_byte, 1),
            "retries": self.log.retries,
            "recent": list(self.log.recent),
            "note": note,
            "updated": time.time(),
        }


def runs(pieces: List[int]) -> List[List[int]]:
    """Sorted numbers as [first, count] runs."""
    found: List[List[int]] = []
    for piece in pieces:
        if found and found[-1][0] + found[-1][1] == piece:
            found[-1][1] += 1
        else:
            found.append([piece, 1])
    return found
