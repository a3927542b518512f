"""The cluster's known_hosts file."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from k3ctl.edge.known_hosts import HostKey, KnownHosts, add_known, fingerprint, host_name, parse
from k3ctl.errors import ConfigError
from tests.local.sshd_fixtures import make_key

ONE = "AAAAC3NzaC1lZDI1NTE5AAAAIH8ePfGDDvtUUYl9kG1VRUoC6LWJbYb0AqqzqzjYMZgU"
TWO = "AAAAC3NzaC1lZDI1NTE5AAAAIKcmGYXQ2wZNrfjSdJhgUO3ZCJNfJhJ5w8VXhwlMLXIR"


@pytest.mark.parametrize(
    ("address", "port", "name"),
    [
        ("10.0.0.1", 22, "10.0.0.1"),
        ("10.0.0.1", 2222, "[10.0.0.1]:2222"),
        ("fd00::1", 22, "fd00::1"),
        ("::1", 2222, "[::1]:2222"),
    ],
)
def test_names_are_openssh_s(address: str, port: int, name: str) -> None:
    assert host_name(address, port) == name


def test_the_fingerprint_is_ssh_keygen_s(tmp_path: Path) -> None:
    key = make_key(tmp_path / "k").with_suffix(".pub")
    printed = subprocess.run(["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True).stdout
    keytype, blob, *_ = key.read_text().split()
    assert HostKey("h", keytype, blob).fingerprint == printed.split()[1]
    assert fingerprint(b"").startswith("SHA256:47DEQpj8HBSa")


def test_no_file_is_no_keys(tmp_path: Path) -> None:
    assert KnownHosts.of(tmp_path / "none").read() == ()


def test_keys_are_added_replaced_and_kept(tmp_path: Path) -> None:
    known = KnownHosts.of(tmp_path / "c")
    add_known(tmp_path / "c", "a", 22, "ssh-ed25519", ONE)
    add_known(tmp_path / "c", "b", 2222, "ssh-ed25519", ONE)
    add_known(tmp_path / "c", "a", 22, "ssh-ed25519", TWO)
    assert [key.line for key in known.read()] == [f"[b]:2222 ssh-ed25519 {ONE}", f"a ssh-ed25519 {TWO}"]
    assert known.path.stat().st_mode & 0o777 == 0o600
    assert known.path.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in known.path.parent.iterdir()] == ["known_hosts"]
    assert known.of_host("b", 22) == ()
    assert len(known.of_host("b", 2222)) == 1


def test_openssh_reads_it(tmp_path: Path) -> None:
    add_known(tmp_path, "::1", 2222, "ssh-ed25519", ONE)
    argv = ["ssh-keygen", "-F", "[::1]:2222", "-f", str(tmp_path / "known_hosts")]
    assert ONE in subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_several_names_on_a_line_and_comments() -> None:
    keys = parse(f"# made by hand\n\n10.0.0.1,node1 ssh-ed25519 {ONE} comment\n", "f")
    assert [key.name for key in keys] == ["10.0.0.1", "node1"]


@pytest.mark.parametrize("line", ["a", "a ssh-ed25519", "a ssh-ed25519 !!!", f"a ssh-rsa {ONE}"])
def test_a_damaged_file_is_an_error_with_its_line(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"b ssh-ed25519 {ONE}\n{line}\n", "/state/known_hosts")
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == ("/state/known_hosts", 2)


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    threads = [threading.Thread(target=add_known, args=(tmp_path, f"h{i}", 22, "ssh-ed25519", ONE)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(KnownHosts.of(tmp_path).read()) == 12
