"""Stop the engine on every node, and prove that nothing of it is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl import fanout
from k3ctl.errors import PhaseFailed, Problem
from k3ctl.launch import ask
from k3ctl.phases.base import Assessment, Change, Outcome, Work


@dataclass(frozen=True)
class Stop:
    """All nodes at once: a rank that outlives its head keeps its memory, so every node is stopped and proven."""

    name: str = "stop"
    title: str = "Stop the engine"
    needs: tuple[str, ...] = ()
    scope: Literal["host", "gang"] = "gang"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """One status call per node."""

        def one(name: str) -> dict[str, Any]:
            return work.world.agent.call(name, "status", ask.status(work.plan, name))

        found = fanout.each(work.nodes, one).all()
        changes = tuple(
            Change(f"stop unit {ask.status(work.plan, name)['unit']} ({_state(status)})", name)
            for name, status in found.items()
            if _something(status)
        )
        running = ", ".join(change.node for change in changes)
        return Assessment(
            f"the engine is to be stopped on {running}" if running else "no node runs the engine", changes
        )

    def apply(self, work: Work, assessment: Assessment) -> Outcome:  # noqa: ARG002 - the protocol's signature
        """Stop, end what is left, look again."""
        replies = stop_all(work)
        killed = sum(len(reply["ended"]) for reply in replies.values())
        rest = f"; {killed} leftover processes ended" if killed else ""
        names = ", ".join(replies)
        return Outcome("changed", f"stopped on {names}: no process left, planned ports free{rest}")


def stop_all(work: Work) -> Mapping[str, dict[str, Any]]:
    """The verb `stop` on all nodes at once. Raises PhaseFailed with what is left, for every node where it is."""

    def one(name: str) -> dict[str, Any]:
        limit = ask.stop_seconds(work.plan) + 45.0
        return work.world.agent.call(name, "stop", ask.stop(work.plan, name), timeout_s=limit)

    replies = fanout.each(work.nodes, one).all()
    for name, reply in replies.items():
        for process in reply["ended"]:
            work.report.say(f"ended a leftover: {process['pid']} {process['command']}", node=name, level="warn")
    problems = [_not_stopped(name, reply) for name, reply in replies.items() if not reply["stopped"]]
    if problems:
        raise PhaseFailed(*problems)
    return replies


def _something(status: Mapping[str, Any]) -> bool:
    unit = status["unit"]
    return unit["active"] not in ("inactive", "") or unit["enabled"] == "enabled" or status["life"] is not None


def _state(status: Mapping[str, Any]) -> str:
    unit = status["unit"]
    return f"{unit['active']} {unit['sub']}".strip()


def _not_stopped(name: str, reply: Mapping[str, Any]) -> Problem:
    left = [f"pid {p['pid']} {p['command']}" for p in reply["left"]]
    left += [f"port {h['port']} held by pid {h['pid']} {h['command']}" for h in reply["holders"]]
    return Problem(
        what="the engine is not proven to be gone",
        found="; ".join(left) or reply["reason"] or "the unit still runs",
        expected="no process of the cluster, planned ports free",
        fix="end these processes on the host (a process that survives SIGKILL waits for the kernel: reboot the host)",
        node=name,
    )
