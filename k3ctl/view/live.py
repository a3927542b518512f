"""The live picture on a terminal: one row per phase, one bar per node below the phases that run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from k3ctl.events import Event, Said
from k3ctl.units import duration
from k3ctl.view.progress import MARKS, Board, Lane, Row

COLOURS = {
    "running": "cyan",
    "changed": "green",
    "unchanged": "green",
    "planned": "yellow",
    "skipped": "dim",
    "failed": "red",
    "interrupted": "yellow",
    "waiting": "dim",
}
LEVELS = {"info": "", "warn": "yellow", "error": "red"}


class LiveView:
    """A context manager and event sink. Redraws four times a second; lines of `Said` scroll above the picture."""

    def __init__(self, console: Console, phases: list[tuple[str, str]], now: Callable[[], float]) -> None:
        self._console = console
        self._board = Board(phases)
        self._now = now
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Said):
            who = f"{event.phase} {event.node}".strip()
            self._console.print(Text.assemble((f"{who}: ", "dim"), (event.text, LEVELS[event.level])))
            return
        with self._lock:
            self._board.feed(event, self._now())

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = []
            for row in self._board.rows.values():
                parts.append(self._row(row))
                parts.extend(_lane(lane) for lane in row.lanes.values())
            return Group(*parts)

    def _row(self, row: Row) -> RenderableType:
        colour = COLOURS[row.status]
        seconds = self._now() - row.began if row.status == "running" else row.seconds
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=1)
        table.add_column(width=11, no_wrap=True)
        table.add_column(width=7, justify="right", no_wrap=True)
        table.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        spent = duration(seconds) if row.status not in ("waiting", "skipped") else ""
        what = row.title if row.status == "waiting" or (row.status == "running" and row.lanes) else row.said
        table.add_row(Text(MARKS[row.status], colour), Text(row.name, colour), Text(spent, "dim"), Text(what, colour))
        return table


def _lane(lane: Lane) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=20, justify="right", no_wrap=True)
    table.add_column(width=24)
    table.add_column(width=20, no_wrap=True)
    table.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
    fraction = lane.fraction
    bar = ProgressBar(total=1.0, completed=fraction, width=24) if fraction is not None else Text("")
    table.add_row(Text(lane.node, "bold"), bar, Text(lane.amount()), Text(lane.text, "dim"))
    return table
