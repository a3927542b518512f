"""`k3node start`: start this node's unit, after its ports were found free and old leftovers were ended.

Payload: {cluster, unit, state_dir, ports: [..]}. Reply: {started, ended: [..], holders: [{port, pid, command}]}.
A holder that is not ours is named and left alone; then nothing is started. A running unit is left as it is.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict

from k3ctl.node import attempts, ports, processes, systemd


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """Enable and start; forget earlier failures, so that a crash loop is given another try."""
    unit = payload["unit"]
    state = systemd.show(unit)
    if state["load"] != "loaded":
        return {"started": False, "ended": [], "holders": [], "reason": "unit %s is %s" % (unit, state["load"])}
    if state["active"] in systemd.RUNNING and state["active"] != "deactivating":
        systemd.ctl(["enable", "--quiet", unit])
        return {"started": True, "ended": [], "holders": [], "reason": "it runs already"}
    ended = processes.of_cluster(payload["cluster"], unit)
    stuck = processes.end(ended.values(), 3.0)
    holders = ports.holders(payload["ports"])
    if holders or stuck:
        reason = "processes of an earlier run cannot be ended" if stuck else "planned ports are taken"
        holders += [{"port": 0, "pid": p.pid, "command": p.title[:300]} for p in stuck]
        return {"started": False, "ended": _named(ended), "holders": holders, "reason": reason}
    os.makedirs(payload["state_dir"], mode=0o755, exist_ok=True)
    attempts.append(os.path.join(payload["state_dir"], "attempts.jsonl"), {"event": "reset", "at": time.time()})
    systemd.ctl(["daemon-reload"])
    if state["active"] == "failed":
        systemd.ctl(["reset-failed", unit])
    systemd.ctl(["enable", "--quiet", unit])
    systemd.ctl(["start", unit], timeout_s=60)
    return {"started": True, "ended": _named(ended), "holders": [], "reason": ""}


def _named(found: Dict[int, processes.Process]) -> Any:
    return [{"pid": p.pid, "command": p.title[:300]} for p in found.values()]
