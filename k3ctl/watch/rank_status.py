"""One rank as its node describes it: a typed view of the agent's `status` reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RankState = Literal["stopped", "meeting", "loading", "up", "restarting", "failed", "crash-loop", "unknown"]
CRASH_LOOP_STATUS = 78


@dataclass(frozen=True)
class Attempt:
    """One run of the engine on a node. Times are epoch seconds on the controller's clock; `cause` empty: it runs.

    Causes: exit, worker, start, agent, lost (failures of this rank), gang (another rank failed), stop (the operator).
    `failed_at` is when the first process was seen to be gone, which is earlier than the end of the whole rank.
    """

    number: int
    round: str
    started: float
    ended: float | None
    cause: str
    reason: str
    tail: tuple[str, ...]
    failed_at: float | None
    log: str

    @property
    def own_failure(self) -> bool:
        """True when this rank failed by itself, and was not ended because of another one."""
        return self.cause in ("exit", "worker", "start", "agent", "lost")


@dataclass(frozen=True)
class RankStatus:
    """One rank on one node. `since` (epoch seconds) is the start of the present state; `rss` in bytes.

    `silent_s` is not known here: who watches compares `vital` between two looks.
    """

    node: str
    rank: int
    state: RankState
    why: str
    unit: str
    since: float | None
    attempt: int
    attempts: tuple[Attempt, ...]
    failures: int
    launch_id: str
    engine_version: str
    rss: int
    processes: int
    shards_done: int
    shards_total: int
    stage: str
    last_line: str
    log: str
    listening: tuple[int, ...]
    boot_id: str
    failed_starts: int  # of torchrun, in a row, without a round of the gang between
    vital: tuple[int, ...]  # log bytes, bytes read, CPU ticks: any change is a sign of life


def unreachable(node: str, rank: int, why: str) -> RankStatus:
    """A rank whose node did not answer: nothing is known."""
    return RankStatus(
        node, rank, "unknown", why, "", None, 0, (), 0, "", "", 0, 0, 0, 0, "", "", "", (), "", 0, ()
    )  # fmt: skip


def parse(node: str, rank: int, reply: Mapping[str, Any], offset_s: float = 0.0) -> RankStatus:
    """Read a reply. `offset_s` is the node's clock minus the controller's: all times become the controller's."""
    unit = reply["unit"]
    attempts = tuple(_attempt(record, offset_s) for record in reply["attempts"])
    running = attempts[-1] if attempts and attempts[-1].ended is None else None
    life = reply["life"] or {}
    gang = reply["gang"] or {}
    progress = reply["progress"]
    state, why = _state(rank, reply, running)
    return RankStatus(
        node=node,
        rank=rank,
        state=state,
        why=why,
        unit=f"{unit['active']} ({unit['sub']})" if unit["load"] == "loaded" else "not installed",
        since=_since(reply, running, offset_s),
        attempt=attempts[-1].number if attempts else 0,
        attempts=attempts,
        failures=int(reply["failures"]["count"]),
        launch_id=gang.get("launch_id") or reply["launch_id"] or "",
        engine_version=reply["engine_version"] or "",
        rss=int(life.get("rss", 0)),
        processes=int(life.get("processes", 0)),
        shards_done=int(progress["shards_done"]),
        shards_total=int(progress["shards_total"]),
        stage=progress["stage"],
        last_line=progress["last"],
        log=reply["log"] or "",
        listening=tuple(reply["listening"]),
        boot_id=reply["boot_id"],
        failed_starts=int(gang.get("failed_starts", 0)),
        vital=(int(reply["log_bytes"]), int(life.get("read_bytes", 0)), int(life.get("ticks", 0))),
    )


def _attempt(record: Mapping[str, Any], offset_s: float) -> Attempt:
    ended = record["ended"]
    worker = record.get("worker") or {}
    failed = worker.get("at", ended)
    return Attempt(
        number=int(record["attempt"]),
        round=record.get("round", ""),
        started=record["started"] - offset_s,
        ended=None if ended is None else ended - offset_s,
        cause=record.get("cause", ""),
        reason=record.get("reason", ""),
        tail=tuple(record.get("tail", ())),
        failed_at=None if failed is None else failed - offset_s,
        log=record.get("log", ""),
    )


def _state(rank: int, reply: Mapping[str, Any], running: Attempt | None) -> tuple[RankState, str]:
    """What the rank does, and why where that is not plain."""
    unit, gang = reply["unit"], reply["gang"] or {}
    active = unit["active"]
    if active == "failed":
        if unit["exit_status"] == CRASH_LOOP_STATUS or gang.get("state") == "crash-loop":
            return "crash-loop", gang.get("reason", "")
        return "failed", gang.get("reason") or f"unit failed: {unit['result']}"
    if active in ("inactive", ""):
        return "stopped", "" if unit["load"] == "loaded" else "not installed"
    if running is not None and reply["life"] is not None:
        # Only the head says "ready"; the log of the others ends with the load.
        loaded = ("ready",) if rank == 0 else ("ready", "warming up", "loaded")
        return ("up", "") if reply["progress"]["stage"] in loaded else ("loading", "")
    if gang.get("state") in ("failed", "meeting") and gang.get("failed_starts"):
        return "restarting", gang.get("reason", "")
    return "meeting", "waits for the other ranks"


def _since(reply: Mapping[str, Any], running: Attempt | None, offset_s: float) -> float | None:
    if running is not None:
        return running.started
    unit = reply["unit"]
    mark = unit["active_since"] if unit["active"] in ("active", "activating") else unit["inactive_since"]
    if not mark:
        return None
    return float(reply["now"] - offset_s - (reply["monotonic"] - mark))
