"""Preflight of two real hosts over SSH, healthy and with each fault that the lab can make."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3ctl.cluster import Cluster
from k3ctl.edge.agent import NodeAgent
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.edge.clock import SystemClock
from k3ctl.edge.known_hosts import KnownHosts
from k3ctl.edge.ssh import FabricRemote
from k3ctl.edge.store import FileStore
from k3ctl.errors import PreflightRefused
from k3ctl.events import PhaseReporter
from k3ctl.lab import create, definition, destroy, faulting, trust
from k3ctl.phases.base import Options, Work
from k3ctl.phases.preflight import Preflight
from k3ctl.phases.validate import validate
from k3ctl.phases.world import World
from k3ctl.plan import NodePlan, Plan
from k3ctl.preflight.report import PreflightReport
from k3ctl.protocols import Command
from k3ctl.stop import StopFlag
from tests.unit.preflight_fixtures import expected, plan

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NAME = "k3pft"
LAB = Path(__file__).parents[2] / "inventories" / "lab"


def quiet(_text: str) -> None:
    """Nobody reads along."""


def no_edge() -> Any:
    """Preflight may not use it: any attribute of None is an error."""
    return None


@dataclass(frozen=True)
class Rig:
    """A lab of our own and everything to run the phase on it."""

    lab: definition.LabDefinition
    cluster: Cluster
    plan: Plan
    world: World
    store: FileStore
    remote: FabricRemote

    def preflight(self) -> tuple[PreflightReport, float]:
        """The report, whether it refuses or not, and the seconds that it took."""
        names = tuple(node.name for node in self.plan.nodes)
        report = PhaseReporter("preflight", lambda event: None)
        work = Work(self.cluster, self.plan, names, Options("k3pft"), self.world, {}, report, StopFlag())
        began = time.monotonic()
        try:
            found = Preflight().assess(work).value
        except PreflightRefused:
            found = PreflightReport.from_json((self.store.run_dir / "preflight.json").read_text())
        assert isinstance(found, PreflightReport)
        return found, time.monotonic() - began

    def sockets(self, node: str) -> str:
        """Listening TCP ports of a node, one line each."""
        return self.remote.run(node, Command(("ss", "-Hltn"))).stdout


def inventory(folder: Path) -> Path:
    """The lab's own inventory with other names and networks, and without a hub."""
    target = folder / NAME
    shutil.copytree(LAB, target)
    for path in target.rglob("*.yml"):
        text = path.read_text().replace("k3lab", NAME).replace("10.77.0.", "10.97.87.").replace("10.78.0.", "10.97.88.")
        path.write_text(text.replace("k3ctl-lab/lab/", f"k3ctl-lab/{NAME}/"))
    spec = target / "cluster.yml"
    body = yaml.safe_load(spec.read_text())
    del body["weights"]  # without an endpoint on the lab's gateway there is no hub
    spec.write_text(yaml.safe_dump(body))
    return target


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Made for these tests and taken away after them."""
    folder = inventory(tmp_path_factory.mktemp("inventories"))
    state = tmp_path_factory.mktemp("state")
    lab = definition.load(folder)
    try:
        create.create(lab, install=False, say=quiet)
        KnownHosts.of(state).put(trust.host_keys(lab))
        cluster, _ = validate(str(folder), load_cluster)
        remote = FabricRemote(cluster, state, say=quiet)
        store = FileStore(state)
        world = World(remote, NodeAgent(cluster, remote), no_edge(), no_edge(), no_edge(), SystemClock(), store)
        yield Rig(lab, cluster, planned(cluster), world, store, remote)
        remote.close()
    finally:
        destroy.destroy(lab, say=quiet)


def planned(cluster: Cluster) -> Plan:
    """What the lab's platform profile expects."""
    nodes = tuple(
        NodePlan(n.name, n.rank, n.fabric_address, "", ("serve",), {"VLLM_HOST_IP": n.fabric_address})
        for n in cluster.inventory.nodes
    )
    wanted = expected(
        gpus=1,
        gpu_name="K3 Simulated GPU",
        hcas=1,
        min_memory_bytes=1_000_000_000,
        min_free_bytes=500_000_000,
        min_runtime_bytes=500_000_000,
        memlock=False,
        sysfs_root="/opt/k3sim/sys",
        nvml_library_path="/opt/k3sim/lib",
    )
    return replace(plan(2), cluster=cluster.name, nodes=nodes, expected=wanted)


def blocking(report: PreflightReport) -> list[tuple[str, str, str]]:
    """(check, node without the lab's prefix, severity) of what refuses."""
    return [(f.check, f.node.removeprefix(NAME), f.severity) for f in report.blocking]


def test_healthy_hosts_pass_within_three_seconds_and_keep_nothing(rig: Rig) -> None:
    before = {node.name: rig.sockets(node.name) for node in rig.plan.nodes}
    rig.preflight()  # connects
    report, took = rig.preflight()
    assert report.verdict == "ok", blocking(report)
    assert took < 3
    assert {f.check for f in report.findings if f.severity == "warn"} <= {"net.hostname_resolution"}
    pairs = report.of("net.pairs", f"{NAME}2")
    assert pairs is not None
    assert "1 of 1 peers on ports 29400, 29501, " in pairs.found
    assert {node.name: rig.sockets(node.name) for node in rig.plan.nodes} == before


FAULTS: list[tuple[str, dict[str, str], list[tuple[str, str, str]], str]] = [
    ("gpu-lost", {}, [("gpu.count", "2", "fail")], "GPU 0: GPU is lost"),
    ("gpu-hang", {}, [("probe.complete", "2", "unknown")], "gpus: no answer within 10 s"),
    ("hca-down", {}, [("hca.port_state", "2", "fail")], "mlx5_0/1: DOWN, Polling"),
    ("mtu", {"mtu": "1400"}, [("net.fabric_mtu", "2", "fail")], "1400"),
    ("link-down", {}, [("net.fabric_address", "2", "fail")], "eth1"),
    ("firewall", {"port": "29400"}, [("net.pairs", "1", "fail")], "port 29400: no answer"),
    ("full-disk", {"path": "/srv/k3ctl/weights", "leave": "10M"}, [("disk.free", "2", "fail")], "short"),
]


@pytest.mark.parametrize(("name", "options", "wanted", "found"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_one_fault_is_one_finding(
    rig: Rig, name: str, options: dict[str, str], wanted: list[tuple[str, str, str]], found: str
) -> None:
    host = rig.lab.host(f"{NAME}2")
    faulting.inject(rig.lab, host, name, options, quiet)
    try:
        report, took = rig.preflight()
    finally:
        faulting.clear(rig.lab, host, name, options, quiet)
    assert blocking(report) == wanted
    assert found in report.blocking[0].found
    assert report.blocking[0].fix
    assert took < 20


def test_a_partition_is_seen_from_both_sides(rig: Rig) -> None:
    host = rig.lab.host(f"{NAME}1")
    faulting.inject(rig.lab, host, "partition", {"peer": f"{NAME}2"}, quiet)
    try:
        report, took = rig.preflight()
    finally:
        faulting.clear(rig.lab, host, "partition", {"peer": f"{NAME}2"}, quiet)
    assert blocking(report) == [("net.pairs", "1", "fail"), ("net.pairs", "2", "fail")]
    assert took < 20


def test_a_port_in_use_names_its_owner(rig: Rig) -> None:
    host = rig.lab.host(f"{NAME}1")
    faulting.inject(rig.lab, host, "port-in-use", {"port": "8000"}, quiet)
    try:
        report, _ = rig.preflight()
    finally:
        faulting.clear(rig.lab, host, "port-in-use", {"port": "8000"}, quiet)
    assert blocking(report) == [("net.ports_free", "1", "fail")]
    assert "lab-fault-port-8000.service" in report.blocking[0].found


def test_a_wrong_line_in_hosts_is_told(rig: Rig) -> None:
    host = rig.lab.host(f"{NAME}2")
    options = {"name": f"{NAME}1", "address": "192.0.2.1"}
    faulting.inject(rig.lab, host, "wrong-hosts", options, quiet)
    try:
        report, _ = rig.preflight()
    finally:
        faulting.clear(rig.lab, host, "wrong-hosts", options, quiet)
    finding = report.of("net.hostname_resolution", f"{NAME}2")
    assert finding is not None
    assert finding.severity == "warn"
    assert f"{NAME}1 is 192.0.2.1 here" in finding.found


def test_after_the_faults_all_is_well_again(rig: Rig) -> None:
    report, _ = rig.preflight()
    assert report.verdict == "ok", blocking(report)
