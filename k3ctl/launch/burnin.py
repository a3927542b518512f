"""The burn-in: what each node is asked to run, and the verdict over all of their answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.errors import Problem
from k3ctl.plan import NodePlan, Plan

CPU_SIZES = (4_096, 262_144, 4_194_304)
GPU_SIZES = (4_096, 1_048_576, 268_435_456)
ROUNDS = 5
JOIN_S = 90
COLLECTIVE_S = 60
TIMEOUT_S = 240
# A rank that only suffers from another one's absence or death ends with one of these.
VICTIM_STAGES = ("rendezvous", "timeout")


@dataclass(frozen=True)
class Rate:
    """The slowest rank's median of one operation at one size, bytes per second."""

    op: str
    bytes: int
    bytes_per_second: float


def simulated(plan: Plan) -> bool:
    """True where GPUs are only simulated, so that gloo on CPUs stands in for NCCL."""
    return bool(plan.expected.nvml_library_path)


def payload(plan: Plan, node: NodePlan, run_id: str) -> dict[str, Any]:
    """Payload of the agent's verb `burnin` on one node. `run_id` is the same on all nodes and new for every run."""
    cpu = simulated(plan)
    return {
        "unit": f"k3ctl-{plan.cluster}-burnin.service",
        "torchrun": f"{plan.runtime.bin}/torchrun",
        "rank": node.rank,
        "nnodes": len(plan.nodes),
        "per_node": 1 if cpu else plan.expected.gpus,
        "head": plan.head.address,
        "port": plan.rendezvous_port,
        "address": node.address,
        "interface": node.interface,
        "id": f"k3ctl-{plan.cluster}-burnin-{run_id}",
        "backend": "gloo" if cpu else "nccl",
        "sizes": list(CPU_SIZES if cpu else GPU_SIZES),
        "rounds": ROUNDS,
        "join_s": JOIN_S,
        "collective_s": COLLECTIVE_S,
        "timeout_s": TIMEOUT_S,
    }


def problems(plan: Plan, results: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """What is wrong, named by rank and node; empty when every rank passed.

    A missing rank, a wrong sum and a hang look different: a node that says why it failed is a cause, one that only
    waited for the others is not, unless nobody says anything else.
    """
    bad = {name: result for name, result in results.items() if not result["ok"]}
    causes = {name: result for name, result in bad.items() if result["stage"] not in VICTIM_STAGES}
    wrong = {name: result for name, result in causes.items() if any(rank.get("wrong") for rank in result["ranks"])}
    # A head that did not even listen is why nobody reached it.
    strong = {name: result for name, result in causes.items() if result["stage"] != "connect"}
    return [_problem(plan, name, result) for name, result in (wrong or strong or causes or bad).items()]


def rates(results: Mapping[str, Mapping[str, Any]]) -> list[Rate]:
    """The slowest rank per operation and size, in the order they were run."""
    slowest: dict[tuple[str, int], float] = {}
    for result in results.values():
        for rank in result["ranks"]:
            for rate in rank["rates"]:
                key = (rate["op"], int(rate["bytes"]))
                slowest[key] = min(slowest.get(key, float("inf")), float(rate["bytes_per_second"]))
    return [Rate(op, size, value) for (op, size), value in slowest.items()]


def _problem(plan: Plan, name: str, result: Mapping[str, Any]) -> Problem:
    rank = next(node.rank for node in plan.nodes if node.name == name)
    what, expected, fix = _WORDS.get(result["stage"], _WORDS["ranks"])
    if any(r.get("wrong") for r in result["ranks"]):
        what = "burn-in: a collective gave a wrong result on rank {rank}"
        expected = "the exact sum on every rank"
        fix = "suspect memory, NIC or cable of this node; run the burn-in again without it"
    place = next((r["stage"] for r in result["ranks"] if r.get("stage") != "done"), "")
    found = result["reason"] + (f" (rank {rank} was in: {place})" if place and place not in result["reason"] else "")
    return Problem(
        what=what.format(rank=rank), found=found, expected=expected, fix=fix, node=name, evidence=result["tail"]
    )


# stage -> (what, expected, fix)
_WORDS: dict[str, tuple[str, str, str]] = {
    "interface": (
        "burn-in: rank {rank} has no interface with its cluster address",
        "an interface that holds the planned address",
        "correct k3ctl_fabric_address of this host, or bring the interface up",
    ),
    "port": (
        "burn-in: the rendezvous port is taken on rank {rank}",
        "a free port",
        "end the process that holds it, or plan another port: ports.rendezvous in cluster.yml",
    ),
    "connect": (
        "burn-in: rank {rank} cannot reach the head",
        "a TCP connection to the rendezvous port on the head",
        "look at routes and firewalls between the cluster addresses",
    ),
    "rendezvous": (
        "burn-in: rank {rank} waited for a rank that did not come",
        "all ranks",
        "look at the node that is missing",
    ),
    "timeout": (
        "burn-in: rank {rank} hung",
        "an end within the limit",
        "look at the network between the cluster addresses (MTU, firewall, link)",
    ),
    "ranks": (
        "burn-in: rank {rank} failed",
        "every collective done with the right result",
        "see the text below",
    ),
}
