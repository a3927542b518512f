"""How far the agents of one node are: their status replies as one snapshot, and as a line for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl.errors import AgentFailed, Problem
from k3ctl.units import duration, rate

SILENT_S = 5.0

State = Literal["running", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Snapshot:
    """One node at one moment. Bytes; `fetched` is what came over the network in this run."""

    state: State
    done: int
    total: int
    text: str = ""
    reason: str = ""
    fetched: int = 0
    retries: int = 0
    evidence: str = ""


def read_snapshot(reply: Mapping[str, Any]) -> Snapshot:
    """The reply of `status` over all its stages. Raises AgentFailed when it is something else."""
    try:
        stages = list(reply["stages"])
        if not stages:
            raise ValueError("no stages")
        return _sum([_one(stage) for stage in stages], [stage["status"] or {} for stage in stages])
    except (KeyError, TypeError, ValueError) as error:
        raise AgentFailed(Problem(what="the agent's status makes no sense", found=repr(error))) from error


def _one(stage: Mapping[str, Any]) -> Snapshot:
    """One unit: what it said last counts only together with what systemd says of it."""
    said = stage["status"] or {}
    done, total = int(said.get("done", 0)), int(said.get("total", 0))
    fetched, retries = int(said.get("fetched", 0)), int(said.get("retries", 0))
    state = said.get("state", "")
    evidence = "\n".join(stage.get("events", ()))
    if stage["complete"] and not stage["active"]:
        return Snapshot("complete", total, total, fetched=fetched, retries=retries)
    if stage["active"]:
        return Snapshot("running", done, total, fetched=fetched, retries=retries)
    if state == "failed":
        return Snapshot("failed", done, total, "", str(said.get("reason", "")), fetched, retries, evidence)
    if state == "stopped":
        return Snapshot("stopped", done, total, "", "it was stopped", fetched, retries, evidence)
    if stage.get("held"):
        return Snapshot("failed", done, total, "", str(stage["held"]), fetched, retries, evidence)
    result, restarts = stage.get("result", "") or "unknown", stage.get("restarts", 0)
    reason = f"its unit {stage['unit']} ended (result {result}, {restarts} restarts) while it said {state or 'nothing'}"
    return Snapshot("failed", done, total, "", reason, fetched, retries, evidence)


def _sum(parts: list[Snapshot], said: list[Mapping[str, Any]]) -> Snapshot:
    """Several units of a node as one: it fails when one fails and none runs any more."""
    states = [p.state for p in parts]
    state: State = "complete"
    for worse in ("stopped", "failed", "running"):
        if worse in states:
            state = worse
    running = [s for s, p in zip(said, parts, strict=True) if p.state == "running"]
    return Snapshot(
        state=state,
        done=sum(p.done for p in parts),
        total=sum(p.total for p in parts),
        text=_text(running),
        reason="; ".join(p.reason for p in parts if p.reason),
        fetched=sum(p.fetched for p in parts),
        retries=sum(p.retries for p in parts),
        evidence="\n".join(p.evidence for p in parts if p.evidence),
    )


def _text(running: list[Mapping[str, Any]]) -> str:
    """Rate, time left, files proven, retries, and what is waited for."""
    speed = sum(float(s.get("rate") or 0) for s in running)
    left = sum(int(s.get("total", 0)) - int(s.get("done", 0)) for s in running)
    silent = min((float(s.get("silent_s", 0)) for s in running), default=0.0)
    words = []
    if speed > 0 and silent <= SILENT_S:  # a time left that follows from what no longer flows would be a lie
        words.append(rate(speed))
        if left > 0:
            words.append(f"ETA {duration(left / speed)}")
    files = sum(int(s.get("files", 0)) for s in running)
    if files > 1:
        words.append(f"proven {sum(int(s.get('sealed', 0)) for s in running)}/{files}")
    retries = sum(int(s.get("retries", 0)) for s in running)
    if retries:
        words.append(f"retries {retries}")
    if silent > SILENT_S and left > 0:
        words.append(f"no byte for {duration(silent)}")
        words += [f"last: {s['recent'][-1]}" for s in running[:1] if s.get("recent")]
    words += [str(s["note"]) for s in running if s.get("note")]
    return ", ".join(words)
