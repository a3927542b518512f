"""The agent against a hub that misbehaves: what is retried, what stops it, and that the token stays with the hub."""

from __future__ import annotations

import time
from pathlib import Path

from k3ctl.lab.hub.faults import Rule
from tests.local.stage_fixtures import PIECE, REPO, SHARD, TOKEN, bed, noise

FILES = {SHARD: noise(6 * PIECE), "config.json": b'{"a": 1}'}


def with_token(endpoint: str) -> list[dict[str, str]]:
    return [{"kind": "hub", "endpoint": endpoint, "token": TOKEN}]


def test_token_goes_to_the_hub_and_nowhere_else(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        assert hub.run(sources=with_token(hub.running.endpoint)) == 0, hub.extra["stderr"]
        assert hub.whole()
        served = hub.served()
        assert any(line["had_authorization"] for line in served if line["server"] == "hub")
        assert not any(line["had_authorization"] or line["leak"] for line in served if line["server"] == "cdn")
        assert TOKEN not in hub.events() + (hub.own / "status.json").read_text() + hub.extra["stderr"]


def test_gated_without_token(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        assert hub.run() == 5
        assert hub.status()["code"] == "source"
        assert "401" in hub.status()["reason"]
        assert "needs a token" in hub.status()["reason"]


def test_gated_with_a_token_that_was_not_let_in(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        (tmp_path / "hub" / "tokens.json").write_text(f'{{"{TOKEN}": []}}')
        assert hub.run(sources=with_token(hub.running.endpoint)) == 5
        assert "terms are not accepted" in hub.status()["reason"]


def test_refused_token(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        assert hub.run(sources=[{"kind": "hub", "endpoint": hub.running.endpoint, "token": "hf_bad"}]) == 5
        assert "token is refused" in hub.status()["reason"]
        assert "hf_bad" not in hub.events()


def test_file_gone_from_the_commit(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("*/resolve/*.json", "status", status=404, headers={"X-Error-Code": "EntryNotFound"}, count=0))
        assert hub.run() == 5
        assert "404" in hub.status()["reason"]
        assert "config.json" in hub.status()["reason"]


def test_429_waits_as_told(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("*", "status", status=429, headers={"Retry-After": "1"}, count=2))
        begun = time.monotonic()
        assert hub.run() == 0, hub.extra["stderr"]
        assert time.monotonic() - begun > 1
        assert hub.whole()
        assert "429" in hub.events()
        assert len([line for line in hub.served() if line["status"] == 429]) <= 2


def test_5xx_storm_is_survived(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("*", "status", status=503, count=6))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert "503" in hub.events()


def test_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("*", "status", status=500, count=0))
        assert hub.run(limits={"give_up_first_s": 1.0}) == 6
        assert hub.status()["code"] == "stalled"
        assert "status 500" in hub.status()["reason"]


def test_connection_refused_is_named(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        sources = [{"kind": "hub", "endpoint": "http://127.0.0.1:9"}]
        assert hub.run(sources=sources, limits={"give_up_first_s": 0.5}) == 6
        assert "connection refused" in hub.status()["reason"]


def test_second_source_takes_over(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        sources = [{"kind": "hub", "endpoint": hub.running.endpoint}, *with_token(hub.running.endpoint)]
        assert hub.run(sources=sources) == 0, hub.extra["stderr"]
        assert hub.whole()


def test_expired_link_is_renewed(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(200 * PIECE)}) as hub:
        hub.faults(Rule("/cdn/*", "expired", skip=2, count=1))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert len([line for line in hub.served() if "/resolve/" in line["path"]]) == 2


def test_links_that_live_shorter_than_the_job(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(30 * PIECE)}, link_seconds=1.0) as hub:
        hub.faults(Rule("/cdn/*", "slow", rate=8 * PIECE, count=0))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert len([line for line in hub.served() if "/resolve/" in line["path"]]) > 2


def test_links_refused_for_ever_name_the_host(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "expired", count=0))
        assert hub.run() == 5
        assert "3 fresh URLs of 127.0.0.1 in a row" in hub.status()["reason"]
        assert len([line for line in hub.served() if line["status"] == 403]) <= 4


def test_silence_is_cut_and_goes_on(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "stall", at=500, count=2, seconds=60))
        begun = time.monotonic()
        assert hub.run() == 0, hub.extra["stderr"]
        assert time.monotonic() - begun < 15
        assert hub.whole()
        assert hub.status()["fetched"] == hub.manifest.total
        assert "silent for too long" in hub.events()


def test_late_first_byte(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "delay", count=1, seconds=30))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()


def test_trickle_is_cut_and_goes_on(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "slow", rate=300, count=1))
        begun = time.monotonic()
        assert hub.run(limits={"slow_s": 1.0}) == 0, hub.extra["stderr"]
        assert time.monotonic() - begun < 15
        assert hub.whole()
        assert "slow:" in hub.events()
        assert hub.status()["fetched"] == hub.manifest.total


def test_range_ignored_once(tmp_path: Path) -> None:
    """A source that ignores ranges is used for whole files only."""
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "ignore-range", count=0))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert "only whole files" in hub.events()
        assert (0, 6 * PIECE - 1) in hub.ranges(SHARD)


def test_range_ignored_and_cut_starts_the_file_again(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(6 * PIECE)}) as hub:
        hub.faults(
            Rule("/cdn/*", "ignore-range", count=1),
            Rule("/cdn/*", "cut", at=3 * PIECE, count=2),
            Rule("/cdn/*", "ignore-range", count=0),
        )
        assert hub.run(connections=1) == 0, hub.extra["stderr"]
        assert hub.whole()
        # The first request asks for one piece or for all, as fast as the machine is.
        assert hub.ranges(SHARD)[-3:] == [(0, 6 * PIECE - 1)] * 3


def test_wrong_content_range_with_another_size_stops(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "wrong-range", count=0, at=5))
        assert hub.run() == 5
        assert "another size" in hub.status()["reason"]
        assert not (hub.dest / SHARD).exists()


def test_web_page_in_place_of_bytes(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "html", count=0, body="<html><b>Sign in, please</b>"))
        assert hub.run() == 5
        assert "a web page came in place of" in hub.status()["reason"]
        assert "Sign in, please" in hub.status()["reason"]
        assert not (hub.dest / SHARD).exists()


def test_compressed_answer_is_refused(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        headers = {"Content-Encoding": "gzip", "Content-Range": f"bytes 0-{PIECE - 1}/{6 * PIECE}"}
        hub.faults(Rule("/cdn/*", "status", status=206, headers=headers, body="zzz", count=0))
        assert hub.run() == 5
        assert "gzip-encoded" in hub.status()["reason"]


def test_416_stops_with_the_reason(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "status", status=416, count=0))
        assert hub.run() == 5
        assert "another size than the listing" in hub.status()["reason"]


def test_hub_that_serves_another_size(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        headers = {"X-Linked-Size": "5", "Location": "http://127.0.0.1:9/x"}
        hub.faults(Rule(f"/{REPO}/resolve/*.safetensors", "status", status=302, headers=headers, count=0))
        assert hub.run() == 5
        assert f"listing {6 * PIECE}, source 5" in hub.status()["reason"]


def test_redirect_loop_ends(tmp_path: Path) -> None:
    with bed(tmp_path, {"config.json": b"{}"}) as hub:
        to = f"/{REPO}/resolve/{hub.manifest.commit}/config.json"
        hub.faults(Rule("*", "status", status=307, headers={"Location": to}, count=0))
        assert hub.run() == 5
        assert "more than 5 redirects" in hub.status()["reason"]
        assert len(hub.served()) <= 12


def test_every_connection_dies_early(tmp_path: Path) -> None:
    """No retry budget is tied to a block size: each connection brings something, so the work comes to its end."""
    with bed(tmp_path, {SHARD: noise(6 * PIECE)}) as hub:
        hub.faults(Rule("/cdn/*", "cut", at=PIECE // 3, count=0))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert hub.status()["fetched"] == hub.manifest.total
        assert hub.status()["retries"] >= 12
