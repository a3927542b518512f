"""The phase with strict fakes, and once against the real verbs run as programs on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from k3ctl.cluster import Cluster, ClusterSpec, Waiver
from k3ctl.errors import AgentFailed, ExitCode, Interrupted, K3ctlError, PreflightRefused, Problem, Unreachable
from k3ctl.events import Event, PhaseReporter, Said
from k3ctl.facts.node import NodeFacts
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.lab import hardware
from k3ctl.phases.base import Options, Work
from k3ctl.phases.preflight import Preflight
from k3ctl.phases.world import World
from k3ctl.plan import NodePlan, Plan, PortPlan
from k3ctl.preflight import request
from k3ctl.preflight.capture import Capture
from k3ctl.preflight.report import PreflightReport
from k3ctl.stop import StopFlag
from tests.unit.preflight_fixtures import capture, expected, plan

NOW = 1_796_077_000.0  # when the captures were taken


class Clock:
    """Stands still, but for the second that every call takes."""

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class Store:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        self.files[name] = text

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"preflight may not use store.{name}")


class Strict:
    """An edge that may not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"preflight may not use {name}")


class Told:
    """An agent with planned answers by (node, verb); anything else fails the test."""

    def __init__(self, answers: Mapping[tuple[str, str], Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.lock = threading.Lock()

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        assert timeout_s <= 30
        with self.lock:
            self.asked.append((node, verb, json.loads(json.dumps(payload))))
        answer = self.answers[(node, verb)]
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer(payload) if callable(answer) else answer
        return found

    def install(self, node: str) -> str:
        raise AssertionError("preflight installs nothing")

    def lines(self, node: str, verb: str, payload: Any, on_line: Any, stop: Any) -> None:
        raise AssertionError("preflight follows nothing")


def reached(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A good answer of the verb reach to whatever it is asked."""
    links = [
        {"to": peer["name"], "port": port, "result": "ok", "connect_s": 0.001, "echo_s": 0.001, "echoed_bytes": 65536}
        for peer in payload["peers"]
        for port in payload["ports"]
    ]
    listening = [{"port": port, "error": None} for port in payload["ports"]]
    return {"node": payload["own"]["name"], "listening": listening, "links": links}


def answers(count: int) -> dict[tuple[str, str], Any]:
    """Healthy answers of so many nodes."""
    found: dict[tuple[str, str], Any] = {}
    for node, raw in capture(count)["nodes"].items():
        # The clock of these tests stands still: the nodes' times must be that time.
        found[(node, "probe")] = {**raw["reply"], "started": NOW, "ended": NOW}
        found[(node, "reach")] = reached
    return found


def work(
    agent: Any, planned: Plan, nodes: tuple[str, ...] | None = None, waivers: tuple[Waiver, ...] = (), clock: Any = None
) -> tuple[Work, Store, list[Event]]:
    """Everything a phase gets, with fakes."""
    events: list[Event] = []
    store = Store()
    hosts = tuple(Node(n.name, n.rank, SshTarget(n.name), n.address) for n in planned.nodes)
    spec = ClusterSpec(platform="p", model="m", engine="e", waivers=waivers)
    world: Any = World(
        remote=Strict(), agent=agent, ansible=Strict(), http=Strict(), hub=Strict(), clock=clock or Clock(), store=store
    )  # type: ignore[arg-type]
    return (
        Work(
            cluster=Cluster(Inventory("pod", "/i/pod", hosts), spec, "/i/pod/cluster.yml"),
            plan=planned,
            nodes=nodes or tuple(node.name for node in planned.nodes),
            options=Options(inventory="/i/pod"),
            world=world,
            done={},
            report=PhaseReporter("preflight", events.append),
            stop=StopFlag(),
        ),
        store,
        events,
    )


def said(events: list[Event]) -> str:
    """All lines for people."""
    return "\n".join(f"{event.node} {event.text}" for event in events if isinstance(event, Said))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_healthy_nodes_pass_in_one_round_trip_each_and_one_round(count: int) -> None:
    agent = Told(answers(count))
    todo, store, _ = work(agent, plan(count))
    assessment = Preflight().assess(todo)
    assert assessment.changes == ()
    assert assessment.said.startswith(f"16 checks on {count} node")
    assert "all ok" in assessment.said
    assert isinstance(assessment.value, PreflightReport)
    assert PreflightReport.from_json(store.files["preflight.json"]) == assessment.value
    assert Capture.from_json(store.files["capture.json"]).nodes.keys() == {f"node{i}" for i in range(1, count + 1)}
    assert len([verb for _, verb, _ in agent.asked if verb == "probe"]) == count
    assert len([verb for _, verb, _ in agent.asked if verb == "reach"]) == (count if count > 1 else 0)


def test_with_limit_only_those_nodes_are_touched() -> None:
    agent = Told({key: value for key, value in answers(4).items() if key[0] in ("node2", "node3")})
    todo, _, _ = work(agent, plan(4), nodes=("node2", "node3"))
    assert "on 2 nodes: all ok" in Preflight().assess(todo).said
    asked = {node: payload for node, verb, payload in agent.asked if verb == "reach"}
    assert [peer["name"] for peer in asked["node2"]["peers"]] == ["node3"]


@pytest.mark.parametrize(
    "error",
    [
        Unreachable(Problem(what="the connection broke", found="Socket is closed", node="node2")),
        AgentFailed(Problem(what="k3node probe gave no JSON", found="'Segmentation fault'", node="node2")),
    ],
)
def test_a_host_lost_half_way_is_a_finding(error: K3ctlError) -> None:
    planned = {**answers(3), ("node2", "probe"): error}
    todo, store, _ = work(Told(planned), plan(3))
    with pytest.raises(PreflightRefused) as caught:
        Preflight().assess(todo)
    (problem,) = caught.value.problems
    assert (problem.node, problem.phase, problem.key) == ("node2", "preflight", "probe.complete")
    assert problem.what == "probe.complete: could not be judged"
    assert error.problems[0].found in problem.found
    assert problem.fix
    assert caught.value.code == ExitCode.PREFLIGHT
    assert PreflightReport.from_json(store.files["preflight.json"]).verdict == "refused"


def test_every_host_lost() -> None:
    lost = Unreachable(Problem(what="no route"))
    todo, _, _ = work(Told({(f"node{i}", "probe"): lost for i in range(1, 5)}), plan(4))
    with pytest.raises(PreflightRefused) as caught:
        Preflight().assess(todo)
    assert [problem.node for problem in caught.value.problems] == ["node1", "node2", "node3", "node4"]


def test_a_host_lost_in_the_second_round() -> None:
    planned = {**answers(2), ("node2", "reach"): AgentFailed(Problem(what="no end within 25 s"))}
    todo, _, _ = work(Told(planned), plan(2))
    with pytest.raises(PreflightRefused) as caught:
        Preflight().assess(todo)
    assert [(p.node, p.key, p.found) for p in caught.value.problems] == [("node2", "net.pairs", "no end within 25 s")]


@pytest.mark.parametrize("reply", [{}, {"sections": []}, {"sections": {"host": 3}}, {"x": [[[]]]}])
def test_replies_that_make_no_sense_block(reply: dict[str, Any]) -> None:
    todo, _, _ = work(Told({**answers(2), ("node1", "probe"): reply}), plan(2))
    with pytest.raises(PreflightRefused) as caught:
        Preflight().assess(todo)
    assert {problem.node for problem in caught.value.problems} == {"node1"}


def test_warnings_and_waivers_are_told_every_time() -> None:
    planned = answers(2)
    planned[("node2", "probe")]["sections"]["names"]["value"]["own"]["addresses"] = ["127.0.1.1"]
    planned[("node1", "probe")]["sections"]["host"]["value"]["memory_bytes"] = 1
    waivers = (
        Waiver(check="host.memory", reason="a test machine", until=date(2026, 12, 24)),
        Waiver(check="disk.free", reason="was short once", until=date(2026, 1, 1)),
    )
    launch = plan(2)
    nodes = tuple(
        NodePlan(n.name, n.rank, n.address, "", n.engine_argv, {"VLLM_HOST_IP": n.address}) for n in launch.nodes
    )
    todo, _, events = work(Told(planned), replace(launch, nodes=nodes), waivers=waivers)
    assert Preflight().assess(todo).said == "16 checks on 2 nodes: 1 warning (1 waived)"
    text = said(events)
    assert "node2 net.hostname_resolution: its own name node2 is 127.0.1.1" in text
    assert "not urgent: this launch goes by addresses (VLLM_HOST_IP)" in text
    assert "host.memory: waived on node1 until 2026-12-24 (a test machine)" in text
    assert "disk.free: waiver expired on 2026-01-01 and is not applied (was short once)" in text


def test_stop_between_the_rounds() -> None:
    agent = Told(answers(2))
    todo, _, _ = work(agent, plan(2))
    todo.stop.set()  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        Preflight().assess(todo)
    assert {verb for _, verb, _ in agent.asked} == {"probe"}


def test_stop_while_a_node_does_not_answer() -> None:
    wake = threading.Event()

    def late(_payload: Any) -> dict[str, Any]:
        wake.wait(20)
        return {}

    todo, _, _ = work(Told({**answers(2), ("node2", "probe"): late}), plan(2))
    threading.Timer(0.3, todo.stop.set).start()  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(Interrupted, match="preflight was stopped"):
        Preflight().assess(todo)
    assert time.monotonic() - began < 10
    wake.set()


# --- what is asked ---------------------------------------------------------------------------------------------------


def facts_of(count: int, **listening: int) -> dict[str, NodeFacts]:
    """Healthy facts with one more listening port on the nodes named."""
    body = capture(count)
    for node, port in listening.items():
        entry = {"address": "0.0.0.0", "port": port}
        body["nodes"][node]["reply"]["sections"]["network"]["value"]["listening"].append(entry)
    return Capture.from_json(json.dumps(body)).facts()


def test_the_probe_is_asked_for_what_the_plan_needs() -> None:
    asked = request.probe_request(plan(2), "node2")
    assert asked["ports"] == [8000, 29400, 29501]
    assert asked["peers"] == [{"name": "node1", "address": "10.78.0.11"}]
    assert asked["units"] == ["k3ctl-pod.service"]
    weights, runtime = asked["disk"]
    assert weights["holds"] == [plan(2).model.path]
    assert runtime["marker"] == "/opt/k3ctl/runtimes/r-0123456789ab/.k3ctl-complete.json"
    assert json.loads(json.dumps(asked)) == asked


def test_ports_of_the_round_are_free_on_every_node() -> None:
    nodes = plan(2).nodes
    assert request.reach_ports(plan(2), nodes, facts_of(2)) == ((29400, 29501, 46883), 46883)
    assert request.reach_ports(plan(2), nodes, facts_of(2, node1=46883, node2=46884))[1] == 46885
    # A running engine holds its ports: they are left alone.
    assert request.reach_ports(plan(2), nodes, facts_of(2, node1=29501))[0] == (29400, 46883)


def test_ports_lie_in_the_range_that_all_nodes_share() -> None:
    body = capture(2)
    body["nodes"]["node2"]["reply"]["sections"]["network"]["value"]["ephemeral"] = [60000, 60999]
    facts = Capture.from_json(json.dumps(body)).facts()
    assert 60000 <= request.reach_ports(plan(2), plan(2).nodes, facts)[1] <= 60999


def test_a_node_without_its_address_stays_out_of_the_round() -> None:
    body = capture(4)
    body["nodes"]["node2"]["reply"]["sections"]["network"]["value"]["interfaces"] = []
    body["nodes"]["node3"]["reply"] = None
    body["nodes"]["node4"]["reply"]["sections"]["network"]["value"]["interfaces"][2]["up"] = False
    facts = Capture.from_json(json.dumps(body)).facts()
    assert [node.name for node in request.reach_nodes(plan(4), facts)] == ["node1"]


# --- the real verbs --------------------------------------------------------------------------------------------------


class Here:
    """An agent that runs the verbs as programs on this machine: the same protocol, without SSH."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = {**os.environ, **env}

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "k3ctl.node", verb],
            input=json.dumps(payload),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.env,
            check=False,
        )
        if done.returncode != 0:
            raise AgentFailed(Problem(what=f"k3node {verb} failed", found=done.stderr[-300:], node=node))
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class Real:
    """The real clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def test_two_ranks_on_this_machine_through_the_real_verbs(tmp_path: Path) -> None:
    hardware.install(tmp_path)
    folder = tmp_path / hardware.FOLDER
    launch = plan(2)
    nodes = tuple(NodePlan(f"node{i}", i - 1, f"127.78.0.{10 + i}", "", ("serve",)) for i in (1, 2))
    wanted = expected(
        gpus=1,
        gpu_name="K3 Simulated GPU",
        hcas=1,
        min_memory_bytes=1,
        min_free_bytes=1,
        min_runtime_bytes=1,
        memlock=False,
        sysfs_root=str(folder / "sys"),
        nvml_library_path=str(folder / "lib"),
    )
    launch = replace(launch, nodes=nodes, expected=wanted, ports=(PortPlan(29477, (0,), "nodes", "test"),))
    agent = Here({"K3SIM_MACHINE": str(folder / "machine.txt")})
    todo, store, _ = work(agent, launch, clock=Real())
    with pytest.raises(PreflightRefused):
        Preflight().assess(todo)
    report = PreflightReport.from_json(store.files["preflight.json"])
    for check in (
        "probe.complete",
        "gpu.count",
        "gpu.model",
        "hca.port_state",
        "disk.free",
        "host.memory",
        "time.skew",
    ):
        for node in ("node1", "node2"):
            finding = report.of(check, node)
            assert finding is not None
            assert finding.severity == "ok", finding
    twins = report.of("cluster.identity_unique", "node1")
    address = report.of("net.fabric_address", "node1")
    assert twins is not None
    assert address is not None
    assert twins.severity == "fail"  # it is one machine, and preflight sees it
    assert "loopback" in address.found
