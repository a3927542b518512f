"""Burn-in: all ranks compute together, with a checked result, before anything heavy is started."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from k3ctl import fanout, units
from k3ctl.errors import Interrupted, K3ctlError, PhaseFailed, Problem
from k3ctl.launch import burnin
from k3ctl.launch.ask import node_plan
from k3ctl.launch.burnin import Rate
from k3ctl.launch.compare import runs
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.launch import statuses
from k3ctl.protocols import Stop

NOTE = "burn-in"
LAST_WORDS_S = 3.0


@dataclass(frozen=True)
class BurnInResult:
    """When it passed (epoch seconds) and the slowest rank's rates."""

    passed_at: float
    rates: tuple[Rate, ...]


@dataclass(frozen=True)
class BurnIn:
    """A pass is bound to runtime digest, boots and addresses of the nodes: any change asks for another."""

    name: str = "burn-in"
    title: str = "Burn-in over all ranks"
    needs: tuple[str, ...] = ("provision", "runtime")
    scope: Literal["host", "gang"] = "gang"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """Compare the kept pass with what is there now; an engine that runs on all nodes is proof enough."""
        found = statuses(work)
        bound = binding(work, {name: status["boot_id"] for name, status in found.items()})
        kept = _kept(work)
        asked = self.name in work.options.only
        if kept.get("binding") == bound and not asked:
            result = BurnInResult(float(kept["passed_at"]), tuple(Rate(**rate) for rate in kept["rates"]))
            return Assessment(f"passed at {_time(result.passed_at)}", value=result)
        if all(runs(status) for status in found.values()):
            return Assessment("the engine runs on all nodes and uses the same ways")
        busy = [name for name, status in found.items() if runs(status)]
        if busy:
            # A gang that waits for its missing rank holds the rendezvous port.
            return Assessment(f"the engine's unit runs on {', '.join(busy)}; launch brings up the others")
        nodes = len(work.nodes)
        change = Change(f"run all-reduce and send/receive over {nodes} node{'s' if nodes > 1 else ''}")
        return Assessment("no pass for this runtime, these boots and addresses", (change,), plan=bound)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """One torchrun job on all nodes at once."""
        now = work.world.clock.now()
        run_id = hashlib.sha256(f"{assessment.plan}{now}".encode()).hexdigest()[:8]
        results = _run(work, run_id)
        if work.stop.is_set():
            raise Interrupted(
                Problem(what="the burn-in was interrupted and ended on all nodes", fix="run k3ctl up again")
            )
        found = burnin.problems(work.plan, results)
        if found:
            raise PhaseFailed(*found)
        rates = burnin.rates(results)
        record = {
            "binding": assessment.plan,
            "passed_at": now,
            "rates": [{"op": r.op, "bytes": r.bytes, "bytes_per_second": r.bytes_per_second} for r in rates],
        }
        work.world.store.keep(NOTE, json.dumps(record))
        best = max((rate for rate in rates if rate.op == "all-reduce"), key=lambda rate: rate.bytes)
        said = f"right on every rank; all-reduce of {units.size(best.bytes)} at {units.rate(best.bytes_per_second)}"
        return Outcome("changed", said, value=BurnInResult(now, tuple(rates)))


def binding(work: Work, boots: Mapping[str, str]) -> str:
    """Digest of what a pass is good for."""
    plan = work.plan
    parts = [plan.runtime.digest, *(f"{node.name} {node.address} {boots.get(node.name, '')}" for node in plan.nodes)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Either:
    """protocols.Stop: set when the user stops, or when a node has failed and the others had time to say so too."""

    def __init__(self, user: Stop) -> None:
        self._user = user
        self._failed = threading.Event()

    def soon(self) -> None:
        """A node failed: end the others after a moment."""
        self._user.wait(LAST_WORDS_S)
        self._failed.set()

    def is_set(self) -> bool:
        """True when the burn-in is to end."""
        return self._failed.is_set() or self._user.is_set()

    def wait(self, timeout: float) -> bool:
        """Sleep up to `timeout` seconds; True when the burn-in is to end."""
        return self._failed.wait(timeout) or self._user.is_set()


def _run(work: Work, run_id: str) -> Mapping[str, Mapping[str, Any]]:
    """The verb on all nodes at once; it ends on every node when the user stops or the connection breaks.

    A node that failed by itself ends it on the others too: they would only wait for it.
    """
    ending = Either(work.stop)

    def one(name: str) -> dict[str, Any]:
        lines: list[str] = []
        payload = burnin.payload(work.plan, node_plan(work.plan, name), run_id)
        work.report.progress(name, 0, 1, "tasks", "all-reduce and send/receive")
        try:
            work.world.agent.lines(name, "burnin", payload, lines.append, ending)
        except K3ctlError:
            ending.soon()
            raise
        if work.stop.is_set():
            return {"ok": False, "stage": "timeout", "reason": "interrupted", "ranks": [], "tail": ""}
        if not lines and ending.is_set():
            return {"ok": False, "stage": "rendezvous", "reason": "ended: another rank failed", "ranks": [], "tail": ""}
        if not lines:
            ending.soon()
            raise PhaseFailed(Problem(what="the burn-in ended without a result", node=name))
        result = dict(json.loads(lines[-1]))
        work.report.progress(name, 1, 1, "tasks", "done" if result["ok"] else "failed")
        if not result["ok"]:
            ending.soon()
        return result

    return fanout.each(work.nodes, one).all()


def _kept(work: Work) -> dict[str, Any]:
    try:
        value = json.loads(work.world.store.note(NOTE) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) and {"passed_at", "rates"} <= set(value) else {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
