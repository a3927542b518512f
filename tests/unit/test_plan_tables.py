"""`k3ctl plan` on screen: everything is there at any width, nothing is cut off."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from k3ctl.errors import ConfigError
from k3ctl.launch.show import folded, rank_number, rank_text
from k3ctl.plan import Plan
from k3ctl.view import plan_tables
from tests.unit.plan_fixtures import cluster, plan

PLANS = {
    "h200": plan(),
    "against the preference": plan(strategy={"tensor_parallel": 16}),
    "one node with a draft": plan("b300", 1, strategy={"draft": "inferact-dspark"}),
    "data parallel": plan("b300", 2),
    "two replicas": plan(nodes=4, strategy={"replicas": 2}),
}


def printed(made: Plan, width: int, *, explain: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False)
    console.print(plan_tables.overview(made))
    for section in plan_tables.sections(made, explain=explain):
        console.print(section)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_cut_off(name: str, width: int) -> None:
    made = PLANS[name]
    text = printed(made, width, explain=True)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    whole = "".join(text.split())
    for piece in (made.model.path, made.runtime.url, made.model.commit, *(node.address for node in made.nodes)):
        assert piece in whole
    for said in (*made.warnings, *made.notes):
        assert "".join(said.split()) in whole


def test_alternatives_by_rule_are_counted_or_told() -> None:
    made = PLANS["h200"]
    assert "14 more layouts by rule, 8 of which do not fit: see --explain" in printed(made, 120)
    explained = printed(made, 120, explain=True)
    assert "more layouts by rule" not in explained
    assert "TP8 x DP2" in explained
    assert "How far it has been run" in explained


def test_where_values_come_from() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(plan_tables.origins_table(cluster()))
    assert isinstance(console.file, io.StringIO)
    assert "defaults" in console.file.getvalue()


def test_one_rank_in_full_without_the_key() -> None:
    made = PLANS["two replicas"]
    text = rank_text(made, 3)
    assert (text.rank, text.node) == (3, "node4")
    assert "rank 1 of 2" in text.unit_text
    assert "--node-rank=1" in text.engine_argv
    head = "\n".join(rank_text(made, 2).lines())
    assert "VLLM_API_KEY=***" in head
    assert "--master-addr=198.51.100.13" in head


@pytest.mark.parametrize(("asked", "rank"), [("rank 0", 0), ("1", 1), (" rank 12 ", 12)])
def test_asking_for_a_rank(asked: str, rank: int) -> None:
    assert rank_number(asked) == rank


@pytest.mark.parametrize("asked", ["", "rank", "head", "-1", "rank 1.5"])
def test_what_is_no_rank(asked: str) -> None:
    with pytest.raises(ConfigError, match="names no rank"):
        rank_number(asked)


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no such rank") as caught:
        rank_text(PLANS["h200"], 2)
    assert caught.value.problems[0].expected == "0 to 1"


def test_folded_lines_are_one_command() -> None:
    argv = ["vllm", "serve", "/m", "--a=1", '--json={"x": 1}', "--b", "two words", "-x"]
    text = "\n".join(folded(argv))
    assert text.count("\n") == 4
    import shlex

    assert shlex.split(text.replace("\\\n", " ")) == argv
    assert list(folded([])) == []
