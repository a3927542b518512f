"""Every kind of fault does what its name says, as often as the script says."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3ctl.errors import ConfigError
from k3ctl.lab.hub.faults import Faults, parse
from k3ctl.lab.hub.server import Running
from tests.local.hub_fixtures import SHARD, Got, ask, logged, small_hub

FILE = "files/runtimes/env.tar.zst"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with small_hub(tmp_path, script=tmp_path / "script.json") as running:
        yield running


def spoil(hub: Running, **rule: object) -> None:
    got = ask(f"{hub.endpoint}/_faults", "POST", json.dumps([{"path": f"/{FILE}", **rule}]).encode())
    assert got.status == 200, got.body


def fetch(hub: Running, **headers: str) -> Got:
    return ask(f"{hub.endpoint}/{FILE}", **headers)


def test_cut_happens_once_after_so_many_bytes(hub: Running, tmp_path: Path) -> None:
    spoil(hub, kind="cut", at=1000)
    with pytest.raises(http.client.IncompleteRead) as broken:
        fetch(hub)
    assert broken.value.partial == SHARD[:1000]
    assert fetch(hub).body == SHARD
    first = logged(tmp_path, 2)[1]
    assert (first["fault"], first["bytes"], first["broken"]) == ("cut", 1000, True)


def test_reset(hub: Running) -> None:
    spoil(hub, kind="reset", at=0)
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        fetch(hub)


def test_stall_sends_no_byte_and_then_cuts(hub: Running) -> None:
    spoil(hub, kind="stall", at=10, seconds=0.4)
    begun = time.monotonic()
    with pytest.raises(http.client.IncompleteRead) as broken:
        fetch(hub)
    assert broken.value.partial == SHARD[:10]
    assert time.monotonic() - begun >= 0.4


def test_stall_ends_when_the_client_leaves(hub: Running, tmp_path: Path) -> None:
    spoil(hub, kind="stall", at=10, seconds=60)
    with pytest.raises(TimeoutError):
        ask(f"{hub.endpoint}/{FILE}", timeout=0.3)
    assert logged(tmp_path, 2)[1]["seconds"] < 10


def test_slow_keeps_its_rate(hub: Running) -> None:
    spoil(hub, kind="slow", rate=100_000)
    begun = time.monotonic()
    assert fetch(hub, Range="bytes=0-49999").body == SHARD[:50_000]
    assert 0.4 <= time.monotonic() - begun < 5


def test_delay(hub: Running) -> None:
    spoil(hub, kind="delay", seconds=0.3)
    begun = time.monotonic()
    assert fetch(hub).body == SHARD
    assert time.monotonic() - begun >= 0.3


def test_status_with_headers(hub: Running) -> None:
    spoil(hub, kind="status", status=429, headers={"Retry-After": "7"}, body="slow down", count=2)
    for _ in range(2):
        got = fetch(hub)
        assert (got.status, got.headers["retry-after"], got.body) == (429, "7", b"slow down")
    assert fetch(hub).status == 200


def test_html_page_with_status_200(hub: Running) -> None:
    spoil(hub, kind="html")
    got = fetch(hub, Range="bytes=0-5")
    assert (got.status, got.headers["content-type"]) == (200, "text/html")
    assert got.body.startswith(b"<!DOCTYPE")


def test_wrong_content_range(hub: Running) -> None:
    spoil(hub, kind="wrong-range", at=5)
    got = fetch(hub, Range="bytes=10-19")
    assert (got.status, got.headers["content-range"], got.body) == (206, "bytes 15-24/307205", SHARD[10:20])


def test_ignored_range(hub: Running) -> None:
    spoil(hub, kind="ignore-range")
    got = fetch(hub, Range="bytes=10-19")
    assert (got.status, "content-range" in got.headers, got.body) == (200, False, SHARD)


@pytest.mark.parametrize(("asked", "place"), [("bytes=0-", 7), ("bytes=7-7", 0), ("bytes=0-7", 7), ("bytes=8-", None)])
def test_flip_spoils_one_byte_of_the_file(hub: Running, asked: str, place: int | None) -> None:
    spoil(hub, kind="flip", at=7)
    spoiled, sound = fetch(hub, Range=asked).body, fetch(hub, Range=asked).body
    assert [i for i, pair in enumerate(zip(spoiled, sound, strict=True)) if pair[0] != pair[1]] == (
        [] if place is None else [place]
    )


def test_expired_link(hub: Running) -> None:
    spoil(hub, kind="expired")
    assert fetch(hub).status == 403


def test_skip_count_client_method_and_range_choose_the_request(hub: Running) -> None:
    spoil(hub, kind="status", method="GET", client="127.0.0.1", range="bytes=0-*", skip=1, count=1)
    assert ask(f"{hub.endpoint}/{FILE}", "HEAD", Range="bytes=0-1").status == 206
    assert fetch(hub, Range="bytes=5-6").status == 206
    assert [fetch(hub, Range="bytes=0-1").status for _ in range(3)] == [206, 503, 206]
    assert ask(f"{hub.endpoint}/_faults").json()["rules"][0]["matched"] == 3


def test_count_zero_never_ends(hub: Running) -> None:
    spoil(hub, kind="status", count=0)
    assert {fetch(hub).status for _ in range(4)} == {503}


def test_script_file_is_read_again_on_change_and_forgotten_when_removed(hub: Running, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    assert fetch(hub).status == 200
    script.write_text(json.dumps([{"path": "/files/*", "kind": "status", "status": 500, "count": 0}]))
    assert fetch(hub).status == 500
    script.write_text("{broken")
    assert fetch(hub).status == 500, "a broken script leaves the old rules in force"
    assert "not JSON" in ask(f"{hub.endpoint}/_faults").json()["problem"]
    script.unlink()
    assert fetch(hub).status == 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("{}", "not a list"),
        ("[1]", "not an object"),
        ('[{"kind": "cut"}]', "path is missing"),
        ('[{"path": "/x"}]', "kind is missing"),
        ('[{"path": "/x", "kind": "explode"}]', "unknown kind explode"),
        ('[{"path": "/x", "kind": "cut", "after": 1}]', "unknown key after"),
        ('[{"path": "/x", "kind": "cut", "at": -1}]', "at is not a number"),
        ('[{"path": "/x", "kind": "slow"}]', "slow needs rate"),
    ],
)
def test_bad_scripts_are_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text, "script")


def test_all_problems_of_a_script_are_told_at_once(hub: Running) -> None:
    got = ask(f"{hub.endpoint}/_faults", "POST", b'[{"path": "/x"}, {"kind": "cut"}]')
    assert got.status == 400
    assert b"kind is missing" in got.body
    assert b"path is missing" in got.body


def test_no_rules_no_faults() -> None:
    assert Faults().pick(path="/x", method="GET", client="", server="hub", range_header="") is None
