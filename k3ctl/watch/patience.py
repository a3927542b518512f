"""Watches a load: is there progress, is it silent, has it failed for good. Pure: looks go in, words come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from k3ctl import units
from k3ctl.errors import Problem
from k3ctl.watch.cluster_status import loading_text
from k3ctl.watch.failure import Failure, last_failure
from k3ctl.watch.rank_status import RankStatus

SILENT_AFTER_S = 60.0
HEARTBEAT_S = 25.0
# torchrun that could not even start so often in a row is no matter of patience.
FAILED_STARTS = 5
# With these words it did start, and lost its head: on other ranks than the head that passes when the head comes back.
STARTED = "torchrun ended"


@dataclass
class Watcher:
    """Compares successive looks at the ranks. `began` and `now` are seconds of one monotonic clock."""

    began: float
    seen: dict[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    told: set[tuple[str, int]] = field(default_factory=set)
    said_at: float | None = None
    warned: set[str] = field(default_factory=set)

    def look(self, ranks: Sequence[RankStatus], now: float) -> list[str]:
        """Take one look; returns what is worth a line: new failures, silence, and a heartbeat now and then."""
        lines = self._new_failures(ranks)
        for rank in ranks:
            before = self.seen.get(rank.node)
            if before is None or before[0] != rank.vital or rank.state not in ("loading", "up"):
                self.seen[rank.node] = (rank.vital, now)
                self.warned.discard(rank.node)
            elif now - before[1] > SILENT_AFTER_S and rank.node not in self.warned:
                self.warned.add(rank.node)
                lines.append(
                    f"no sign of life from rank {rank.rank} on {rank.node} for {units.duration(now - before[1])}: "
                    f"no log line, no byte read, no CPU time; see its log {rank.log}"
                )
        if self.said_at is None or now - self.said_at > HEARTBEAT_S or lines:
            self.said_at = now
            lines.append(self.heartbeat(ranks, now))
        return lines

    def heartbeat(self, ranks: Sequence[RankStatus], now: float) -> str:
        """What every rank does, and since when we wait."""
        parts = []
        for rank in ranks:
            read = f", {units.size(rank.vital[1])} read" if len(rank.vital) > 1 and rank.vital[1] else ""
            parts.append(f"rank {rank.rank} {loading_text(rank)}{read}")
        return f"{units.duration(now - self.began)}: " + "; ".join(parts)

    def _new_failures(self, ranks: Sequence[RankStatus]) -> list[str]:
        failure = last_failure(ranks)
        if failure is None or (failure.node, failure.attempt) in self.told:
            return []
        first_look = not self.seen
        self.told.add((failure.node, failure.attempt))
        return [] if first_look else [f"{describe(failure)}; the gang restarts all ranks"]


def describe(failure: Failure) -> str:
    """One failure in words."""
    return f"attempt {failure.attempt} failed, first rank {failure.rank} on {failure.node}: {failure.reason}"


def final(ranks: Sequence[RankStatus]) -> list[Problem]:
    """Problems that no waiting cures; empty while there is hope."""
    problems = []
    failure = last_failure(ranks)
    evidence = "\n".join(failure.tail) if failure else ""
    for rank in ranks:
        if rank.state == "crash-loop":
            what = f"crash loop: rank {rank.rank} failed {rank.failures} times and stays down"
            found = describe(failure) if failure else rank.why
            fix = f"see `k3ctl logs --previous`; correct the cause, then `k3ctl start`; log: {rank.log}"
            problems.append(Problem(what=what, found=found, fix=fix, node=rank.node, evidence=evidence))
        elif rank.state in ("stopped", "failed"):
            what = f"the unit of rank {rank.rank} does not run: {rank.unit}"
            fix = f"see `journalctl -u k3ctl-*` on {rank.node}, then `k3ctl start`"
            problems.append(Problem(what=what, found=rank.why, expected="active", fix=fix, node=rank.node))
        elif rank.failed_starts >= FAILED_STARTS and (rank.rank == 0 or not rank.why.startswith(STARTED)):
            what = f"torchrun of rank {rank.rank} failed {rank.failed_starts} times before the ranks met"
            fix = "correct the cause; the unit goes on trying by itself"
            problems.append(Problem(what=what, found=rank.why, fix=fix, node=rank.node))
    return problems


def out_of_time(ranks: Sequence[RankStatus], limit_s: float, setting: str) -> Problem:
    """The limit was reached: names it, its value, and how to raise it."""
    failure = last_failure(ranks)
    doing = "; ".join(f"rank {r.rank} on {r.node}: {loading_text(r)}" for r in ranks)
    return Problem(
        what=f"the engine was not ready within {units.duration(limit_s)} (limit engine_ready)",
        found=doing,
        expected="a completion through the endpoint",
        fix=f"raise {setting} if the load was still going on; the engine goes on by itself: `k3ctl status`",
        evidence=describe(failure) if failure else "",
    )
