"""The node agent: the same file everywhere, called over a real sshd, on bare hosts and where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from k3ctl.edge.agent import NodeAgent
from k3ctl.edge.ssh import FabricRemote
from k3ctl.edge.zipapp import NodeApp, members, node_app, pack
from k3ctl.errors import AgentFailed, Unreachable
from k3ctl.protocols import Command, CommandResult
from tests.local.sshd_fixtures import ME, Farm, cluster_of, farm

__all__ = ["farm"]

MAIN = """\
import json, os, sys, time
verb = sys.argv[1]
if verb == "crash":
    sys.stderr.write("first\\nthe disk is full\\n"); sys.exit(1)
if verb == "chatter":
    print("hello"); sys.exit(0)
if verb == "list":
    print("[1]"); sys.exit(0)
payload = json.load(sys.stdin)
if verb == "sleep":
    time.sleep(payload["s"])
if verb == "deaf":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(payload["s"])
if verb == "follow":
    print(json.dumps(payload), flush=True)
    print("up " + os.path.dirname(sys.argv[0]), flush=True)
    time.sleep(60)
print(json.dumps({"got": payload, "file": sys.argv[0], "uid": os.getuid()}))
"""


def app(text: str = MAIN) -> NodeApp:
    return pack({"__main__.py": text.encode()})


class Counted:
    """A Remote that counts round trips and the bytes sent."""

    def __init__(self, remote: FabricRemote) -> None:
        self.remote = remote
        self.sent: list[int] = []
        self.lines = remote.lines
        self.converse = remote.converse

    def run(self, node: str, command: Command) -> CommandResult:
        assert isinstance(command.stdin, bytes)
        self.sent.append(len(command.stdin))
        return self.remote.run(node, command)


class Bench:
    def __init__(self, farm: Farm, python: str = sys.executable, text: str = MAIN) -> None:
        folder = farm.folder / "rootbin"
        folder.mkdir()
        if ME != "root":  # there sudo and chown do nothing
            for name, body in (("sudo", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'), ("chown", ":")):
                (folder / name).write_text(f"#!/bin/sh\n{body}\n")
                (folder / name).chmod(0o755)
        self.tmp = farm.folder / "hosttmp"
        self.tmp.mkdir()
        server = farm.sshd(environment={"PATH": f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR": str(self.tmp)})
        target = server.target(python=python)
        self.real = farm.remote(target)
        self.remote = Counted(self.real)
        self.folder = farm.folder / "opt"
        self.app = app(text)
        self.cluster = cluster_of(target)
        self.agent = NodeAgent(self.cluster, self.remote, app=self.app, folder=str(self.folder))

    @property
    def leftovers(self) -> list[str]:
        return os.listdir(self.tmp)


@pytest.fixture
def bench(farm: Farm) -> Bench:
    return Bench(farm)


def test_the_same_files_give_the_same_bytes_and_name() -> None:
    one, two = pack({"a.py": b"1", "b.py": b"2"}), pack({"b.py": b"2", "a.py": b"1"})
    assert one == two
    assert one.name == f"k3node-{one.digest[:12]}.pyz"
    assert pack({"a.py": b"1", "b.py": b"3"}).digest != one.digest
    assert pack({"a.pyb": b"", ".py": b""}).digest != pack({"a.py": b"", "b.py": b""}).digest
    assert node_app() == node_app()


def test_the_real_agent_has_its_verbs_and_pynvml_and_no_core_imports() -> None:
    files = members()
    assert files["k3ctl/__init__.py"] == b""
    assert b"nvmlInit" in files["pynvml.py"]
    assert "k3ctl/node/lock.py" in files
    assert all(path.startswith(("k3ctl/node/", "__main__", "k3ctl/__init__", "pynvml")) for path in files)


def test_the_real_agent_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / node_app().name
    file.write_bytes(node_app().data)
    argv = [sys.executable, "-I", "-S", str(file), "no-such-verb"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "usage: k3node VERB" in done.stderr


def test_a_call_on_a_bare_host_is_one_round_trip_and_leaves_nothing(bench: Bench) -> None:
    reply = bench.agent.call("n1", "echo", {"a": "ü", "b": [1]})
    assert reply["got"] == {"a": "ü", "b": [1]}
    assert len(bench.remote.sent) == 1
    assert not Path(reply["file"]).exists()
    assert bench.leftovers == []
    assert not bench.folder.exists()


def test_an_installed_agent_gets_the_payload_alone(bench: Bench) -> None:
    path = bench.agent.install("n1")
    assert Path(path).read_bytes() == bench.app.data
    assert Path(path).stat().st_mode & 0o777 == 0o755
    reply = bench.agent.call("n1", "echo", {})
    assert reply["file"] == path
    assert bench.remote.sent[-1] == len(b"{}")


def test_another_run_finds_the_installed_agent_by_itself(bench: Bench) -> None:
    path = bench.agent.install("n1")
    other = NodeAgent(bench.cluster, bench.remote, app=bench.app, folder=str(bench.folder))
    assert other.call("n1", "echo", {})["file"] == path
    assert bench.remote.sent[-1] > len(bench.app.data), "it did not know yet"
    assert other.call("n1", "echo", {})["file"] == path
    assert bench.remote.sent[-1] == len(b"{}")


def test_an_agent_that_went_away_travels_again(bench: Bench) -> None:
    Path(bench.agent.install("n1")).unlink()
    assert bench.agent.call("n1", "echo", {"x": 1})["got"] == {"x": 1}
    assert bench.leftovers == []


def test_install_twice_changes_nothing_and_old_ones_go(bench: Bench) -> None:
    bench.folder.mkdir()
    for age in range(5):
        old = bench.folder / f"k3node-{age:012d}.pyz"
        old.write_text("old")
        os.utime(old, (1000 + age, 1000 + age))
    path = Path(bench.agent.install("n1"))
    inode = path.stat().st_ino
    assert bench.agent.install("n1") == str(path)
    assert path.stat().st_ino == inode
    assert sorted(os.listdir(bench.folder)) == ["k3node-000000000003.pyz", "k3node-000000000004.pyz", path.name]


def test_an_agent_that_arrives_incomplete_is_not_installed(bench: Bench) -> None:
    class Cutting(Counted):
        def run(self, node: str, command: Command) -> CommandResult:
            assert isinstance(command.stdin, bytes)
            cut = Command(command.argv, command.stdin[:-20], command.sudo, command.timeout_s)
            return self.remote.run(node, cut)

    agent = NodeAgent(bench.cluster, Cutting(bench.real), app=bench.app, folder=str(bench.folder))
    with pytest.raises(AgentFailed) as caught:
        agent.install("n1")
    assert caught.value.problems[0].found == "the agent arrived incomplete"
    assert os.listdir(bench.folder) == []


@pytest.mark.parametrize(
    ("verb", "found"),
    [
        ("crash", "status 1: the disk is full"),
        ("chatter", "no JSON: hello"),
        ("list", "no JSON: [1]"),
    ],
)
def test_a_bad_end_is_said_with_the_last_word(bench: Bench, verb: str, found: str) -> None:
    with pytest.raises(AgentFailed) as caught:
        bench.agent.call("n1", verb, {})
    problem = caught.value.problems[0]
    assert (problem.node, problem.found) == ("n1", found)
    assert problem.what == f"the node agent could not do `{verb}`"
    if verb == "crash":
        assert problem.evidence == "first\nthe disk is full"
    assert bench.leftovers == []


@pytest.mark.parametrize("verb", ["sleep", "deaf"])
def test_a_call_that_takes_too_long_leaves_nothing(bench: Bench, verb: str) -> None:
    began = time.monotonic()
    with pytest.raises(AgentFailed) as caught:
        bench.agent.call("n1", verb, {"s": 40}, timeout_s=1)
    assert caught.value.problems[0].found == "no end within 1 s"
    assert time.monotonic() - began < 10
    deadline = time.monotonic() + 2
    while bench.leftovers and time.monotonic() < deadline:
        time.sleep(0.1)
    assert bench.leftovers == []


def test_python_is_missing_on_the_host(farm: Farm) -> None:
    bench = Bench(farm, python="/opt/no/python3")
    with pytest.raises(Unreachable) as caught:
        bench.agent.call("n1", "echo", {})
    problem = caught.value.problems[0]
    assert problem.found == "no /opt/no/python3"
    assert "apt-get install -y python3" in problem.fix


def test_lines_are_handed_over_and_end_with_stop(bench: Bench) -> None:
    stop, seen = threading.Event(), []

    def on_line(line: str) -> None:
        seen.append(line)
        if line.startswith("up"):
            stop.set()

    bench.agent.lines("n1", "follow", {"x": 1}, on_line, stop)
    assert json.loads(seen[0]) == {"x": 1}
    assert len(seen) == 2
    assert not Path(seen[1].split()[1]).exists()
    assert bench.leftovers == []


def test_lines_that_end_badly(bench: Bench) -> None:
    with pytest.raises(AgentFailed) as caught:
        bench.agent.lines("n1", "crash", {}, lambda _: None, threading.Event())
    assert "the disk is full" in caught.value.problems[0].found
