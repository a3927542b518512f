"""A lab of two hosts for the tests of provisioning, and what runs the phase on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from k3ctl.cluster import Cluster
from k3ctl.edge.ansible import AnsibleRunner
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.edge.clock import SystemClock
from k3ctl.edge.known_hosts import FILE, KnownHosts
from k3ctl.edge.ssh import FabricRemote
from k3ctl.edge.store import FileStore
from k3ctl.events import PhaseReporter, Sink
from k3ctl.lab import create, definition, destroy, trust
from k3ctl.phases.base import Assessment, Options, Outcome, Work
from k3ctl.phases.provision import Provision
from k3ctl.phases.validate import validate
from k3ctl.phases.world import World
from k3ctl.plan import NodePlan, Plan
from k3ctl.protocols import Command, CommandResult
from k3ctl.stop import StopFlag
from tests.unit.preflight_fixtures import expected, plan

NAME = "k3f"
LAB = Path(__file__).parents[2] / "inventories" / "lab"


@dataclass(frozen=True)
class Bench:
    """The lab, the cluster as k3ctl reads it, and the edges."""

    folder: Path
    state: Path
    cluster: Cluster
    plan: Plan
    remote: FabricRemote

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.plan.nodes)

    @property
    def ansible(self) -> AnsibleRunner:
        return AnsibleRunner(self.cluster, self.state / FILE, self.state, {**os.environ, "HF_TOKEN": "leak"})

    def work(self, *, stop: StopFlag | None = None, sink: Sink | None = None, **options: Any) -> Work:
        """A Work that only lacks what provisioning may not use."""
        nothing: Any = None
        world = World(self.remote, nothing, self.ansible, nothing, nothing, SystemClock(), FileStore(self.state))
        report = PhaseReporter("provision", sink or (lambda _event: None))
        options_ = Options(str(self.folder), **options)
        return Work(self.cluster, self.plan, self.nodes, options_, world, {}, report, stop or StopFlag())

    def assess(self, **options: Any) -> Assessment:
        return Provision().assess(self.work(**options))

    def provision(self, *, stop: StopFlag | None = None, sink: Sink | None = None, **options: Any) -> Outcome:
        work = self.work(stop=stop, sink=sink, **options)
        return Provision().apply(work, Provision().assess(work))

    def root(self, node: str, *argv: str) -> CommandResult:
        """Run a command as root on a node."""
        return self.remote.run(node, Command(argv, sudo=True))

    def with_variables(self, **variables: Any) -> Bench:
        """The same cluster, as if the inventory had these variables for all hosts."""
        nodes = tuple(replace(n, variables={**n.variables, **variables}) for n in self.cluster.inventory.nodes)
        return replace(self, cluster=replace(self.cluster, inventory=replace(self.cluster.inventory, nodes=nodes)))


def inventory(folder: Path, name: str) -> Path:
    """The lab's own inventory with other names and networks, and without a hub."""
    target = folder / name
    shutil.copytree(LAB, target)
    for path in target.rglob("*.yml"):
        text = path.read_text().replace("k3lab", name).replace("10.77.0.", "10.84.0.").replace("10.78.0.", "10.85.0.")
        path.write_text(text.replace("k3ctl-lab/lab/", f"k3ctl-lab/{name}/"))
    spec = target / "cluster.yml"
    body = yaml.safe_load(spec.read_text())
    del body["weights"]  # without an endpoint on the lab's gateway there is no hub
    spec.write_text(yaml.safe_dump(body))
    return target


def bench_of(folder: Path, state: Path) -> Bench:
    """Cluster, plan and edges of an inventory whose lab is up."""
    cluster, _ = validate(str(folder), load_cluster)
    nodes = tuple(NodePlan(n.name, n.rank, n.fabric_address, "", ("serve",), {}) for n in cluster.inventory.nodes)
    base = replace(plan(2), cluster=cluster.name, nodes=nodes, expected=expected(memlock=False))
    return Bench(folder, state, cluster, base, FabricRemote(cluster, state, say=_quiet))


@contextmanager
def lab_bench(folder: Path, state: Path, name: str = NAME) -> Iterator[Bench]:
    """A fresh lab of two bare hosts, taken away afterwards."""
    target = inventory(folder, name)
    lab = definition.load(target)
    try:
        create.create(lab, install=False, say=_quiet)
        KnownHosts.of(state).put(trust.host_keys(lab))
        bench = bench_of(target, state)
        yield bench
        bench.remote.close()
    finally:
        destroy.destroy(lab, say=_quiet)


def _quiet(_text: str) -> None:
    """Nobody reads along."""
