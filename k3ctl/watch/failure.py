"""Which rank failed first: told from what every rank wrote about the same round of the gang."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from k3ctl.watch.rank_status import Attempt, RankStatus

# What a rank says when it only noticed that another one is gone (gloo, NCCL, sockets).
SECONDHAND = re.compile(
    r"(?:Connection|Socket) (?:was )?(?:reset|closed|aborted)|by peer|remote (?:worker|process|end|peer)|Broken pipe|"
    r"ncclRemoteError|peer .{0,40}(?:exited|closed|lost)",
    re.IGNORECASE,
)
STOPPED_ALONE = "its unit was stopped there (systemctl stop, or the host went down)"


@dataclass(frozen=True)
class Failure:
    """One failure of the gang. `at`: epoch seconds, controller's clock; `others`: ranks that failed after it."""

    rank: int
    node: str
    at: float
    cause: str
    reason: str
    attempt: int
    tail: tuple[str, ...]
    others: tuple[int, ...] = ()


def last_failure(ranks: Sequence[RankStatus]) -> Failure | None:
    """The newest failure of the gang, or None. Ranks that were only ended by the gang are never the cause."""
    found = failures(ranks)
    return found[-1] if found else None


def failures(ranks: Sequence[RankStatus]) -> list[Failure]:
    """All failures that the ranks still remember, oldest first, one per round.

    Attempts of one round carry the same round name (the rendezvous gives every round its own port), which does not
    depend on clocks. Within a round only ranks whose engine ended by itself are candidates; of these the first by the
    controller's clock, to which the times of every node were brought.
    """
    rounds: dict[str, list[tuple[RankStatus, Attempt]]] = {}
    stopped: dict[str, tuple[RankStatus, Attempt]] = {}
    for rank in ranks:
        for attempt in rank.attempts:
            name = _round(rank, attempt)
            if attempt.own_failure and attempt.failed_at is not None:
                rounds.setdefault(name, []).append((rank, attempt))
            elif attempt.cause == "stop" and attempt.ended is not None:
                stopped.setdefault(name, (rank, attempt))
    found = (_first(members, stopped.get(name)) for name, members in rounds.items())
    return sorted(found, key=lambda failure: failure.at)


def _round(rank: RankStatus, attempt: Attempt) -> str:
    """An attempt without a round name (never met the others) is a round of its own."""
    return attempt.round if attempt.round.strip(":") else f"{rank.node}/{attempt.number}"


def _first(members: Iterable[tuple[RankStatus, Attempt]], stopped: tuple[RankStatus, Attempt] | None = None) -> Failure:
    """The first of one round. `stopped` is a rank of it whose unit was stopped alone, as by a reboot of its host."""
    ordered = sorted(members, key=lambda m: (_weak(m[1]), m[1].failed_at or 0.0, m[0].rank))
    if stopped is not None and _weak(ordered[0][1]):
        ordered.insert(0, stopped)
    rank, attempt = ordered[0]
    return Failure(
        rank=rank.rank,
        node=rank.node,
        at=attempt.failed_at or 0.0,
        cause=attempt.cause,
        reason=STOPPED_ALONE if attempt.cause == "stop" else attempt.reason,
        attempt=attempt.number,
        tail=attempt.tail,
        others=tuple(other.rank for other, _ in ordered[1:]),
    )


def _weak(attempt: Attempt) -> int:
    """How little an attempt's own words make it the cause: 0 it failed, 1 it noticed that a peer was gone, 2 unknown.

    A peer's end is noticed within milliseconds, less than the clocks and looks of two nodes tell apart. `lost` is
    noticed only at the next start of that node: its time says nothing.
    """
    if attempt.cause == "lost":
        return 2
    return 1 if SECONDHAND.search(attempt.reason) else 0
