"""The gang on real hosts: the real torchrun, an engine that is up at once. Whatever dies, the ranks come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.up_fixtures import Operator, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

# A worker with vLLM's title; where a file `bad` lies beside it, it fails after a second with a reason.
ENGINE = """#!/bin/sh
cd "$(dirname "$0")"
echo "engine up"
if [ -e bad ]; then sleep 1; echo "ValueError: told to fail" >&2; exit 0; fi
exec bash -c '(exec -a VLLM::Worker_TP sleep 100000) & wait $!'
"""
RESET = '{"event": "reset", "at": 0}'
FORMED_S = 90.0


class Gang:
    """The cluster's units with the stand-in engine."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.nodes = operator.lab.nodes
        self.unit = f"k3ctl-{operator.cluster}.service"
        self.launch_file = f"/etc/k3ctl/{operator.cluster}/launch.json"

    def on(self, node: str, command: str) -> str:
        return self.operator.on(node, command, timeout_s=90).strip()

    def prepare(self) -> None:
        """Swap the engine in launch.json on every node; `up` puts the real one back."""
        for node in self.nodes:
            self.on(
                node, f"mkdir -p /opt/k3gang && cat > /opt/k3gang/engine <<'E'\n{ENGINE}E\nchmod 755 /opt/k3gang/engine"
            )
            launch = json.loads(self.on(node, f"cat {self.launch_file}"))
            launch["engine_argv"] = ["/opt/k3gang/engine"]
            launch["launch_id"] = "0" * 64  # another launch than the real one: `up` must replace it
            self.on(node, f"cat > {self.launch_file} <<'E'\n{json.dumps(launch)}\nE")

    def records(self, node: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.on(node, f"cat {self.state}/attempts.jsonl").splitlines()]

    @property
    def state(self) -> str:
        return f"/var/lib/k3ctl/{self.operator.cluster}"

    def formed(self) -> tuple[str, ...]:
        """The round that all ranks are in with their workers; empty while they are not."""
        rounds = set()
        for node in self.nodes:
            rank = json.loads(self.on(node, f"cat {self.state}/rank.json 2>/dev/null || echo '{{}}'"))
            alive = [w for w in rank.get("workers", []) if self.on(node, f"test -e /proc/{w['pid']} && echo y || true")]
            if rank.get("state") != "running" or not alive:
                return ()
            starts = [record for record in self.records(node) if record["event"] == "start"]
            rounds.add(starts[-1]["round"])
        return (rounds.pop(),) if len(rounds) == 1 else ()

    def start(self) -> tuple[str, ...]:
        for node in self.nodes:
            self.on(
                node, f'echo \'{{"event": "reset", "at": 0}}\' >> {self.state}/attempts.jsonl; rm -f /opt/k3gang/bad'
            )
            self.on(node, f"systemctl reset-failed {self.unit} 2>/dev/null; systemctl start --no-block {self.unit}")
        return self.wait(())

    def wait(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The next round after `before`, formed by all ranks."""
        found: tuple[str, ...] = wait_until(
            "all ranks in a new round", lambda: (now := self.formed()) != before and now, FORMED_S
        )
        return found

    def last_end(self, node: str) -> dict[str, Any]:
        return [record for record in self.records(node) if record["event"] == "end"][-1]


@pytest.fixture(scope="module")
def gang(operator: Operator) -> Iterator[Gang]:
    """Stopped units with the stand-in engine; the real launch files are back afterwards."""
    operator.up()
    stopped = operator.run("stop", timeout_s=240)
    assert stopped.status == 0, stopped.err
    gang = Gang(operator)
    gang.prepare()
    yield gang
    operator.run("stop", timeout_s=240)
    for node in gang.nodes:
        gang.on(node, "rm -rf /opt/k3gang")


@pytest.fixture
def formed(gang: Gang) -> tuple[str, ...]:
    return gang.start()


def test_a_killed_torchrun_comes_back_on_either_side(gang: Gang, formed: tuple[str, ...]) -> None:
    for node in (gang.nodes[-1], gang.nodes[0]):
        gang.on(node, "kill -9 $(pgrep -f bin/torchrun | head -1)")
        formed = gang.wait(formed)
        assert gang.last_end(node)["cause"] == "agent"


def test_a_killed_unit_comes_back_on_either_side(gang: Gang, formed: tuple[str, ...]) -> None:
    for node in (gang.nodes[-1], gang.nodes[0]):
        gang.on(node, f"systemctl kill --kill-whom=all --signal=KILL {gang.unit}")
        formed = gang.wait(formed)
        assert gang.last_end(node)["cause"] == "lost"


def test_a_killed_worker_restarts_all_ranks(gang: Gang, formed: tuple[str, ...]) -> None:
    last, head = gang.nodes[-1], gang.nodes[0]
    gang.on(last, "kill -9 $(pgrep -f '^VLLM::Worker')")
    gang.wait(formed)
    assert gang.last_end(last)["cause"] == "worker"
    if last != head:
        assert gang.last_end(head)["cause"] == "gang"


def test_a_crash_loop_ends_on_all_nodes_and_start_tries_again(gang: Gang, formed: tuple[str, ...]) -> None:
    last = gang.nodes[-1]
    gang.on(last, "touch /opt/k3gang/bad; kill -9 $(pgrep -f '^VLLM::Worker')")

    def down() -> bool:
        return all(gang.on(node, f"systemctl is-failed {gang.unit} || true") == "failed" for node in gang.nodes)

    wait_until("all units failed", down, 120)
    for node in gang.nodes:
        assert gang.on(node, f"systemctl show -p ExecMainStatus --value {gang.unit}") == "78"
        assert gang.on(node, f"cat /sys/fs/cgroup/system.slice/{gang.unit}/cgroup.procs 2>/dev/null || true") == ""
    status = gang.operator.run("status", "-o", "json")
    assert status.status == 1
    assert status.json["verdict"] == "crash-loop"
    assert status.json["headline"].startswith("crash loop: 4 failures in ")
    assert f"first rank {len(gang.nodes) - 1} on {last}: " in status.json["headline"]
    assert "ValueError: told to fail" in status.json["headline"]
    assert gang.start()
