"""What a node says is there of each stage, and what that asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from k3ctl.errors import AgentFailed, Problem
from k3ctl.staging.job import StageJob, reserve
from k3ctl.units import size

State = Literal["complete", "changed", "partial", "none"]


@dataclass(frozen=True)
class Look:
    """One stage on one node. Bytes: `missing` to be fetched, `reuse` from another revision, `allocate` and `free` disk.

    `changed` are files that are no longer what was proven, `extra` files that the manifest does not know.
    """

    state: State
    missing: int
    free: int
    reuse: int = 0
    allocate: int = 0
    proven_at: str = ""
    changed: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    active: bool = False


def read_looks(reply: Mapping[str, Any], ids: Sequence[str]) -> tuple[Look, ...]:
    """The reply of `inspect`, one look for each id asked for. Raises AgentFailed when it is something else."""
    try:
        stages = reply["stages"]
        if [s["id"] for s in stages] != list(ids):
            raise ValueError(f"stages {[s['id'][:8] for s in stages]}, asked for {[i[:8] for i in ids]}")
        return tuple(_look(s) for s in stages)
    except (KeyError, TypeError, ValueError) as error:
        raise AgentFailed(
            Problem(what="the agent's answer about what is there makes no sense", found=repr(error))
        ) from error


def _look(said: Mapping[str, Any]) -> Look:
    if said["state"] not in get_args(State):
        raise ValueError(f"state {said['state']!r}")
    return Look(
        state=said["state"],
        missing=int(said["missing"]),
        free=int(said["free"]),
        reuse=int(said.get("reuse", 0)),
        allocate=int(said.get("allocate", 0)),
        proven_at=str(said.get("proven_at", "")),
        changed=tuple(said.get("changed", ())),
        extra=tuple(said.get("extra", ())),
        active=bool(said["active"]),
    )


def to_do(stage: StageJob, look: Look) -> str:
    """What must be done about a stage, as one line; nothing when it is whole."""
    if look.state == "complete":
        return ""
    total = stage.manifest.total
    text = f"fetch {size(look.missing)} of {size(total)} of {stage.title}"
    if look.reuse:
        text += f", take {size(look.reuse)} from another revision"
    if look.changed:
        names = ", ".join(look.changed[:3]) + (" ..." if len(look.changed) > 3 else "")
        text += f"; changed since proven: {names}"
    if look.active:
        text += " (under way)"
    return text


def room_problems(stages: Sequence[StageJob], looks: Mapping[str, Sequence[Look]]) -> list[Problem]:
    """One problem for each node whose disk cannot take what is still to come; a job under way has checked it itself."""
    problems = []
    for node, seen in looks.items():
        todo = [(s, k) for s, k in zip(stages, seen, strict=True) if k.state != "complete" and not k.active]
        if not todo:
            continue
        need = sum(look.allocate + reserve(stage.manifest.total) for stage, look in todo)
        free = min(look.free for _, look in todo)
        if need > free:
            problems.append(
                Problem(
                    what=f"not enough room for the weights: {size(need - free)} short",
                    found=f"{size(free)} free at {todo[0][0].dest}",
                    expected=f"{size(need)} (files that are missing, and a reserve of 2 %)",
                    fix="free space there, or set paths.weights in cluster.yml to a larger disk",
                    node=node,
                )
            )
    return problems
