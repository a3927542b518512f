"""Reaching real hosts: sudo as it really is, a jump over the fabric, the agent, and the lock of a killed controller."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.cluster import Cluster
from k3ctl.edge.agent import NodeAgent
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.edge.clock import SystemClock
from k3ctl.edge.keyscan import KeyScan
from k3ctl.edge.known_hosts import KnownHosts, add_known
from k3ctl.edge.lock import ClusterLock, Owner
from k3ctl.edge.ssh import FabricRemote
from k3ctl.errors import LockHeld, Unreachable
from k3ctl.events import PhaseReporter
from k3ctl.inventory import SshTarget
from k3ctl.lab import trust as lab_trust
from k3ctl.phases.base import Options, Work
from k3ctl.phases.connect import Connect, Connected
from k3ctl.phases.trust import trust
from k3ctl.phases.validate import validate
from k3ctl.phases.world import World
from k3ctl.protocols import Command
from k3ctl.secret import Secret
from k3ctl.stop import StopFlag
from tests.lab.conftest import MachineLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ID = Command(("id", "-u"), sudo=True)


@dataclass
class Reach:
    """The lab's cluster, a state folder of its own, and remotes that are closed afterwards."""

    lab: MachineLab
    cluster: Cluster
    state: Path
    opened: list[FabricRemote]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.cluster.inventory.nodes)

    def changed(self, node: str, **changes: Any) -> Cluster:
        """The cluster with one node reached in another way."""
        inventory = self.cluster.inventory
        nodes = tuple(
            replace(one, ssh=replace(one.ssh, **changes)) if one.name == node else one for one in inventory.nodes
        )
        return replace(self.cluster, inventory=replace(inventory, nodes=nodes))

    def remote(self, cluster: Cluster | None = None) -> FabricRemote:
        remote = FabricRemote(cluster or self.cluster, self.state)
        self.opened.append(remote)
        return remote

    def target(self, node: str) -> SshTarget:
        return self.cluster.inventory.node(node).ssh

    def connect(self, cluster: Cluster | None = None) -> Connected:
        cluster = cluster or self.cluster
        unused: Any = None
        world = World(self.remote(cluster), unused, unused, unused, unused, SystemClock(), unused)
        reporter = PhaseReporter("connect", lambda _: None)
        work = Work(cluster, unused, self.names, Options("x"), world, {}, reporter, StopFlag())
        value = Connect().assess(work).value
        assert isinstance(value, Connected)
        return value


@pytest.fixture
def reach(lab: MachineLab, tmp_path: Path) -> Iterator[Reach]:
    cluster, _ = validate(str(lab.inventory), load_cluster)
    KnownHosts.of(tmp_path).put(lab_trust.host_keys(lab.definition))
    reach = Reach(lab, cluster, tmp_path, [])
    yield reach
    for remote in reach.opened:
        remote.close()


def test_hello_to_all_hosts_by_sudo(reach: Reach) -> None:
    connected = reach.connect()
    assert [one.sudo for one in connected.nodes] == ["sudo"] * len(reach.names)
    assert len({one.machine_id for one in connected.nodes}) == len(reach.names)
    assert max(abs(offset) for offset in connected.offsets.values()) < 0.5


def test_two_names_of_one_host(reach: Reach) -> None:
    first, second = reach.names[:2]
    with pytest.raises(Exception, match="two entries of the inventory are the same host"):
        reach.connect(reach.changed(second, address=reach.target(first).address))


def test_python_is_missing_where_the_inventory_says(reach: Reach) -> None:
    with pytest.raises(Unreachable) as caught:
        reach.connect(reach.changed(reach.names[1], python="/opt/conda/bin/python"))
    assert [(p.node, p.what) for p in caught.value.problems] == [(reach.names[1], "Python is missing on the host")]


@pytest.fixture
def user(reach: Reach) -> Iterator[str]:
    """A user on the first node with the lab's key, the password `pa ss`, and no rights."""
    node, name = reach.names[0], "k3dtest"
    made = reach.lab.ssh(
        node,
        f"useradd -m -s /bin/sh {name} && echo '{name}:pa ss' | chpasswd && mkdir -m 700 ~{name}/.ssh && "
        f"cp ~k3/.ssh/authorized_keys ~{name}/.ssh/ && chown -R {name}: ~{name}/.ssh",
    )
    assert made.ok, made.stderr
    yield name
    reach.lab.ssh(node, f"pkill -KILL -u {name}; userdel -r {name}; rm -f /etc/sudoers.d/{name}")


def test_a_user_without_sudo(reach: Reach, user: str) -> None:
    node = reach.names[0]
    with pytest.raises(Unreachable) as caught:
        reach.connect(reach.changed(node, user=user))
    (problem,) = caught.value.problems
    assert (problem.node, problem.what) == (node, "sudo asks for a password")
    assert f"{user} ALL=(ALL) NOPASSWD: ALL" in problem.fix


def test_a_become_password(reach: Reach, user: str) -> None:
    node = reach.names[0]
    assert reach.lab.ssh(node, f"echo '{user} ALL=(ALL) ALL' > /etc/sudoers.d/{user}").ok
    right = reach.remote(reach.changed(node, user=user, become_password=Secret("pa ss")))
    result = right.run(node, Command(("sh", "-c", "id -u; cat"), stdin=b"data\n", sudo=True))
    assert (result.status, result.stdout) == (0, "0\ndata\n")
    wrong = reach.remote(reach.changed(node, user=user, become_password=Secret("passs")))
    with pytest.raises(Unreachable) as caught:
        wrong.run(node, ID)
    assert caught.value.problems[0].what == "sudo does not accept the password"
    none = reach.remote(reach.changed(node, user=user))
    with pytest.raises(Unreachable) as caught:
        none.run(node, ID)
    assert caught.value.problems[0].what == "sudo asks for a password"


def test_a_password_that_sudo_does_not_want(reach: Reach) -> None:
    node = reach.names[0]
    remote = reach.remote(reach.changed(node, become_password=Secret("unused")))
    assert remote.run(node, Command(("cat",), stdin=b"data\n", sudo=True)).stdout == "data\n"


@pytest.mark.parametrize("sudo", [False, True])
def test_stop_ends_the_remote_process(reach: Reach, sudo: bool) -> None:
    remote, node = reach.remote(), reach.names[0]
    for round_ in range(8):  # a stop right after the start once fell between timeout's fork and its return from it
        stop, seen, mark = threading.Event(), list[str](), f"77.{round_}"

        def on_line(line: str, stop: threading.Event = stop, seen: list[str] = seen) -> None:
            seen.append(line)
            stop.set()

        script = f"echo up; while :; do sleep {mark}; done"
        began = time.monotonic()
        remote.lines(node, Command(("sh", "-c", script), sudo=sudo, timeout_s=0), on_line, stop)
        assert seen == ["up"]
        assert time.monotonic() - began < 5
        assert remote.run(node, Command(("pgrep", "-f", f"[7]7.{round_}"))).stdout == ""


def test_a_jump_over_the_fabric(reach: Reach) -> None:
    first, second = reach.names[:2]
    inner = reach.cluster.inventory.node(second).fabric_address
    outer = reach.target(first)
    cluster = reach.changed(second, address=inner, jump=(f"{outer.user}@{outer.address}:{outer.port}",))
    scan = KeyScan(cluster, reach.state)
    said: list[str] = []
    done = trust(scan, ask=lambda _: True, say=said.append)
    scan.close()
    assert [verdict.door.node for verdict in done.added] == [second]
    remote = reach.remote(cluster)
    assert remote.run(second, Command(("hostname",))).stdout.strip() == second
    missing = reach.changed(second, address=inner, port=2, jump=(f"{outer.user}@{outer.address}",))
    with pytest.raises(Unreachable) as caught:
        reach.remote(missing).run(second, ID)
    assert caught.value.problems[0].what.endswith("cannot reach the host")


def test_a_host_key_that_changed(reach: Reach) -> None:
    node = reach.names[0]
    other = KnownHosts.of(reach.state).of_host(reach.target(reach.names[1]).address, 22)[0]
    add_known(reach.state, reach.target(node).address, 22, other.keytype, other.key)
    with pytest.raises(Unreachable) as caught:
        reach.connect()
    assert [p.node for p in caught.value.problems] == [node]
    assert "has CHANGED" in caught.value.problems[0].what


def test_the_agent_on_a_bare_host_leaves_nothing(reach: Reach) -> None:
    node = reach.names[0]
    remote = reach.remote()
    agent = NodeAgent(reach.cluster, remote, folder="/opt/k3d-test")
    reply = agent.call(node, "probe", {}, timeout_s=60)
    assert reply["schema"] >= 1
    left = remote.run(node, Command(("sh", "-c", "ls /opt/k3d-test /tmp/tmp.* 2>/dev/null"), sudo=True))
    assert left.stdout == ""
    try:
        assert agent.install(node) == agent.install(node) == agent.path
        owner = remote.run(node, Command(("stat", "-c", "%U:%G %a", agent.path))).stdout
        assert owner == "root:root 755\n"
    finally:
        remote.run(node, Command(("rm", "-rf", "/opt/k3d-test"), sudo=True))


HOLD = """
import sys, time
from pathlib import Path
from k3ctl.edge.agent import NodeAgent
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.edge.lock import ClusterLock, Owner
from k3ctl.edge.ssh import FabricRemote
from k3ctl.phases.validate import validate
cluster, _ = validate(sys.argv[1], load_cluster)
remote = FabricRemote(cluster, Path(sys.argv[2]))
agent = NodeAgent(cluster, remote)
node = cluster.inventory.head.name
start = lambda payload: agent.converse(node, "lock", payload)
with ClusterLock(Path(sys.argv[3]), start, sys.argv[4], Owner("ann", "laptop", 4242, "k3ctl up x")) as note:
    print("held", note, flush=True)
    time.sleep(120)
"""


def test_the_lock_of_a_killed_controller_is_taken_over_with_a_word(reach: Reach, tmp_path: Path) -> None:
    head = reach.cluster.inventory.head.name
    path = "/var/lib/k3d-test/lock"
    argv = [sys.executable, "-c", HOLD, str(reach.lab.inventory), str(reach.state), str(tmp_path / "ann"), path]
    agent = NodeAgent(reach.cluster, reach.remote())

    def bob(folder: str) -> ClusterLock:
        owner = Owner("bob", "desk", 17, "k3ctl up x")
        return ClusterLock(tmp_path / folder, lambda payload: agent.converse(head, "lock", payload), path, owner)

    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as ann:
            assert ann.stdout
            assert ann.stdout.readline().strip() == "held"
            with pytest.raises(LockHeld) as caught:
                bob("bob").__enter__()
            assert "ann@laptop, pid 4242, `k3ctl up x`, since" in caught.value.problems[0].found
            ann.kill()
        note = ""
        deadline = time.monotonic() + 10
        while not note:
            try:
                with bob("bob") as note:
                    pass
            except LockHeld:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert note.startswith("took over the lock on the head node of a dead holder: ann@laptop, pid 4242")
        with bob("bob") as note:
            assert note == ""
    finally:
        reach.lab.ssh(head, "rm -rf /var/lib/k3d-test")
