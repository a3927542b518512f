"""From connection variables and the user's ssh config to a way: pure."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from paramiko import SSHConfig

from k3ctl.edge.ssh_command import Sudo, bounded, judged_status, run_text, stream_text
from k3ctl.edge.ssh_route import Hop, jump_of_command, parse_jump, route, user_config
from k3ctl.errors import ConfigError
from k3ctl.inventory import SshTarget
from k3ctl.protocols import Command
from k3ctl.secret import Secret

NONE = SSHConfig()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gate", ("", "gate", 0)),
        ("ann@gate", ("ann", "gate", 0)),
        ("ann@gate:2222", ("ann", "gate", 2222)),
        ("[fd00::1]:2222", ("", "fd00::1", 2222)),
        ("ann@[fd00::1]", ("ann", "fd00::1", 0)),
        ("fd00::1", ("", "fd00::1", 0)),
        ("a@b@gate", ("a@b", "gate", 0)),
    ],
)
def test_hops(text: str, expected: tuple[str, str, int]) -> None:
    assert parse_jump(text) == expected


@pytest.mark.parametrize("text", ["", "ann@", "gate:x", "gate:0", "gate:65536", "ann@:22"])
def test_what_is_no_hop(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_jump(text)


def test_the_plain_way() -> None:
    way = route(SshTarget("10.0.0.1", user="k3", key_file="/k"), NONE, "me")
    assert way.jumps == ()
    assert way.end == Hop("10.0.0.1", 22, "k3", ("/k",), only_keys=True)


def test_without_a_user_it_is_who_runs_this() -> None:
    assert route(SshTarget("h"), NONE, "me").end == Hop("h", 22, "me")


def test_hops_have_their_own_user_and_may_use_other_keys() -> None:
    way = route(SshTarget("h", user="k3", key_file="/k", jump=("ann@g1:2222", "g2")), NONE, "me")
    assert way.jumps == (Hop("g1", 2222, "ann", ("/k",)), Hop("g2", 22, "me", ("/k",)))


def test_the_ssh_config_fills_in_and_the_inventory_wins() -> None:
    gpu1 = "Host gpu1\n HostName 10.0.0.1\n Port 2222\n User ops\n IdentityFile /id\n IdentitiesOnly yes\n"
    config = SSHConfig.from_text(gpu1 + " ProxyJump gate\nHost gate\n User hop\n Port 2200\n")
    way = route(SshTarget("gpu1"), config, "me")
    assert way.end == Hop("10.0.0.1", 2222, "ops", ("/id",), only_keys=True)
    assert way.jumps == (Hop("gate", 2200, "hop"),)
    own = route(SshTarget("gpu1", 22022, "k3", "/k", ("other",)), config, "me")
    assert own.end == Hop("10.0.0.1", 22022, "k3", ("/k",), only_keys=True)
    assert own.jumps[0].host == "other"


def test_proxy_jump_none_means_none() -> None:
    assert route(SshTarget("h"), SSHConfig.from_text("Host *\n ProxyJump none\n"), "me").jumps == ()


@pytest.mark.parametrize(
    ("command", "jump"),
    [
        ("ssh -W %h:%p -q ubuntu@10.0.0.1", "ubuntu@10.0.0.1"),
        ("/usr/bin/ssh -q -l ann -p 2222 gate -W %h:%p", "ann@gate:2222"),
        ("ssh -W %h:%p", ""),
        ("ssh gate nc %h %p", ""),
        ("ssh -o StrictHostKeyChecking=no -W %h:%p gate", ""),
        ("ssh -W other:22 gate", ""),
        ("nc -x proxy:1080 %h %p", ""),
        ("", ""),
    ],
)
def test_a_proxy_command_that_is_a_jump_host(command: str, jump: str) -> None:
    assert jump_of_command(command) == jump
    way = route(SshTarget("h", 23, proxy_command=command), NONE, "me")
    assert len(way.jumps) == (1 if jump else 0)
    assert way.proxy_command == ("" if jump else command.replace("%h", "h").replace("%p", "23"))


def test_an_ssh_config_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "config"
    assert user_config(file, said.append).get_hostnames() == set()
    assert said == []
    file.write_text("Host x\n  User y\nnonsense\n")
    user_config(file, said.append)
    assert len(said) == 1
    assert str(file) in said[0]


@pytest.mark.parametrize("end", ["silence", "stdin"])
def test_a_streamed_command_ends_with_its_controller(end: str) -> None:
    """An unplugged controller closes nothing: it only falls silent."""
    command = Command(("sh", "-c", "cat; sleep 44.4"), stdin=b"payload\n", timeout_s=0)
    text = stream_text(command, Sudo(needed=False), silence_s=2)
    with subprocess.Popen(["sh", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdin
        assert host.stdout
        host.stdin.write("payload\n")
        host.stdin.flush()
        assert host.stdout.readline() == "k3ctl:begin\n"
        assert host.stdout.readline() == "payload\n"
        for _ in range(3):
            time.sleep(1)
            host.stdin.write(".")
            host.stdin.flush()
        assert host.poll() is None, "heartbeats keep it"
        if end == "stdin":
            host.stdin.close()
        assert host.wait(10) == 143


def test_the_text_for_the_host() -> None:
    command = Command(("echo", "a b"), timeout_s=2.5)
    assert bounded(command) == "timeout -k 5 2.5 echo 'a b'"
    assert run_text(Command(("true",)), Sudo(needed=True)) == (
        "env LC_ALL=C.UTF-8 sudo -n -- sh -c 'echo k3ctl:begin; timeout -k 5 30 true; exit $?'"
    )
    with_password = run_text(Command(("true",)), Sudo(needed=True, password=Secret("pw")))
    assert " sudo -k -S -p '' -- sh -c " in with_password
    assert "pw" not in with_password
    assert "base64" in run_text(Command(("echo", "a\nb")), Sudo(needed=False))


@pytest.mark.parametrize(
    ("status", "seconds", "limit", "judged"),
    [(137, 7.0, 1.0, 124), (137, 0.5, 1.0, 137), (-1, 2.0, 1.0, 124), (124, 1.0, 1.0, 124), (137, 9.0, 0.0, 137)],
)
def test_a_killed_command_timed_out_only_after_its_limit(
    status: int, seconds: float, limit: float, judged: int
) -> None:
    assert judged_status(status, seconds, limit) == judged
