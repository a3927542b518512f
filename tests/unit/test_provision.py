"""The phase `provision`: when Ansible runs, what is said, how failures read. Ansible and hosts are strict stand-ins."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl import __version__
from k3ctl.errors import ConfigError, Interrupted, PhaseFailed, Problem, Unreachable
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.phases.base import Assessment, Options, Work
from k3ctl.phases.provision import Provision, Provisioned
from k3ctl.protocols import Command, CommandResult, PlayEvent, PlayResult, Stop
from k3ctl.provision.hints import hint
from k3ctl.provision.stamp import Stamp, judge, read_command
from k3ctl.provision.variables import users_variables, work_digest
from tests.unit.ansible_fixtures import FakeAnsible

DONE = PlayResult("successful")


@dataclass
class FakeRemote:
    """Answers the one command that reads a node's note."""

    stamps: dict[str, str | None]
    reboot: dict[str, str] = field(default_factory=dict)
    broken: dict[str, CommandResult | Exception] = field(default_factory=dict)
    calls: int = 0

    def run(self, node: str, command: Command) -> CommandResult:
        assert command.argv[0] == "/usr/bin/python3"
        assert command.argv[-1] == "/var/lib/k3ctl/c/provision.json"
        self.calls += 1
        if node in self.broken:
            answer = self.broken[node]
            if isinstance(answer, Exception):
                raise answer
            return answer
        reply = {
            "stamp": self.stamps[node],
            "reboot": "*** System restart required ***" if node in self.reboot else None,
            "packages": self.reboot.get(node),
        }
        return CommandResult(node, command.argv, 0, json.dumps(reply), "")

    def lines(self, node: str, command: Command, on_line: Callable[[str], None], stop: Stop) -> CommandResult:
        raise AssertionError("provision follows nothing")


@dataclass
class Talk:
    """events.Reporter that remembers."""

    said: list[tuple[str, str, str]] = field(default_factory=list)
    steps: list[tuple[str, float, float, str]] = field(default_factory=list)

    def say(self, text: str, *, node: str = "", level: str = "info") -> None:
        self.said.append((node, text, level))

    def progress(self, node: str, done: float, total: float, unit: str, text: str = "") -> None:
        assert unit == "tasks"
        self.steps.append((node, done, total, text))


class Bench:
    """A Work of two nodes with stand-ins for everything outside."""

    def __init__(self, *names: str, variables: Mapping[str, Any] | None = None, **options: Any) -> None:
        nodes = tuple(
            Node(name, rank, SshTarget(name), f"10.1.0.{rank + 1}", variables=variables or {})
            for rank, name in enumerate(names or ("a", "b"))
        )
        paths = SimpleNamespace(weights="/w", runtimes="/r", state="/var/lib/k3ctl", logs="/l")
        cluster: Any = SimpleNamespace(
            name="c", inventory=Inventory("c", "/c", nodes), spec=SimpleNamespace(paths=paths)
        )
        plan: Any = SimpleNamespace(
            nodes=[SimpleNamespace(name=n.name, address=n.fabric_address) for n in nodes],
            expected=SimpleNamespace(memlock=False),
            ports=[SimpleNamespace(port=8000)],
        )
        self.ansible = FakeAnsible()
        self.remote = FakeRemote({node.name: None for node in nodes})
        self.talk = Talk()
        self.written: dict[str, str] = {}
        store = SimpleNamespace(write=self.written.__setitem__)
        clock = SimpleNamespace(now=lambda: 1796000000.0)
        world: Any = SimpleNamespace(ansible=self.ansible, remote=self.remote, store=store, clock=clock)
        names_ = tuple(node.name for node in nodes)
        reporter: Any = self.talk
        self.work = Work(cluster, plan, names_, Options("inv", **options), world, {}, reporter, threading.Event())

    def options(self, **options: Any) -> Bench:
        self.work = replace(self.work, options=Options("inv", **options))
        return self

    def assess(self) -> Assessment:
        return Provision().assess(self.work)

    def provision(self, result: PlayResult = DONE, *events: PlayEvent) -> Any:
        assessment = self.assess()
        self.ansible.plan("provision", result, *events)
        return Provision().apply(self.work, assessment)

    def remember(self) -> None:
        """Leave the notes that the last run would have written."""
        _, nodes, variables, _ = self.ansible.runs[-1]
        for node in nodes:
            self.remote.stamps[node] = variables[node]["provision_stamp_text"]


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c", "d")])
def test_bare_nodes_are_provisioned_and_the_second_run_says_no_change(names: tuple[str, ...]) -> None:
    bench = Bench(*names)
    assert [change.node for change in bench.assess().changes] == list(names)
    changed = PlayResult("successful", dict.fromkeys(names, 1), changed_tasks=tuple((n, "Install") for n in names))
    outcome = bench.provision(changed)
    assert outcome.status == "changed"
    bench.remember()
    again = bench.assess()
    assert again.changes == ()
    assert again.said.startswith("same roles and variables as applied at 2026-")
    assert "--only provision" in again.said


def test_looking_is_one_command_per_node() -> None:
    bench = Bench()
    bench.assess()
    assert bench.remote.calls == 2
    assert bench.ansible.runs == []


def test_note_says_version_time_and_digest() -> None:
    bench = Bench()
    bench.provision()
    _, nodes, variables, check = bench.ansible.runs[0]
    note = json.loads(variables["a"]["provision_stamp_text"])
    assert (nodes, check) == (("a", "b"), False)
    assert note["k3ctl"] == __version__
    assert note["applied"].endswith("+00:00")
    assert len(note["digest"]) == 64


def test_only_nodes_that_differ_are_worked_on() -> None:
    bench = Bench()
    bench.provision()
    bench.remember()
    bench.remote.stamps["b"] = Stamp("0" * 64, "0.0.9", "2026-01-01T00:00:00+00:00").text
    assessment = bench.assess()
    assert [change.node for change in assessment.changes] == ["b"]
    assert "k3ctl 0.0.9 applied at 2026-01-01" in assessment.changes[0].text


def test_changed_roles_are_applied_again() -> None:
    bench = Bench()
    bench.provision()
    bench.remember()
    bench.ansible.contents = {"provision": "d" * 64}
    assert len(bench.assess().changes) == 2


def test_the_users_role_variables_are_part_of_the_work_and_others_are_not() -> None:
    assert users_variables({"base_time_servers": ["t"], "basement": 1, "ansible_user": "k", "engine_x": 1}) == {
        "base_time_servers": ["t"]
    }
    digest = work_digest("c", "1", {"base_a": 1}, {})
    assert digest != work_digest("c", "1", {"base_a": 1}, {"base_time_servers": ["t"]})
    assert digest != work_digest("c", "2", {"base_a": 1}, {})
    assert digest == work_digest("c", "1", {"base_a": 1}, {"base_a": 2}), "what k3ctl emits wins over the inventory"


def test_only_provision_applies_again_and_keeps_the_note() -> None:
    bench = Bench()
    bench.provision()
    bench.remember()
    kept = dict(bench.remote.stamps)
    outcome = bench.options(only=("provision",)).provision()
    assert outcome.status == "unchanged"
    bench.remember()
    assert bench.remote.stamps == kept


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"digest": 1}', "null"])
def test_damaged_note_means_that_the_roles_are_applied(stamp: str) -> None:
    bench = Bench()
    bench.remote.stamps["a"] = stamp
    assert [change.node for change in bench.assess().changes] == ["a", "b"]


def test_note_that_cannot_be_read_is_an_error_and_not_a_bare_host() -> None:
    bench = Bench()
    bench.remote.broken["b"] = CommandResult("b", (), 1, "", "PermissionError: [Errno 13]")
    with pytest.raises(PhaseFailed) as caught:
        bench.assess()
    assert [(p.node, "Errno 13" in p.evidence) for p in caught.value.problems] == [("b", True)]


def test_every_unreachable_node_is_named() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.remote.broken[name] = Unreachable(Problem(what="no route"))
    with pytest.raises(Unreachable) as caught:
        bench.assess()
    assert [problem.node for problem in caught.value.problems] == ["a", "b"]


def test_dry_run_asks_ansible_and_shows_diffs() -> None:
    bench = Bench(dry_run=True)
    events = (
        PlayEvent("ok", "Facts", "a", total=3),
        PlayEvent("changed", "Set limits", "a", diff="+nofile", total=3),
    )
    bench.ansible.plan("provision", DONE, *events, check=True)
    assessment = bench.assess()
    assert [(c.node, c.text, c.diff) for c in assessment.changes] == [("a", "Set limits", "+nofile")]
    assert bench.ansible.runs[0][3] is True
    assert "+nofile" in bench.written["provision-check.log"]


def test_dry_run_that_finds_nothing_says_so() -> None:
    bench = Bench(dry_run=True)
    bench.ansible.plan("provision", DONE, check=True)
    assessment = bench.assess()
    assert assessment.changes == ()
    assert "finds nothing to change" in assessment.said


def test_events_become_progress_and_talk() -> None:
    bench = Bench()
    events = (
        PlayEvent("task", "Facts", "a", total=2),
        PlayEvent("ok", "Facts", "a", total=2),
        PlayEvent("retry", "Packages", "a", "attempt 1 of 9: waiting for apt (pid 7)"),
        PlayEvent("changed", "Packages", "a", total=2),
        PlayEvent("ok", "Time", "a", "ntpsec keeps the time here", total=2),
        PlayEvent("ended", message="successful"),
    )
    bench.provision(PlayResult("successful", {"a": 1}, changed_tasks=(("a", "Packages"),)), *events)
    assert bench.talk.said == [
        ("a", "Packages: attempt 1 of 9: waiting for apt (pid 7)", "info"),
        ("a", "changed: Packages", "info"),
        ("a", "ntpsec keeps the time here", "info"),
    ]
    assert bench.talk.steps[0] == ("a", 0, 2, "Facts")
    assert bench.talk.steps[-1] == ("a", 3, 3, "Time"), "a total that handlers outgrow grows with them"
    assert "retry a Packages attempt 1 of 9" in bench.written["provision.log"]


def test_failures_name_host_task_message_and_what_to_do() -> None:
    bench = Bench()
    failures = {"b": "Install packages: E: Could not get lock /var/lib/dpkg/lock-frontend\nheld by process 7"}
    with pytest.raises(PhaseFailed) as caught:
        bench.provision(PlayResult("failed", {"a": 3}, failures))
    (problem,) = caught.value.problems
    assert (problem.node, problem.evidence) == ("b", "held by process 7")
    assert problem.found.startswith("Install packages: E: Could not get lock")
    assert "another apt or dpkg" in problem.fix


def test_one_failed_and_one_lost_node_are_both_told() -> None:
    bench = Bench()
    with pytest.raises(PhaseFailed) as caught:
        bench.provision(PlayResult("failed", {}, {"a": "T: no space left on device"}, {"b": "Connection timed out"}))
    assert [problem.node for problem in caught.value.problems] == ["a", "b"]
    assert "free some space" in caught.value.problems[0].fix
    assert "answers ssh" in caught.value.problems[1].fix


def test_lost_nodes_alone_are_unreachable() -> None:
    bench = Bench()
    with pytest.raises(Unreachable):
        bench.provision(PlayResult("failed", {}, {}, {"b": "Connection timed out"}))


def test_failure_that_names_no_host_is_still_a_failure() -> None:
    bench = Bench()
    with pytest.raises(PhaseFailed):
        bench.provision(PlayResult("failed"))


def test_stopped_run_says_what_may_still_run() -> None:
    bench = Bench()
    with pytest.raises(Interrupted) as caught:
        bench.provision(PlayResult("canceled", running={"a": "Install packages"}))
    assert (caught.value.problems[0].node, "Install packages" in caught.value.problems[0].found) == ("a", True)


def test_stopped_before_any_task() -> None:
    bench = Bench()
    with pytest.raises(Interrupted) as caught:
        bench.provision(PlayResult("canceled"))
    assert len(caught.value.problems) == 1


def test_run_that_takes_too_long() -> None:
    bench = Bench()
    with pytest.raises(PhaseFailed, match="too long"):
        bench.provision(PlayResult("timeout", running={"b": "Install packages"}))


def test_log_is_kept_when_the_run_fails() -> None:
    bench = Bench()
    with pytest.raises(PhaseFailed):
        bench.provision(PlayResult("failed", failures={"a": "x"}), PlayEvent("failed", "T", "a", "x"))
    assert "failed a T x" in bench.written["provision.log"]


def test_reboot_is_reported_and_left_to_the_operator() -> None:
    bench = Bench()
    bench.remote.reboot = {"b": "linux-image-6.8\nlinux-image-6.8\nlibc6\n"}
    outcome = bench.provision()
    assert outcome.value == Provisioned({"b": ("linux-image-6.8", "libc6")})
    node, text, level = bench.talk.said[-1]
    assert (node, level) == ("b", "warn")
    assert "linux-image-6.8, libc6" in text


def test_configuration_error_of_a_role_passes_through() -> None:
    bench = Bench()

    def refuse(*_args: Any, **_kw: Any) -> PlayResult:
        raise ConfigError(Problem(what="role base refuses its variables"))

    assessment = bench.assess()
    bench.ansible.run = refuse  # type: ignore[method-assign]
    with pytest.raises(ConfigError):
        Provision().apply(bench.work, assessment)


def test_reading_a_note_on_this_machine(tmp_path: Any) -> None:
    import subprocess
    import sys

    path = tmp_path / "provision.json"
    stamp = Stamp("d" * 64, "1.2.3", "2026-11-30T00:00:00+00:00")
    command = read_command(sys.executable, str(path))

    def run() -> CommandResult:
        done = subprocess.run(command.argv, capture_output=True, text=True, check=False, timeout=20)
        return CommandResult("a", command.argv, done.returncode, done.stdout, done.stderr)

    assert judge(run()).stamp is None
    path.write_text(stamp.text)
    assert judge(run()).stamp == stamp


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("Failed to lock apt for exclusive operation", "another apt"),
        ("waiting for another package manager: apt (pid 7) holds /var/lib/dpkg/lock", "another apt"),
        ("dpkg was interrupted, you must manually run", "dpkg --configure -a"),
        ("Temporary failure resolving 'deb.example'", "DNS"),
        ("Timeout (32s) waiting for privilege escalation prompt", "sudo"),
        ("Host key verification failed.", "k3ctl trust"),
        ("k3lab1 leads to 127.0.1.1 on itself", "nsswitch.conf"),
        ("something nobody has seen", "run the same command again"),
    ],
)
def test_hints(message: str, word: str) -> None:
    assert word in hint(message)
