"""Event sinks that draw nothing: the event log, and the junction that feeds several sinks."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable

from k3ctl.events import Event, Progress, Sink

PROGRESS_EVERY_S = 1.0


def junction(*sinks: Sink) -> Sink:
    """One sink that hands every event to all, one event at a time (phases report from several threads)."""
    lock = threading.Lock()

    def send(event: Event) -> None:
        with lock:
            for sink in sinks:
                sink(event)

    return send


class EventLog:
    """Events as JSON lines; progress is thinned to one line per node and second."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._last: dict[tuple[str, str], float] = {}

    def __call__(self, event: Event) -> None:
        """Write one event."""
        now = self._now()
        if isinstance(event, Progress):
            key = (event.phase, event.node)
            if now - self._last.get(key, 0.0) < PROGRESS_EVERY_S and event.done != event.total:
                return
            self._last[key] = now
        record = {"at": round(now, 3), "event": type(event).__name__, **dataclasses.asdict(event)}
        self._write(json.dumps(record, sort_keys=True))
