"""Wait until the engine answers: load progress of every rank, then one real completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl import units
from k3ctl.errors import Interrupted, PhaseFailed, Problem
from k3ctl.launch import ask
from k3ctl.phases.api_key import known_key
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.launch import Launched
from k3ctl.watch.canary import canary
from k3ctl.watch.cluster_status import Answer
from k3ctl.watch.collect import ranks as look
from k3ctl.watch.patience import Watcher, final, out_of_time
from k3ctl.watch.rank_status import RankStatus

POLL_S = 1.0
QUICK_CANARY_S = 10.0
UNREACHABLE_LOOKS = 30  # a node that does not answer for so many looks in a row ends the wait


@dataclass(frozen=True)
class Served:
    """The endpoint answered: after how long a wait, and how long the completion took."""

    waited_s: float
    canary_s: float


@dataclass(frozen=True)
class Ready:
    """Ready means a completion came back; /health and /v1/models prove nothing."""

    name: str = "ready"
    title: str = "Wait until the engine answers"
    needs: tuple[str, ...] = ("launch",)
    scope: Literal["host", "gang"] = "gang"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """One completion at once; when it comes there is nothing to wait for."""
        if _just_started(work):
            return Assessment("the engine was just started", (Change("wait for the load and a completion"),))
        answer = _ask(work, QUICK_CANARY_S)
        if answer.ok:
            return Assessment(f"answers ({answer.seconds:.1f} s)", value=Served(0.0, answer.seconds))
        return Assessment(f"no completion: {answer.detail}", (Change("wait for the load and a completion"),))

    def apply(self, work: Work, assessment: Assessment) -> Outcome:  # noqa: ARG002 - the protocol's signature
        """Look at every rank each second; ask for a completion once the head's API listens."""
        clock = work.world.clock
        began = clock.monotonic()
        limit = work.options.timeout_s or work.plan.timeouts.engine_ready
        watcher = Watcher(began)
        silent = 0
        answer = Answer(ok=False, seconds=0.0, detail="not asked yet")
        while True:
            found = look(work.plan, work.nodes, work.world.agent, clock, _payload(work))
            now = clock.monotonic()
            _tell(work, watcher, found, now)
            silent = silent + 1 if any(rank.state == "unknown" for rank in found) else 0
            _give_up(work, found, now - began, limit, silent)
            if _listens(work, found):
                answer = _ask(work, work.plan.timeouts.canary)
                if answer.ok:
                    waited = clock.monotonic() - began
                    said = f"answers after {units.duration(waited)} (completion in {answer.seconds:.1f} s)"
                    return Outcome("changed", said, value=Served(waited, answer.seconds))
                work.report.say(f"the API listens, no completion yet: {answer.detail}")
            if work.stop.wait(POLL_S):
                raise Interrupted(
                    Problem(
                        what="waiting was interrupted; the engine goes on loading on the nodes",
                        fix="`k3ctl status` shows how far it is, `k3ctl stop` ends it",
                    )
                )


def _ask(work: Work, timeout_s: float) -> Answer:
    return canary(work.world.http, work.plan.endpoint, work.plan.model.served_name, known_key(work), timeout_s)


def _just_started(work: Work) -> bool:
    outcome = work.done.get("launch")
    return outcome is not None and isinstance(outcome.value, Launched) and outcome.value.restarted


def _payload(work: Work) -> Any:
    return lambda name: ask.status(work.plan, name)


def _listens(work: Work, found: Sequence[RankStatus]) -> bool:
    return any(work.plan.endpoint_port in rank.listening for rank in found if rank.rank == work.plan.head.rank)


def _tell(work: Work, watcher: Watcher, found: Sequence[RankStatus], now: float) -> None:
    for line in watcher.look(found, now):
        work.report.say(line)
    for rank in found:
        work.report.progress(rank.node, rank.shards_done, rank.shards_total, "shards", rank.stage or rank.state)


def _give_up(work: Work, found: Sequence[RankStatus], waited: float, limit: float, silent: int) -> None:
    problems = final(found)
    if problems:
        raise PhaseFailed(*problems)
    if silent >= UNREACHABLE_LOOKS:
        raise PhaseFailed(
            *(
                Problem(what="the node does not answer any more", found=rank.why, node=rank.node)
                for rank in found
                if rank.state == "unknown"
            )
        )
    if waited > limit:
        setting = (
            "--timeout" if work.options.timeout_s else "--timeout, or timeouts.engine_ready of the engine's profile"
        )
        raise PhaseFailed(out_of_time(found, limit, setting))
