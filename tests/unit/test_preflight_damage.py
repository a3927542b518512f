"""Random damage to captures: never a traceback, never a finding less, never ok by default."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3ctl.cluster import Waiver
from k3ctl.facts.node import SECTIONS
from k3ctl.preflight.capture import Capture
from k3ctl.preflight.checks import CHECKS
from k3ctl.preflight.judge import judge
from k3ctl.preflight.report import PreflightReport
from tests.unit.preflight_fixtures import capture, plan, put

TODAY = date(2026, 11, 30)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just({"error": "x"}),
    st.just({"value": None}),
)
# Facts that no verdict on this plan rests on: losing one changes nothing.
UNUSED = {
    *("os_name", "boot_id", "uptime_s", "cpus", "cpus_usable", "memory_available_bytes", "swap_bytes", "python"),
    *("virtualisation", "is_root", "memlock_own", "nofile_service", "nofile_own", "shm_bytes", "shm_free_bytes"),
    *("total_bytes", "fs_type", "free_inodes", "now", "synchronised", "by", "default_routes", "via", "interface"),
    *("speed_mbps", "pid", "program", "unit", "ephemeral", "cuda", "uuid", "serial", "bus_id", "capability", "unread"),
    *("memory_bytes@gpus", "memory_used_bytes", "ecc_on", "ecc_pending_on", "ecc_uncorrected", "temperature_c"),
    *("power_mw", "utilisation_percent", "type", "firmware", "board", "node_guid", "netdevs", "link_layer"),
    *("rate_gbps", "link_downed", "failed", "units", "state@services", "state@network", "load", "active", "sub"),
    *("peers@names", "seconds", "schema", "error", "complete"),
    "held_bytes",  # there is room enough without it
}


def judged(body: dict[str, Any], waivers: tuple[Waiver, ...] = ()) -> PreflightReport:
    """The report on a capture of two nodes, through its JSON as a file has it."""
    heard = Capture.from_json(json.dumps(body))
    return judge(plan(2), waivers, heard.facts(), heard.pairs.facts(), TODAY)


def paths(body: Any, at: str = "") -> Iterator[str]:
    """Every place of a JSON value, as `put` writes it."""
    children = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in children:
        place = f"{at}.{key}" if at else str(key)
        yield place
        yield from paths(value, place)


BODY = capture(2)
PLACES = sorted(path for path in paths(BODY) if path.startswith(("nodes.node", "pairs.")))


def assert_whole(report: PreflightReport) -> None:
    """Every check has one finding for each node, an ok one says what it saw, and the report survives its JSON."""
    places = [(finding.check, finding.node) for finding in report.findings]
    assert sorted(places) == sorted((check.name, node) for check in CHECKS for node in ("node1", "node2"))
    for finding in report.findings:
        assert finding.found
        assert "the check itself broke" not in finding.found
        if finding.blocks:
            assert finding.fix
    assert PreflightReport.from_json(report.to_json()) == report


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=4))
def test_damage_ends_in_findings(damage: list[tuple[str, Any]]) -> None:
    body = copy.deepcopy(BODY)
    for path, junk in damage:
        try:
            put(body, path, junk)
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # an earlier damage took the place away
    assert_whole(judged(body))


def leaf(path: str) -> tuple[str, str]:
    """The last name of a path, and with its section."""
    parts = path.split(".")
    section = next((part for part in parts if part in SECTIONS), "")
    name = next(part for part in reversed(parts) if not part.isdigit())
    return name, f"{name}@{section}"


def used(path: str) -> bool:
    """Does a verdict rest on this place of node 2?"""
    parts = path.split(".")
    inside_unused = (
        any(part in UNUSED or f"{part}@{parts[4]}" in UNUSED for part in parts[4:]) if len(parts) > 4 else False
    )
    return not inside_unused and not set(leaf(path)) & UNUSED


OTHER_INTERFACES = ("network.value.interfaces.0.mtu", "network.value.interfaces.1.mtu")
NEEDED = [
    path
    for path in PLACES
    if path.startswith("nodes.node2.reply.") and used(path) and not path.endswith(OTHER_INTERFACES)
]


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("how", ["gone", None, [], {"value": {}}, {"error": "timeout", "detail": "late", "seconds": 5}])
def test_a_section_that_is_missing_blocks(name: str, how: Any) -> None:
    body = copy.deepcopy(BODY)
    put(body, f"nodes.node2.reply.sections.{name}", how)
    report = judged(body)
    assert_whole(report)
    assert report.verdict == "refused"
    assert [(f.check, f.node, f.severity) for f in report.blocking] == [("probe.complete", "node2", "unknown")]


def test_every_fact_that_a_verdict_rests_on_blocks_when_it_is_lost() -> None:
    assert len(NEEDED) > 60
    passed = []
    for path in NEEDED:
        body = copy.deepcopy(BODY)
        put(body, path, None)
        if judged(body).verdict == "ok":
            passed.append(path)
    assert not passed


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLACES), JUNK)
def test_waiving_everything_but_one_check_never_lets_that_one_pass(path: str, junk: Any) -> None:
    body = copy.deepcopy(BODY)
    put(body, path, junk)
    plain = judged(body)
    for finding in plain.blocking:
        waivers = tuple(
            Waiver(check=check.name, reason="for this test", until=date(2027, 1, 1))
            for check in CHECKS
            if check.name != finding.check
        )
        assert judged(body, waivers).verdict == "refused"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "nodes": {}}', '{"schema": 1}', "nonsense"])
def test_what_is_no_capture_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Capture.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError), match=r".+"):
        PreflightReport.from_json(text)


def test_a_capture_survives_its_json() -> None:
    heard = Capture.from_json(json.dumps(BODY))
    assert Capture.from_json(heard.to_json()) == heard


def test_nothing_judged_is_not_ok() -> None:
    empty = Capture({})
    assert judge(plan(2), (), empty.facts(), empty.pairs.facts(), TODAY).verdict == "refused"
