"""Verb `unpack`: the serving environment on this node; actions as those of `fetch`, with one job.

Payload {"action": inspect | start | status | stop, "unit": ..., "job": {...}, "agent": ...}; the job is described in
k3ctl.node.unpack_run. Replies have the shape of fetch's: {"stages": [{...}]}.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict

from k3ctl.node import transient
from k3ctl.node.space import free_bytes
from k3ctl.node.stagefolder import Folder, held_by, read_json, write_json
from k3ctl.node.stagelog import tail
from k3ctl.node.unpack_run import COMPLETE, in_place, manifest_for, work_folder


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """One action."""
    os.umask(0o022)  # whoever serves must be able to run it
    actions = {"inspect": _inspect, "start": _start, "status": _status, "stop": _stop}
    action = actions.get(payload.get("action", ""))
    if action is None:
        raise ValueError("unknown action %r: %s" % (payload.get("action"), ", ".join(actions)))
    return {"stages": [dict(action(payload), unit=payload["unit"])]}


def _inspect(payload: Dict[str, Any]) -> Dict[str, Any]:
    """state: complete, partial or none; free: bytes on the disk that it goes to; missing: archive bytes to fetch."""
    job = payload["job"]
    work = work_folder(job["path"])
    complete = read_json(os.path.join(job["path"], COMPLETE)) or {}
    archive = os.path.join(work, "archive")
    there = os.path.getsize(archive) if os.path.exists(archive) else 0
    state = (
        "complete" if in_place(job) else ("partial" if os.path.isdir(work) or os.path.isdir(job["path"]) else "none")
    )
    return {
        "id": manifest_for(job)["id"],
        "state": state,
        "missing": 0 if state == "complete" else max(0, job["bytes"] - there),
        "proven_at": str(complete.get("time", "")),
        "free": free_bytes(work),
        "active": transient.active(transient.states([payload["unit"]]).get(payload["unit"], {})),
    }


def _start(payload: Dict[str, Any]) -> Dict[str, Any]:
    job, unit = payload["job"], payload["unit"]
    work = work_folder(job["path"])
    os.makedirs(work, mode=0o755, exist_ok=True)
    if transient.active(transient.states([unit]).get(unit, {})):
        return {"started": False}
    path = os.path.join(work, "job.json")
    write_json(path, job, mode=0o600)
    fresh = {"state": "starting", "total": 2 * job["bytes"], "done": 0, "note": "", "reason": "", "code": ""}
    write_json(os.path.join(work, "status.json"), fresh, durable=False)
    argv = [sys.executable, payload["agent"], "unpack-run", path]
    return {"started": transient.start(unit, "k3ctl: serving environment %s" % job["name"], argv)}


def _status(payload: Dict[str, Any]) -> Dict[str, Any]:
    job = payload["job"]
    work = work_folder(job["path"])
    fields = transient.states([payload["unit"]]).get(payload["unit"], {})
    reply: Dict[str, Any] = {"active": transient.active(fields), "complete": in_place(job)}
    reply["status"] = read_json(os.path.join(work, "status.json"))
    reply["result"] = fields.get("Result", "")
    reply["restarts"] = int(fields.get("NRestarts") or 0)
    if not reply["active"] and not reply["complete"]:
        reply["events"] = tail(Folder(work, manifest_for(job)["id"]).own("events.jsonl"), 5)
        reply["held"] = held_by(os.path.join(work, "lock"))
    return reply


def _stop(payload: Dict[str, Any]) -> Dict[str, Any]:
    transient.stop([payload["unit"]])
    return {"active": False}
