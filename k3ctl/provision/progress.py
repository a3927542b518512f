"""A play's events as progress of each node, lines for people, and a log."""

from __future__ import annotations

from threading import Lock

from k3ctl.events import Reporter
from k3ctl.protocols import PlayEvent

_DONE = ("ok", "changed", "skipped", "failed", "unreachable")


class PlayProgress:
    """Counts finished tasks per node. Changes, retries and failures are said; the rest is only counted."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._done: dict[str, int] = {}
        self._lines: list[str] = []
        self._changed: list[PlayEvent] = []
        self._lock = Lock()

    @property
    def changed(self) -> tuple[PlayEvent, ...]:
        """Events of tasks that changed something, or would."""
        return tuple(self._changed)

    @property
    def log(self) -> str:
        """One line per event and the diffs, in the order they came."""
        return "".join(f"{line}\n" for line in self._lines)

    def take(self, event: PlayEvent) -> None:
        """One event of the play."""
        with self._lock:
            self._note(event)
            if event.kind in _DONE:
                self._done[event.node] = self._done.get(event.node, 0) + 1
            done = self._done.get(event.node, 0)
        if event.kind == "changed":
            self._changed.append(event)
            self._report.say(f"changed: {event.task}{f' ({event.message})' if event.message else ''}", node=event.node)
        elif event.kind == "ok" and event.message:
            self._report.say(event.message, node=event.node)
        elif event.kind == "retry":
            self._report.say(f"{event.task}: {event.message}", node=event.node)
        elif event.kind in ("failed", "unreachable"):
            self._report.say(f"{event.task}: {event.message}", node=event.node, level="error")
        if event.node:
            # Handlers are not in the total: it grows with them, and never is less than what is done.
            self._report.progress(event.node, done, max(done, event.total), "tasks", event.task)

    def _note(self, event: PlayEvent) -> None:
        if event.kind == "task":
            return
        words = (event.kind, event.node, event.task, event.message)
        self._lines.append(" ".join(word for word in words if word))
        if event.diff:
            self._lines += [f"    {line}" for line in event.diff.splitlines()]
