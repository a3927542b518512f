"""One connection's work: take a lease, fetch its bytes, survive every fault of the way there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Optional

from k3ctl.node.httpjudge import Cut, NoRange, Pause, Refused, Stale
from k3ctl.node.leases import LEASED, Lease
from k3ctl.node.link import Link
from k3ctl.node.source import Source
from k3ctl.node.space import NO_SPACE

if TYPE_CHECKING:
    from k3ctl.node.engine import Engine

BUFFER = 1 << 20
WHOLE_TRIES = 8


class NoSpace(Cut):
    """The disk took no more; another writer may free some."""


class Carrier:
    """One worker thread of the engine with its own connections and buffer."""

    def __init__(self, engine: Engine, number: int) -> None:
        self.engine = engine
        self.number = number
        self.link = Link(engine.limits, engine.job.get("proxies", {}))
        self.rate: Optional[float] = None  # of the last whole window, bytes per second
        self._buffer = memoryview(bytearray(BUFFER))
        self._window = (0.0, 0)

    def work(self) -> None:
        """Take and carry leases until there are none left."""
        engine = self.engine
        while not engine.ended():
            source = next((s for s in engine.sources if not s.down), None)
            if source is None:
                engine.fail("source", "; ".join(s.down for s in engine.sources))
                return
            if source.paused_until > time.monotonic():
                engine.stop.wait(min(0.3, max(0.0, source.paused_until - time.monotonic())))
                continue
            lease = engine.ledger.take(whole=source.no_range)
            if lease is None:
                self.rate = None
                with engine.ledger.changed:
                    engine.ledger.changed.wait(0.2)
                continue
            try:
                self._carry(source, lease)
            finally:
                engine.ledger.give_back(lease)
        self.link.close()

    def abort(self) -> None:
        """End a wait on the wire, from another thread."""
        self.link.abort()

    def _carry(self, source: Source, lease: Lease) -> None:
        """Fetch a lease to its end; the same byte is asked for again after each fault."""
        engine = self.engine
        idle_tries = whole_tries = 0
        while lease.at < lease.end and not engine.ended():
            began = lease.at
            try:
                self._transfer(source, lease)
                return
            except NoRange as error:
                engine.log.retry("%s: %s; only whole files are taken from it" % (source.name, error))
                return
            except Refused as error:
                engine.log.event("refused", "%s: %s" % (source.name, error))
                return
            except Pause as pause:
                engine.log.retry("%s: waiting %.0f s" % (source.paused_why, pause.seconds))
                return
            except Cut as cut:
                self.link.close()
                if engine.ended():
                    return
                idle_tries = 0 if lease.at > began else idle_tries + 1
                self._explain(source, lease, cut)
                if source.no_range and lease.at > 0:
                    whole_tries += 1
                    if whole_tries >= WHOLE_TRIES:
                        source.down = "%s: cannot resume, and %d tries were cut" % (source.name, whole_tries)
                        return
                    lease.at = lease.file.span(lease.first, 1)[0]
                if isinstance(cut, NoSpace):
                    engine.stop.wait(engine.limits["space_retry_s"])
                else:
                    # The first fault and a refused URL cost no wait: most often the next connection is good.
                    engine.stop.wait(0 if isinstance(cut, Stale) else engine.backoff(idle_tries - 1))

    def _explain(self, source: Source, lease: Lease, cut: Cut) -> None:
        self.engine.log.retry(
            "%s @ byte %d from %s: %s" % (lease.file.path, lease.at, source.name, cut),
            file=lease.file.path,
            byte=lease.at,
        )

    def _transfer(self, source: Source, lease: Lease) -> None:
        """One request: from the lease's next byte to its end."""
        engine = self.engine
        fd = lease.file.open(engine.folder.part(lease.file.number))
        reply = source.open(self.link, lease.file.entry, lease.at, lease.end - 1)
        self._window = (time.monotonic(), 0)
        while lease.at < lease.end:
            if engine.leaving():
                raise Cut("stopping")
            piece = lease.at // lease.file.piece
            room = min(BUFFER, lease.file.span(piece, 1)[1] - lease.at)
            count = reply.read_into(self._buffer[:room])
            if count == 0:
                raise Cut("cut short, %d bytes of this request missing" % (lease.end - lease.at))
            if lease.file.pieces[piece] == LEASED:
                self._write(fd, count, lease.at)
            before = lease.passed()
            lease.at += count
            if lease.passed() > before:
                engine.ledger.wrote(lease, before)
            engine.meter.add(count)
            self._pace(count)
        if not reply.end():
            self.link.close()

    def _write(self, fd: int, count: int, at: int) -> None:
        done = 0
        while done < count:
            try:
                done += os.pwrite(fd, self._buffer[done:count], at + done)
            except OSError as error:
                if error.errno in NO_SPACE:
                    raise NoSpace("no space left on the disk, tried again") from error
                raise

    def _pace(self, count: int) -> None:
        """Cut a stream that crawls: below a fixed floor and a tenth of this node's median stream, over a whole window.

        The floor is relative, so that many streams on a thin line live and one bad stream among fast ones does not.
        """
        engine = self.engine
        since, so_far = self._window
        so_far += count
        self._window = (since, so_far)
        elapsed = time.monotonic() - since
        if elapsed < engine.limits["slow_s"]:
            return
        self.rate = so_far / elapsed
        self._window = (time.monotonic(), 0)
        rates = sorted(c.rate for c in engine.carriers if c.rate is not None)
        floor = max(engine.limits["slow_bytes_s"], rates[len(rates) // 2] / 10)
        if self.rate < floor:
            raise Cut("slow: %d bytes/s, below %d" % (self.rate, floor))
