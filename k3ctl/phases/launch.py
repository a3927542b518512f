"""Launch the engine: install the rendered texts on every node and start all units at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from k3ctl import fanout
from k3ctl.errors import Interrupted, PhaseFailed, Problem
from k3ctl.launch import ask
from k3ctl.launch.compare import Difference, difference, needs_restart, runs
from k3ctl.launch.render import LaunchPlan, render
from k3ctl.phases.api_key import api_key, known_key
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.stop import stop_all
from k3ctl.protocols import PlayEvent
from k3ctl.secret import Secret

PLAYBOOK = "serve"
START_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Launched:
    """What runs now: the launch's id, and since when (epoch seconds of the controller's clock)."""

    launch_id: str
    since: float
    restarted: bool


@dataclass(frozen=True)
class _Todo:
    install: tuple[str, ...]
    stop: bool
    start: bool


@dataclass(frozen=True)
class Launch:
    """Equal texts and running units mean no change: an engine that serves is never restarted without need."""

    name: str = "launch"
    title: str = "Launch the engine"
    needs: tuple[str, ...] = ("burn-in", "stage")
    scope: Literal["host", "gang"] = "gang"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """One status call per node: installed texts, unit state, what runs."""
        key = known_key(work)
        launch = _render(work, key or Secret("to be made"))
        found = statuses(work, texts=True)
        differences = {name: difference(launch.node(name), found[name]) for name in work.nodes}
        running = [name for name in work.nodes if runs(found[name])]
        other = [name for name in running if needs_restart(launch.id, found[name])]
        changes = list(_text_changes(differences))
        if key is None:
            changes.insert(0, Change("make an API key"))
        changes += [Change("stop the engine: another launch runs", name) for name in other]
        idle = [name for name in work.nodes if name not in running]
        restart = bool(other)
        changes += [Change(f"start unit {launch.nodes[0].unit}", name) for name in (work.nodes if restart else idle)]
        if not changes:
            since = _since(work, found)
            value = Launched(launch.id, since, restarted=False)
            return Assessment(f"serving launch {launch.id[:8]} since {_time(since)}", value=value)
        todo = _Todo(tuple(n for n in work.nodes if differences[n].files), restart, restart or bool(idle))
        return Assessment(_said(launch, idle, other), tuple(changes), plan=todo)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Stop what is to be replaced, install, start everywhere, and see every unit run."""
        todo = assessment.plan
        assert isinstance(todo, _Todo)  # noqa: S101 - apply is only called with our own assessment
        fanout.each(work.nodes, work.world.agent.install).all()
        launch = _render(work, api_key(work))
        if todo.stop:
            work.report.say("stopping the launch that runs")
            stop_all(work)
        _check_stop(work)
        if todo.install:
            _install(work, launch, todo.install)
        _check_stop(work)
        if not todo.start:
            found = statuses(work)
            value = Launched(launch.id, _since(work, found), restarted=False)
            return Outcome("changed", f"texts refreshed; launch {launch.id[:8]} goes on without a restart", value=value)
        _start(work)
        now = work.world.clock.now()
        nodes = len(work.nodes)
        said = f"launch {launch.id[:8]} started on {nodes} node{'s' if nodes > 1 else ''}"
        return Outcome("changed", said, value=Launched(launch.id, now, restarted=True))


def statuses(work: Work, *, texts: bool = False) -> Mapping[str, dict[str, Any]]:
    """The `status` reply of every node, all at once."""

    def one(name: str) -> dict[str, Any]:
        return work.world.agent.call(name, "status", ask.status(work.plan, name, texts=texts))

    return fanout.each(work.nodes, one).all()


def _render(work: Work, key: Secret) -> LaunchPlan:
    agents = dict.fromkeys(work.nodes, work.world.agent.path)
    pythons = {node.name: node.ssh.python for node in work.cluster.inventory.nodes}
    return render(work.plan, agents, pythons, key)


def _text_changes(differences: Mapping[str, Difference]) -> list[Change]:
    return [
        Change(f"install {', '.join(found.files)}", name, found.diff)
        for name, found in differences.items()
        if found.files
    ]


def _said(launch: LaunchPlan, idle: list[str], other: list[str]) -> str:
    if other:
        return f"another launch runs on {', '.join(other)}: replace it by {launch.id[:8]}"
    if idle:
        return f"the engine does not run on {', '.join(idle)}"
    return f"texts differ, launch {launch.id[:8]} itself does not"


def _install(work: Work, launch: LaunchPlan, names: tuple[str, ...]) -> None:
    variables: dict[str, dict[str, Any]] = {}
    for name in names:
        node = launch.node(name)
        variables[name] = {
            "engine_cluster": work.plan.cluster,
            "engine_unit_name": node.unit,
            "engine_unit_text": node.unit_text,
            "engine_launch_text": node.launch_text,
            "engine_env_text": node.env_text,
            "engine_config_dir": node.config_dir,
        }

    def tell(event: PlayEvent) -> None:
        if event.kind in ("failed", "unreachable"):
            work.report.say(f"{event.task}: {event.message}", node=event.node, level="error")

    result = work.world.ansible.run(
        PLAYBOOK, names, variables, check=False, stop=work.stop, on_event=tell, timeout_s=300.0
    )
    if result.status == "canceled":
        raise Interrupted(Problem(what="installing the launch files was interrupted", fix="run k3ctl up again"))
    if result.status != "successful":
        failed = {**result.failures, **result.unreachable} or {"": f"the playbook {PLAYBOOK} ended as {result.status}"}
        raise PhaseFailed(*(Problem(what=text, node=name) for name, text in failed.items()))


def _start(work: Work) -> None:
    """Start all units at once; a node that cannot says who holds what."""

    def one(name: str) -> dict[str, Any]:
        return work.world.agent.call(name, "start", ask.start(work.plan, name), timeout_s=START_TIMEOUT_S)

    replies = fanout.each(work.nodes, one).all()
    for name, reply in replies.items():
        for process in reply["ended"]:
            work.report.say(f"ended a leftover: {process['pid']} {process['command']}", node=name, level="warn")
    problems = [_not_started(name, reply) for name, reply in replies.items() if not reply["started"]]
    if problems:
        # The others would wait for it; what was started is stopped again. Whoever holds a port holds it still.
        with suppress(PhaseFailed):
            stop_all(work)
        raise PhaseFailed(*problems)


def _not_started(name: str, reply: Mapping[str, Any]) -> Problem:
    holders = "; ".join(
        f"port {h['port']}: pid {h['pid']} {h['command']}" if h["port"] else f"pid {h['pid']} {h['command']}"
        for h in reply["holders"]
    )
    return Problem(
        what=f"the engine cannot start: {reply['reason']}",
        found=holders,
        expected="all planned ports free" if holders else "",
        fix="end the process that holds the port, or plan another port in cluster.yml" if holders else "",
        node=name,
    )


def _check_stop(work: Work) -> None:
    if work.stop.is_set():
        raise Interrupted(
            Problem(what="launching was interrupted before the engine was started", fix="run k3ctl up again")
        )


def _since(work: Work, found: Mapping[str, Mapping[str, Any]]) -> float:
    """When the youngest unit became active, on the controller's clock."""
    ages = [s["monotonic"] - s["unit"]["active_since"] for s in found.values() if s["unit"]["active_since"]]
    return work.world.clock.now() - (min(ages) if ages else 0.0)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
