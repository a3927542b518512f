"""Two plans against each other: what changed, what would restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.commands.plan import as_data, launched
from k3ctl.errors import ConfigError
from k3ctl.planner.difference import NOTHING, Difference, differences, restarts
from tests.unit.plan_fixtures import plan


def found(before: dict[str, Any], **after: Any) -> tuple[Difference, ...]:
    return differences(as_data(plan(**before)), as_data(plan(**after)))


def test_the_same_plan_differs_in_nothing() -> None:
    assert found({}) == ()
    assert restarts((), ["node1"]) == ()


def test_a_flag_restarts_all_ranks() -> None:
    changed = found({}, strategy={"max_num_seqs": 64})
    assert [(one.what, one.node, one.before, one.after) for one in changed if one.effect == "restart"] == [
        ("command line", "node1", "--max-num-seqs=256", "--max-num-seqs=64"),
        ("command line", "node2", "--max-num-seqs=256", "--max-num-seqs=64"),
    ]
    assert restarts(changed, ["node1", "node2"]) == ("node1", "node2")


def test_a_commit_is_staged_first() -> None:
    revision = "9f62e4e9fffbd0a83ddd60e1c209d828994b3569"
    changed = found({}, weights={"revision": revision})
    staged = [one.what for one in changed if one.effect.startswith("stage weights")]
    assert staged == ["commit of moonshotai/Kimi-K3", "path of moonshotai/Kimi-K3"]


def test_a_draft_that_comes_and_goes() -> None:
    with_draft = {"platform": "b300", "nodes": 1, "strategy": {"draft": "inferact-dspark"}}
    plain = {"platform": "b300", "nodes": 1}
    come = differences(as_data(plan(**plain)), as_data(plan(**with_draft)))
    assert ("model Inferact/Kimi-K3-DSpark", "stage weights, restart") in [(one.what, one.effect) for one in come]
    gone = differences(as_data(plan(**with_draft)), as_data(plan(**plain)))
    assert ("model Inferact/Kimi-K3-DSpark", "restart") in [(one.what, one.effect) for one in gone]


def test_a_node_more() -> None:
    changed = found({"nodes": 2}, nodes=4, strategy={"replicas": 2})
    assert {one.node for one in changed if one.what == "node"} == {"node3", "node4"}


def test_what_only_preflight_looks_at_restarts_nothing() -> None:
    before, after = as_data(plan()), as_data(plan())
    after["expected"]["min_free_bytes"] += 1
    changed = differences(before, after)
    assert [(one.what, one.effect) for one in changed] == [("expected", NOTHING)]
    assert restarts(changed, ["node1"]) == ()


def test_a_plan_of_an_older_release_is_compared_too() -> None:
    before = as_data(plan())
    for key in ("port_ranges", "memory", "engine_family", "budgets"):
        del before[key]
    assert differences(before, as_data(plan())) == ()


def test_the_last_launch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="nothing was launched for pod"):
        launched("pod")
    runs = tmp_path / "k3ctl" / "pod" / "runs"
    for stamp, status, name in (("1", "changed", "first"), ("2", "planned", "dry run"), ("3", "", "preflight only")):
        folder = runs / stamp
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"cluster": name}))
        phases = {"launch": {"status": status, "said": "x"}} if status else {}
        (folder / "result.json").write_text(json.dumps({"command": "up", "phases": phases}))
    (runs / "4").mkdir()
    (runs / "4" / "plan.json").write_text("{torn")
    (runs / "latest").symlink_to("4")
    assert launched("pod") == ("run 1 (up)", {"cluster": "first"})
