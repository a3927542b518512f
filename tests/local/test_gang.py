"""Gang and rank as real processes, with a stand-in torchrun and an engine of a few lines."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launch_fixtures import KEY, Bench, eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    eventually(lambda: not bench.processes(), 5)


def mode(bench: Bench, mode: str, **changes: object) -> None:
    bench.mode, bench.changes = mode, changes
    bench.write()


def crash(limit: int, window_s: float = 60.0, healthy_after_s: float = 60.0) -> dict[str, float]:
    return {"limit": limit, "window_s": window_s, "healthy_after_s": healthy_after_s}


def test_it_serves_until_it_is_stopped(bench: Bench) -> None:
    gang = bench.verb("gang", env={"https_proxy": "http://proxy:3128", "RAY_ADDRESS": "10.0.0.9:6379"})
    eventually(bench.workers)
    eventually(lambda: bench.file("gang.json").get("state") == "formed")
    eventually(lambda: "E Loading safetensors checkpoint shards:  42% Completed" in bench.current_log())
    gang.send_signal(signal.SIGTERM)
    gang.communicate(timeout=15)
    assert gang.returncode == 0
    assert bench.file("gang.json")["state"] == "stopped"
    assert [(end["cause"], end["reason"]) for end in bench.ends()] == [("stop", "stopped by the operator")]
    assert bench.processes() == []


def test_the_engine_sees_the_plans_environment_only(bench: Bench) -> None:
    bench.verb("gang", env={"HTTP_PROXY": "http://proxy:3128", "RAY_ADDRESS": "x", "NO_PROXY": "kept"})
    eventually(bench.workers)
    import json

    seen = json.loads((bench.root / "environment.json").read_text())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "HTTP_PROXY",
                 "RAY_ADDRESS", "TORCHELASTIC_RESTART_COUNT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):  # fmt: skip
        assert name not in seen, name
    assert seen["VLLM_API_KEY"] == KEY.reveal()
    assert (seen["GLOO_SOCKET_IFNAME"], seen["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert seen["HOME"] == str(bench.state / "home")
    assert seen["PATH"].startswith(f"{bench.root}/bin:")
    assert seen["NO_PROXY"] == "kept"


@pytest.mark.parametrize(
    ("how", "cause", "words", "kept"),
    [
        ("crash", "exit", "engine ended with status 3: RuntimeError: no luck", {"exit": 3}),
        ("quit", "exit", "engine ended with status 0", {"exit": 0}),
        ("kill", "exit", "engine ended by signal 9 (SIGKILL)", {"signal": 9}),
    ],
)
def test_any_end_of_the_engine_is_a_failure(
    bench: Bench, how: str, cause: str, words: str, kept: dict[str, int]
) -> None:
    mode(bench, how)
    rank = bench.verb("rank")
    rank.communicate(timeout=15)
    assert rank.returncode == 1
    (end,) = bench.ends()
    assert end["cause"] == cause
    assert end["reason"] == words
    assert kept.items() <= end.items()


def test_a_dead_worker_is_named_even_when_the_engine_ends_with_status_0(bench: Bench) -> None:
    mode(bench, "worker")
    rank = bench.verb("rank")
    (pid,) = eventually(bench.workers)
    os.kill(pid, signal.SIGKILL)
    rank.communicate(timeout=15)
    assert rank.returncode == 1
    (end,) = bench.ends()
    assert end["cause"] == "worker"
    assert f"worker process VLLM::Worker_TP0 1000 (pid {pid}) died; engine ended with status 0" in end["reason"]
    assert end["worker"]["at"] < end["at"]


def test_a_new_attempt_follows_and_old_logs_stay(bench: Bench) -> None:
    gang = bench.verb("gang")
    (pid,) = eventually(bench.workers)
    os.kill(bench.file("rank.json")["engine_pid"], signal.SIGKILL)
    eventually(lambda: bench.workers() and bench.workers() != [pid])
    assert gang.poll() is None
    assert [end["cause"] for end in bench.ends()] == ["exit"]
    starts = [record for record in bench.records() if record["event"] == "start"]
    assert [start["attempt"] for start in starts] == [1, 2]
    assert len({start["round"] for start in starts}) == 2
    assert all((bench.logs / start["log"]).read_text().count("engine up") == 1 for start in starts)
    assert (bench.logs / "current.log").resolve().name == starts[1]["log"]


def test_a_rank_that_the_gang_ends_is_not_the_failure(bench: Bench) -> None:
    rank = bench.verb("rank")
    eventually(bench.workers)
    rank.send_signal(signal.SIGTERM)
    rank.communicate(timeout=15)
    assert rank.returncode == 143
    assert [end["cause"] for end in bench.ends()] == ["gang"]


def test_an_engine_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    mode(bench, "stubborn")
    rank = bench.verb("rank")
    eventually(bench.workers)
    rank.send_signal(signal.SIGTERM)
    rank.communicate(timeout=15)
    assert "ignored SIGTERM for 0.5 s: SIGKILL" in bench.current_log()
    assert bench.processes() == []


def test_orphans_of_the_engine_are_ended_with_it(bench: Bench) -> None:
    mode(bench, "orphan")
    rank = bench.verb("rank")
    rank.communicate(timeout=20)
    assert rank.returncode == 1
    assert bench.processes() == []


def test_a_killed_shim_leaves_nothing_to_the_next_attempt(bench: Bench) -> None:
    bench.verb("gang")
    (worker,) = eventually(bench.workers)
    os.kill(bench.file("rank.json")["pid"], signal.SIGKILL)
    eventually(lambda: bench.workers() and bench.workers() != [worker])
    eventually(lambda: not Path(f"/proc/{worker}").exists())  # a moment it is a zombie of the gang
    assert [end["cause"] for end in bench.ends()] == ["lost"]


def test_a_killed_torchrun_is_the_agents_failure_and_the_gang_ends(bench: Bench) -> None:
    gang = bench.verb("gang")
    eventually(bench.workers)
    eventually(lambda: bench.file("gang.json").get("state") == "formed")
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(command) > 2 and command[1] == str(bench.root / "bin/torchrun").encode():
            os.kill(int(name), signal.SIGKILL)
    gang.communicate(timeout=20)
    assert gang.returncode == 1
    assert [end["cause"] for end in bench.ends()] == ["agent"]
    assert bench.file("gang.json")["reason"].startswith("torchrun ended by signal 9")
    assert bench.processes() == []


def test_a_crash_loop_ends_for_good_and_stays_down(bench: Bench) -> None:
    mode(bench, "crash", crash=crash(3))
    gang = bench.verb("gang")
    said, _ = gang.communicate(timeout=60)
    assert gang.returncode == 78
    assert "crash loop" in said
    assert len(bench.ends()) == 3
    assert bench.file("gang.json")["state"] == "crash-loop"
    again = bench.verb("gang")
    again.communicate(timeout=15)
    assert again.returncode == 78
    assert len(bench.ends()) == 3


def test_a_reset_gives_a_crash_loop_another_try(bench: Bench) -> None:
    mode(bench, "crash", crash=crash(2))
    bench.verb("gang").communicate(timeout=60)
    from k3ctl.node import attempts

    attempts.append(str(bench.state / "attempts.jsonl"), {"event": "reset", "at": 0})
    mode(bench, "serve", crash=crash(2))
    bench.verb("gang")
    eventually(bench.workers)
    assert bench.file("rank.json")["attempt"] == 3


def test_a_missing_engine_is_a_failure_with_a_reason(bench: Bench) -> None:
    mode(bench, "serve", engine_argv=["/nonexistent/vllm", "serve"])
    rank = bench.verb("rank")
    rank.communicate(timeout=15)
    assert rank.returncode == 1
    (end,) = bench.ends()
    assert end["cause"] == "start"
    assert "/nonexistent/vllm" in end["reason"]


def test_an_address_that_no_interface_holds(bench: Bench) -> None:
    mode(bench, "serve", address="192.0.2.77")
    for failed in (1, 2):
        gang = bench.verb("gang")
        gang.communicate(timeout=15)
        assert gang.returncode == 1
        assert bench.file("gang.json")["failed_starts"] == failed
    assert "no interface holds 192.0.2.77; this host has 127.0.0.1 on lo" in bench.file("gang.json")["reason"]


def test_a_taken_port_names_its_holder(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        mode(bench, "serve", ports=[port])
        gang = bench.verb("gang")
        gang.communicate(timeout=15)
    assert gang.returncode == 1
    assert f"port {port} is held by pid {os.getpid()}: " in bench.file("gang.json")["reason"]


def test_usage(bench: Bench) -> None:
    import subprocess
    import sys

    for verb in ("gang", "rank"):
        done = subprocess.run([sys.executable, str(bench.agent), verb], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"usage: k3node {verb} --launch FILE" in done.stderr
