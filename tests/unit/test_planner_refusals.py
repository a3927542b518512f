"""What the planner refuses, each with its arithmetic or the names of what is there (tests/data/plan/refusals.yml)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from k3ctl.errors import ConfigError, ExitCode
from k3ctl.planner import make_plan
from k3ctl.planner.host import disk_bytes, disk_problem
from k3ctl.planner.runtime import driver_problem
from k3ctl.planner.subject import subject_of
from k3ctl.profiles.types import Amount
from tests.unit.plan_fixtures import DATA, cluster, packaged, plan, profiles

CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "refusals.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_refusals(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(case["platform"], case["nodes"], **case.get("spec", {}))
    assert caught.value.code == ExitCode.USAGE
    problem = caught.value.problems[0]
    text = " | ".join((problem.what, problem.found, problem.expected, problem.fix))
    for piece in case["says"]:
        assert piece in text, f"{piece!r} is not in {text!r}"
    assert problem.key == case.get("key", problem.key)
    assert problem.file.startswith("/inv/pod")


@pytest.mark.parametrize("major", [1, 575, 579])
def test_an_old_driver(major: int) -> None:
    subject = subject_of(cluster(), profiles())
    problem = driver_problem(subject, major, "node2")
    assert problem is not None
    assert (problem.node, problem.found) == ("node2", str(major))
    assert problem.expected == "580 or newer (the image is CUDA 13)"


@pytest.mark.parametrize("major", [580, 595])
def test_a_driver_that_is_new_enough(major: int) -> None:
    assert driver_problem(subject_of(cluster(), profiles()), major) is None
    assert plan().expected.min_driver == 580


def test_a_version_without_a_known_driver_refuses_none() -> None:
    subject = subject_of(cluster(engine_version="0.29.0"), profiles())
    assert driver_problem(subject, 1) is None


def test_too_little_disk() -> None:
    made = plan()
    subject = subject_of(cluster(), profiles())
    image, needed = 30_000_000_000, 1_560_998_988_078 + 30_000_000_000 + 139_000_000_000
    assert disk_bytes(subject, made.models, image) == needed
    assert disk_problem(subject, made.models, image, needed) is None
    problem = disk_problem(subject, made.models, image, needed - 1)
    assert problem is not None
    assert "1 B are missing on each node" in problem.what
    for part in ("1.561 TB of weights and drafts", "30.0 GB of serving environment", "139.0 GB for caches"):
        assert part in problem.expected


def test_disks_that_a_server_is_sold_with_are_too_small() -> None:
    platforms = dict(packaged().platforms)
    small = Amount(value=1_600_000_000_000, source="data sheet", status="published")
    platforms["h200"] = platforms["h200"].model_copy(update={"disk_bytes": small})
    with pytest.raises(ConfigError, match="too little disk") as caught:
        make_plan(cluster(), profiles(platforms=platforms))
    assert "data sheet" in caught.value.problems[0].found


def test_a_draft_is_counted_on_the_disk() -> None:
    without, with_draft = plan("b300", 1), plan("b300", 1, strategy={"draft": "inferact-dspark"})
    assert with_draft.expected.min_free_bytes - without.expected.min_free_bytes == 7_124_633_450
    assert [model.repo for model in with_draft.models] == ["moonshotai/Kimi-K3", "Inferact/Kimi-K3-DSpark"]
