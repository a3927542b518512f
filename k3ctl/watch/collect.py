"""Asks every node and the endpoint at once, through protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from k3ctl import fanout
from k3ctl.plan import Plan
from k3ctl.protocols import Agent, Clock, Http
from k3ctl.secret import Secret
from k3ctl.watch.canary import canary
from k3ctl.watch.cluster_status import ClusterStatus
from k3ctl.watch.rank_status import RankStatus, parse, unreachable

Payload = Callable[[str], Mapping[str, Any]]


def ranks(plan: Plan, nodes: tuple[str, ...], agent: Agent, clock: Clock, payload: Payload) -> tuple[RankStatus, ...]:
    """The ranks of `nodes`, in rank order. A node that does not answer is `unknown`, with the reason."""
    numbers = {node.name: node.rank for node in plan.nodes}

    def one(name: str) -> RankStatus:
        before = clock.now()
        reply = agent.call(name, "status", payload(name))
        # The node read its clock somewhere between: the middle is right to half a round trip.
        offset = float(reply["now"]) - (before + clock.now()) / 2
        return parse(name, numbers[name], reply, offset)

    found = fanout.each(nodes, one)
    answers = [
        found.results[name] if name in found.results else unreachable(name, numbers[name], str(found.errors[name]))
        for name in nodes
    ]
    return tuple(sorted(answers, key=lambda rank: rank.rank))


def cluster_status(
    plan: Plan,
    nodes: tuple[str, ...],
    *,
    agent: Agent,
    http: Http,
    clock: Clock,
    payload: Payload,
    key: Secret | None,
    ask_timeout_s: float = 10.0,
) -> ClusterStatus:
    """One look at everything: all nodes and one real completion, at once.

    `payload` makes the payload of the agent's verb `status` for a node (launch.ask.status).
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        asked = pool.submit(canary, http, plan.endpoint, plan.model.served_name, key, ask_timeout_s)
        found = ranks(plan, nodes, agent, clock, payload)
        answer = asked.result()
    if answer.ok:
        # A completion went through every rank; a headless rank's log has no line that says so.
        found = tuple(replace(rank, state="up") if rank.state == "loading" else rank for rank in found)
    return ClusterStatus(plan.cluster, plan.endpoint, plan.model.served_name, clock.now(), found, answer)
