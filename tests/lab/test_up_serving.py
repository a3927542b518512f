"""While it serves: a rank that dies is replaced without k3ctl, and of two operators only one works at a time."""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.lab.up_fixtures import ENGINE_S, Operator, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def serving(operator: Operator) -> Operator:
    """An endpoint that answers; `up` does what is missing."""
    operator.up()
    return operator


def test_status_of_a_cluster_that_serves(serving: Operator) -> None:
    done = serving.run("status", "-o", "json")
    assert done.status == 0, done.err
    assert done.json["verdict"] == "serving"
    assert done.json["answer"]["ok"] is True
    assert [(rank["rank"], rank["node"], rank["state"]) for rank in done.json["ranks"]] == [
        (i, node, "up") for i, node in enumerate(serving.lab.nodes)
    ]
    table = serving.run("status")
    assert table.status == 0
    assert table.out.startswith(f"serving kimi-k3-mini at http://{serving.head}:8000: answered in ")
    assert all(node in table.out for node in serving.lab.nodes)


def logs_of(operator: Operator, node: str) -> list[str]:
    return operator.on(node, f"ls /var/log/k3ctl/{operator.cluster}/rank*/attempt-*.log").split()


def test_a_killed_worker_is_replaced_without_k3ctl(serving: Operator) -> None:
    """The worker of host 2: its engine would end with status 0, and host 1's would answer all but completions."""
    serving.alone()  # no k3ctl runs
    last = serving.lab.nodes[-1]
    before = {node: (serving.rank(node), logs_of(serving, node)) for node in serving.lab.nodes}
    worker = next(w["pid"] for w in before[last][0]["workers"] if w["title"].startswith("VLLM::Worker"))
    serving.on(last, f"kill -9 {worker}")
    began = time.monotonic()
    wait_until("completions fail", lambda: serving.ask(timeout_s=5)[0] != 200, 60, 0.2)
    wait_until("completions come back", lambda: serving.ask(timeout_s=10)[0] == 200, ENGINE_S, 1.0)
    print(f"completions again after {time.monotonic() - began:.1f} s")
    for node, (rank, logs) in before.items():
        assert serving.rank(node)["attempt"] == rank["attempt"] + 1
        assert set(logs) < set(logs_of(serving, node))

    done = serving.run("status", "-o", "json")
    assert done.status == 0, done.err
    failure = done.json["last_failure"]
    assert (failure["rank"], failure["node"]) == (len(serving.lab.nodes) - 1, last)
    assert failure["attempt"] == before[last][0]["attempt"]
    assert f"pid {worker}" in failure["reason"]
    assert f"ago: rank {failure['rank']} on {last} failed first" in serving.run("status").out

    old = serving.run("logs", "--previous", "--tail", "400", "-o", "json")
    assert old.status == 0, old.err
    lines = [line for line in old.out.splitlines() if f"(pid {worker}) is gone" in line]
    assert len(lines) == 1
    assert f'"attempt": {before[last][0]["attempt"]}' in lines[0]
    assert f'"node": "{last}"' in lines[0]
    new = serving.run("logs", "--tail", "400")
    assert f"#{before[last][0]['attempt'] + 1} " in new.out
    assert f"(pid {worker}) is gone" not in new.out


def test_up_after_that_has_nothing_to_change(serving: Operator) -> None:
    engine = serving.engine()
    done = serving.up()
    assert set(done.statuses.values()) == {"unchanged"}
    assert serving.engine() == engine


def test_follow_ends_with_ctrl_c_and_leaves_nothing(serving: Operator) -> None:
    following = serving.start("logs", "-f", "--tail", "3")
    wait_until("lines of both ranks", lambda: all(f"rank{i} " in following.out for i in (0, 1)), 60)
    serving.ask()
    following.signal(signal.SIGINT)
    assert following.done(20).status in (0, 130)
    wait_until("nothing reads logs on the hosts", lambda: serving.left() == [], 15)


def me() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def test_two_at_once_on_one_machine(serving: Operator) -> None:
    first = serving.start("up", "-o", "json")
    first.saw("preflight: asking")
    first.signal(signal.SIGSTOP)  # it holds the lock as long as we like
    try:
        second = serving.run("up")
    finally:
        first.signal(signal.SIGCONT)
    assert (second.status, second.out) == (1, "")
    assert "another k3ctl works on this cluster" in second.err
    assert f"{me()}, pid {first.process.pid}, `up {serving.lab.inventory}`, since 20" in second.err
    assert "(on this machine)" in second.err
    assert serving.run("status").status == 0  # needs no lock
    assert first.done(300).status == 0


@pytest.fixture
def colleague(serving: Operator, tmp_path: Path) -> Operator:
    """The same cluster from another machine: a state folder of its own, and the same key."""
    other = Operator(serving.lab, tmp_path / "state")
    for name in ("known_hosts", "secrets/api_key"):
        (other.folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy2(serving.folder / name, other.folder / name)
    return other


def test_two_at_once_on_two_machines(serving: Operator, colleague: Operator) -> None:
    first = serving.start("up", "-o", "json")
    first.saw("preflight: asking")
    first.signal(signal.SIGSTOP)
    try:
        second = colleague.run("up")
    finally:
        first.signal(signal.SIGCONT)
    assert (second.status, second.out) == (1, "")
    assert f"{me()}, pid {first.process.pid}, `up {serving.lab.inventory}`, since 20" in second.err
    assert "(on the head node)" in second.err
    assert first.done(300).status == 0


def test_the_lock_of_a_dead_holder_is_taken_over_with_a_word(serving: Operator, colleague: Operator) -> None:
    first = serving.start("up")
    first.saw("preflight: asking")
    first.kill()
    word = f"of a dead holder: {me()}, pid {first.process.pid}, `up {serving.lab.inventory}`, since 20"
    elsewhere = colleague.run("up", "--only", "preflight")
    assert elsewhere.status == 0, elsewhere.err
    assert f"took over the lock on the head node {word}" in elsewhere.err
    here = serving.run("up", "--only", "preflight")
    assert here.status == 0, here.err
    assert f"took over the lock on this machine {word}" in here.err
    again = serving.run("up", "--only", "preflight")
    assert "took over" not in again.err
