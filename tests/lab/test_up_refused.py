"""Hosts that cannot be used as the inventory says: the real program names host, found, expected and what to do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3ctl.edge.known_hosts import HostKey, KnownHosts
from tests.lab.conftest import write_yaml
from tests.lab.up_fixtures import Done, Operator

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
UNREACHABLE = 4


class Stranger:
    """A copy of the inventory, to be spoilt, and a controller of its own that knows the hosts' keys."""

    def __init__(self, operator: Operator, folder: Path) -> None:
        self.inventory = folder / operator.cluster
        shutil.copytree(operator.lab.inventory, self.inventory)
        self.operator = Operator(operator.lab, folder / "state")
        self.known = KnownHosts.of(self.operator.folder)
        self.known.put(KnownHosts.of(operator.folder).read())
        self.nodes = operator.lab.nodes

    def set_all(self, **variables: Any) -> None:
        file = self.inventory / "group_vars/all.yml"
        write_yaml(file, {**yaml.safe_load(file.read_text()), **variables})

    def set_host(self, node: str, **variables: Any) -> None:
        folder = self.inventory / "host_vars"
        folder.mkdir(exist_ok=True)
        write_yaml(folder / f"{node}.yml", variables)

    def move(self, node: str, address: str) -> None:
        """ansible_host stands beside the host, where host_vars would not win over nothing but itself."""
        file = self.inventory / "hosts.yml"
        here = str(self.operator.lab.definition.host(node).management)
        file.write_text(file.read_text().replace(f"ansible_host: {here}\n", f"ansible_host: {address}\n"))

    def up(self) -> Done:
        return self.operator.run("up", inventory=self.inventory)


@pytest.fixture
def stranger(operator: Operator, tmp_path: Path) -> Iterator[Stranger]:
    one = Stranger(operator, tmp_path)
    yield one
    one.operator.alone()


def told(done: Done, node: str, what: str, *, found: str, expected: str, fix: str) -> None:
    """The error's text names all of it, on lines of its own, and nothing was done on any host."""
    assert done.status == UNREACHABLE, done.err
    assert done.out == ""
    lines = done.err.splitlines()
    place = next((i for i, line in enumerate(lines) if line.startswith(f"connect {node}: ") and what in line), None)
    assert place is not None, done.err
    text = "\n".join(lines[place : place + 6])
    for label, value in (("found", found), ("expected", expected), ("fix", fix)):
        assert any(line.startswith(f"  {label}:") and value in line for line in text.splitlines()), (label, value, text)
    assert "preflight:" not in done.err


def test_wrong_key(stranger: Stranger, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    stranger.set_all(ansible_ssh_private_key_file=str(key))
    done = stranger.up()
    for node in stranger.nodes:
        told(
            done,
            node,
            "refuses the login",
            found=f"tried key file {key} (SHA256:",
            expected="a key that the host accepts",
            fix="put the public key into ~k3/.ssh/authorized_keys",
        )


def test_key_file_that_is_not_there(stranger: Stranger, tmp_path: Path) -> None:
    stranger.set_all(ansible_ssh_private_key_file=str(tmp_path / "nothing"))
    done = stranger.up()
    assert (done.status, done.out) == (2, "")
    assert "the key file does not exist" in done.err
    assert str(tmp_path / "nothing") in done.err


@pytest.fixture
def user(operator: Operator) -> Iterator[str]:
    """A user with the lab's key and no rights, on the last host."""
    node, name = operator.lab.nodes[-1], "k3nobody"
    operator.on(
        node,
        f"useradd -m -s /bin/sh {name} && mkdir -m 700 ~{name}/.ssh && cp ~k3/.ssh/authorized_keys ~{name}/.ssh/ && "
        f"chown -R {name}: ~{name}/.ssh",
    )
    yield name
    operator.on(node, f"userdel -rf {name} 2>/dev/null; ! id {name} 2>/dev/null")


def test_no_sudo(stranger: Stranger, user: str) -> None:
    last = stranger.nodes[-1]
    stranger.set_host(last, ansible_user=user)
    done = stranger.up()
    told(done, last, "sudo", found="password", expected="root by `sudo -n`", fix=f"{user} ALL=(ALL) NOPASSWD: ALL")


def test_python_is_missing(stranger: Stranger) -> None:
    last = stranger.nodes[-1]
    stranger.set_host(last, ansible_python_interpreter="/opt/none/bin/python3")
    done = stranger.up()
    told(
        done,
        last,
        "Python is missing on the host",
        found="/opt/none/bin/python3",
        expected="Python 3.8 or newer",
        fix="apt-get install -y python3",
    )


def test_unreachable_host_and_every_other_problem_at_once(stranger: Stranger) -> None:
    first, last = stranger.nodes[0], stranger.nodes[-1]
    nobody = str(stranger.operator.lab.definition.management[99])
    stranger.move(last, nobody)
    stranger.set_host(first, ansible_python_interpreter="/opt/none/bin/python3")
    done = stranger.up()
    told(done, last, "the host", found=nobody, expected=f"an SSH server at {nobody} port 22", fix="ansible_host")
    told(done, first, "Python is missing", found="/opt/none", expected="Python 3", fix="ansible_python_interpreter")


def test_closed_port(stranger: Stranger) -> None:
    last = stranger.nodes[-1]
    stranger.set_host(last, ansible_port=2)
    done = stranger.up()
    told(done, last, "refuses the connection", found="port 2", expected="port 2", fix="ansible_port")


def test_host_key_that_changed(stranger: Stranger) -> None:
    first, last = (str(host.management) for host in stranger.operator.lab.definition.hosts)
    other = next(key for key in stranger.known.read() if key.name == last and key.keytype == "ssh-ed25519")
    mine = stranger.known.path.read_text().splitlines(keepends=True)
    stranger.known.path.write_text("".join(line for line in mine if first not in line.split()[0]))
    stranger.known.put([HostKey(first, other.keytype, other.key)])
    done = stranger.up()
    told(
        done,
        stranger.nodes[0],
        "has CHANGED",
        found="ssh-ed25519 SHA256:",
        expected=f"trusted in {stranger.known.path}",
        fix="compare the fingerprint on the host's own console",
    )
    assert f"k3ctl trust {stranger.inventory} --replace" in done.err


def test_host_key_that_nobody_trusts_yet_and_trust(stranger: Stranger) -> None:
    stranger.known.path.unlink()
    done = stranger.up()
    assert done.status == UNREACHABLE
    for node in stranger.nodes:
        assert node in done.err
    assert "shows a host key that is not trusted yet" in done.err
    assert f"fix:      k3ctl trust {stranger.inventory}" in done.err
    asked = stranger.operator.run("trust", inventory=stranger.inventory)
    assert asked.status != 0  # nobody is there to confirm
    assert not stranger.known.path.exists()
    trusted = stranger.operator.run("trust", "-y", inventory=stranger.inventory)
    assert trusted.status == 0, trusted.err
    assert stranger.operator.run("up", "--only", "connect", inventory=stranger.inventory).status == 0


def test_status_says_that_it_does_not_know(stranger: Stranger) -> None:
    nobody = str(stranger.operator.lab.definition.management[99])
    stranger.move(stranger.nodes[-1], nobody)
    done = stranger.operator.run("status", "-o", "json", inventory=stranger.inventory)
    assert done.status == UNREACHABLE, done.err
    assert done.json["verdict"] == "unknown"
    assert [rank["state"] for rank in done.json["ranks"]][-1] == "unknown"
    assert done.json["headline"].startswith(f"unknown: {stranger.nodes[-1]}: ")
