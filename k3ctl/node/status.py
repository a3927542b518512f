"""`k3node status`: everything about one node's rank in one answer. Reads only.

Payload: {cluster, unit, config_dir, state_dir, log_dir, rank, ports: [..], texts: bool}. With `texts` the installed
unit and launch.json come along (for a diff); engine.env never does, only its digest.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, List, Optional

from k3ctl.node import attemptlog, attempts, ports, processes, systemd
from k3ctl.node.launchfile import read_json
from k3ctl.node.loading import progress

ATTEMPTS_SHOWN = 12
LINES_READ = 400


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """The status. A missing piece is None or empty, never an error: a bare host has a status too."""
    state = payload["state_dir"]
    unit = systemd.show(payload["unit"])
    records = attempts.lines(os.path.join(state, "attempts.jsonl"))
    all_attempts = attempts.merged(records)
    rank = read_json(os.path.join(state, "rank.json"))
    folder = os.path.join(payload["log_dir"], "rank%d" % payload["rank"])
    launch = read_json(os.path.join(payload["config_dir"], "launch.json"))
    return {
        "now": time.time(),
        "monotonic": time.clock_gettime(time.CLOCK_MONOTONIC),
        "boot_id": _text("/proc/sys/kernel/random/boot_id").strip(),
        "unit": unit,
        "files": _files(payload),
        "texts": _texts(payload) if payload.get("texts") else None,
        "launch_id": launch.get("launch_id") if isinstance(launch, dict) else None,
        "engine_version": launch.get("engine_version") if isinstance(launch, dict) else None,
        "gang": read_json(os.path.join(state, "gang.json")),
        "rank": rank,
        "attempts": all_attempts[-ATTEMPTS_SHOWN:],
        "failures": _failures(records, launch),
        "progress": _progress(folder, rank, all_attempts),
        "life": _life(rank),
        "listening": sorted(port for port in ports.listening() if port in payload.get("ports", [])),
        "log_bytes": _log_bytes(folder),
        "log": rank.get("log") if isinstance(rank, dict) else None,
    }


def _files(payload: Dict[str, Any]) -> Dict[str, Optional[str]]:
    """sha256 of the installed texts, None for one that is not there."""
    found: Dict[str, Optional[str]] = {}
    for name, path in _paths(payload).items():
        try:
            with open(path, "rb") as file:
                found[name] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            found[name] = None
    return found


def _texts(payload: Dict[str, Any]) -> Dict[str, str]:
    return {name: _text(path) for name, path in _paths(payload).items() if name != "env"}


def _paths(payload: Dict[str, Any]) -> Dict[str, str]:
    return {
        "unit": "/etc/systemd/system/%s" % payload["unit"],
        "launch": os.path.join(payload["config_dir"], "launch.json"),
        "env": os.path.join(payload["config_dir"], "engine.env"),
    }


def _failures(records: List[Dict[str, Any]], launch: Any) -> Dict[str, Any]:
    """Failures since the last reset, and the crash loop if it is one."""
    generation = sum(1 for record in records if record.get("event") == "reset")
    recent = [a for a in attempts.merged(records) if a["generation"] == generation and a["ended"] is not None]
    loop = None
    if isinstance(launch, dict) and "crash" in launch:
        crash = launch["crash"]
        loop = attempts.crash_loop(records, crash["limit"], crash["window_s"], crash["healthy_after_s"])
    return {"count": sum(1 for a in recent if a.get("cause") != "stop"), "crash_loop": loop}


def _progress(folder: str, rank: Any, all_attempts: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Of the running attempt; of no other."""
    if not isinstance(rank, dict) or rank.get("state") == "ended" or not all_attempts:
        return progress([])
    return progress([line.text for line in attemptlog.tail(folder, LINES_READ) if line.stream != "K"])


def _life(rank: Any) -> Optional[Dict[str, Any]]:
    """Signs of life of the engine: processes, memory, CPU ticks, bytes read; None when it does not run."""
    pid = rank.get("engine_pid") if isinstance(rank, dict) else None
    engine = processes.read(pid) if pid else None
    if not pid or engine is None or engine.state == "Z" or rank.get("state") == "ended":
        return None
    family = [engine, *processes.descendants(pid)]
    return {
        "processes": len(family),
        "rss": sum(p.rss for p in family),
        "ticks": sum(p.ticks for p in family),
        "read_bytes": sum(_read_bytes(p.pid) for p in family),
    }


def _read_bytes(pid: int) -> int:
    """Bytes that the process asked to read (page cache included)."""
    for line in _text("/proc/%d/io" % pid).splitlines():
        name, _, value = line.partition(": ")
        if name == "rchar":
            return int(value)
    return 0


def _log_bytes(folder: str) -> int:
    total = 0
    for file in attemptlog.files(folder)[-1:]:
        try:
            total += os.stat(file.path).st_size
        except OSError:
            continue
    return total


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
