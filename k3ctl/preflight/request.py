"""What the nodes are asked: payloads of `k3node probe` and `k3node reach`, made from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from k3ctl.facts.node import NodeFacts
from k3ctl.plan import NodePlan, Plan

PROBE_TIMEOUT_S = 25.0  # the slowest collector has 10 s; the rest is for SSH and Python on a busy host
REACH_SECONDS = 6.0  # nodes start up to some seconds apart: each keeps trying until then
REACH_TIMEOUT_S = 25.0
REACH_BYTES = 65536
# Linux gives these to clients by default (net.ipv4.ip_local_port_range); NCCL, gloo and Ray listen there too.
_EPHEMERAL = (32768, 60999)


def probe_request(plan: Plan, node: str) -> dict[str, Any]:
    """Payload of one node's probe."""
    return {
        "sysfs_root": plan.expected.sysfs_root,
        "nvml_library_path": plan.expected.nvml_library_path,
        "disk": [
            {"name": "weights", "path": plan.weights_dir, "holds": [model.path for model in plan.models]},
            {"name": "runtime", "path": plan.runtime.path, "marker": f"{plan.runtime.path}/.k3ctl-complete.json"},
        ],
        "ports": sorted({port.port for port in plan.ports}),
        "peers": [{"name": peer.name, "address": peer.address} for peer in plan.nodes if peer.name != node],
        "units": [f"k3ctl-{plan.cluster}.service"],
    }


def reach_request(node: NodePlan, among: Iterable[NodePlan], ports: tuple[int, ...]) -> dict[str, Any]:
    """Payload of one node's part of the round over all pairs of `among`."""
    return {
        "own": {"name": node.name, "address": node.address},
        "peers": [{"name": peer.name, "address": peer.address} for peer in among if peer.name != node.name],
        "ports": list(ports),
        "seconds": REACH_SECONDS,
        "bytes": REACH_BYTES,
    }


def reach_nodes(plan: Plan, facts: Mapping[str, NodeFacts]) -> tuple[NodePlan, ...]:
    """The nodes that can take part: their planned address is on a link that is up."""
    return tuple(
        node
        for node in plan.nodes
        if node.name in facts
        and (network := facts[node.name].network.value) is not None
        and (holder := network.holder(node.address)) is not None
        and holder.up
    )


def reach_ports(plan: Plan, nodes: Iterable[NodePlan], facts: Mapping[str, NodeFacts]) -> tuple[tuple[int, ...], int]:
    """Ports to try, and which of them is the ephemeral one (0: none is free).

    These are the planned ports between nodes that nobody holds, and one more.
    A firewall that opens the named ports only lets a launch come up to its first collective. Ports that something
    listens on, a running engine above all, are left alone.
    """
    taken: set[int] = set()
    low, high = _EPHEMERAL
    for node in nodes:
        network = facts[node.name].network.value
        if network is None:
            continue
        taken |= {listener.port for listener in network.listening}
        if network.ephemeral:
            low, high = max(low, network.ephemeral[0]), min(high, network.ephemeral[1])
    planned = sorted({port.port for port in plan.ports if port.reached_by == "nodes"} - taken)
    # From the middle upwards: clients get theirs from the low end first.
    ephemeral = next(
        (port for port in range((low + high) // 2, high + 1) if port not in taken and port not in planned), 0
    )
    return (*planned, ephemeral) if ephemeral else tuple(planned), ephemeral
