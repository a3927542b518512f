"""What is asked of the node agent about a launch: payloads of the verbs status, start, stop, logs."""

from __future__ import annotations

from typing import Any

from k3ctl.launch.render import listening_ports
from k3ctl.launch.unit import unit_name
from k3ctl.plan import NodePlan, Plan


def node_plan(plan: Plan, name: str) -> NodePlan:
    """The part of that node; KeyError when it has none."""
    for node in plan.nodes:
        if node.name == name:
            return node
    raise KeyError(name)


def status(plan: Plan, name: str, *, texts: bool = False) -> dict[str, Any]:
    """Payload of `status`. With `texts` the installed unit and launch.json come along."""
    node = node_plan(plan, name)
    return {
        "cluster": plan.cluster,
        "unit": unit_name(plan.cluster),
        "config_dir": plan.config_dir,
        "state_dir": plan.state_dir,
        "log_dir": plan.log_dir,
        "rank": node.rank,
        "ports": list(listening_ports(plan, node.rank)),
        "texts": texts,
    }


def start(plan: Plan, name: str) -> dict[str, Any]:
    """Payload of `start`."""
    return _of(plan, name)


def stop(plan: Plan, name: str) -> dict[str, Any]:
    """Payload of `stop`. The unit's own stop takes at most plan.timeouts.gang_stop, then systemd kills it."""
    return {**_of(plan, name), "timeout_s": stop_seconds(plan)}


def stop_seconds(plan: Plan) -> float:
    """How long `systemctl stop` may take on a node: the unit's TimeoutStopSec and some room."""
    return max(plan.timeouts.gang_stop, 90.0) + 15.0


def logs(plan: Plan, name: str, *, tail: int, follow: bool, previous: bool) -> dict[str, Any]:
    """Payload of `logs`."""
    return {
        "log_dir": plan.log_dir,
        "state_dir": plan.state_dir,
        "rank": node_plan(plan, name).rank,
        "tail": tail,
        "follow": follow,
        "previous": previous,
    }


def _of(plan: Plan, name: str) -> dict[str, Any]:
    return {
        "cluster": plan.cluster,
        "unit": unit_name(plan.cluster),
        "state_dir": plan.state_dir,
        "ports": list(listening_ports(plan, node_plan(plan, name).rank)),
    }
