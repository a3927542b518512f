"""The whole cluster: the ranks' own words, one real answer of the endpoint, and the verdict over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl.errors import ExitCode
from k3ctl.watch.failure import Failure, last_failure
from k3ctl.watch.rank_status import RankStatus

Verdict = Literal["serving", "loading", "degraded", "stopped", "crash-loop", "unknown"]
SCHEMA = 1

MEANINGS: dict[Verdict, str] = {
    "serving": "every rank runs and a completion was answered",
    "loading": "every rank runs or meets the others; no completion yet",
    "degraded": "some rank does not run, or completions fail although all ranks run",
    "stopped": "no rank runs",
    "crash-loop": "the ranks failed too often; they stay down until `k3ctl start`",
    "unknown": "a node did not answer, so that nothing can be said of the whole",
}


@dataclass(frozen=True)
class Answer:
    """What came of one real completion. `ok` only when a completion came back."""

    ok: bool
    seconds: float
    detail: str


@dataclass(frozen=True)
class ClusterStatus:
    """Everything that `k3ctl status` says. `asked_at` is epoch seconds; `answer` None when nobody asked."""

    cluster: str
    endpoint: str
    model: str
    asked_at: float
    ranks: tuple[RankStatus, ...]
    answer: Answer | None

    @property
    def failure(self) -> Failure | None:
        """The newest failure of the gang, with the rank that failed first."""
        return last_failure(self.ranks)

    @property
    def verdict(self) -> Verdict:
        """One word for the whole. A real answer is the only proof of serving; not knowing is never good."""
        return verdict(self.ranks, self.answer)

    @property
    def exit_code(self) -> ExitCode:
        """0 only when it serves."""
        if self.verdict == "unknown":
            return ExitCode.UNREACHABLE
        return ExitCode.OK if self.verdict == "serving" else ExitCode.FAILED


def verdict(ranks: Sequence[RankStatus], answer: Answer | None) -> Verdict:
    """See MEANINGS."""
    states = [rank.state for rank in sorted(ranks, key=lambda rank: rank.rank)]
    if "crash-loop" in states:
        return "crash-loop"
    if not states or "unknown" in states:
        return "unknown"
    if all(state == "stopped" for state in states):
        return "stopped"
    broken = any(state in ("stopped", "failed") for state in states)
    if answer is not None and answer.ok and not broken:
        return "serving"
    # The head says that it is ready only when all ranks have loaded: no completion after that is a fault.
    head_up = states[0] == "up"
    return "degraded" if broken or (head_up and answer is not None) else "loading"


def headline(status: ClusterStatus) -> str:
    """One line for people."""
    word = status.verdict
    failure = status.failure
    if word == "crash-loop":
        loop = max((rank for rank in status.ranks if rank.state == "crash-loop"), key=lambda rank: rank.failures)
        ends = [a.ended for a in loop.attempts if a.ended is not None and a.cause != "stop"][-loop.failures :]
        minutes = max(1, round((ends[-1] - ends[0]) / 60)) if ends else 0
        first = f", first rank {failure.rank} on {failure.node}: {failure.reason}" if failure else ""
        return f"crash loop: {loop.failures} failures in {minutes} min{first}"
    if word == "serving" and status.answer:
        return f"serving {status.model} at {status.endpoint}: answered in {status.answer.seconds:.1f} s"
    if word == "degraded":
        bad = [f"rank {r.rank} on {r.node} is {r.state}" for r in status.ranks if r.state not in ("up", "loading")]
        if not bad and status.answer:
            bad = [f"all ranks run, but no completion: {status.answer.detail}"]
        return "degraded: " + "; ".join(bad)
    if word == "unknown":
        bad = [f"{r.node}: {r.why}" for r in status.ranks if r.state == "unknown"]
        return "unknown: " + ("; ".join(bad) or "no rank is planned")
    if word == "loading":
        return "loading: " + "; ".join(f"rank {r.rank} {loading_text(r)}" for r in status.ranks)
    return f"{word}: {MEANINGS[word]}"


def loading_text(rank: RankStatus) -> str:
    """How far one rank has come, in words."""
    if rank.state in ("meeting", "restarting"):
        return f"{rank.state}: {rank.why}" if rank.why else rank.state
    if rank.shards_total:
        return f"{rank.stage or 'loading'}, {rank.shards_done} of {rank.shards_total} shards"
    return rank.stage or rank.state


def as_json(status: ClusterStatus) -> dict[str, Any]:
    """The stable form of `k3ctl status -o json`. Times are epoch seconds, sizes bytes."""
    failure = status.failure
    return {
        "schema": SCHEMA,
        "cluster": status.cluster,
        "verdict": status.verdict,
        "headline": headline(status),
        "endpoint": status.endpoint,
        "model": status.model,
        "asked_at": status.asked_at,
        "answer": None
        if status.answer is None
        else {"ok": status.answer.ok, "seconds": status.answer.seconds, "detail": status.answer.detail},
        "last_failure": None
        if failure is None
        else {
            "rank": failure.rank,
            "node": failure.node,
            "at": failure.at,
            "cause": failure.cause,
            "reason": failure.reason,
            "attempt": failure.attempt,
            "tail": list(failure.tail),
            "failed_after": list(failure.others),
        },
        "ranks": [_rank_json(rank) for rank in status.ranks],
    }


def _rank_json(rank: RankStatus) -> dict[str, Any]:
    return {
        "node": rank.node,
        "rank": rank.rank,
        "state": rank.state,
        "why": rank.why,
        "unit": rank.unit,
        "since": rank.since,
        "attempt": rank.attempt,
        "failures": rank.failures,
        "launch_id": rank.launch_id,
        "engine_version": rank.engine_version,
        "rss_bytes": rank.rss,
        "processes": rank.processes,
        "shards_done": rank.shards_done,
        "shards_total": rank.shards_total,
        "stage": rank.stage,
        "log": rank.log,
    }
