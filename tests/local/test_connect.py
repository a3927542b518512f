"""The connect phase: with a strict fake of the hosts, and once over real SSH."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from k3ctl.edge.clock import SystemClock
from k3ctl.errors import ConfigError, K3ctlError, Problem, Unreachable
from k3ctl.events import Event, PhaseReporter, Said
from k3ctl.inventory import SshTarget
from k3ctl.phases.base import Options, Work
from k3ctl.phases.connect import HELLO, Connect, Connected
from k3ctl.phases.world import World
from k3ctl.protocols import Command, CommandResult, Remote, Stop
from k3ctl.stop import StopFlag
from tests.local.sshd_fixtures import Farm, cluster_of, farm, free_port

__all__ = ["farm"]

NOW = 1_800_000_000.0


def answer(n: int = 1, **changes: str) -> dict[str, str]:
    facts = {
        "now": f"{NOW:.9f}",
        "uid": "0",
        "user": "root",
        "hostname": f"node{n}",
        "machine_id": f"m{n}",
        "boot_id": f"b{n}",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "arch": "x86_64",
        "python": "3.11.2",
    }
    return {**facts, **changes}


class Hosts:
    """Answers the hello and `id -u` by sudo, and nothing else."""

    def __init__(self, *nodes: dict[str, str] | K3ctlError, sudo: str | K3ctlError = "0", sudo_s: float = 0.1) -> None:
        self.nodes = {f"n{i + 1}": node for i, node in enumerate(nodes)}
        self.sudo, self.sudo_s = sudo, sudo_s

    def run(self, node: str, command: Command) -> CommandResult:
        if command.sudo:
            assert command.argv == ("id", "-u")
            if isinstance(self.sudo, K3ctlError):
                raise self.sudo
            return CommandResult(node, command.argv, 0, f"{self.sudo}\n", "", self.sudo_s)
        assert command.argv == ("sh", "-c", HELLO, "sh", "/usr/bin/python3")
        facts = self.nodes[node]
        if isinstance(facts, K3ctlError):
            raise facts
        return CommandResult(node, command.argv, 0, "".join(f"{k}={v}\n" for k, v in facts.items()), "", 0.0)

    def lines(self, node: str, command: Command, on_line: Callable[[str], None], stop: Stop) -> CommandResult:
        pytest.fail("not planned")


class Still:
    """A clock that stands."""

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def work(remote: Remote, *targets: SshTarget, events: list[Event] | None = None, clock: Any = None) -> Work:
    unused: Any = None
    world = World(remote, unused, unused, unused, unused, clock or Still(), unused)
    names = tuple(f"n{i + 1}" for i in range(len(targets)))
    sink = (lambda _: None) if events is None else events.append
    reporter = PhaseReporter("connect", sink)
    return Work(cluster_of(*targets), unused, names, Options("x"), world, {}, reporter, StopFlag())


def assess(hosts: Hosts, events: list[Event] | None = None) -> Connected:
    targets = [SshTarget(f"10.0.0.{i}") for i in range(len(hosts.nodes))]
    value = Connect().assess(work(hosts, *targets, events=events)).value
    assert isinstance(value, Connected)
    return value


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_node_is_greeted(count: int) -> None:
    connected = assess(Hosts(*(answer(i) for i in range(count))))
    assert [one.hostname for one in connected.nodes] == [f"node{i}" for i in range(count)]
    assert connected.node("n1").sudo == "root"
    assert set(connected.offsets.values()) == {0.0}


def test_one_line_is_said() -> None:
    targets = (SshTarget("a"), SshTarget("b"))
    out = Connect().assess(work(Hosts(answer(1), answer(2, uid="1000", user="k3")), *targets))
    assert out.said == "2 hosts as k3 by sudo, root, Python 3.11.2, clocks within 0.00 s"
    assert out.changes == ()
    assert Connect().apply(work(Hosts(), *targets), out).status == "unchanged"
    alone = Connect().assess(work(Hosts(answer(1)), SshTarget("a")))
    assert alone.said == "1 host as root, Python 3.11.2"


def test_clocks_are_held_against_the_median_of_the_hosts() -> None:
    events: list[Event] = []
    late = f"{NOW + 100:.3f}"
    hosts = Hosts(answer(1, now=late), answer(2, now=late), answer(3, now=f"{NOW + 40:.3f}"))
    connected = assess(hosts, events)
    assert dict(connected.offsets) == {"n1": 0.0, "n2": 0.0, "n3": -60.0}
    assert connected.controller_offset == -100.0
    said = [(e.node, e.text) for e in events if isinstance(e, Said)]
    assert said == [
        ("n3", "its clock is 1m00s behind the median of all nodes"),
        ("", "the clock of this machine is 1m40s behind the median of the nodes"),
    ]


def test_two_names_of_one_machine_are_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        assess(Hosts(answer(1), answer(2), answer(1)))
    (problem,) = caught.value.problems
    assert problem.what == "two entries of the inventory are the same host"
    assert problem.found == "n1 and n3: machine-id m1, boot-id b1"


def test_clones_of_one_image_are_only_remarked() -> None:
    events: list[Event] = []
    assess(Hosts(answer(1), answer(2, machine_id="m1")), events)
    assert [e.text for e in events if isinstance(e, Said)] == [
        "n1, n2 have the same machine-id m1: are they clones of one image?"
    ]


def test_all_problems_of_all_hosts_come_together() -> None:
    sudo = Unreachable(Problem(what="sudo asks for a password"))
    no_python = {**answer(2, uid="1000", python_error="sh: 1: /usr/bin/python3: not found"), "python": ""}
    dead = Unreachable(Problem(what="the host does not answer"))
    with pytest.raises(Unreachable) as caught:
        assess(Hosts(answer(1), no_python, dead, answer(1), sudo=sudo))
    assert [(p.node, p.what, p.phase) for p in caught.value.problems] == [
        ("n2", "Python is missing on the host", "connect"),
        ("n2", "sudo asks for a password", "connect"),
        ("n3", "the host does not answer", "connect"),
        ("", "two entries of the inventory are the same host", "connect"),
    ]
    assert "apt-get install -y python3" in caught.value.problems[0].fix


@pytest.mark.parametrize(("version", "good"), [("3.6.9", False), ("3.8.0", True), ("3.14.0", True), ("2.7.18", False)])
def test_python_versions(version: str, good: bool) -> None:
    hosts = Hosts(answer(1, python=version))
    if good:
        assert assess(hosts).node("n1").python == version
    else:
        with pytest.raises(Unreachable) as caught:
            assess(hosts)
        assert caught.value.problems[0].found == f"/usr/bin/python3 is {version}"


def test_sudo_that_gives_no_root_and_slow_sudo() -> None:
    with pytest.raises(Unreachable) as caught:
        assess(Hosts(answer(1, uid="1000"), sudo="1000"))
    assert caught.value.problems[0].what == "sudo gives no root"
    events: list[Event] = []
    assert assess(Hosts(answer(1, uid="1000"), sudo_s=15.0), events).node("n1").sudo == "sudo"
    assert [e.text[:14] for e in events if isinstance(e, Said)] == ["sudo took 15 s"]


def test_a_switch_is_no_server() -> None:
    with pytest.raises(Unreachable) as caught:
        assess(Hosts({"error": "unknown command"}))
    assert caught.value.problems[0].what == "the host does not answer like a Linux server"


def test_over_real_ssh(farm: Farm) -> None:
    server = farm.sshd()
    target = server.target(python=sys.executable)
    if target.user != "root":
        pytest.skip("needs root: as another user sudo would be asked for")
    one = work(farm.remote(target), target, clock=SystemClock())
    connected = Connect().assess(one).value
    assert isinstance(connected, Connected)
    hello = connected.node("n1")
    assert hello.python == ".".join(map(str, sys.version_info[:3]))
    assert abs(hello.clock_s) < 1
    assert hello.os
    assert hello.boot_id
    twice = work(farm.remote(target, target), target, target, clock=SystemClock())
    with pytest.raises(ConfigError):
        Connect().assess(twice)


def test_over_real_ssh_without_python_and_without_an_answer(farm: Farm) -> None:
    server = farm.sshd()
    target = server.target(python="/opt/no/python3")
    both = (target, replace(target, port=free_port()))
    with pytest.raises(Unreachable) as caught:
        Connect().assess(work(farm.remote(*both), *both, clock=SystemClock()))
    whats = [(p.node, p.what) for p in caught.value.problems]
    assert ("n1", "Python is missing on the host") in whats
    assert ("n2", "the host refuses the connection") in whats
    missing = caught.value.problems[0]
    assert missing.found.startswith("no /opt/no/python3 (")
    assert "not found" in missing.found
