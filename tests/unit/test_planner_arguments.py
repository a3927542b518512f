"""Command lines and environments: sources joined, versions told apart, nothing that contradicts the plan."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from k3ctl.errors import ConfigError
from k3ctl.planner import make_plan
from k3ctl.planner.arguments import items_of, join
from k3ctl.planner.versions import at_least, has, number
from k3ctl.profiles.types import Change, Engine
from tests.unit.plan_fixtures import ENGINE_FILE, cluster, engine_under_test, plan, profiles


def changed(layout: str, **changes: Any) -> Engine:
    """The engine under test with keys of one layout replaced."""
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    for entry in raw["layouts"]:
        if entry["name"] == layout:
            entry.update(changes)
    return Engine.model_validate(raw)


def problem_of(engine: Engine, **spec: Any) -> Any:
    """The first problem of planning 2 x H200 with that engine."""
    with pytest.raises(ConfigError) as caught:
        make_plan(cluster(**spec), profiles(engine))
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ([], []),
        (["serve"], [("", ("serve",))]),
        (["--a"], [("--a", ())]),
        (["--a=1", "x"], [("--a", ("1",)), ("", ("x",))]),
        (["--a", "1", "2", "--b"], [("--a", ("1", "2")), ("--b", ())]),
        (["--a", "-1"], [("--a", ("-1",))]),
        (['--json={"x": 1}'], [("--json", ('{"x": 1}',))]),
        (["-tp", "8"], [("-tp", ("8",))]),
    ],
)
def test_words_become_items_and_words_again(words: list[str], items: list[tuple[str, tuple[str, ...]]]) -> None:
    found = list(items_of(words, "here"))
    assert [(item.name, item.values) for item in found] == items
    assert [word for item in found for word in item.words()] == words


def test_a_flag_of_two_sources_is_an_error_that_names_both() -> None:
    problem = problem_of(changed("h200-tp8-pp2", argv=["--pipeline-parallel-size={pp}", "--nnodes=2"]))
    assert problem.what == "--nnodes is given by two sources: set several-nodes and layout h200-tp8-pp2"


def test_a_variable_of_two_sources_is_an_error_that_names_both() -> None:
    problem = problem_of(changed("h200-tp8-pp2", env={"VLLM_HOST_IP": "{address}"}))
    assert problem.what == "VLLM_HOST_IP is given by two sources: set common and layout h200-tp8-pp2"


def test_the_launchers_variables_are_not_a_layouts() -> None:
    problem = problem_of(changed("h200-tp8-pp2", env={"NCCL_SOCKET_IFNAME": "eth0"}))
    assert problem.what == "NCCL_SOCKET_IFNAME is given by two sources: the launcher and layout h200-tp8-pp2"


def test_a_flag_of_head_and_layout_is_an_error_too() -> None:
    problem = problem_of(changed("h200-tp8-pp2", argv_head=["--nnodes=2"]))
    assert "set several-nodes and layout h200-tp8-pp2 (head)" in problem.what


def test_every_conflict_is_told_at_once() -> None:
    engine = engine_under_test()
    with pytest.raises(ConfigError) as caught:
        join(engine, [("one", ["--a", "--b"], {"X": "1"}), ("two", ["--a=2", "--b"], {"X": "1"})])
    assert [problem.key for problem in caught.value.problems] == ["--a", "--b", "X"]


def test_an_unknown_template_names_its_source() -> None:
    problem = problem_of(changed("h200-tp8-pp2", argv=["--pipeline-parallel-size={stages}"]))
    assert problem.what == "layout h200-tp8-pp2 names {stages}, which does not exist"
    assert "node_rank" in problem.expected


def test_a_set_that_does_not_exist() -> None:
    problem = problem_of(changed("h200-tp8-pp2", sets=["comon"]))
    assert (problem.found, problem.expected) == ("comon", "common, draft-inferact-dspark, several-nodes")


def test_the_newest_version() -> None:
    made = plan("b300", 1)
    assert "--new-flag=7" in made.head.engine_argv
    assert "--only-new" in made.head.engine_argv
    assert "--from-variable=5" in made.head.engine_argv, "a variable became a flag"
    assert "OLD_VARIABLE" not in made.head.engine_env
    assert [note for note in made.notes if "OLD_VARIABLE" in note] == [
        "under-test 0.33.0 has no OLD_VARIABLE: --from-variable instead (test)"
    ]


def test_an_older_version_of_the_same_plan() -> None:
    made = plan("b300", 1, engine_version="0.29.0")
    assert made.engine_version == "0.29.0"
    assert "--old-flag=7" in made.head.engine_argv
    assert "--new-flag=7" not in made.head.engine_argv
    assert "--only-new" not in made.head.engine_argv
    assert made.head.engine_env["OLD_VARIABLE"] == "5"
    assert "under-test 0.29.0 has no --only-new: left out (test)" in made.notes
    newest = plan("b300", 1)
    assert {*made.head.engine_argv} - {*newest.head.engine_argv} == {"--old-flag=7"}


def test_a_change_that_gives_its_own_value_replaces_the_value() -> None:
    change = {"name": "--new-flag", "since": "0.33", "becomes": "NAME_OF_OLD=on", "source": "test"}
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    made = make_plan(
        cluster("b300", 1, engine_version="0.29.0"), profiles(Engine.model_validate({**raw, "flags": [change]}))
    )
    assert made.head.engine_env["NAME_OF_OLD"] == "on"


def test_a_change_into_a_flag_that_is_there_names_both() -> None:
    change = {"name": "--new-flag", "since": "0.40", "becomes": "--only-new", "source": "test"}
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    with pytest.raises(ConfigError, match="--only-new is given by two sources"):
        make_plan(cluster("b300", 1), profiles(Engine.model_validate({**raw, "flags": [change]})))


@pytest.mark.parametrize(
    ("version", "since", "until", "there"),
    [
        ("0.33.0", "", "", True),
        ("0.33.0", "0.33", "", True),
        ("0.32.9", "0.33", "", False),
        ("0.33.0", "0.33.1", "", False),
        ("0.32.4", "", "0.32", True),
        ("0.33.0", "", "0.32", False),
        ("0.5.23", "0.5.16", "0.5.23", True),
        ("0.5.24", "0.5.16", "0.5.23", False),
        ("0.10.0", "0.9", "", True),
        ("1.0", "", "0.99.9", False),
    ],
)
def test_versions_are_numbers(version: str, since: str, until: str, there: bool) -> None:
    assert has(version, Change(name="--x", since=since, until=until, source="test")) is there


def test_version_numbers() -> None:
    assert number("0.5.16rc1") == (0, 5, 16)
    assert at_least("0.33", "0.33.0")
    assert at_least("0.33.0", "0.33")
    assert not at_least("0.9", "0.10")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"argv": ["--pipeline-parallel-size=4", "--no-enable-prefix-caching"]}, "--pipeline-parallel-size"),
        ({"argv": ["--no-enable-prefix-caching"]}, "--pipeline-parallel-size"),
        ({"argv": ["--pipeline-parallel-size={pp}"]}, "--no-enable-prefix-caching"),
        (
            {"argv": ["--pipeline-parallel-size={pp}", "--no-enable-prefix-caching", "--enable-expert-parallel"]},
            "--enable-expert-parallel",
        ),
        (
            {"argv": ["--pipeline-parallel-size={pp}", "--no-enable-prefix-caching", "--kv-cache-dtype=fp8"]},
            "--kv-cache-dtype",
        ),
        ({"argv_head": ["--port=30000"]}, "--port"),
        ({"partition": [46, 47]}, "VLLM_PP_LAYER_PARTITION"),
        ({"env": {"VLLM_PP_LAYER_PARTITION": "47,46"}}, "VLLM_PP_LAYER_PARTITION"),
    ],
)
def test_a_flag_that_contradicts_the_plan(changes: dict[str, Any], key: str) -> None:
    problem = problem_of(changed("h200-tp8-pp2", **changes))
    assert problem.what == f"{key} contradicts the plan"


def test_an_address_that_contradicts_the_plan() -> None:
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    raw["sets"]["common"]["env"]["VLLM_HOST_IP"] = "{head}"
    with pytest.raises(ConfigError, match="VLLM_HOST_IP contradicts the plan"):
        make_plan(cluster(), profiles(Engine.model_validate(raw)))


def test_numbers_are_compared_as_numbers() -> None:
    argv = ["--pipeline-parallel-size={pp}", "--no-enable-prefix-caching", "--kv-cache-dtype=auto"]
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    raw["sets"]["common"]["argv"] = [word.replace("{utilization}", "0.90") for word in raw["sets"]["common"]["argv"]]
    raw["layouts"][0]["argv"] = argv
    made = make_plan(cluster(), profiles(Engine.model_validate(raw)))
    assert "--gpu-memory-utilization=0.90" in made.head.engine_argv


def test_the_program_of_a_container_is_found_by_the_image() -> None:
    made = plan()
    assert made.head.engine_argv[:2] == ("vllm", "serve")
    assert made.runtime.kind == "container"


def test_a_partition_that_does_not_split_the_layers() -> None:
    problem = problem_of(changed("h200-tp8-pp2", partition=[40, 40]))
    assert problem.what == "layout h200-tp8-pp2 cannot be: partition [40, 40] does not split 93 layers over 2 stages"


def test_an_engine_without_memory_rules_is_planned_without_memory() -> None:
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    made = make_plan(cluster("b300", 1), profiles(Engine.model_validate({**raw, "family": "trtllm"})))
    assert made.memory is None
    assert "memory is not planned: the rules of engine under test are not known" in made.notes
