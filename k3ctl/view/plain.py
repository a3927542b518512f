"""Without a terminal: one plain line per event; progress as a quiet line every ten seconds per node."""

from __future__ import annotations

from collections.abc import Callable

from k3ctl.events import Event, PhaseEnded, PhaseStarted, Progress, Said
from k3ctl.units import duration
from k3ctl.view.progress import Lane

EVERY_S = 10.0


class PlainView:
    """An event sink that writes lines. `write` gets one line without its end."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._began = now()
        self._last: dict[tuple[str, str], float] = {}

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        line = self._line(event)
        if line:
            self._write(f"[{duration(self._now() - self._began):>7}] {line}")

    def _line(self, event: Event) -> str:
        if isinstance(event, PhaseStarted):
            return f"{event.phase}: {event.title}" if event.step == "apply" else ""
        if isinstance(event, PhaseEnded):
            word = {"unchanged": "no change", "changed": "done"}.get(event.status, event.status)
            return f"{event.phase}: {word} in {duration(event.seconds)}: {event.said}"
        if isinstance(event, Said):
            level = "" if event.level == "info" else f"{event.level}: "
            return f"{event.phase}{f' {event.node}' if event.node else ''}: {level}{event.text}"
        return self._progress(event)

    def _progress(self, event: Progress) -> str:
        key = (event.phase, event.node)
        now = self._now()
        if now - self._last.setdefault(key, now) < EVERY_S:
            return ""
        self._last[key] = now
        lane = Lane(event.node, event.done, event.total, event.unit, event.text)
        percent = f"{lane.fraction:.0%} " if lane.fraction is not None else ""
        return f"{event.phase} {event.node}: {percent}{lane.amount()} {event.text}".rstrip()
