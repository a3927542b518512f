"""The phase `remove`: what `down` takes away, and what it leaves. Hosts and Ansible are strict stand-ins."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.errors import PhaseFailed
from k3ctl.phases.base import Options, Work
from k3ctl.phases.remove import LOOK, Remove
from k3ctl.protocols import Command, CommandResult, PlayResult
from tests.unit.ansible_fixtures import FakeAnsible
from tests.unit.preflight_fixtures import plan

UNIT = "/etc/systemd/system/k3ctl-pod.service"
OURS = (UNIT, "/etc/k3ctl/pod", "/var/lib/k3ctl/pod", "/var/log/k3ctl/pod")
FETCHING = "k3ctl-pod-stage-0a1b2c3d.service"


@dataclass
class Hosts:
    """What is there by node; keeps what was stopped and removed."""

    there: dict[str, list[str]]
    stubborn: str = ""
    stopped: list[tuple[str, ...]] = field(default_factory=list)
    removed: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self, node: str, command: Command) -> CommandResult:
        assert command.sudo
        word, rest = command.argv[0], command.argv[1:]
        if word == "systemctl":
            self.stopped.append((node, *rest))
            return CommandResult(node, command.argv, int(node == self.stubborn), "", "will not")
        if word == "rm":
            assert rest[:2] == ("-rf", "--")
            assert node not in self.removed
            self.removed[node] = rest[2:]
            return CommandResult(node, command.argv, 0, "", "")
        assert rest[:4] == ("-c", LOOK, "sh", "k3ctl-pod-*")
        return CommandResult(node, command.argv, 0, "\n".join(self.there[node]), "")


def work_on(hosts: Hosts, ansible: FakeAnsible) -> Work:
    unused: Any = None
    names = tuple(hosts.there)
    world: Any = SimpleNamespace(remote=hosts, ansible=ansible)
    report: Any = SimpleNamespace()
    pod = replace(plan(len(names)), config_dir="/etc/k3ctl/pod")
    return Work(unused, pod, names, Options("inv"), world, {}, report, threading.Event())


def test_nothing_there_is_no_change() -> None:
    hosts = Hosts({"node1": [], "node2": []})
    found = Remove().assess(work_on(hosts, FakeAnsible()))
    assert (found.changes, found.said) == ((), "nothing is installed; weights and runtimes stay")


@pytest.mark.parametrize("purge", [False, True])
def test_what_is_there_goes_and_weights_only_when_asked(purge: bool) -> None:
    hosts, ansible = Hosts({"node1": [*OURS], "node2": [UNIT]}), FakeAnsible()
    work, phase = work_on(hosts, ansible), Remove(purge_weights=purge)
    found = phase.assess(work)
    assert [(change.node, change.text) for change in found.changes] == [
        *(("node1", f"remove {path}") for path in OURS),
        ("node2", f"remove {UNIT}"),
    ]
    assert found.said.startswith("5 units, folders and files")
    ansible.plan("down", PlayResult("successful"))
    outcome = phase.apply(work, found)
    assert outcome.said == "removed 5 folders and files on 2 nodes"
    weights = tuple(model.path for model in work.plan.models) if purge else ()
    assert hosts.removed == dict.fromkeys(("node1", "node2"), (*OURS, *weights))
    assert hosts.stopped == []


def test_units_that_still_fetch_end_first_and_those_of_others_do_not() -> None:
    others = ["k3ctl-pod.service", "k3ctl-pod-two.service", "k3ctl-pod-two-stage-0a1b2c3d.service"]
    hosts, ansible = Hosts({"node1": [FETCHING, *others], "node2": ["k3ctl-pod-runtime.service"]}), FakeAnsible()
    work = work_on(hosts, ansible)
    found = Remove().assess(work)
    assert [change.text for change in found.changes] == [f"stop unit {FETCHING}", "stop unit k3ctl-pod-runtime.service"]
    ansible.plan("down", PlayResult("successful"))
    Remove().apply(work, found)
    assert sorted(hosts.stopped) == [("node1", "stop", FETCHING), ("node2", "stop", "k3ctl-pod-runtime.service")]


def test_a_unit_that_does_not_end_keeps_everything_in_place() -> None:
    hosts = Hosts({"node1": [FETCHING, UNIT], "node2": [UNIT]}, stubborn="node1")
    work = work_on(hosts, FakeAnsible())
    with pytest.raises(PhaseFailed) as caught:
        Remove().apply(work, Remove().assess(work))
    assert [(p.node, p.evidence) for p in caught.value.problems] == [("node1", "will not")]
    assert hosts.removed == {}


def test_the_look_in_a_real_shell(tmp_path: Path) -> None:
    """With a systemctl that knows two units."""
    fake = tmp_path / "systemctl"
    fake.write_text(f"#!/bin/sh\n[ \"$*\" = 'list-units --plain --no-legend k3ctl-pod-*' ] || exit 9\n"
                    f"echo '{FETCHING} loaded active running x'\n")  # fmt: skip
    fake.chmod(0o755)
    there = tmp_path / "a b"
    there.mkdir()
    argv = ["sh", "-c", LOOK, "sh", "k3ctl-pod-*", str(there), str(tmp_path / "not")]
    done = subprocess.run(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [FETCHING, str(there)]
