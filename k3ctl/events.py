"""What a run says about itself while it runs: small frozen events for the views, the event log and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Level = Literal["info", "warn", "error"]
Unit = Literal["B", "files", "tasks", "shards", "checks", "s"]


@dataclass(frozen=True)
class PhaseStarted:
    """A phase began; `step` is assess or apply."""

    phase: str
    title: str
    step: Literal["assess", "apply"]


@dataclass(frozen=True)
class PhaseEnded:
    """A phase ended: `status` is changed, unchanged, planned (dry run), skipped, failed or interrupted."""

    phase: str
    status: Literal["changed", "unchanged", "planned", "skipped", "failed", "interrupted"]
    said: str
    seconds: float


@dataclass(frozen=True)
class Said:
    """One line for people."""

    phase: str
    text: str
    node: str = ""
    level: Level = "info"


@dataclass(frozen=True)
class Progress:
    """How far one node (or, with an empty node, the phase) has come. `total` 0 means unknown."""

    phase: str
    node: str
    done: float
    total: float
    unit: Unit
    text: str = ""


Event = PhaseStarted | PhaseEnded | Said | Progress
Sink = Callable[[Event], None]


class Reporter(Protocol):
    """What a phase talks to. Thread-safe."""

    def say(self, text: str, *, node: str = "", level: Level = "info") -> None:
        """One line for people."""

    def progress(self, node: str, done: float, total: float, unit: Unit, text: str = "") -> None:
        """How far this node has come; call as often as you like, views thin it out."""


@dataclass(frozen=True)
class PhaseReporter:
    """Sends what a phase says to a sink, with the phase's name on it."""

    phase: str
    sink: Sink

    def say(self, text: str, *, node: str = "", level: Level = "info") -> None:
        """One line for people."""
        self.sink(Said(self.phase, text, node, level))

    def progress(self, node: str, done: float, total: float, unit: Unit, text: str = "") -> None:
        """How far this node has come."""
        self.sink(Progress(self.phase, node, done, total, unit, text))
