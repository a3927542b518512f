"""How a run looks at one moment: a pure model that the live console draws and the plain view prints from."""

from __future__ import annotations

from dataclasses import dataclass, field

from k3ctl.events import Event, PhaseEnded, PhaseStarted, Progress, Unit
from k3ctl.units import size

MARKS = {
    "waiting": "·",
    "running": "▸",
    "changed": "✔",
    "unchanged": "=",
    "planned": "~",
    "skipped": "-",
    "failed": "✘",
    "interrupted": "!",
}


@dataclass
class Lane:
    """One node's progress inside a phase."""

    node: str
    done: float = 0.0
    total: float = 0.0
    unit: Unit = "tasks"
    text: str = ""

    @property
    def fraction(self) -> float | None:
        """0 to 1, or None while the total is unknown."""
        return min(1.0, self.done / self.total) if self.total > 0 else None

    def amount(self) -> str:
        """'3.1/14.2 MB' or '4/7 tasks'; empty when nothing is known."""
        if self.unit == "B":
            return f"{size(self.done)}/{size(self.total)}" if self.total else size(self.done)
        if self.total:
            return f"{self.done:g}/{self.total:g} {self.unit}"
        return ""


@dataclass
class Row:
    """One phase."""

    name: str
    title: str
    status: str = "waiting"
    said: str = ""
    began: float = 0.0
    seconds: float = 0.0
    lanes: dict[str, Lane] = field(default_factory=dict)


class Board:
    """All phases of a run. `feed` takes events in order; nothing here looks at the clock."""

    def __init__(self, phases: list[tuple[str, str]]) -> None:
        self.rows = {name: Row(name, title) for name, title in phases}

    def feed(self, event: Event, now: float) -> None:
        """Bring the picture up to date."""
        row = self.rows.setdefault(event.phase, Row(event.phase, event.phase))
        if isinstance(event, PhaseStarted):
            if row.status != "running":
                row.began = now
            row.status = "running"
            row.said = "looking" if event.step == "assess" else "working"
        elif isinstance(event, PhaseEnded):
            row.status, row.said, row.seconds = event.status, event.said, event.seconds
            row.lanes.clear()
        elif isinstance(event, Progress):
            lane = row.lanes.setdefault(event.node, Lane(event.node))
            lane.done, lane.total, lane.unit, lane.text = event.done, event.total, event.unit, event.text
