"""The verbs start, stop, status and burnin on this machine, with a systemctl of a few lines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3ctl.launch import ask, burnin
from k3ctl.node import ports, processes, start, status, stop
from k3ctl.node.burnin_worker import Worker
from tests.unit.launch_fixtures import eventually, make_plan

# Keeps a unit's state in a file and writes down every call; a verb that no test planned is an error.
SYSTEMCTL = """\
import json, sys
state = json.load(open({path!r}))
assert sys.argv[1:3] == ["--no-ask-password", "--no-pager"]
verb, rest = sys.argv[3], [a for a in sys.argv[4:] if not a.startswith("--")]
if verb == "show":
    for key, value in state["show"].items():
        print("%s=%s" % (key, value))
    sys.exit(0)
state["calls"].append(" ".join([verb, *rest]))
if verb in state["refuse"]:
    sys.exit("Job for unit failed.")
assert verb in ("start", "stop", "enable", "disable", "daemon-reload", "reset-failed"), verb
if verb in ("start", "stop"):
    state["show"]["ActiveState"] = "active" if verb == "start" else "inactive"
json.dump(state, open({path!r}, "w"))
"""


class Unit:
    """The stand-in's unit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set("loaded", "inactive")

    def set(self, load: str, active: str, enabled: str = "disabled", refuse: tuple[str, ...] = ()) -> None:
        show = {"LoadState": load, "ActiveState": active, "SubState": "x", "UnitFileState": enabled, "MainPID": "0",
                "ExecMainStatus": "0", "NRestarts": "0", "Result": "success"}  # fmt: skip
        self.path.write_text(json.dumps({"show": show, "calls": [], "refuse": refuse}))

    @property
    def calls(self) -> list[str]:
        found: list[str] = json.loads(self.path.read_text())["calls"]
        return found


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unit:
    program = tmp_path / "programs/systemctl"
    program.parent.mkdir()
    path = tmp_path / "unit.json"
    program.write_text(f"#!{sys.executable} -I\n{SYSTEMCTL.format(path=str(path))}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return Unit(path)


@pytest.fixture
def payload(tmp_path: Path) -> dict[str, Any]:
    cluster = "t" + uuid.uuid4().hex[:10]
    return {"cluster": cluster, "unit": f"k3ctl-{cluster}.service", "state_dir": str(tmp_path / "state"), "ports": [],
            "timeout_s": 5.0}  # fmt: skip


@pytest.fixture
def leftover(payload: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the cluster's marker and ignores SIGTERM."""
    code = "import signal,sys,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    env = {**os.environ, processes.MARKER: payload["cluster"]}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    processes.WAITED.add(process.pid)
    yield process
    processes.WAITED.remove(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()


def test_start_enables_and_starts_and_forgets_failures(unit: Unit, payload: dict[str, Any]) -> None:
    unit.set("loaded", "failed")
    assert start.run(payload) == {"started": True, "ended": [], "holders": [], "reason": ""}
    name = payload["unit"]
    assert unit.calls == ["daemon-reload", f"reset-failed {name}", f"enable {name}", f"start {name}"]
    assert '"reset"' in (Path(payload["state_dir"]) / "attempts.jsonl").read_text()


def test_start_leaves_a_running_unit_alone(unit: Unit, payload: dict[str, Any]) -> None:
    for state in ("active", "activating"):
        unit.set("loaded", state)
        assert start.run(payload)["reason"] == "it runs already"
        assert unit.calls == [f"enable {payload['unit']}"]


def test_start_without_a_unit_says_so(unit: Unit, payload: dict[str, Any]) -> None:
    unit.set("not-found", "inactive")
    reply = start.run(payload)
    assert (reply["started"], reply["reason"]) == (False, f"unit {payload['unit']} is not-found")


def test_start_ends_own_leftovers(unit: Unit, payload: dict[str, Any], leftover: subprocess.Popen[bytes]) -> None:
    reply = start.run(payload)
    assert reply["started"]
    assert [process["pid"] for process in reply["ended"]] == [leftover.pid]
    assert leftover.wait(5) == -signal.SIGKILL


def test_start_names_a_foreign_holder_and_leaves_it_alone(unit: Unit, payload: dict[str, Any]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as v6,
    ):
        taken = [server.getsockname()[1], v6.getsockname()[1]]
        reply = start.run({**payload, "ports": taken})
    assert not reply["started"]
    assert {holder["port"] for holder in reply["holders"]} == set(taken)
    assert {holder["pid"] for holder in reply["holders"]} == {os.getpid()}
    own = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    assert all(holder["command"].startswith(own) for holder in reply["holders"])
    assert unit.calls == []


def test_a_connection_does_not_hold_a_port(unit: Unit, payload: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
    assert ports.holders([port]) == []
    client.close()
    accepted.close()


def test_stop_is_proven(unit: Unit, payload: dict[str, Any], leftover: subprocess.Popen[bytes]) -> None:
    unit.set("loaded", "active", "enabled")
    reply = stop.run(payload)
    assert reply["stopped"]
    assert (reply["was"], reply["left"], reply["holders"]) == ("active", [], [])
    assert [process["pid"] for process in reply["ended"]] == [leftover.pid]
    assert unit.calls == [f"stop {payload['unit']}", f"disable {payload['unit']}"]


def test_stop_where_nothing_runs(unit: Unit, payload: dict[str, Any]) -> None:
    for load in ("loaded", "not-found"):
        unit.set(load, "inactive")
        assert stop.run(payload)["stopped"]
        assert unit.calls == []


def test_stop_says_what_systemd_refused(unit: Unit, payload: dict[str, Any]) -> None:
    unit.set("loaded", "active", refuse=("stop",))
    reply = stop.run(payload)
    assert not reply["stopped"]
    assert "Job for unit failed." in reply["reason"]


def test_a_port_that_stays_taken_is_not_stopped(
    unit: Unit, payload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "PORT_WAIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reply = stop.run({**payload, "ports": [server.getsockname()[1]]})
    assert not reply["stopped"]
    assert reply["holders"][0]["pid"] == os.getpid()


def test_status_of_a_bare_host(unit: Unit, tmp_path: Path) -> None:
    unit.set("not-found", "inactive")
    plan = make_plan(2)
    paths = {name: str(tmp_path / name) for name in ("config_dir", "state_dir", "log_dir")}
    found = status.run({**ask.status(plan, "k3lab2", texts=True), **paths})
    assert (found["launch_id"], found["rank"], found["gang"], found["life"], found["attempts"]) == (
        None, None, None, None, [],
    )  # fmt: skip
    assert found["files"]["launch"] is None
    assert found["texts"]["launch"] == ""
    assert len(found["boot_id"]) == 36
    assert json.dumps(found)


def test_a_reused_pid_is_not_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    processes.WAITED.add(child.pid)
    try:
        seen = processes.read(child.pid)
        assert seen is not None
        assert processes.end([seen._replace(born=seen.born - 1)], 0.0) == []
        assert child.poll() is None
        assert processes.end([seen], 2.0) == []
        assert child.wait(5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_descendants_and_ancestors() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    try:
        found = eventually(lambda: processes.descendants(shell.pid))
        assert [process.title for process in found] == ["sleep 60"]
        assert {os.getpid(), shell.pid} <= processes.ancestors(found[0].pid, processes.everything())
    finally:
        processes.end(processes.descendants(shell.pid), 0.0)
        shell.kill()
        shell.wait()
    assert processes.read(shell.pid) is None


# burnin

TORCHRUN = """\
import json, os, sys, time
job = json.loads(os.environ["K3CTL_BURNIN"])
mode = open(os.path.join(os.path.dirname(sys.argv[0]), "mode")).read()
assert os.path.exists(sys.argv[-1])
assert os.environ["GLOO_SOCKET_IFNAME"] == "lo" and os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
assert not [k for k in os.environ if k.lower() == "https_proxy"]
def rank(stage, **more):
    report = {"rank": job["node_rank"], "stage": stage, "error": "", "rates": [], **more}
    json.dump(report, open(os.path.join(job["folder"], "rank-0.json"), "w"))
if mode == "pass":
    rank("done")
elif mode == "wrong":
    rank("all-reduce of 8 bytes", error="wrong result in all-reduce of 8 bytes: element 0", wrong=True)
    sys.exit(1)
elif mode == "alone":
    sys.exit("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
elif mode == "broken":
    sys.exit("ImportError: libgomp.so.1")
elif mode == "hang":
    rank("barrier")
    time.sleep(60)
"""


def burn(folder: Path, mode: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """Run the verb as head on loopback; status and result."""
    program = folder / "torchrun"
    program.write_text(f"#!{sys.executable}\n{TORCHRUN}")
    program.chmod(0o755)
    (folder / "mode").write_text(mode)
    plan = make_plan(2)
    job = {**burnin.payload(plan, plan.nodes[0], "r1"), "unit": "", "torchrun": str(program), "address": "127.0.0.1",
           "head": "127.0.0.1", "port": 1, "join_s": 1, "timeout_s": 5.0, **more}  # fmt: skip
    argv = [sys.executable, "-m", "k3ctl.node", "burnin"]
    env = {**os.environ, "https_proxy": "http://proxy:1", "TMPDIR": str(folder)}
    done = subprocess.run(argv, input=json.dumps(job), env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert not list(folder.glob("k3ctl-burnin-*")), "its folder is left behind"
    result: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, result


@pytest.mark.parametrize(
    ("mode", "more", "stage", "reason"),
    [
        ("pass", {}, "done", ""),
        ("wrong", {}, "ranks", "wrong result in all-reduce of 8 bytes: element 0"),
        ("alone", {}, "rendezvous", "not all nodes came within 1 s"),
        ("broken", {}, "ranks", "torchrun ended with status 1 before a rank ran"),
        ("hang", {"timeout_s": 1.0}, "timeout", "not ended after 1 s"),
        ("pass", {"per_node": 2}, "ranks", "torchrun ended with status 0"),
        ("pass", {"address": "192.0.2.7"}, "interface", "no interface holds 192.0.2.7"),
        ("pass", {"interface": "bond7"}, "interface", "127.0.0.1 is on lo, the inventory says bond7"),
        ("pass", {"rank": 1}, "connect", "no connection from 127.0.0.1 to 127.0.0.1:1 in 1 s"),
    ],
)
def test_burnin_on_one_node(tmp_path: Path, mode: str, more: dict[str, Any], stage: str, reason: str) -> None:
    code, result = burn(tmp_path, mode, **more)
    assert code == 0
    assert (result["stage"], result["ok"]) == (stage, stage == "done")
    assert result["reason"].startswith(reason)


def test_burnin_names_who_holds_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, result = burn(tmp_path, "pass", port=server.getsockname()[1])
    assert result["stage"] == "port"
    assert f"held by pid {os.getpid()}" in result["reason"]


def test_burnin_ends_with_its_caller_and_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "torchrun"
    program.write_text(f"#!{sys.executable}\n{TORCHRUN}")
    program.chmod(0o755)
    (tmp_path / "mode").write_text("hang")
    plan = make_plan(1)
    job = {**burnin.payload(plan, plan.nodes[0], "r1"), "unit": "", "torchrun": str(program), "address": "127.0.0.1",
           "port": 1}  # fmt: skip
    argv = [sys.executable, "-m", "k3ctl.node", "burnin"]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
    eventually(lambda: list(tmp_path.glob("k3ctl-burnin-*/rank-0.json")))
    children = processes.descendants(process.pid)
    assert children
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    assert process.stdout is not None
    process.stdout.close()
    assert not [child for child in children if processes.read(child.pid)]
    assert not list(tmp_path.glob("k3ctl-burnin-*"))


def test_the_worker_file_needs_torch_only_when_it_runs() -> None:
    report: dict[str, Any] = {"stage": "", "rates": []}
    assert Worker({"sizes": []}, 0, 1, report, "x").world == 1
