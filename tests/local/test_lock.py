"""The cluster's lock: two operators, dead holders, a silent controller, and a channel that breaks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from k3ctl.edge.agent import NodeAgent
from k3ctl.edge.lock import ClusterLock, Owner, describe
from k3ctl.errors import AgentFailed, ExitCode, LockHeld
from tests.local.sshd_fixtures import Farm, cluster_of, farm, need

__all__ = ["farm"]

ANN = Owner("ann", "laptop", 4242, "k3ctl up inventories/x")
BOB = Owner("bob", "desk", 17, "k3ctl down inventories/x")
RUN = "import sys; from k3ctl.node.lock import main; sys.exit(main([]))"


class LocalTalk:
    """The real lock verb as a child of this process: a head node without SSH."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.send(json.dumps(payload).encode() + b"\n")

    def send(self, data: bytes) -> bool:
        assert self.process.stdin
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return self.process.poll() is None

    def line(self, timeout_s: float) -> str | None:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        text = self.process.stdout.readline().decode() if ready else ""
        return text.rstrip("\n") or None

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


class Head:
    """Starts lock verbs and remembers them."""

    def __init__(self, silence_s: float = 60.0) -> None:
        self.talks: list[LocalTalk] = []
        self.silence_s = silence_s

    def __call__(self, payload: Mapping[str, Any]) -> LocalTalk:
        talk = LocalTalk({**payload, "silence_s": self.silence_s})
        self.talks.append(talk)
        return talk


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head = Head()
        self.path = str(folder / "head" / "x" / "lock")

    def lock(self, owner: Owner, laptop: str = "a", **more: Any) -> ClusterLock:
        return ClusterLock(self.folder / laptop, self.head, self.path, owner, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_taken_and_given_back_without_a_word(place: Place) -> None:
    for _ in range(2):
        with place.lock(ANN) as note:
            assert note == ""
            assert json.loads(Path(place.path).read_text())["user"] == "ann"
            assert json.loads((place.folder / "a" / "lock").read_text())["pid"] == 4242
            assert (place.folder / "a" / "lock").stat().st_mode & 0o777 == 0o600
        assert Path(place.path).read_text() == ""
        assert (place.folder / "a" / "lock").read_text() == ""


@pytest.mark.parametrize(("laptop", "where"), [("a", "on this machine"), ("b", "on the head node")])
def test_a_second_operator_is_told_who_and_since_when(place: Place, laptop: str, where: str) -> None:
    with place.lock(ANN):
        with pytest.raises(LockHeld) as caught, place.lock(BOB, laptop):
            pytest.fail("two hold the lock")
        problem = caught.value.problems[0]
        assert caught.value.code == ExitCode.FAILED
        assert "ann@laptop, pid 4242, `k3ctl up inventories/x`, since 20" in problem.found
        assert problem.found.endswith(f" ago) ({where})")
        assert problem.fix
    with place.lock(BOB, laptop) as note:
        assert note == "", "a refused attempt leaves nothing behind"


def test_a_dead_holder_is_taken_over_with_a_word(place: Place) -> None:
    first = place.lock(ANN)
    with first:
        pass
    ghost = {**vars(ANN), "since": time.time() - 725}
    for file in (Path(place.path), place.folder / "b" / "lock"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(ghost))
    with place.lock(BOB, "b") as note:
        local, head = note.split("; ")
        assert local.startswith("took over the lock on this machine of a dead holder: ann@laptop, pid 4242")
        assert head.startswith("took over the lock on the head node of a dead holder: ann@laptop, pid 4242")
        assert "(12m05s ago)" in head
    with place.lock(BOB, "b") as note:
        assert note == ""


def test_a_killed_controller_frees_the_head_at_once(place: Place) -> None:
    place.lock(ANN).take_head()
    place.head.talks[0].close()  # what sshd does when the connection ends
    with place.lock(BOB, "b") as note:
        assert "dead holder: ann@laptop" in note


def test_a_killed_lock_process_frees_the_head(place: Place) -> None:
    place.lock(ANN).take_head()
    place.head.talks[0].process.send_signal(signal.SIGKILL)
    place.head.talks[0].process.wait(5)
    with place.lock(BOB, "b") as note:
        assert "dead holder: ann@laptop" in note


def test_a_silent_controller_loses_the_lock(place: Place) -> None:
    place.head.silence_s = 0.5
    place.lock(ANN).take_head()
    assert place.head.talks[0].process.wait(5) == 0
    with place.lock(BOB, "b") as note:
        assert "dead holder: ann@laptop" in note


def test_heartbeats_keep_it(place: Place) -> None:
    place.head.silence_s = 2.0
    with place.lock(ANN, heartbeat_s=0.2):
        time.sleep(3.0)
        assert place.head.talks[0].process.poll() is None


def test_a_broken_channel_is_taken_again(place: Place) -> None:
    ann = place.lock(ANN, heartbeat_s=0.1)
    with ann:
        place.head.talks[0].process.kill()
        deadline = time.monotonic() + 20
        while (len(place.head.talks) < 2 or not ann.on_head) and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(LockHeld):
            place.lock(BOB, "b").__enter__()
    with place.lock(BOB, "b") as note:
        assert note == ""


def test_a_lock_that_another_took_meanwhile_is_said(place: Place) -> None:
    said: list[str] = []
    lost = threading.Event()

    def on_lost(text: str) -> None:
        said.append(text)
        lost.set()

    with place.lock(ANN, on_lost=on_lost, heartbeat_s=2.0):
        place.head.talks[0].process.kill()
        place.head.talks[0].process.wait(5)
        with place.lock(BOB, "b") as note:
            assert "ann@laptop" in note
            assert lost.wait(20)
    assert said[0].startswith("the lock on the cluster was lost: bob@desk, pid 17")
    assert len(said) == 1


def test_an_answer_that_is_none(place: Place) -> None:
    class Dumb:
        closed = False

        def send(self, data: bytes) -> bool:
            return True

        def line(self, timeout_s: float) -> str | None:
            return "Traceback"

        def close(self) -> None:
            self.closed = True

    dumb = Dumb()
    lock = ClusterLock(place.folder / "a", lambda _: dumb, place.path, ANN)
    with pytest.raises(AgentFailed) as caught:
        lock.__enter__()
    assert "Traceback" in caught.value.problems[0].found
    assert dumb.closed
    with place.lock(BOB) as note:
        assert note == ""


def test_a_damaged_owner_is_still_an_owner(place: Place) -> None:
    file = place.folder / "a" / "lock"
    file.parent.mkdir()
    file.write_text("half a li")
    with place.lock(ANN) as note:
        assert "unknown@unknown" in note


def test_describe_without_a_time() -> None:
    assert describe(None, 0.0) == "unknown@unknown, pid ?, `?`"


def test_over_ssh_the_end_of_the_controller_frees_it(farm: Farm) -> None:
    need(os.geteuid() == 0, "needs root: the agent runs as root on the node")
    server = farm.sshd()
    cluster = cluster_of(server.target(python=sys.executable))
    path = str(farm.folder / "head" / "lock")

    def lock(owner: Owner, laptop: str) -> ClusterLock:
        remote = farm.remote(server.target(python=sys.executable))
        agent = NodeAgent(cluster, remote)
        return ClusterLock(farm.folder / laptop, lambda p: agent.converse("n1", "lock", p), path, owner)

    ann = lock(ANN, "a")
    with ann as note:
        assert note == ""
        with pytest.raises(LockHeld) as caught, lock(BOB, "b"):
            pytest.fail("two hold the lock")
        assert "ann@laptop" in caught.value.problems[0].found
    with lock(BOB, "b") as note:
        assert note == ""
        farm.remotes[2].close()  # no release: the connection just ends
        deadline = time.monotonic() + 5
        while True:
            try:
                with lock(ANN, "c") as word:
                    assert "dead holder: bob@desk" in word
                break
            except LockHeld:
                assert time.monotonic() < deadline
                time.sleep(0.2)
