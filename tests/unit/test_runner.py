"""The phase graph: order, beside-each-other, failure, detaching, dry runs, selection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.errors import ConfigError, InternalError, Interrupted, PhaseFailed, Problem
from k3ctl.events import Event, PhaseEnded
from k3ctl.phases import runner, selection
from k3ctl.phases.base import Assessment, Change, Options, Outcome, Work
from k3ctl.stop import StopFlag


@dataclass(frozen=True)
class Step:
    """A phase that records its calls and does what the test says."""

    name: str
    needs: tuple[str, ...] = ()
    scope: Any = "host"
    essential: bool = False
    changes: tuple[Change, ...] = (Change("does it"),)
    on_assess: Callable[[Work], None] = lambda _work: None
    on_apply: Callable[[Work], None] = lambda _work: None
    log: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"Do {self.name}"

    def assess(self, work: Work) -> Assessment:
        self.log.append(f"assess {self.name}")
        self.on_assess(work)
        return Assessment(f"{self.name} looked", self.changes, value=self.name)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        self.log.append(f"apply {self.name}")
        self.on_apply(work)
        return Outcome("changed", f"{self.name} done", assessment.value)


class FakeClock:
    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


def template(options: Options, nodes: tuple[str, ...] = ("a", "b")) -> Work:
    cluster = SimpleNamespace(inventory=SimpleNamespace(nodes=("a", "b")))
    nothing: Any = None
    return Work(cluster, nothing, nodes, options, nothing, {}, nothing, nothing)  # type: ignore[arg-type]


def go(phases: list[Step], options: Options | None = None, **kw: Any) -> tuple[runner.RunResult, list[Event]]:
    events: list[Event] = []
    stop = kw.pop("stop", StopFlag())
    nodes = kw.pop("nodes", ("a", "b"))
    result = runner.run(
        phases,  # type: ignore[arg-type]
        template(options or Options("inv"), nodes),
        sink=events.append,
        stop=stop,
        clock=FakeClock(),
        **kw,
    )
    return result, events


def test_no_phase_at_all() -> None:
    result, events = go([])
    assert result.ok
    assert not events


def test_needs_decide_the_order() -> None:
    log: list[str] = []
    steps = [Step("third", ("second",), log=log), Step("first", log=log), Step("second", ("first",), log=log)]
    result, _ = go(steps)
    assert [line for line in log if line.startswith("apply")] == ["apply first", "apply second", "apply third"]
    assert list(result.outcomes) == ["third", "first", "second"]


def test_independent_phases_run_beside_each_other() -> None:
    meet = threading.Barrier(2, timeout=5)
    steps = [
        Step("stage", on_apply=lambda _w: meet.wait() and None),
        Step("provision", on_apply=lambda _w: meet.wait() and None),
    ]
    result, _ = go(steps)
    assert result.ok, result.errors


def test_nothing_to_change_means_no_apply() -> None:
    log: list[str] = []
    result, events = go([Step("a", changes=(), log=log)])
    assert log == ["assess a"]
    assert result.outcomes["a"].status == "unchanged"
    assert [e.said for e in events if isinstance(e, PhaseEnded)] == ["a looked"]


def test_dry_run_plans_and_applies_nothing() -> None:
    log: list[str] = []
    result, _ = go([Step("a", log=log), Step("b", ("a",), log=log)], Options("inv", dry_run=True))
    assert log == ["assess a", "assess b"]
    assert [o.status for o in result.outcomes.values()] == ["planned", "planned"]
    assert result.outcomes["a"].changes == (Change("does it"),)


def test_a_failure_stops_what_depends_on_it_and_detaches_what_runs_beside_it() -> None:
    started = threading.Event()

    def fail(_work: Work) -> None:
        assert started.wait(5)
        raise PhaseFailed(Problem(what="apt is broken", node="a"))

    def long(work: Work) -> None:
        started.set()
        assert work.stop.wait(5)
        raise Interrupted(Problem(what="staging goes on on a, b"))

    steps = [Step("provision", on_apply=fail), Step("stage", on_apply=long), Step("launch", ("provision", "stage"))]
    result, _ = go(steps)
    assert list(result.errors) == ["provision"]
    assert result.errors["provision"].problems[0].phase == "provision"
    assert list(result.detached) == ["stage"]
    assert "launch" not in result.outcomes
    assert not result.ok


def test_a_user_stop_is_an_error_of_the_phase_that_it_stopped() -> None:
    stop = StopFlag()

    def long(work: Work) -> None:
        stop.set()
        assert work.stop.is_set()
        raise Interrupted(Problem(what="still runs"))

    result, _ = go([Step("stage", on_apply=long), Step("launch", ("stage",))], stop=stop)
    assert isinstance(result.errors["stage"], Interrupted)
    assert "launch" not in result.outcomes


def test_an_unexpected_exception_is_an_internal_error_with_its_trace() -> None:
    def broken(_work: Work) -> None:
        raise KeyError("oops")

    result, _ = go([Step("a", on_assess=broken)])
    error = result.errors["a"]
    assert isinstance(error, InternalError)
    assert "test_runner.py" in error.problems[0].evidence


def test_the_guard_is_entered_after_essential_phases_and_left_at_the_end() -> None:
    log: list[str] = []

    @contextmanager
    def guard() -> Any:
        log.append("locked")
        yield
        log.append("unlocked")

    go([Step("connect", essential=True, log=log, changes=()), Step("stage", log=log, changes=())], guard=guard)
    assert log == ["assess connect", "locked", "assess stage", "unlocked"]


def test_the_guard_is_not_entered_when_connecting_failed() -> None:
    def broken(_work: Work) -> None:
        raise PhaseFailed(Problem(what="no route"))

    def guard() -> Any:
        raise AssertionError("must not lock")

    result, _ = go([Step("connect", essential=True, on_assess=broken), Step("stage")], guard=guard)
    assert list(result.errors) == ["connect"]


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (Options("i", only=("b",)), {"connect", "b"}),
        (Options("i", start_from="b"), {"connect", "b", "gang"}),
        (Options("i", only=("a", "gang")), {"connect", "a", "gang"}),
        (Options("i"), {"connect", "a", "b", "gang"}),
    ],
)
def test_only_and_from(options: Options, ran: set[str]) -> None:
    steps = [Step("connect", essential=True), Step("a"), Step("b", ("a",)), Step("gang", ("b",), scope="gang")]
    result, _ = go(steps, options)
    assert {name for name, outcome in result.outcomes.items() if outcome.status != "skipped"} == ran


def test_limit_skips_phases_of_all_nodes() -> None:
    steps = [Step("a"), Step("gang", ("a",), scope="gang")]
    result, _ = go(steps, Options("i", limit=("a",)), nodes=("a",))
    assert result.outcomes["gang"].status == "skipped"
    assert "needs all nodes" in result.outcomes["gang"].said


def test_wrong_names_are_usage_errors_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as error:
        go([Step("stage")], Options("i", only=("stag",)))
    assert "did you mean --only stage?" in error.value.problems[0].fix
    with pytest.raises(ConfigError):
        go([Step("stage")], Options("i", only=("stage",), start_from="stage"))
    with pytest.raises(ConfigError, match="--limit c"):
        selection.choose_nodes(("a", "b"), ("c",))
    assert selection.choose_nodes(("a", "b"), ("b", "a")) == ("a", "b")


def test_stop_flags_reach_children_and_not_parents() -> None:
    parent = StopFlag()
    child = StopFlag(parent)
    child.set()
    assert not parent.is_set()
    parent.set()
    assert StopFlag(parent).is_set()
