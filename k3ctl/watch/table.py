"""Rows of `k3ctl status` for people: one per rank."""

from __future__ import annotations

from k3ctl import units
from k3ctl.watch.cluster_status import ClusterStatus, loading_text
from k3ctl.watch.rank_status import RankStatus

COLUMNS = ("rank", "node", "state", "since", "attempt", "memory", "engine", "detail")


def rows(status: ClusterStatus) -> list[tuple[str, ...]]:
    """One row per rank, columns as COLUMNS."""
    return [_row(rank, status.asked_at) for rank in status.ranks]


def failure_lines(status: ClusterStatus) -> list[str]:
    """What is known of the newest failure; empty when there was none."""
    failure = status.failure
    if failure is None:
        return []
    ago = units.duration(max(0.0, status.asked_at - failure.at))
    lines = [
        f"last failure {ago} ago: rank {failure.rank} on {failure.node} failed first "
        f"(attempt {failure.attempt}): {failure.reason}"
    ]
    if failure.others:
        lines.append("after it: rank " + ", ".join(str(rank) for rank in failure.others))
    return lines


def _row(rank: RankStatus, now: float) -> tuple[str, ...]:
    return (
        str(rank.rank),
        rank.node,
        rank.state,
        "" if rank.since is None else units.duration(max(0.0, now - rank.since)),
        str(rank.attempt) if rank.attempt else "",
        units.size(rank.rss) if rank.rss else "",
        rank.engine_version,
        loading_text(rank) if rank.state in ("loading", "meeting", "restarting") else rank.why,
    )
