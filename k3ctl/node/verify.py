"""Verb `verify`: are the files of stages still what was proven? Quick: size, mtime, inode. Full: every hash again.

Payload {"stages": [{"dest", "id"}], "full": false}. Reply {"stages": [{"id", "state", "checked", "bytes", "seconds",
"bad": [{path, why}]}]}; state is whole, bad or unknown (nothing was proven there).
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

from k3ctl.node.digest import of_file, wanted
from k3ctl.node.stagefolder import Folder, read_json, stat_of


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """Verify each stage."""
    return {"stages": [_stage(stage, bool(payload.get("full"))) for stage in payload["stages"]]}


def _stage(stage: Dict[str, Any], full: bool) -> Dict[str, Any]:  # noqa: FBT001 - the payload's own flag
    begun = time.monotonic()
    folder = Folder(stage["dest"], stage["id"])
    complete = read_json(folder.own("COMPLETE.json"))
    if complete is None:
        return {"id": stage["id"], "state": "unknown", "checked": 0, "bytes": 0, "bad": [], "seconds": 0.0}
    records: List[Dict[str, Any]] = complete["files"]

    def judge(record: Dict[str, Any]) -> Dict[str, str]:
        return {"path": record["path"], "why": _wrong(folder.final(record["path"]), record, full)}

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1) if full else 1) as pool:
        bad = [found for found in pool.map(judge, records) if found["why"]]
    return {
        "id": stage["id"],
        "state": "bad" if bad else "whole",
        "checked": len(records),
        "bytes": sum(r["size"] for r in records),
        "bad": bad,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _wrong(path: str, record: Dict[str, Any], full: bool) -> str:  # noqa: FBT001 - the payload's own flag
    """What is wrong with one file, or nothing."""
    found = stat_of(path)
    if found is None:
        return "is not there"
    if found["size"] != record["size"]:
        return "has %d bytes, %d were proven" % (found["size"], record["size"])
    if not full:
        changed = [key for key in ("mtime_ns", "inode") if found[key] != record[key]]
        return "changed since it was proven (%s)" % ", ".join(changed) if changed else ""
    kind, digest = wanted(record)
    try:
        now = of_file(path, kind, lambda: True, lambda _at: None)
    except OSError as error:
        return "cannot be read: %s" % error
    return "" if now == digest else "%s is %s, %s was proven" % (kind, now, digest)
