"""The composition root of commands that reach hosts: cluster, plan, and the edges bound to them."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from k3ctl.cluster import Cluster, Origin
from k3ctl.edge.store import FileStore, cluster_dir
from k3ctl.errors import ConfigError, Problem
from k3ctl.phases.validate import validate
from k3ctl.phases.world import World
from k3ctl.plan import Plan

if TYPE_CHECKING:
    from k3ctl.edge.lock import ClusterLock
    from k3ctl.profiles.types import Profiles, RuntimeRecord, Version

Say = Callable[[str], None]
# On the head. Not in the state folder: `down` removes that while it holds the lock, and the file's inode is the lock.
HEAD_LOCKS = "/run/k3ctl"


@dataclass(frozen=True)
class Session:
    """One command's view of one cluster. `lock` makes the cluster's lock for a command that changes something."""

    cluster: Cluster
    plan: Plan
    world: World
    store: FileStore
    state_dir: Path
    summary: str
    lock: Callable[[str, Say], ClusterLock]
    _closing: ExitStack

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes in rank order."""
        return tuple(node.name for node in self.cluster.inventory.nodes)

    def close(self) -> None:
        """Close connections."""
        self._closing.close()


def load_plan(
    path: str, *, engine: str = "", engine_version: str = "", wan: float | None = None
) -> tuple[Cluster, Plan, str]:
    """Cluster, plan and one line about them. Touches no host. Raises ConfigError with every problem.

    `engine` and `engine_version` stand in for those of cluster.yml; `wan` is bytes per second of each node.
    """
    from k3ctl.edge.ansible_inventory import load_cluster

    # Ansible reads the inventory in a process of its own; planner and profiles are loaded while it works.
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(_profiles)
        cluster, summary = validate(path, load_cluster)
        profiles = loading.result()
    if engine or engine_version:
        cluster = with_engine(cluster, engine, engine_version)
    from k3ctl.planner import engine_of, make_plan, version_of

    record = runtime_record(version_of(cluster, engine_of(cluster, profiles)))
    return cluster, make_plan(cluster, profiles, record, wan=wan), summary


def _profiles() -> Profiles:
    """All packaged profiles, and the modules that the plan is made with, imported beside other work."""
    from k3ctl.profiles.load import load

    importlib.import_module("k3ctl.planner")
    return load()


def with_engine(cluster: Cluster, engine: str, version: str) -> Cluster:
    """The cluster as if its cluster.yml named that engine and version; the version belongs to the engine."""
    changes: dict[str, str] = {"engine_version": version}
    if engine:
        changes["engine"] = engine
    given = {**cluster.given, **{key: Origin("flag") for key in changes}}
    return replace(cluster, spec=cluster.spec.model_copy(update=changes), given=given)


def open_session(path: str, say: Say) -> Session:
    """Load the plan and put the edges together. Nothing is sent to a host yet. `say` takes lines about retries."""
    cluster, plan, summary = load_plan(path)
    from k3ctl.edge.agent import NodeAgent
    from k3ctl.edge.ansible import AnsibleRunner
    from k3ctl.edge.clock import SystemClock
    from k3ctl.edge.http import HttpClient
    from k3ctl.edge.hub import HuggingFaceHub
    from k3ctl.edge.lock import ClusterLock, Owner
    from k3ctl.edge.ssh import FabricRemote

    state_dir = cluster_dir(cluster.name)
    store = FileStore(state_dir)
    remote = FabricRemote(cluster, state_dir, say=say)
    agent = NodeAgent(cluster, remote)
    http = HttpClient(remote, plan.head.name, say=say)
    closing = ExitStack()
    closing.callback(remote.close)
    closing.callback(http.close)
    world = World(
        remote=remote,
        agent=agent,
        ansible=AnsibleRunner(cluster, state_dir / "known_hosts", state_dir, dict(os.environ)),
        http=http,
        hub=HuggingFaceHub(),
        clock=SystemClock(),
        store=store,
    )

    def lock(command: str, on_lost: Say) -> ClusterLock:
        return ClusterLock(
            state_dir,
            lambda payload: agent.converse(plan.head.name, "lock", payload),
            f"{HEAD_LOCKS}/{plan.cluster}.lock",
            Owner.me(command),
            on_lost=on_lost,
        )

    return Session(cluster, plan, world, store, state_dir, summary, lock, closing)


def runtime_record(version: Version) -> RuntimeRecord | None:
    """What the builder of the serving environment wrote about it; None where it is a container image."""
    from k3ctl.profiles.types import BundleRuntime, RuntimeRecord

    runtime = version.runtime
    if not isinstance(runtime, BundleRuntime):
        return None
    path = Path(runtime.record)
    try:
        return RuntimeRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        problem = Problem(
            what=f"the serving environment {runtime.name} is not built",
            file=str(path),
            fix="for the lab: sudo k3ctl lab create",
        )
    except (OSError, ValueError, ValidationError) as error:
        problem = Problem(
            what=f"the record of the serving environment {runtime.name} cannot be read",
            file=str(path),
            found=str(error).splitlines()[0],
            fix="build it again: sudo k3ctl lab create",
        )
    raise ConfigError(problem)
