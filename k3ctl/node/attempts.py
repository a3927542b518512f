"""attempts.jsonl: what became of every start of this node's rank, and whether that is a crash loop.

Lines: {"event": "start"|"end"|"giveup"|"reset", "attempt": n, "at": epoch seconds, ...}. Every node counts for itself:
the gang restarts all ranks together, so that the counts of all nodes agree without anybody telling anybody.

Causes of an end: `exit` (the engine ended by itself), `worker` (a worker process of the engine died), `start` (the
engine could not be started), `agent` (this node's torchrun died), `lost` (nobody saw the end: the host or the unit
died), `gang` (ended because another rank failed), `stop` (ended by the operator).
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from k3ctl.node.launchfile import Launch

OWN_FAILURES = ("exit", "worker", "start", "agent", "lost")
KEEP_LINES = 400


def path_of(launch: Launch) -> str:
    """Where the attempts of this rank are written."""
    return launch.state("attempts.jsonl")


def append(path: str, record: Dict[str, Any]) -> None:
    """Add one line, in one write, and make it last."""
    line = (json.dumps(record, sort_keys=True) + "\n").encode("utf-8")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)


def lines(path: str) -> List[Dict[str, Any]]:
    """All records, oldest first; a torn last line (power loss) is left out."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            texts = file.read().splitlines()
    except OSError:
        return []
    records = []
    for text in texts:
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def merged(records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """One dictionary per attempt: start and end put together, oldest first. `ended` is None while it runs."""
    found: Dict[int, Dict[str, Any]] = {}
    resets = 0
    for record in records:
        if record.get("event") == "reset":
            resets += 1
            continue
        number = record.get("attempt")
        if not isinstance(number, int):
            continue
        if record.get("event") == "start":
            entry = {k: v for k, v in record.items() if k not in ("event", "at")}
            found[number] = dict(entry, started=record.get("at"), ended=None, generation=resets)
        elif record.get("event") == "end" and number in found:
            entry = {k: v for k, v in record.items() if k not in ("event", "at")}
            found[number].update(entry, ended=record.get("at"))
    return [found[number] for number in sorted(found)]


def last_number(path: str) -> int:
    """Number of the newest attempt, 0 when there was none."""
    numbers: List[int] = [attempt["attempt"] for attempt in merged(lines(path))]
    return max(numbers) if numbers else 0


def close_lost(path: str, at: float, cause: str = "lost") -> None:
    """End attempts that nobody ended: the host or the agent died under them, or a stop had to use force."""
    reason = "the host or the unit ended under it" if cause == "lost" else "stopped by the operator"
    for attempt in merged(lines(path)):
        if attempt["ended"] is None:
            record = {"event": "end", "attempt": attempt["attempt"], "at": at, "cause": cause, "reason": reason}
            append(path, dict(record, tail=[]))


def trim(path: str) -> None:
    """Keep the newest lines only; called when nothing else writes."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            texts = file.read().splitlines()
    except OSError:
        return
    if len(texts) > KEEP_LINES:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(texts[-KEEP_LINES // 2 :]) + "\n")
        os.replace(path + ".new", path)


def crash_loop(
    records: List[Dict[str, Any]], limit: int, window_s: float, healthy_after_s: float
) -> Optional[Dict[str, Any]]:
    """None, or {failures, first, last} (epoch seconds) when `limit` attempts failed within the window.

    Only attempts since the last reset count, those that the operator stopped never do, and an attempt that ran longer
    than `healthy_after_s` forgives the ones before it.
    """
    generation = sum(1 for r in records if r.get("event") == "reset")
    failed: List[float] = []
    for attempt in merged(records):
        if attempt["generation"] != generation or attempt["ended"] is None or attempt.get("cause") == "stop":
            continue
        if attempt["ended"] - attempt["started"] > healthy_after_s:
            failed = []
        failed.append(attempt["ended"])
    recent = failed[-limit:]
    if len(recent) < limit or recent[-1] - recent[0] > window_s:
        return None
    return {"failures": limit, "first": recent[0], "last": recent[-1]}
