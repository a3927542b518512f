"""What the cluster is said to be: ranks as parsed, verdict, table, JSON, patience, log lines, judged answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from k3ctl.errors import ExitCode, Problem, Unreachable
from k3ctl.launch import ask
from k3ctl.protocols import HttpReply
from k3ctl.secret import Secret
from k3ctl.watch import log_lines, smoke_checks, table
from k3ctl.watch.canary import canary, error_text, judge
from k3ctl.watch.cluster_status import MEANINGS, Answer, ClusterStatus, as_json, headline, verdict
from k3ctl.watch.collect import cluster_status
from k3ctl.watch.patience import Watcher, final, out_of_time
from k3ctl.watch.rank_status import Attempt, RankStatus, parse, unreachable
from tests.unit.launch_world import NOW, Cluster, Host

GOOD, BAD = Answer(ok=True, seconds=0.4, detail=""), Answer(ok=False, seconds=0.1, detail="status 500: dead")
FAILED = Attempt(1, "h:1", NOW - 60, NOW - 50, "exit", "engine ended with status 1: ValueError: bad",
                 ("ValueError: bad",), NOW - 50, "attempt-1.log")  # fmt: skip


def rank(number: int, state: Any = "up", **more: Any) -> RankStatus:
    blank = unreachable(f"k3lab{number + 1}", number, "")
    return replace(blank, state=state, unit="active (running)", since=NOW - 65, attempt=1, **more)


def cluster(*ranks: RankStatus, answer: Answer | None = GOOD) -> ClusterStatus:
    return ClusterStatus("lab", "http://h:8000", "kimi-k3-mini", NOW, ranks, answer)


# ranks


def reply(host: Host | None = None, **unit: Any) -> dict[str, Any]:
    host = host or Host("k3lab1", texts={"unit": "u"}, active="active", launch_id="ab" * 32)
    found = host.status({"texts": False, "ports": [8000]})
    return {**found, "unit": {**found["unit"], **unit}}


def test_a_running_rank() -> None:
    found = parse("k3lab1", 0, reply(), offset_s=2.0)
    assert (found.state, found.unit, found.attempt, found.stage) == ("up", "active (running)", 1, "ready")
    assert found.since == NOW - 5 - 2.0
    assert found.launch_id == "ab" * 32
    assert found.listening == (8000,)


def test_a_bare_host_is_stopped() -> None:
    found = parse("k3lab1", 0, reply(Host("k3lab1")))
    assert (found.state, found.why, found.unit, found.since, found.attempt) == (
        "stopped", "not installed", "not installed", None, 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "lines", "state"),
    [
        (0, ["x"], "loading"),
        (0, ["Loading weights took 1 s"], "loading"),
        (0, ["init engine (profile, warmup) took 1.5 s"], "loading"),
        (0, ["Application startup complete."], "up"),
        (1, ["x"], "loading"),
        (1, ["Loading weights took 1 s"], "up"),
        (1, ["Explicitly set (1.0/21.96) GiB for KV cache on node 0."], "up"),
    ],
)
def test_only_the_head_says_ready(number: int, lines: list[str], state: str) -> None:
    host = Host("n", texts={"unit": "u"}, active="active", launch_id="x", loads=lines)
    assert parse("n", number, reply(host)).state == state


@pytest.mark.parametrize(
    ("unit", "gang", "state", "why"),
    [
        ({"active": "failed", "exit_status": 78}, {}, "crash-loop", "4 times"),
        ({"active": "failed", "exit_status": 203}, {"state": "failed", "reason": ""}, "failed", "unit failed: success"),
        ({"active": "inactive"}, {}, "stopped", ""),
        ({"active": "activating"}, {"state": "failed", "failed_starts": 2, "reason": "port"}, "restarting", "port"),
        ({"active": "active"}, {"state": "meeting", "failed_starts": 0}, "meeting", "waits for the other ranks"),
    ],
)  # fmt: skip
def test_states_without_an_engine(unit: dict[str, Any], gang: dict[str, Any], state: str, why: str) -> None:
    said = reply(Host("n", texts={"unit": "u"}, launch_id="x"), **unit)
    said["gang"] = {"state": "crash-loop", "reason": "4 times", "failed_starts": 0, **gang}
    found = parse("n", 1, said)
    assert (found.state, found.why) == (state, why)


# verdict


@pytest.mark.parametrize(
    ("states", "answer", "word"),
    [
        ((), None, "unknown"),
        (("up",), GOOD, "serving"),
        (("up",), BAD, "degraded"),
        (("up",), None, "loading"),
        (("up", "up"), GOOD, "serving"),
        (("up", "up"), BAD, "degraded"),
        (("loading", "loading"), BAD, "loading"),
        (("loading", "up"), BAD, "loading"),
        (("up", "loading"), BAD, "degraded"),
        (("meeting", "restarting"), BAD, "loading"),
        (("up", "stopped"), BAD, "degraded"),
        (("up", "stopped"), GOOD, "degraded"),
        (("up", "failed"), GOOD, "degraded"),
        (("stopped", "stopped"), BAD, "stopped"),
        (("stopped", "unknown"), BAD, "unknown"),
        (("up", "unknown"), GOOD, "unknown"),
        (("meeting", "crash-loop"), BAD, "crash-loop"),
        (("unknown", "crash-loop"), BAD, "crash-loop"),
        (("up", "up", "up", "up"), GOOD, "serving"),
    ],
)
def test_verdict(states: tuple[Any, ...], answer: Answer | None, word: str) -> None:
    ranks = [rank(number, state) for number, state in enumerate(states)]
    assert verdict(ranks, answer) == word
    status = cluster(*ranks, answer=answer)
    expected = ExitCode.OK if word == "serving" else ExitCode.UNREACHABLE if word == "unknown" else ExitCode.FAILED
    assert status.exit_code == expected
    assert headline(status)


def test_headlines() -> None:
    assert headline(cluster(rank(0))) == "serving kimi-k3-mini at http://h:8000: answered in 0.4 s"
    assert headline(cluster(rank(0), rank(1, "stopped"))) == "degraded: rank 1 on k3lab2 is stopped"
    assert headline(cluster(rank(0), answer=BAD)) == "degraded: all ranks run, but no completion: status 500: dead"
    assert headline(cluster(unreachable("k3lab1", 0, "no route"))) == "unknown: k3lab1: no route"
    assert headline(cluster(rank(0, "stopped"))) == f"stopped: {MEANINGS['stopped']}"
    loading = rank(0, "loading", stage="loading", shards_done=40, shards_total=96)
    assert headline(cluster(loading, rank(1, "meeting", why="waits"), answer=BAD)) == (
        "loading: rank 0 loading, 40 of 96 shards; rank 1 meeting: waits"
    )


def test_a_crash_loop_says_how_often_how_fast_and_who() -> None:
    attempts = tuple(
        replace(FAILED, number=n, round=f"h:{n}", started=NOW - 300 + 60 * n, ended=NOW - 280 + 60 * n,
                failed_at=NOW - 280 + 60 * n) for n in range(4)
    )  # fmt: skip
    looping = rank(1, "crash-loop", attempts=attempts, failures=4)
    quiet = rank(0, "crash-loop", failures=4, attempts=tuple(replace(a, cause="gang") for a in attempts))
    assert headline(cluster(quiet, looping, answer=BAD)) == (
        "crash loop: 4 failures in 3 min, first rank 1 on k3lab2: engine ended with status 1: ValueError: bad"
    )


# table and JSON


def test_rows() -> None:
    up = rank(0, rss=1_700_000_000, engine_version="0.32.0")
    shown = table.rows(cluster(up, rank(1, "loading", shards_done=1, shards_total=2), unreachable("k3lab3", 2, "gone")))
    assert shown == [
        ("0", "k3lab1", "up", "1m05s", "1", "1.7 GB", "0.32.0", ""),
        ("1", "k3lab2", "loading", "1m05s", "1", "", "", "loading, 1 of 2 shards"),
        ("2", "k3lab3", "unknown", "", "", "", "", "gone"),
    ]
    assert all(len(row) == len(table.COLUMNS) for row in shown)


def test_the_last_failure_in_words() -> None:
    noticed = replace(FAILED, reason="engine ended with status 0: Connection closed by peer", failed_at=NOW - 51)
    lines = table.failure_lines(cluster(rank(0, attempts=(noticed,)), rank(1, attempts=(FAILED,))))
    assert lines == [
        "last failure 50 s ago: rank 1 on k3lab2 failed first (attempt 1): engine ended with status 1: ValueError: bad",
        "after it: rank 0",
    ]
    assert table.failure_lines(cluster(rank(0))) == []


def test_json_is_stable() -> None:
    value = as_json(cluster(rank(0, attempts=(FAILED,)), answer=BAD))
    assert json.loads(json.dumps(value)) == value
    assert sorted(value) == [
        "answer", "asked_at", "cluster", "endpoint", "headline", "last_failure", "model", "ranks", "schema", "verdict",
    ]  # fmt: skip
    assert value["last_failure"] == {
        "rank": 0, "node": "k3lab1", "at": NOW - 50, "cause": "exit", "attempt": 1, "failed_after": [],
        "reason": "engine ended with status 1: ValueError: bad", "tail": ["ValueError: bad"],
    }  # fmt: skip
    assert sorted(value["ranks"][0]) == [
        "attempt", "engine_version", "failures", "launch_id", "log", "node", "processes", "rank", "rss_bytes",
        "shards_done", "shards_total", "since", "stage", "state", "unit", "why",
    ]  # fmt: skip
    assert as_json(cluster(answer=None))["answer"] is None


def test_one_look_at_everything() -> None:
    world = Cluster(2)
    world.store.secrets["api_key"] = Secret("k")
    for host in world.hosts.values():
        host.texts, host.active, host.launch_id = {"unit": "u"}, "active", "x"
    world.hosts["k3lab2"].loads = ["no word of being ready"]
    look = world.work.world

    def status() -> ClusterStatus:
        return cluster_status(
            world.plan, world.work.nodes, agent=look.agent, http=look.http, clock=look.clock,
            payload=lambda node: ask.status(world.plan, node), key=Secret("k"),
        )  # fmt: skip

    assert status().verdict == "serving"
    assert [r.state for r in status().ranks] == ["up", "up"]
    world.hosts["k3lab2"].broken = Unreachable(Problem(what="no route"))
    found = status()
    assert (found.verdict, found.ranks[1].why) == ("unknown", "no route")


# patience


def test_silence_is_said_once_and_told_apart_from_progress() -> None:
    watcher = Watcher(began=0.0)
    busy = rank(0, "loading", vital=(1, 2, 3), log="/l0")
    said = []
    for now in range(0, 200, 10):
        said += watcher.look([replace(busy, vital=(1, 2, now)), rank(1, "loading", vital=(5, 5, 5), log="/l1")], now)
    silent = [line for line in said if line.startswith("no sign of life")]
    assert len(silent) == 1
    assert "rank 1 on k3lab2 for 1m10s" in silent[0]
    assert "/l1" in silent[0]
    beats = [line for line in said if "rank 0 loading" in line]
    assert 6 <= len(beats) <= 9


def test_a_rank_that_waits_for_others_is_not_silent() -> None:
    watcher = Watcher(began=0.0)
    said = [line for now in range(0, 500, 10) for line in watcher.look([rank(0, "meeting", vital=(1,))], now)]
    assert not [line for line in said if line.startswith("no sign of life")]


def test_a_failure_is_told_once_and_old_ones_never() -> None:
    watcher = Watcher(began=0.0)
    old = rank(0, "loading", attempts=(FAILED,))
    assert not [line for line in watcher.look([old], 0) if "failed" in line]
    again = replace(FAILED, number=2, round="h:2", failed_at=NOW - 10)
    said = watcher.look([replace(old, attempts=(FAILED, again))], 1)
    assert said[0].startswith("attempt 2 failed, first rank 0 on k3lab1: engine ended with status 1: ValueError: bad;")
    jitter = replace(again, failed_at=NOW - 10.01)
    assert watcher.look([replace(old, attempts=(FAILED, jitter))], 2) == []


def test_what_no_waiting_cures() -> None:
    assert final([rank(0, "loading"), rank(1, "restarting"), rank(2, "meeting"), rank(3, "unknown")]) == []
    looping, gone = final([rank(0, "crash-loop", attempts=(FAILED,), failures=4), rank(1, "failed", why="203")])
    assert looping.what == "crash loop: rank 0 failed 4 times and stays down"
    assert looping.evidence == "ValueError: bad"
    assert (gone.node, gone.found) == ("k3lab2", "203")


@pytest.mark.parametrize(
    ("number", "failed", "why", "hopeless"),
    [
        (0, 4, "port 8000 is held by pid 7: nginx", False),
        (0, 5, "port 8000 is held by pid 7: nginx", True),
        (0, 5, "torchrun ended with status 2: unrecognized arguments", True),
        (1, 9, "torchrun ended with status 1: DistNetworkError: Connection refused", False),
        (1, 5, "no interface holds 10.78.0.12", True),
    ],
)
def test_a_torchrun_that_never_starts(number: int, failed: int, why: str, *, hopeless: bool) -> None:
    found = final([rank(number, "restarting", why=why, failed_starts=failed)])
    assert bool(found) is hopeless
    assert [problem.found for problem in found] == [why] * hopeless


def test_the_limit_is_named_with_its_value_and_the_way_to_raise_it() -> None:
    problem = out_of_time([rank(0, "loading", shards_done=1, shards_total=96)], 5400.0, "--timeout")
    assert problem.what == "the engine was not ready within 1h30m (limit engine_ready)"
    assert problem.found == "rank 0 on k3lab1: loading, 1 of 96 shards"
    assert problem.fix.startswith("raise --timeout")


# log lines


def line(number: int, ts: str, text: str, stream: str = "stdout") -> log_lines.LogLine:
    return log_lines.LogLine(f"k3lab{number + 1}", number, 1, ts, stream, text)


def test_log_lines_are_parsed_and_shown() -> None:
    record = {"rank": 1, "attempt": 3, "ts": "2026-11-30T22:29:45.546Z", "stream": "stderr", "text": "hm | x"}
    found = log_lines.parse("k3lab2", json.dumps(record))
    assert log_lines.text(found) == "rank1 k3lab2 #3 22:29:45.546 | hm | x"
    assert log_lines.text(found, with_time=False) == "rank1 k3lab2 #3 | hm | x"
    said = log_lines.parse("k3lab2", json.dumps({**record, "stream": "k3ctl"}))
    assert log_lines.text(said).endswith("| k3ctl: hm | x")
    for odd in ("not json", "[]", '{"rank": 1}', '"text"'):
        assert log_lines.parse("k3lab2", odd).text == odd


def test_history_is_merged_by_time() -> None:
    lines = [line(0, "T1", "a"), line(0, "T3", "c"), line(0, "", "c2"), line(1, "T2", "b"), line(1, "T3", "d")]
    assert [found.text for found in log_lines.merge(lines)] == ["a", "b", "c", "c2", "d"]
    assert log_lines.merge([]) == []


# answers


def http(status: int, body: Any) -> HttpReply:
    return HttpReply(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode(), 0.2)


@pytest.mark.parametrize(
    ("answer", "ok", "detail"),
    [
        (http(200, {"choices": [{"text": "x"}]}), True, ""),
        (http(200, {"choices": []}), False, "status 200 without a completion in it"),
        (http(200, b"<html>"), False, "status 200 without a completion in it"),
        (http(500, {"error": {"message": "EngineCore encountered an issue."}}), False,
         "status 500: EngineCore encountered an issue."),
        (http(401, {"error": "Unauthorized"}), False, "status 401: Unauthorized"),
        (http(502, b"Bad Gateway"), False, "status 502: Bad Gateway"),
    ],
)  # fmt: skip
def test_only_a_completion_is_an_answer(answer: HttpReply, *, ok: bool, detail: str) -> None:
    found = judge(answer)
    assert (found.ok, found.detail) == (ok, detail)


def test_an_endpoint_that_is_not_there_is_an_answer_too() -> None:
    world = Cluster(1)
    world.http.refuse = True
    found = canary(world.http, "http://h:8000", "m", None, 1.0)
    assert (found.ok, found.detail) == (False, "connection refused")
    assert error_text(b"\xff") == "\N{REPLACEMENT CHARACTER}"


STREAM = ['data: {"choices":[{"delta":{"role":"assistant"}}]}', "", 'data: {"choices":[{"delta":{"content":"a"}}]}',
          'data: {"choices":[{"delta":{"reasoning":"b"}}]}', "data: [DONE]"]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "lines", "ok"),
    [
        (200, STREAM, True),
        (200, STREAM[:-1], False),
        (200, [*STREAM[:3], STREAM[-1]], False),
        (200, [STREAM[-1], *STREAM[:-1]], False),
        (200, [*STREAM[:-1], 'data: {"error": {"message": "x"}}', STREAM[-1]], False),
        (200, [], False),
        (500, STREAM, False),
        (200, [*STREAM[:-1], "data: not json", STREAM[-1]], True),
    ],
)
def test_streams(status: int, lines: list[str], *, ok: bool) -> None:
    assert smoke_checks.judge_stream(http(status, b""), lines).ok is ok


def test_chats() -> None:
    good = {"choices": [{"message": {"content": None, "reasoning_content": "hm"}}], "usage": {"completion_tokens": 3}}
    assert smoke_checks.judge_chat(http(200, good))[1] == "hm"
    for bad in ({}, {"choices": []}, {**good, "usage": {}}, {**good, "choices": [{"message": {}}]}):
        check, text = smoke_checks.judge_chat(http(200, bad))
        assert not check.ok, bad
    check, text = smoke_checks.judge_chat(http(503, {"error": "starting"}))
    assert (check.found, text) == ("status 503: starting", "")


def test_refusals() -> None:
    assert smoke_checks.judge_refusal("x", http(404, {}), (404, 400)).ok
    assert not smoke_checks.judge_refusal("x", http(200, {}), (404, 400)).ok
    assert not smoke_checks.judge_refusal("x", http(0, b"gone"), (404, 400)).ok
