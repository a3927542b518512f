"""`k3node stop`: stop this node's unit and prove that nothing of it is left.

Payload: {cluster, unit, ports: [..], timeout_s, state_dir}. Reply: {stopped, was, ended: [{pid, command}],
left: [{pid, command}], holders: [{port, pid, command}]}. Stopped means: no process in the unit's cgroup, none with the
cluster's marker anywhere, planned ports free. A headless rank outlives its head, so every node is stopped and proven.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict

from k3ctl.node import attempts, ports, processes, systemd

PORT_WAIT_S = 5.0


def run(payload: Dict[str, Any]) -> Dict[str, Any]:
    """Stop, disable (a reboot must not start it again), end what is left, look at the ports."""
    unit, timeout_s = payload["unit"], float(payload["timeout_s"])
    state = systemd.show(unit)
    reason = ""
    if state["load"] == "loaded":
        try:
            if state["active"] not in ("inactive", "failed"):
                systemd.ctl(["stop", unit], timeout_s=timeout_s)
            if state["enabled"] == "enabled":
                systemd.ctl(["disable", "--quiet", unit])
            if systemd.show(unit)["active"] == "failed":
                systemd.ctl(["reset-failed", unit])
        except systemd.SystemdError as error:
            reason = str(error)
    found = processes.of_cluster(payload["cluster"], unit)
    left = processes.end(found.values(), 5.0)
    attempts.close_lost(os.path.join(payload["state_dir"], "attempts.jsonl"), time.time(), cause="stop")
    holders = _wait_for_ports(payload)
    active = systemd.show(unit)["active"]
    return {
        "stopped": not left and not holders and active not in systemd.RUNNING,
        "was": state["active"],
        "ended": [{"pid": p.pid, "command": p.title[:300]} for p in found.values()],
        "left": [{"pid": p.pid, "command": p.title[:300]} for p in left],
        "holders": holders,
        "reason": reason,
    }


def _wait_for_ports(payload: Dict[str, Any]) -> Any:
    until = time.monotonic() + PORT_WAIT_S
    while True:
        holders = ports.holders(payload["ports"])
        if not holders or time.monotonic() > until:
            return holders
        time.sleep(0.2)
