"""The launch: for every node the texts that make it serve its rank. Pure; installed by the role `engine`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.errors import ConfigError, InternalError, Problem
from k3ctl.launch import container, torchrun
from k3ctl.launch.engines import EngineTraits, traits_of
from k3ctl.launch.unit import unit_name, unit_text
from k3ctl.plan import NodePlan, Plan
from k3ctl.secret import Secret

SCHEMA = 1
CRASH_LIMIT = 4
LOGS_KEEP = 20
LOGS_MAX_BYTES = 64_000_000
GANG_GRACE_S = 50.0  # more than torchrun's own shutdown timeout, less than the unit's TimeoutStopSec
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Cluster processes talk to each other directly; gRPC and HTTP clients would take a proxy even for node addresses.
PROXY_VARIABLES = tuple(
    name for lower in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy") for name in (lower, lower.upper())
)
# An engine must not join a Ray cluster of somebody else.
FOREIGN_VARIABLES = ("RAY_ADDRESS", "NOTIFY_SOCKET")


@dataclass(frozen=True)
class NodeLaunch:
    """What is installed on one node: unit file, launch.json, environment of the engine (mode 0600)."""

    node: str
    rank: int
    unit: str
    config_dir: str
    unit_text: str
    launch_text: str
    env_text: Secret


@dataclass(frozen=True)
class LaunchPlan:
    """The texts of all nodes. `id` is the digest of what would run: equal id, no restart."""

    cluster: str
    id: str
    nodes: tuple[NodeLaunch, ...]

    def node(self, name: str) -> NodeLaunch:
        """The launch of that node; KeyError when there is none."""
        for node in self.nodes:
            if node.node == name:
                return node
        raise KeyError(name)


def listening_ports(plan: Plan, rank: int) -> tuple[int, ...]:
    """Fixed ports that this rank's node listens on, sorted."""
    return tuple(sorted({port.port for port in plan.ports if rank in port.ranks}))


def render(plan: Plan, agents: Mapping[str, str], pythons: Mapping[str, str], api_key: Secret) -> LaunchPlan:
    """All texts of all nodes. `agents` and `pythons` map node -> path of the agent file and of its Python.

    The agent's path is no part of the id: a newer k3ctl does not restart an engine that needs no restart.
    """
    if plan.launcher != "torchrun":
        raise InternalError(Problem(what=f"no launcher {plan.launcher}", expected="torchrun"))
    if plan.replicas:
        raise ConfigError(
            Problem(
                what=f"{len(plan.replicas)} replicas can be planned, not launched: the router before them is not built",
                key="strategy.replicas",
                fix="make an inventory of each replica's nodes",
            )
        )
    drafts = tuple(_node(plan, node, agents[node.name], pythons[node.name], api_key) for node in plan.nodes)
    digest = hashlib.sha256()
    for node, draft in zip(plan.nodes, drafts, strict=True):
        neutral = unit_text(plan, node, "python", "agent", f"{plan.config_dir}/launch.json")
        for text in (neutral, draft.launch_text, draft.env_text.reveal()):
            digest.update(text.encode() + b"\0")
    launch_id = digest.hexdigest()
    return LaunchPlan(plan.cluster, launch_id, tuple(_with_id(draft, launch_id) for draft in drafts))


def _with_id(draft: NodeLaunch, launch_id: str) -> NodeLaunch:
    text = draft.launch_text.replace("{launch_id8}", launch_id[:8]).replace("{launch_id}", launch_id)
    return replace(draft, launch_text=text)


def _node(plan: Plan, node: NodePlan, agent: str, python: str, api_key: Secret) -> NodeLaunch:
    folder = plan.config_dir
    launch = json.dumps(_launch(plan, node), indent=2, sort_keys=True) + "\n"
    return NodeLaunch(
        node=node.name,
        rank=node.rank,
        unit=unit_name(plan.cluster),
        config_dir=folder,
        unit_text=unit_text(plan, node, python, agent, f"{folder}/launch.json"),
        launch_text=launch,
        env_text=_environment(plan, node, api_key),
    )


def _launch(plan: Plan, node: NodePlan) -> dict[str, Any]:
    """launch.json as an object; k3ctl/node/launchfile.py reads it."""
    traits = traits_of(plan.engine_family or plan.engine)
    ready = plan.timeouts.engine_ready
    return {
        "schema": SCHEMA,
        "cluster": plan.cluster,
        "launch_id": "{launch_id}",
        "unit": unit_name(plan.cluster),
        "node": node.name,
        "rank": node.rank,
        "nnodes": len(plan.nodes),
        "address": node.address,
        "interface": node.interface,
        "engine": plan.engine,
        "engine_version": plan.engine_version,
        "served_name": plan.model.served_name,
        "torchrun_env": torchrun.ENVIRONMENT,
        **_programs(plan, node, traits),
        "env_file": f"{plan.config_dir}/engine.env",
        "state_dir": plan.state_dir,
        "log_dir": plan.log_dir,
        "ports": listening_ports(plan, node.rank),
        "drop_env": sorted({*torchrun.CHILD_VARIABLES, *PROXY_VARIABLES, *FOREIGN_VARIABLES}),
        "drop_env_prefixes": torchrun.CHILD_PREFIXES,
        "interface_env": dict(traits.interface_env),
        "worker_titles": traits.worker_titles,
        # Loading may take longer than half an hour: the window follows the time that the plan allows for it.
        "crash": {
            "limit": CRASH_LIMIT,
            "window_s": max(1800.0, CRASH_LIMIT * ready),
            "healthy_after_s": max(600.0, ready),
        },
        "logs": {"keep": LOGS_KEEP, "max_bytes": LOGS_MAX_BYTES},
        "stop": {"engine_grace_s": traits.grace_s, "gang_grace_s": GANG_GRACE_S},
    }


def _programs(plan: Plan, node: NodePlan, traits: EngineTraits) -> dict[str, Any]:
    """What is started: torchrun, and under it the engine; on the host from the bundle, or both inside the image."""
    around = torchrun.argv(plan, node, f"k3ctl-{plan.cluster}-{{launch_id8}}", f"{plan.state_dir}/torchrun")
    engine = [*node.engine_argv]
    found: dict[str, Any] = {}
    if traits.api_key_option and serves_api(plan, node):
        path = f"{plan.state_dir}/api_key.yml"
        engine += [traits.api_key_option, path]
        found["api_key_file"] = {"path": path, "variable": traits.api_key_env, "key": "api-key"}
    if container.used(plan):
        # The image's own PATH finds its programs.
        return {
            **found,
            "torchrun_argv": container.argv(plan, node, ("torchrun", *around[1:])),
            "shim_python": container.PYTHON,
            "base_env": {"PYTHONUNBUFFERED": "1"},
            "engine_argv": engine,
        }
    if "/" not in engine[0]:
        engine[0] = f"{plan.runtime.bin}/{engine[0]}"
    return {
        **found,
        "torchrun_argv": around,
        "base_env": {"PATH": f"{plan.runtime.bin}:{SYSTEM_PATH}", "PYTHONUNBUFFERED": "1"},
        "engine_argv": engine,
    }


def serves_api(plan: Plan, node: NodePlan) -> bool:
    """True for ranks that clients reach: the head, and with several front ends every node that has one."""
    return node.rank == plan.head.rank or any(
        port.reached_by == "clients" and node.rank in port.ranks for port in plan.ports
    )


def _environment(plan: Plan, node: NodePlan, api_key: Secret) -> Secret:
    """engine.env: KEY=VALUE lines. Only the ranks that serve the API get the key."""
    values = dict(node.engine_env)
    if serves_api(plan, node):
        values[traits_of(plan.engine_family or plan.engine).api_key_env] = api_key.reveal()
    for key, value in values.items():
        if "\n" in value or "=" in key or not key:
            raise InternalError(
                Problem(what=f"environment variable {key!r} cannot be written as one line", node=node.name)
            )
    lines = [f"{key}={value}" for key, value in sorted(values.items())]
    return Secret("\n".join(["# Written by k3ctl. Holds a secret: mode 0600.", *lines, ""]))
