"""The phases burn-in, launch, ready, smoke and stop over a cluster of stand-ins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import ConfigError, Interrupted, PhaseFailed, Problem, Unreachable
from k3ctl.phases.burn_in import BurnIn, BurnInResult
from k3ctl.phases.launch import Launch, Launched
from k3ctl.phases.ready import Ready, Served
from k3ctl.phases.smoke import Smoke, SmokeResult
from k3ctl.phases.stop import Stop
from k3ctl.protocols import PlayResult
from tests.unit.launch_fixtures import make_plan
from tests.unit.launch_world import NOW, Cluster


def serving(nodes: int = 2) -> Cluster:
    """A cluster that was launched and answered."""
    cluster = Cluster(nodes)
    for phase in (Launch(), Ready(), Smoke()):
        cluster.run(phase)
    cluster.work = replace(cluster.work, done={})
    cluster.agent.calls.clear()
    cluster.ansible.runs.clear()
    return cluster


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_bare_cluster_is_launched_and_the_second_run_changes_nothing(nodes: int) -> None:
    cluster = Cluster(nodes)
    outcome = cluster.run(Launch())
    assert outcome.status == "changed"
    assert isinstance(outcome.value, Launched)
    assert cluster.agent.verbs() == ["status", "install", "start"]
    assert cluster.ansible.runs == [tuple(cluster.hosts)]
    again = cluster.run(Launch())
    assert again.status == "unchanged"
    assert again.said == f"serving launch {outcome.value.launch_id[:8]} since 2026-11-30 00:51:40 UTC"
    assert again.value == Launched(outcome.value.launch_id, NOW - 100.0, restarted=False)


def test_assessing_makes_and_changes_nothing() -> None:
    cluster = Cluster()
    changes = Launch().assess(cluster.work).changes
    assert changes[0].text == "make an API key"
    assert cluster.store.secrets == {}
    assert cluster.agent.verbs() == ["status"]
    assert len(cluster.agent.calls) == 2
    assert any("+ExecStart=" in change.diff for change in changes)


def test_the_engine_is_not_restarted_for_a_newer_agent() -> None:
    cluster = serving()
    cluster.agent.path = "/opt/k3ctl/node/k3node-ffffffffffff.pyz"
    outcome = cluster.run(Launch())
    assert outcome.said.startswith("texts refreshed; launch ")
    assert cluster.agent.verbs() == ["status", "install"]
    assert "k3node-ffffffffffff" in cluster.hosts["k3lab1"].texts["unit"]
    assert cluster.run(Launch()).status == "unchanged"


def test_another_launch_is_stopped_everywhere_first() -> None:
    cluster = serving()
    plan = cluster.plan
    cluster.work = replace(cluster.work, plan=replace(plan, rendezvous_port=29444))
    outcome = cluster.run(Launch())
    assert outcome.status == "changed"
    assert cluster.agent.verbs() == ["status", "install", "stop", "start"]
    assert "stopping the launch that runs" in cluster.talk.said
    assert any("another launch runs" in change.text for change in outcome.changes)


def test_one_dead_unit_is_started_and_the_other_left_alone() -> None:
    cluster = serving()
    cluster.hosts["k3lab2"].active = "inactive"
    assessment = Launch().assess(cluster.work)
    assert [(c.text, c.node) for c in assessment.changes] == [("start unit k3ctl-lab.service", "k3lab2")]
    assert cluster.run(Launch()).status == "changed"
    assert cluster.ansible.runs == []


def test_a_taken_port_names_its_holder_and_nothing_stays_started() -> None:
    cluster = Cluster()
    cluster.hosts["k3lab1"].holders = [{"port": 8000, "pid": 77, "command": "nginx: master"}]
    with pytest.raises(PhaseFailed) as error:
        cluster.run(Launch())
    (problem,) = error.value.problems
    assert (problem.node, problem.found) == ("k3lab1", "port 8000: pid 77 nginx: master")
    assert "another port in cluster.yml" in problem.fix
    assert cluster.hosts["k3lab2"].active == "inactive"


def test_own_leftovers_are_said() -> None:
    cluster = Cluster()
    cluster.hosts["k3lab2"].ended = [{"pid": 5, "command": "VLLM::Worker"}]
    cluster.run(Launch())
    assert "k3lab2: ended a leftover: 5 VLLM::Worker" in cluster.talk.said


def test_a_failed_play_is_a_failed_phase() -> None:
    cluster = Cluster()
    cluster.ansible.result = PlayResult("failed", failures={"k3lab2": "Write the unit: no space"})
    with pytest.raises(PhaseFailed, match="no space") as error:
        cluster.run(Launch())
    assert error.value.problems[0].node == "k3lab2"
    assert "start" not in cluster.agent.verbs()


def test_stopping_before_the_start_leaves_the_engine_down() -> None:
    cluster = Cluster()
    assessment = Launch().assess(cluster.work)
    cluster.stop.after = 0
    with pytest.raises(Interrupted, match="before the engine was started"):
        Launch().apply(cluster.work, assessment)
    assert "start" not in cluster.agent.verbs()


def test_an_unreachable_node_is_named() -> None:
    cluster = Cluster()
    cluster.hosts["k3lab2"].broken = Unreachable(Problem(what="no route"))
    with pytest.raises(Unreachable) as error:
        Launch().assess(cluster.work)
    assert error.value.problems[0].node == "k3lab2"


def test_the_key_of_a_file(tmp_path: Path) -> None:
    cluster = Cluster()
    path = tmp_path / "key"
    spec: Any = cluster.work.cluster.spec
    spec.security.api_key = str(path)
    for text, words in ((None, "cannot be read"), ("", "one line"), ("a\nb", "one line"), ("schlüssel", "one line")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=words) as error:
            Launch().assess(cluster.work)
        assert error.value.problems[0].key == "security.api_key"
    path.write_text("the-users-own-key\n")
    cluster.run(Launch())
    assert "VLLM_API_KEY=the-users-own-key" in cluster.hosts["k3lab1"].texts["env"]
    assert cluster.store.secrets == {}


# ready


def test_ready_waits_for_a_completion() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    head = cluster.hosts["k3lab1"]
    bar = "Loading safetensors checkpoint shards: "
    head.loads = ["Starting to load model", f"{bar} 42% Completed | 40/96", f"{bar} 100% Completed | 96/96"]
    head.loads.append("Application startup complete.")
    outcome = cluster.run(Ready())
    assert isinstance(outcome.value, Served)
    assert outcome.said == "answers after 3.0 s (completion in 0.2 s)"
    assert head.looks == 4
    assert len(cluster.http.asked) == 1
    assert cluster.talk.said == ["0.0 s: rank 0 loading, 1 B read; rank 1 ready, 1 B read"]


def test_ready_is_unchanged_when_it_answers_at_once() -> None:
    cluster = serving()
    outcome = cluster.run(Ready())
    assert (outcome.status, outcome.said) == ("unchanged", "answers (0.2 s)")


def test_a_listening_port_without_a_completion_is_not_ready() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    cluster.http.status = 500
    cluster.options(timeout_s=20.0)
    with pytest.raises(PhaseFailed, match="not ready within 20 s") as error:
        cluster.run(Ready())
    (problem,) = error.value.problems
    assert "limit engine_ready" in problem.what
    assert "--timeout" in problem.fix
    assert any("no completion yet: status 500: EngineCore encountered an issue." in text for text in cluster.talk.said)


def test_the_plans_limit_is_named_with_its_setting() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    cluster.http.refuse = True
    with pytest.raises(PhaseFailed, match="within 10m00s") as error:
        cluster.run(Ready())
    assert "timeouts.engine_ready of the engine's profile" in error.value.problems[0].fix


def test_a_crash_loop_ends_the_wait_at_once() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    failed = {"attempt": 4, "started": NOW - 9, "ended": NOW - 4, "cause": "exit", "round": "h:4", "log": "l",
              "reason": "engine ended with status 1: ValueError: bad", "tail": ["ValueError: bad"]}  # fmt: skip
    host = cluster.hosts["k3lab2"]
    host.active, host.exit_status, host.attempts = "failed", 78, [failed]
    with pytest.raises(PhaseFailed) as error:
        cluster.run(Ready())
    (problem,) = error.value.problems
    assert problem.node == "k3lab2"
    assert "first rank 1 on k3lab2: engine ended with status 1: ValueError: bad" in problem.found
    assert problem.evidence == "ValueError: bad"
    assert cluster.stop.waits == 0


def test_a_unit_that_is_gone_ends_the_wait() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    cluster.hosts["k3lab2"].active = "inactive"
    with pytest.raises(PhaseFailed, match="unit of rank 1 does not run"):
        cluster.run(Ready())


def test_ctrl_c_leaves_the_engine_loading() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    cluster.http.refuse = True
    cluster.stop.after = 3
    with pytest.raises(Interrupted) as error:
        cluster.run(Ready())
    assert "k3ctl stop" in error.value.problems[0].fix
    assert cluster.hosts["k3lab1"].active == "active"


def test_a_node_that_stays_away_ends_the_wait_and_a_short_absence_does_not() -> None:
    cluster = Cluster()
    cluster.run(Launch())
    cluster.http.refuse = True
    cluster.hosts["k3lab2"].broken = Unreachable(Problem(what="no route to host"))
    with pytest.raises(PhaseFailed, match="does not answer any more"):
        cluster.run(Ready())
    assert cluster.stop.waits == 29


# smoke


def test_smoke_asks_everything_once_per_launch() -> None:
    cluster = Cluster()
    for phase in (Launch(), Ready()):
        cluster.run(phase)
    outcome = cluster.run(Smoke())
    assert isinstance(outcome.value, SmokeResult)
    assert outcome.value.answer == "Hello."
    assert [check.name for check in outcome.value.checks] == [
        "chat completion", "streaming", "unknown model is refused", "bad parameter is refused", "wrong key is refused",
        "no key is refused",
    ]  # fmt: skip
    asked = len(cluster.http.asked)
    again = cluster.run(Smoke())
    assert again.status == "unchanged"
    assert isinstance(again.value, SmokeResult)
    assert again.value.answer == "Hello."
    assert len(cluster.http.asked) == asked
    cluster.options(only=("smoke",))
    assert cluster.run(Smoke()).status == "changed"


def test_smoke_again_for_another_launch() -> None:
    cluster = serving()
    cluster.work = replace(cluster.work, plan=replace(cluster.plan, rendezvous_port=29444))
    for phase in (Launch(), Ready()):
        cluster.run(phase)
    assert Smoke().assess(cluster.work).said == "not tested yet"


def test_every_failed_check_is_kept() -> None:
    cluster = serving()
    cluster.http.stream = ("all at once",)
    cluster.http.key = lambda: None  # refuses everybody
    cluster.options(only=("smoke",))
    with pytest.raises(PhaseFailed) as error:
        cluster.run(Smoke())
    assert [problem.what for problem in error.value.problems] == [
        f"smoke test failed: {name}"
        for name in ("chat completion", "streaming", "unknown model is refused", "bad parameter is refused")
    ]


# burn-in

RATE = {"op": "all-reduce", "bytes": 4194304, "bytes_per_second": 1e8, "seconds": 0.04}


def result(stage: str = "done", reason: str = "", **rank: Any) -> dict[str, Any]:
    ranks = [{"rank": 0, "stage": stage, "rates": [RATE], "error": reason, **rank}] if rank or stage == "done" else []
    return {"ok": stage == "done", "stage": stage, "reason": reason, "ranks": ranks, "tail": "", "seconds": 3.0}


def burnt(cluster: Cluster, *results: dict[str, Any]) -> Any:
    for host, found in zip(cluster.hosts.values(), results, strict=True):
        host.burnin = found
    return cluster.run(BurnIn())


def test_a_pass_is_kept_for_runtime_boots_and_addresses() -> None:
    cluster = Cluster()
    outcome = burnt(cluster, result(), result())
    assert outcome.said == "right on every rank; all-reduce of 4.2 MB at 100.0 MB/s"
    again = cluster.run(BurnIn())
    assert again.status == "unchanged"
    assert again.said == "passed at 2026-11-30 00:53:20 UTC"
    assert isinstance(again.value, BurnInResult)
    assert BurnIn().assess(cluster.work).changes == ()
    cluster.hosts["k3lab2"].boot_id = "boot-2"
    assert len(BurnIn().assess(cluster.work).changes) == 1
    cluster.hosts["k3lab2"].boot_id = "boot-1"
    other = replace(cluster.plan, runtime=replace(cluster.plan.runtime, digest="8b" * 32))
    assert len(BurnIn().assess(replace(cluster.work, plan=other)).changes) == 1
    cluster.options(only=("burn-in",))
    assert len(BurnIn().assess(cluster.work).changes) == 1


def test_no_burn_in_beside_a_running_engine() -> None:
    cluster = serving()
    assert BurnIn().assess(cluster.work).said == "the engine runs on all nodes and uses the same ways"
    cluster.hosts["k3lab1"].active = "inactive"
    assert BurnIn().assess(cluster.work).said.startswith("the engine's unit runs on k3lab2")


def test_a_broken_note_is_no_pass() -> None:
    cluster = Cluster()
    for note in ("", "{", "[]", json.dumps({"binding": "x"})):
        cluster.store.keep("burn-in", note)
        assert len(BurnIn().assess(cluster.work).changes) == 1


@pytest.mark.parametrize(
    ("results", "nodes", "words"),
    [
        ((result("rendezvous", "alone"), result("connect", "refused")), ["k3lab2"], "rank 1 cannot reach"),
        ((result("port", "pid 7"), result("connect", "refused")), ["k3lab1"], "port is taken on rank 0"),
        ((result("interface", "none"), result("connect", "refused")), ["k3lab1"], "no interface"),
        ((result("timeout", "late"), result("ranks", "hm", error="x")), ["k3lab2"], "rank 1 failed"),
        ((result("ranks", "hm", error="x"), result("ranks", "hm", wrong=True)), ["k3lab2"], "wrong result"),
        ((result("timeout", "late"), result("timeout", "late")), ["k3lab1", "k3lab2"], "rank 0 hung"),
        ((result("rendezvous", "alone"), result("rendezvous", "alone")), ["k3lab1", "k3lab2"], "waited for a rank"),
    ],
)
def test_failures_name_the_cause(results: Any, nodes: list[str], words: str) -> None:
    cluster = Cluster()
    with pytest.raises(PhaseFailed, match=words) as error:
        burnt(cluster, *results)
    assert [problem.node for problem in error.value.problems] == nodes
    assert "burn-in" not in cluster.store.notes


def test_a_node_that_failed_ends_the_burn_in_on_the_others() -> None:
    cluster = Cluster(4)
    for host in cluster.hosts.values():
        host.burnin_hangs = True
    failed = cluster.hosts["k3lab3"]
    failed.burnin_hangs, failed.burnin = False, result("interface", "no interface holds it")
    with pytest.raises(PhaseFailed) as error:
        cluster.run(BurnIn())
    assert [problem.node for problem in error.value.problems] == ["k3lab3"]


def test_ctrl_c_ends_the_burn_in() -> None:
    cluster = Cluster()
    assessment = BurnIn().assess(cluster.work)
    for host in cluster.hosts.values():
        host.burnin_hangs = True
    cluster.stop.after = 0
    with pytest.raises(Interrupted, match="ended on all nodes"):
        BurnIn().apply(cluster.work, assessment)
    assert "burn-in" not in cluster.store.notes


def test_a_rank_that_says_nothing_is_a_failure() -> None:
    cluster = Cluster()
    cluster.hosts["k3lab1"].burnin = result()
    cluster.hosts["k3lab2"].broken = Unreachable(Problem(what="connection lost"))
    with pytest.raises(Unreachable):
        BurnIn().apply(cluster.work, BurnIn().assess(Cluster().work))


# stop


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_stop_is_proven_on_every_node_and_then_unchanged(nodes: int) -> None:
    cluster = serving(nodes)
    outcome = cluster.run(Stop())
    names = ", ".join(cluster.hosts)
    assert outcome.said == f"stopped on {names}: no process left, planned ports free"
    assert {node for node, verb in cluster.agent.calls if verb == "stop"} == set(cluster.hosts)
    again = cluster.run(Stop())
    assert (again.status, again.said) == ("unchanged", "no node runs the engine")


def test_what_is_left_is_an_error_with_its_pid() -> None:
    cluster = serving()
    cluster.hosts["k3lab2"].left = [{"pid": 9, "command": "VLLM::Worker_TP1"}]
    with pytest.raises(PhaseFailed, match="not proven to be gone") as error:
        cluster.run(Stop())
    assert error.value.problems[0].found == "pid 9 VLLM::Worker_TP1"
    assert error.value.problems[0].node == "k3lab2"


def test_a_start_gives_a_crash_loop_another_try() -> None:
    cluster = serving()
    host = cluster.hosts["k3lab1"]
    host.active, host.exit_status = "failed", 78
    assert cluster.run(Launch()).status == "changed"
    assert host.active == "active"


def test_the_plan_of_one_node_has_one_unit() -> None:
    assert Cluster(plan=make_plan(1)).run(Launch()).said.endswith("started on 1 node")
