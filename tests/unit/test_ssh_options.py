"""SSH options of an inventory: what they say about the way, and what is refused."""

from __future__ import annotations

import shlex

import pytest

from k3ctl.inventory.ssh_options import SshOptions, parse_options
from k3ctl.inventory.ssh_target import ssh_target
from k3ctl.inventory.view import Variable


def parse(text: str) -> SshOptions:
    options, wrong = parse_options(shlex.split(text))
    assert not wrong
    return options


@pytest.mark.parametrize(
    ("text", "jump"),
    [
        ("", ()),
        ("-J gate", ("gate",)),
        ("-Jgate", ("gate",)),
        ("-qCJ gate", ("gate",)),
        ("-o ProxyJump=me@gate:2222", ("me@gate:2222",)),
        ("-oProxyJump=gate", ("gate",)),
        ("-o 'ProxyJump gate'", ("gate",)),
        ("-o 'proxyjump = gate'", ("gate",)),
        ("-o ProxyJump=a,b@b:22,c", ("a", "b@b:22", "c")),
        ("-o ProxyJump=ssh://me@gate:2222", ("me@gate:2222",)),
        ("-o ProxyJump=[2001:DB8:0::1]:2222", ("[2001:db8::1]:2222",)),
        ("-o ProxyJump=none", ()),
        ("-o ProxyJump=first -o ProxyJump=second", ("first",)),
        ("-o ProxyCommand='ssh -W %h:%p -q ubuntu@10.0.0.1'", ("ubuntu@10.0.0.1",)),
        ("-o ProxyCommand='ssh -q -p 2222 -W %h:%p -l me gate'", ("me@gate:2222",)),
        ('-o ProxyCommand="/usr/bin/ssh gate -W [%h]:%p"', ("gate",)),
    ],
)
def test_jumps(text: str, jump: tuple[str, ...]) -> None:
    assert parse(text) == SshOptions(jump=jump)


@pytest.mark.parametrize(
    "command",
    [
        "nc -x proxy:1080 %h %p",
        "ssh -W %h:%p",
        "ssh -i /key -W %h:%p gate",
        "ssh gate nc %h %p",
        "ssh -W other:22 gate",
    ],
)
def test_other_proxy_commands_are_kept_as_they_are(command: str) -> None:
    assert parse(f"-o {shlex.quote('ProxyCommand=' + command)}") == SshOptions(proxy_command=command)


def test_user_port_key() -> None:
    expected = SshOptions(user="me", port=2222, key_file="/k")
    assert parse("-l me -p 2222 -i /k") == expected
    assert parse("-o User=me -o Port=2222 -o IdentityFile=/k -o IdentitiesOnly=yes -4 -A") == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("-o UserKnownHostsFile=/dev/null", "check of host keys"),
        ("-o stricthostkeychecking=accept-new", "check of host keys"),
        ("-L 80:x:80", "does not know the option -L"),
        ("-o LocalForward=1", "does not know the option LocalForward"),
        ("-o ProxyJump=a b", "`b` is no SSH option"),
        ("-o ProxyJump=a@b@c", "no jump host"),
        ("-o ProxyJump=a:99999", "no jump host"),
        ("-o ProxyJump=[zz]", "no jump host"),
        ("-o ProxyJump=,", "no jump host"),
        ("-o", "has no value"),
        ("-J", "has no value"),
        ("-p x", "no port number"),
        ("-Z", "is no SSH option"),
        ("-", "is no SSH option"),
        ("-o 'ProxyCommand=x %n'", "%-token"),
        ("-J a -o ProxyCommand=b", "both given"),
    ],
)
def test_refused(text: str, part: str) -> None:
    _, wrong = parse_options(shlex.split(text))
    assert any(part in what for what, _ in wrong), wrong
    assert all(fix for _, fix in wrong)


@pytest.mark.parametrize(
    ("given", "address", "wrong"),
    [
        ("10.0.0.1", "10.0.0.1", False),
        ("gate-1.example.com", "gate-1.example.com", False),
        ("alias_of_mine", "alias_of_mine", False),
        ("FD00:0::1", "fd00::1", False),
        ("fe80::1%eth0", "fe80::1%eth0", False),
        ("-oProxyCommand=x", "", True),
        ("a b", "", True),
        ("a\n", "", True),
        ("host:22", "", True),
        ("1.2.3", "", True),
    ],
)
def test_addresses(given: str, address: str, wrong: bool) -> None:
    target, problems = ssh_target("node1", {"ansible_host": Variable(given)})
    assert bool(problems) == wrong
    assert wrong or target.address == address


def test_without_variables_the_name_is_the_address() -> None:
    target, problems = ssh_target("node1", {})
    assert (target.address, target.port, target.user, target.python) == ("node1", 22, "", "/usr/bin/python3")
    assert not problems


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("ansible_port", True, "no port number"),
        ("ansible_port", 0, "no port number"),
        ("ansible_port", 65536, "no port number"),
        ("ansible_port", "022", "no port number"),
        ("ansible_user", "a b", "no user name"),
        ("ansible_user", 7, "is text"),
        ("ansible_ssh_common_args", "-o 'x", "cannot be split"),
        ("ansible_python_interpreter", "python3 -u", "no path"),
        ("ansible_become_user", "admin", "not supported"),
        ("ansible_become", False, "needs root"),
        ("ansible_connection", "docker", "reached by SSH"),
        ("ansible_ssh_private_key_file", "id", "relative"),
    ],
)
def test_refused_variables(name: str, value: object, what: str) -> None:
    _, problems = ssh_target("node1", {name: Variable(value, "hosts.yml", 7)})
    assert [(p.node, p.key, p.file, p.line) for p in problems] == [("node1", name, "hosts.yml", 7)]
    assert what in problems[0].what


def test_old_names_and_their_conflicts() -> None:
    old = {"ansible_ssh_host": Variable("10.0.0.1"), "ansible_ssh_port": Variable(2222)}
    target, problems = ssh_target("node1", old)
    assert (target.address, target.port, problems) == ("10.0.0.1", 2222, [])
    _, problems = ssh_target("node1", {**old, "ansible_host": Variable("10.0.0.2")})
    assert "say different things" in problems[0].what


def test_root_needs_no_sudo() -> None:
    _, problems = ssh_target("node1", {"ansible_user": Variable("root"), "ansible_become": Variable(value=False)})
    assert not problems
