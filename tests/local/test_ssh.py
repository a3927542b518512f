"""Running commands over real SSH servers on loopback."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k3ctl.errors import Unreachable
from k3ctl.protocols import Command
from k3ctl.secret import Secret
from tests.local.sshd_fixtures import Farm, farm, has_ipv6, need

__all__ = ["farm"]


def alive(mark: str) -> list[str]:
    """Command lines of running processes that hold a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in text:
                found.append(text)
    return found


def gone(mark: str, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while alive(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_status_stdout_and_stderr_come_back(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    result = remote.run("n1", Command(("sh", "-c", "echo out; echo err >&2; exit 3")))
    assert (result.node, result.status, result.stdout, result.stderr) == ("n1", 3, "out\n", "err\n")
    assert not result.ok


def test_arguments_arrive_as_they_are(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    odd = ("a b", "it's", '"', "$HOME", "*", "back\\slash", "two\nlines", "!x", "", "ü")
    result = remote.run("n1", Command(("printf", "<%s>", *odd)))
    assert result.stdout == "".join(f"<{word}>" for word in odd)


def test_bytes_that_are_no_text_are_replaced(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    assert remote.run("n1", Command(("printf", "\\377a"))).stdout == "\ufffda"


def test_five_megabytes_of_binary_stdin(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    data = os.urandom(5_000_000)
    result = remote.run("n1", Command(("sha256sum",), stdin=data))
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_secret_goes_by_stdin(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    assert remote.run("n1", Command(("wc", "-c"), stdin=Secret("hunter2"))).stdout.strip() == "7"


def test_a_command_that_ignores_its_stdin_ends(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    assert remote.run("n1", Command(("true",), stdin=b"x" * 3_000_000)).status == 0


def test_a_signal_is_a_status(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    assert remote.run("n1", Command(("sh", "-c", "kill -9 $$"))).status == 137


def test_twenty_commands_at_once_over_one_connection(farm: Farm) -> None:
    server = farm.sshd()
    remote = farm.remote(server.target())
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda i: remote.run("n1", Command(("echo", str(i)))).stdout, range(20)))
    assert results == [f"{i}\n" for i in range(20)]
    assert server.log().count("Accepted publickey") == 1


def test_a_server_that_allows_two_sessions_is_enough(farm: Farm) -> None:
    remote = farm.remote(farm.sshd("MaxSessions 2").target())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: remote.run("n1", Command(("echo", str(i)))).stdout, range(8)))
    assert results == [f"{i}\n" for i in range(8)]


def test_a_timeout_leaves_no_process(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    mark = "31.4159"
    result = remote.run("n1", Command(("sh", "-c", f"sleep {mark} & sleep {mark}"), timeout_s=1))
    assert result.status == 124
    assert result.seconds < 6
    assert gone(mark, 2), alive(mark)


def test_a_command_that_ignores_term_is_killed(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    mark = "31.4158"
    script = f"trap '' TERM; while :; do sleep {mark}; done"
    result = remote.run("n1", Command(("sh", "-c", script), timeout_s=1))
    assert result.status == 124
    assert gone(mark, 2), alive(mark)


def test_lines_come_one_by_one(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    seen: list[tuple[str, float]] = []
    script = "echo one; sleep 1; cat; printf three"
    result = remote.lines(
        "n1",
        Command(("sh", "-c", script), stdin=b"two\n", timeout_s=20),
        lambda line: seen.append((line, time.monotonic())),
        threading.Event(),
    )
    assert [line for line, _ in seen] == ["one", "two", "three"]
    assert seen[1][1] - seen[0][1] > 0.7
    assert result.status == 0


def test_stop_ends_the_remote_process(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    mark, stop = "31.4157", threading.Event()
    seen: list[str] = []
    script = f"sleep {mark} & echo up; while :; do sleep {mark}; done"

    def on_line(line: str) -> None:
        seen.append(line)
        stop.set()

    began = time.monotonic()
    remote.lines("n1", Command(("sh", "-c", script), timeout_s=0), on_line, stop)
    assert seen == ["up"]
    assert time.monotonic() - began < 5
    assert gone(mark, 2), alive(mark)


def test_the_end_of_the_connection_ends_the_remote_process(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    mark, began = "31.4156", threading.Event()
    errors: list[Unreachable] = []

    def work() -> None:
        command = Command(("sh", "-c", f"echo up; sleep {mark}"), timeout_s=0)
        try:
            remote.lines("n1", command, lambda _: began.set(), threading.Event())
        except Unreachable as error:
            errors.append(error)

    follow = threading.Thread(target=work)
    follow.start()
    assert began.wait(10)
    remote.close()
    follow.join(10)
    assert not follow.is_alive()
    assert errors[0].problems[0].what == "the connection broke while a command ran"
    assert gone(mark, 5), alive(mark)


def test_reconnects_after_the_server_restarted(farm: Farm) -> None:
    server = farm.sshd()
    remote = farm.remote(server.target())
    assert remote.run("n1", Command(("true",))).ok
    server.stop()
    server.start()
    assert remote.run("n1", Command(("echo", "again"))).stdout == "again\n"


def test_a_connection_that_breaks_under_a_command_is_said(farm: Farm) -> None:
    server = farm.sshd()
    remote = farm.remote(server.target())
    remote.run("n1", Command(("true",)))
    threading.Timer(1.0, server.stop).start()
    with pytest.raises(Unreachable) as caught:
        remote.run("n1", Command(("sleep", "8"), timeout_s=10))
    problem = caught.value.problems[0]
    assert problem.what == "the connection broke while a command ran"
    assert problem.node == "n1"
    assert "sleep 8" in problem.found


def test_talk_of_the_login_shell_is_not_output(farm: Farm) -> None:
    # sshd runs ForceCommand in the login shell: it stands for a .bashrc that prints.
    server = farm.sshd('ForceCommand echo "Welcome to the machine"; eval "$SSH_ORIGINAL_COMMAND"')
    remote = farm.remote(server.target())
    assert remote.run("n1", Command(("echo", "data"))).stdout == "data\n"
    seen: list[str] = []
    remote.lines("n1", Command(("echo", "data")), seen.append, threading.Event())
    assert seen == ["data"]


def test_an_account_without_a_shell_is_said(farm: Farm) -> None:
    server = farm.sshd("ForceCommand echo This account is currently not available.; exit 1")
    with pytest.raises(Unreachable) as caught:
        farm.remote(server.target()).run("n1", Command(("true",)))
    assert caught.value.problems[0].what == "the login shell does not run commands"
    assert "not available" in caught.value.problems[0].found


def test_ipv6(farm: Farm) -> None:
    need(has_ipv6(), "this machine has no ::1")
    server = farm.sshd()
    farm.trust(server, "::1")
    assert farm.remote(server.target(address="::1")).run("n1", Command(("echo", "six"))).stdout == "six\n"


def test_a_conversation_goes_both_ways(farm: Farm) -> None:
    remote = farm.remote(farm.sshd().target())
    talk = remote.converse("n1", Command(("sh", "-c", "while read x; do echo got $x; done; echo end"), timeout_s=0))
    assert talk.send(b"1\n")
    assert talk.line(5) == "got 1"
    assert talk.alive
    assert talk.line(0.2) is None
    talk.close()
    assert not talk.alive
