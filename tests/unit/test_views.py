"""What people read: the plain view, the live board, problems as text, the event log."""

from __future__ import annotations

import io
import json

from rich.console import Console

from k3ctl.errors import Problem
from k3ctl.events import Event, PhaseEnded, PhaseStarted, Progress, Said
from k3ctl.view import problems
from k3ctl.view.live import LiveView
from k3ctl.view.plain import PlainView
from k3ctl.view.progress import Board
from k3ctl.view.sinks import EventLog

RUN: list[tuple[float, Event]] = [
    (0.0, PhaseStarted("stage", "Stage weights", "assess")),
    (1.0, PhaseStarted("stage", "Stage weights", "apply")),
    (2.0, Progress("stage", "n1", 5e6, 10e6, "B", "2.0 MB/s")),
    (20.0, Progress("stage", "n1", 6e6, 10e6, "B", "2.0 MB/s")),
    (21.0, Progress("stage", "n1", 7e6, 10e6, "B")),
    (22.0, Said("stage", "cut at 4 MB, resumed", "n2", "warn")),
    (65.0, PhaseEnded("stage", "changed", "whole on 2 nodes", 65.0)),
]


def test_plain_lines_are_quiet_about_progress() -> None:
    lines: list[str] = []
    time = [0.0]
    view = PlainView(lines.append, lambda: time[0])
    for time[0], event in RUN:
        view(event)
    assert [line.split("] ")[1] for line in lines] == [
        "stage: Stage weights",
        "stage n1: 60% 6.0 MB/10.0 MB 2.0 MB/s",
        "stage n2: warn: cut at 4 MB, resumed",
        "stage: done in 1m05s: whole on 2 nodes",
    ]


def test_live_view_draws_phases_bars_and_lines() -> None:
    out = io.StringIO()
    time = [0.0]
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with LiveView(console, [("stage", "Stage weights"), ("launch", "Start the engine")], lambda: time[0]) as view:
        for time[0], event in RUN[:-1]:
            view(event)
        picture = Console(file=io.StringIO(), width=100)
        picture.print(view._draw())
        drawn = picture.file.getvalue()  # type: ignore[attr-defined]
        view(RUN[-1][1])
    assert "n1" in drawn
    assert "7.0 MB/10.0 MB" in drawn
    assert "Start the engine" in drawn
    text = out.getvalue()
    assert "stage n2: cut at 4 MB, resumed" in text
    assert "whole on 2 nodes" in text


def test_the_board_takes_events_of_phases_it_did_not_know() -> None:
    board = Board([])
    board.feed(PhaseEnded("late", "failed", "why", 1.0), 1.0)
    assert board.rows["late"].status == "failed"


def test_equal_problems_of_several_nodes_are_one() -> None:
    same = {"what": "no sudo", "phase": "connect", "expected": "sudo -n works", "fix": "edit sudoers"}
    text = problems.lines(
        [Problem(node="a", **same), Problem(node="b", **same), Problem(what="else", file="x", line=3)]
    )
    assert text == [
        "connect a, b: no sudo",
        "  expected: sudo -n works",
        "  fix:      edit sudoers",
        "x:3: else",
    ]


def test_evidence_and_long_values_are_indented() -> None:
    text = problems.lines([Problem(what="w", found="one\ntwo", evidence="log 1\nlog 2\n")])
    assert text == ["w", "  found:    one", "            two", "  | log 1", "  | log 2"]


def test_event_log_thins_progress_but_keeps_the_last() -> None:
    lines: list[str] = []
    time = [100.0]
    log = EventLog(lines.append, lambda: time[0])
    for i in range(10):
        time[0] = 100.0 + i / 10
        log(Progress("stage", "n1", i, 9, "files"))
    records = [json.loads(line) for line in lines]
    assert [r["done"] for r in records] == [0, 9]
    assert records[0]["event"] == "Progress"
