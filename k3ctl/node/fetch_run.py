"""`k3node fetch-run JOB.json`: what the transient unit of a stage runs, until it is complete, stopped or failed.

Exit status: 0 complete or stopped in good order, 1 internal, 3 no room or disk, 4 content proved wrong, 5 source or
access, 6 no byte for too long, 7 another agent holds the lock. The unit restarts it after 1 and after a kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Any, Dict, List

from k3ctl.node.engine import Engine
from k3ctl.node.stagefolder import Folder, LockHeld, StageLock, manifest_id, read_json, refused_path, write_json

EXIT = {"complete": 0, "stopped": 0, "space": 3, "disk": 3, "manifest": 3, "digest": 4, "source": 5, "stalled": 6}
LOCKED = 7
FINAL = (3, 4, 5, 6, 7)


def main(argv: List[str]) -> int:
    """Run one job to its end."""
    job = read_json(argv[0]) if len(argv) == 1 else None
    if job is None:
        sys.stderr.write("usage: k3node fetch-run JOB.json (a readable job)\n")
        return 2
    wrong = wrong_job(job)
    if wrong:
        sys.stderr.write(wrong + "\n")
        return 3
    folder = Folder(job["dest"], job["id"])
    folder.make()
    try:
        lock = StageLock(folder.own("lock"))
    except LockHeld as held:
        sys.stderr.write("%s\n" % held)
        return LOCKED
    try:
        status = run_stage(job, folder)
    finally:
        lock.release()
    if (status == 0 and os.path.exists(folder.own("COMPLETE.json"))) or status in FINAL:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(argv[0])  # it may hold the token
    return status


def run_stage(job: Dict[str, Any], folder: Folder) -> int:
    """Run the engine under signals; the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    write_json(folder.own("manifest.json"), job["manifest"])
    engine = Engine(job, folder, stop)
    state = engine.run()
    if state == "failed" and engine.failure is not None:
        return EXIT.get(engine.failure.code, 1)
    return EXIT[state]


def wrong_job(job: Dict[str, Any]) -> str:
    """Why a job is not worked on, or nothing."""
    manifest = job.get("manifest", {})
    try:
        found = manifest_id(manifest)
        refused = [f["path"] for f in manifest["files"] if refused_path(f["path"])]
    except (KeyError, TypeError) as error:
        return "the job's manifest cannot be read: %r" % error
    if not found == manifest.get("id") == job.get("id"):
        return "the manifest is not the one its id names: %s from its content, %s written in it, %s asked for" % (
            found[:12],
            str(manifest.get("id"))[:12],
            str(job.get("id"))[:12],
        )
    if refused:
        return "refused paths: %s" % ", ".join(repr(p) for p in refused[:8])
    if not os.path.isabs(job.get("dest", "")) or not job.get("sources"):
        return "a job needs an absolute dest and at least one source"
    return ""
