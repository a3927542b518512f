"""Attempts, crash loops, reasons, interfaces: the node's own judgement, without processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.node import attempts
from k3ctl.node.addresses import NoInterface, interface_of
from k3ctl.node.loading import progress
from k3ctl.node.reason import salient

MINUTE = 60.0


def history(*runs: tuple[float, float, str]) -> list[dict[str, Any]]:
    """Records of attempts (started, ended, cause); cause 'reset' is a reset."""
    records: list[dict[str, Any]] = []
    number = 0
    for started, ended, cause in runs:
        if cause == "reset":
            records.append({"event": "reset", "at": started})
            continue
        number += 1
        records.append({"event": "start", "attempt": number, "at": started})
        records.append({"event": "end", "attempt": number, "at": ended, "cause": cause, "reason": ""})
    return records


QUICK = [(i * MINUTE, i * MINUTE + 20, "exit") for i in range(4)]


@pytest.mark.parametrize(
    ("runs", "loop"),
    [
        ([], False),
        (QUICK[:1], False),
        (QUICK[:3], False),
        (QUICK, True),
        ([(s, e, "gang") for s, e, _ in QUICK], True),  # a rank that only suffers counts the same rounds
        ([*QUICK[:2], (150, 160, "stop"), *QUICK[3:]], False),
        ([*QUICK[:2], (150, 160, "stop"), *QUICK[2:]], True),
        ([*QUICK, (900, 900, "reset")], False),
        ([*QUICK[:3], (200, 900, "exit")], False),  # the last one ran for more than ten minutes
        ([*QUICK[:3], (200, 900, "exit"), (901, 910, "exit"), (911, 920, "exit"), (921, 930, "exit")], True),
        ([(i * 700.0, i * 700.0 + 5, "exit") for i in range(4)], False),  # wider than the window
    ],
)
def test_crash_loop(runs: list[tuple[float, float, str]], *, loop: bool) -> None:
    found = attempts.crash_loop(history(*runs), 4, 1800.0, 600.0)
    assert (found is not None) is loop


def test_a_crash_loop_says_since_when() -> None:
    assert attempts.crash_loop(history(*QUICK), 4, 1800.0, 600.0) == {"failures": 4, "first": 20.0, "last": 200.0}


def test_merged_attempts() -> None:
    records = history((1, 2, "exit"))
    records.append({"event": "start", "attempt": 2, "at": 3.0, "round": "a:1"})
    first, second = attempts.merged(records)
    assert (first["cause"], first["started"], first["ended"]) == ("exit", 1, 2)
    assert (second["ended"], second["round"]) == (None, "a:1")


def test_the_file_survives_torn_lines_and_is_trimmed(tmp_path: Path) -> None:
    path = str(tmp_path / "attempts.jsonl")
    assert attempts.lines(path) == []
    assert attempts.last_number(path) == 0
    for record in history(*[(i, i + 1, "exit") for i in range(300)]):
        attempts.append(path, record)
    with Path(path).open("a") as file:
        file.write('{"event": "sta')
    assert attempts.last_number(path) == 300
    attempts.trim(path)
    assert len(Path(path).read_text().splitlines()) == attempts.KEEP_LINES // 2
    assert attempts.last_number(path) == 300


def test_an_attempt_that_nobody_ended_is_lost_once(tmp_path: Path) -> None:
    path = str(tmp_path / "attempts.jsonl")
    attempts.append(path, {"event": "start", "attempt": 1, "at": 1.0})
    attempts.close_lost(path, 5.0)
    attempts.close_lost(path, 6.0)
    (attempt,) = attempts.merged(attempts.lines(path))
    assert (attempt["cause"], attempt["ended"]) == ("lost", 5.0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], ""),
        (["all is well"], ""),
        (["INFO x", "ValueError: bad shape", "RuntimeError: Engine core initialization failed. See root cause above."],
         "ValueError: bad shape"),
        (["(Worker_TP1 pid=12) ERROR 11-30 22:29:45 [core.py:12] RuntimeError: no luck"], "RuntimeError: no luck"),
        (["Traceback (most recent call last):", "vllm.EngineDeadError: EngineCore encountered an issue."],
         "vllm.EngineDeadError: EngineCore encountered an issue."),
        (["vllm serve: error: unrecognized arguments: --bad"], "vllm serve: error: unrecognized arguments: --bad"),
        (["OSError: [Errno 98] Address already in use"], "OSError: [Errno 98] Address already in use"),
    ],
)  # fmt: skip
def test_the_line_that_says_why(lines: list[str], reason: str) -> None:
    assert salient(lines) == reason


LINKS = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}, {"local": "::1"}]},
    {"ifname": "bond0", "addr_info": [{"local": "10.78.0.11"}]},
    {"ifname": "bond0.29", "addr_info": [{"local": "fd00::11"}]},
    {"ifname": "down0", "addr_info": []},
]


def test_the_interface_is_the_one_that_holds_the_address() -> None:
    assert interface_of("10.78.0.11", listing=LINKS) == "bond0"
    assert interface_of("fd00:0::11", listing=LINKS) == "bond0.29"
    assert interface_of("10.78.0.11", "bond0", LINKS) == "bond0"
    with pytest.raises(NoInterface, match=r"10.78.0.11 is on bond0, the inventory says eth1"):
        interface_of("10.78.0.11", "eth1", LINKS)
    with pytest.raises(NoInterface, match=r"no interface holds 10.78.0.12; this host has 127.0.0.1 on lo"):
        interface_of("10.78.0.12", listing=LINKS)
    with pytest.raises(NoInterface, match="no address"):
        interface_of("10.78.0.12", listing=[])


# Lines of vLLM 0.32's CPU build on two hosts, as captured; rank 1 is headless.
HEAD = [
    ("INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'", "connecting", 0),
    ("INFO [cpu_model_runner.py:68] Starting to load model /srv/x...", "loading", 0),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/96 [00:00<?, ?it/s]", "loading", 0),
    ("Loading safetensors checkpoint shards:  42% Completed | 40/96 [00:10<00:12,  4.66it/s]", "loading", 40),
    ("Loading safetensors checkpoint shards: 100% Completed | 96/96 [00:00<00:00, 1303.14it/s]", "loading", 96),
    ("INFO [default_loader.py:501] Loading weights took 0.08 seconds", "loaded", 96),
    ("INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 1.53 s", "warming up", 96),
    ("INFO:     Application startup complete.", "ready", 96),
    ('INFO:     10.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK', "ready", 96),
]


def test_progress_of_the_head() -> None:
    seen: list[str] = []
    for text, stage, shards in HEAD:
        seen.append(text)
        found = progress(seen)
        assert (found["stage"], found["shards_done"], found["last"]) == (stage, shards, text[:200])


def test_progress_of_nothing() -> None:
    assert progress([]) == {"stage": "", "shards_done": 0, "shards_total": 0, "last": ""}
    assert json.dumps(progress(["", "  "]))
