"""Every file of tests/data/preflight/cases: an edited capture and the findings that it must give, no more and no less.

A case: `about`, `nodes` (how many, 4), `plan` (fields of Expected, and `env`), `put` (dotted path from the capture ->
value, `gone` removes), `waivers`, `today`, and `expect`: "check node" -> severity or a map of severity, found, fix,
waived, ground (texts are parts that must be there). A finding that is not named must be ok, or not needed.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3ctl.cluster import Waiver
from k3ctl.preflight.capture import Capture
from k3ctl.preflight.checks import CHECKS
from k3ctl.preflight.judge import judge
from k3ctl.preflight.report import PreflightReport
from tests.unit.preflight_fixtures import DATA, capture, plan, put

CASES = sorted((DATA / "cases").glob("*.yml"))


def report_of(case: dict[str, Any]) -> PreflightReport:
    """Judge a case."""
    nodes = case.get("nodes", 4)
    body = capture(nodes)
    for path, value in (case.get("put") or {}).items():
        put(body, path, value)
    heard = Capture.from_json(json.dumps(body))
    waivers = [Waiver.model_validate(waiver) for waiver in case.get("waivers", [])]
    planned = plan(case.get("planned", nodes), **(case.get("plan") or {}))
    today = case.get("today", date(2026, 11, 30))
    return judge(planned, waivers, heard.facts(), heard.pairs.facts(), today)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    report = report_of(case)
    wanted = {name: {"severity": w} if isinstance(w, str) else w for name, w in (case.get("expect") or {}).items()}
    there = {f"{finding.check} {finding.node}": finding for finding in report.findings}
    assert set(wanted) <= set(there)
    for name, finding in there.items():
        if name not in wanted:
            fine = finding.severity == "ok" or (finding.severity == "skipped" and not finding.ground)
            assert fine, f"{name}: {finding}"
            continue
        expect = wanted[name]
        assert finding.severity == expect["severity"], f"{name}: {finding}"
        for part in ("found", "expected", "fix", "evidence", "waived"):
            assert expect.get(part, "") in getattr(finding, part), f"{name}: {finding}"
        assert finding.ground == expect.get("ground", ""), f"{name}: {finding}"
        if finding.blocks:
            assert finding.fix
            assert finding.why
    assert report.verdict == case["verdict"]
    assert case.get("said", "") in report.said
    assert [use.state for use in report.waivers] == case.get("waiver_states", [])


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_report_survives_its_json(path: Path) -> None:
    report = report_of(yaml.safe_load(path.read_text()))
    assert PreflightReport.from_json(report.to_json()) == report


def test_every_check_is_shown_to_fail_or_to_be_left_out() -> None:
    seen = set()
    for path in CASES:
        for name, wanted in (yaml.safe_load(path.read_text()).get("expect") or {}).items():
            severity = wanted if isinstance(wanted, str) else wanted["severity"]
            if severity in ("fail", "warn", "unknown"):
                seen.add(name.split()[0])
    assert seen == {check.name for check in CHECKS}
