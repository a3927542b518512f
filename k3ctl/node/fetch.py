"""Verb `fetch`: look at stages, start them as transient units, say how far they are, stop them.

Payload {"action": ...}:
- inspect {stages: [{manifest, dest, unit, reuse_roots}]}: what is there; reads only, cheap when complete.
- start {agent, stages: [{unit, job}]}: write each job file and start its unit, or join the one that runs.
- status {stages: [{id, dest, unit}]}: status.json and what systemd says.
- stop {units: [...]}.
A job: {schema, id, dest, manifest, sources: [{kind: hub, endpoint, token?} | {kind: url, url}], connections, reserve,
reuse_roots, proxies: {http, https, no}, limits, free_bytes?, allow_network_fs?}.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Dict, List

from k3ctl.node import transient
from k3ctl.node.fetch_run import wrong_job
from k3ctl.node.stagefolder import Folder, held_by, read_json, write_json
from k3ctl.node.stagelog import tail
from k3ctl.node.stagelook import look


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """One action; each stage has its own entry in the reply, in the order asked."""
    os.umask(0o022)  # whoever serves must be able to read what root stages
    action = payload.get("action")
    if action == "inspect":
        return inspect(payload["stages"])
    if action == "start":
        return {"stages": [_start(payload["agent"], stage) for stage in payload["stages"]]}
    if action == "status":
        return status(payload["stages"])
    if action == "stop":
        transient.stop(payload["units"])
        return {"units": transient.states(payload["units"])}
    raise ValueError("unknown action %r: inspect, start, status, stop" % action)


def inspect(stages: List[Dict[str, Any]]) -> Dict[str, Any]:
    """What is there of each stage, and whether its unit runs."""
    units = transient.states([stage["unit"] for stage in stages])
    return {
        "stages": [
            dict(look(stage), active=transient.active(units.get(stage["unit"], {})), unit=stage["unit"])
            for stage in stages
        ]
    }


def _start(agent: str, stage: Dict[str, Any]) -> Dict[str, Any]:
    job, unit = stage["job"], stage["unit"]
    wrong = wrong_job(job)
    if wrong:
        raise ValueError(wrong)
    folder = Folder(job["dest"], job["id"])
    folder.make()
    if transient.active(transient.states([unit]).get(unit, {})):
        return {"id": job["id"], "unit": unit, "started": False}
    if look(dict(job, reuse_roots=[]))["state"] == "complete":
        return {"id": job["id"], "unit": unit, "started": False}
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.own("COMPLETE.json"))  # it is not true any more; nobody shall read it meanwhile
    path = folder.own("job.json")
    write_json(path, job, mode=0o600)
    # The status of an earlier run must not be taken for this one's.
    write_json(folder.own("status.json"), starting(job), durable=False)
    title = "k3ctl: stage %s@%s" % (job["manifest"]["repo"], job["manifest"]["commit"][:8])
    started = transient.start(unit, title, [sys.executable, agent, "fetch-run", path])
    return {"id": job["id"], "unit": unit, "started": started}


def starting(job: Dict[str, Any]) -> Dict[str, Any]:
    """The status before the agent has said anything."""
    manifest = job["manifest"]
    zero = dict.fromkeys(("done", "fetched", "reused", "sealed", "rate", "retries", "silent_s"), 0)
    return dict(
        zero,
        id=job["id"],
        state="starting",
        total=manifest["total"],
        files=len(manifest["files"]),
        eta_s=None,
        code="",
        reason="",
        note="",
        recent=[],
    )


def status(stages: List[Dict[str, Any]]) -> Dict[str, Any]:
    """How far each stage is; the last events come along when it is over without being complete."""
    units = transient.states([stage["unit"] for stage in stages])
    replies = []
    for stage in stages:
        folder = Folder(stage["dest"], stage["id"])
        fields = units.get(stage["unit"], {})
        said = read_json(folder.own("status.json"))
        runs = transient.active(fields)
        reply: Dict[str, Any] = {"id": stage["id"], "unit": stage["unit"], "active": runs, "status": said}
        reply["result"] = fields.get("Result", "")
        reply["restarts"] = int(fields.get("NRestarts") or 0)
        reply["complete"] = os.path.exists(folder.own("COMPLETE.json"))
        if not runs and not reply["complete"]:
            reply["events"] = tail(folder.own("events.jsonl"), 5)
            reply["held"] = held_by(folder.own("lock"))
        replies.append(reply)
    return {"stages": replies}
