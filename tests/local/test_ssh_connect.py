"""Ways to a host that fail, each in its own words, and ways that work: against real SSH servers on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.edge.ssh import FabricRemote
from k3ctl.errors import Problem, Unreachable
from k3ctl.fanout import each
from k3ctl.inventory import SshTarget
from k3ctl.protocols import Command
from k3ctl.secret import Secret
from tests.local.sshd_fixtures import ME, Farm, Sshd, farm, free_port, make_key, need

__all__ = ["farm"]
TRUE = Command(("true",))


def problem_of(remote: FabricRemote, node: str = "n1", command: Command = TRUE) -> Problem:
    with pytest.raises(Unreachable) as caught:
        remote.run(node, command)
    (problem,) = caught.value.problems
    assert problem.node == node
    assert problem.fix
    return problem


def test_a_closed_port_refuses(farm: Farm) -> None:
    port = free_port()
    problem = problem_of(farm.remote(SshTarget("127.0.0.1", port, "x")))
    assert problem.what == "the host refuses the connection"
    assert problem.found == f"127.0.0.1 port {port}: refused, nothing listens there"


@pytest.fixture
def full_listener() -> Iterator[int]:
    """A port whose accept queue is full: the kernel drops every further SYN, as a firewall does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.1)
        yield server.getsockname()[1]
        for client in clients:
            client.close()


def test_a_dropping_firewall_costs_the_connect_timeout(farm: Farm, full_listener: int) -> None:
    began = time.monotonic()
    problem = problem_of(farm.remote(SshTarget("127.0.0.1", full_listener, "x"), timeout_s=1))
    assert problem.what == "the host does not answer"
    assert problem.found == f"127.0.0.1 port {full_listener}: no answer within 1 s"
    assert time.monotonic() - began < 3


def test_a_name_that_does_not_resolve(farm: Farm) -> None:
    problem = problem_of(farm.remote(SshTarget("no-such-host.invalid", 22, "x")))
    assert problem.what == "the name of the host cannot be resolved"
    assert "no-such-host.invalid" in problem.found


def test_no_route(farm: Farm) -> None:
    # 240.0.0.0/4 is reserved: Linux has no route to it (EINVAL on some versions, then the general words).
    problem = problem_of(farm.remote(SshTarget("255.255.255.255", 22, "x"), timeout_s=1))
    assert problem.what in ("there is no route to the host", "the host cannot be reached")


def test_a_port_that_is_no_ssh(farm: Farm) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        said: list[str] = []
        remote = farm.remote(SshTarget("127.0.0.1", server.getsockname()[1], "x"), say=said, timeout_s=0.3)
        problem = problem_of(remote)
    assert problem.what == "the host answers, but not as an SSH server that k3ctl can talk to"
    assert len(said) == 2
    assert "trying again" in said[0]


def test_all_hosts_are_tried_and_all_errors_kept(farm: Farm) -> None:
    good = farm.sshd().target()
    remote = farm.remote(good, SshTarget("127.0.0.1", free_port(), "x"), replace(good, key_file="/no/such/key"))
    out = each(["n1", "n2", "n3"], lambda node: remote.run(node, TRUE))
    assert list(out.results) == ["n1"]
    with pytest.raises(Unreachable) as caught:
        out.all()
    assert [p.node for p in caught.value.problems] == ["n2", "n3"]


def test_an_unknown_host_key_shows_its_fingerprint(farm: Farm) -> None:
    server = farm.sshd(trusted=False)
    problem = problem_of(farm.remote(server.target()))
    assert problem.what == "the host shows a host key that is not trusted yet"
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(server.host_key)], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split()[1] in problem.found
    assert problem.fix == "k3ctl trust inventories/k3d"
    assert not (farm.state / "known_hosts").exists()


def test_a_changed_host_key_is_never_retried(farm: Farm) -> None:
    server = farm.sshd()
    server.stop()
    old = server.known().fingerprint
    server.renew_host_key()
    server.start()
    said: list[str] = []
    problem = problem_of(farm.remote(server.target(), say=said))
    assert "has CHANGED" in problem.what
    assert old in problem.expected
    assert server.known().fingerprint in problem.found
    assert "--replace 127.0.0.1" in problem.fix
    assert said == []


def test_a_wrong_key_names_user_file_and_what_the_server_offers(farm: Farm) -> None:
    server = farm.sshd("PasswordAuthentication yes")
    other = make_key(farm.folder / "other")
    problem = problem_of(farm.remote(server.target(key_file=str(other))))
    assert problem.what == "the host refuses the login"
    assert f"user {ME} " in problem.found
    assert str(other) in problem.found
    assert "the server offers publickey,password" in problem.found.replace(", ", ",")


def test_no_key_at_all(farm: Farm) -> None:
    problem = problem_of(farm.remote(farm.sshd().target(key_file="")))
    assert "there is no key to try" in problem.found
    assert "ansible_ssh_private_key_file" in problem.fix


def test_the_users_default_key_is_used(farm: Farm) -> None:
    server = farm.sshd()
    (farm.home / ".ssh").mkdir()
    shutil.copy(farm.key, farm.home / ".ssh" / "id_ed25519")
    assert farm.remote(server.target(key_file="")).run("n1", TRUE).ok


@pytest.mark.parametrize(
    ("text", "mode", "found"),
    [
        (None, 0, "it cannot be read: No such file or directory"),
        ("rubbish", 0o600, "it is no private key"),
        ("KEY", 0o644, "its mode is 0644, so ssh ignores it"),
    ],
)
def test_a_key_file_that_cannot_be_used(farm: Farm, text: str | None, mode: int, found: str) -> None:
    file = farm.folder / "bad"
    if text is not None:
        file.write_text(farm.key.read_text() if text == "KEY" else text)
        file.chmod(mode)
    problem = problem_of(farm.remote(farm.sshd().target(key_file=str(file))))
    assert problem.what == f"the key file {file} cannot be used"
    assert found in problem.found


def encrypted(farm: Farm, server: Sshd) -> Path:
    file = make_key(farm.folder / "enc", "secret passphrase")
    (server.folder / "authorized_keys").write_text(file.with_suffix(".pub").read_text())
    file.with_suffix(".pub").unlink()  # the public half must be found in the file itself
    return file


def test_an_encrypted_key_without_agent(farm: Farm) -> None:
    server = farm.sshd()
    file = encrypted(farm, server)
    problem = problem_of(farm.remote(server.target(key_file=str(file))))
    assert problem.found == "it is protected by a passphrase and the ssh agent does not hold it"
    assert problem.fix == f"`ssh-add {file}`"


def test_an_encrypted_key_that_the_agent_holds(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    server = farm.sshd()
    file = encrypted(farm, server)
    sock = farm.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        while not sock.exists():
            time.sleep(0.05)
        ask = farm.folder / "askpass"
        ask.write_text("#!/bin/sh\necho secret passphrase\n")
        ask.chmod(0o700)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        subprocess.run(["ssh-add", str(file)], check=True, env=environment, capture_output=True)
        assert farm.remote(server.target(key_file=str(file))).run("n1", TRUE).ok
    finally:
        agent.terminate()
        agent.wait(5)


def test_a_jump_host(farm: Farm) -> None:
    jump, end = farm.sshd(), farm.sshd()
    remote = farm.remote(
        end.target(jump=(f"{ME}@127.0.0.1:{jump.port}",)), end.target(jump=(f"127.0.0.1:{jump.port}",))
    )
    out = each(["n1", "n2"], lambda node: remote.run(node, Command(("echo", node))).stdout)
    assert dict(out.all()) == {"n1": "n1\n", "n2": "n2\n"}
    assert jump.log().count("Accepted publickey") == 1, "both nodes share the connection to the jump host"
    assert remote.behind_jump("n1")


def test_two_hops(farm: Farm) -> None:
    first, second, end = farm.sshd(), farm.sshd(), farm.sshd()
    jump = (f"127.0.0.1:{first.port}", f"[127.0.0.1]:{second.port}")
    assert farm.remote(end.target(jump=jump)).run("n1", Command(("echo", "far"))).stdout == "far\n"
    assert "Accepted publickey" in first.log()
    assert "Accepted publickey" in second.log()


def test_the_jump_host_cannot_be_reached(farm: Farm) -> None:
    port = free_port()
    problem = problem_of(farm.remote(farm.sshd().target(jump=(f"me@127.0.0.1:{port}",))))
    assert problem.what == f"the jump host me@127.0.0.1 port {port} refuses the connection"
    assert "ProxyJump" in problem.fix


def test_the_jump_host_cannot_reach_the_node(farm: Farm) -> None:
    jump, port = farm.sshd(), free_port()
    target = SshTarget("127.0.0.1", port, "x", str(farm.key), jump=(f"127.0.0.1:{jump.port}",))
    problem = problem_of(farm.remote(target))
    assert problem.what == f"the jump host {ME}@127.0.0.1 port {jump.port} cannot reach the host"
    assert f"127.0.0.1 port {port}" in problem.found
    assert "the jump host itself was reached" in problem.found


def test_the_jump_host_forbids_forwarding(farm: Farm) -> None:
    jump, end = farm.sshd("AllowTcpForwarding no"), farm.sshd()
    problem = problem_of(farm.remote(end.target(jump=(f"127.0.0.1:{jump.port}",))))
    assert "forbids to go on from it" in problem.what
    assert "AllowTcpForwarding" in problem.fix


def test_the_jump_hosts_key_is_checked_too(farm: Farm) -> None:
    jump, end = farm.sshd(trusted=False), farm.sshd()
    problem = problem_of(farm.remote(end.target(jump=(f"127.0.0.1:{jump.port}",))))
    assert problem.what.startswith("the jump host ")
    assert problem.what.endswith("shows a host key that is not trusted yet")


def test_a_proxy_command(farm: Farm) -> None:
    need(shutil.which("python3"), "python3 is missing")
    script = (
        "import socket,sys,threading,os;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
        "threading.Thread(target=lambda:[os.write(1,d) for d in iter(lambda:s.recv(9999),b'')],daemon=True).start();"
        "[s.sendall(d) for d in iter(lambda:os.read(0,9999),b'')]"
    )
    file = farm.folder / "proxy.py"
    file.write_text(script)
    remote = farm.remote(farm.sshd().target(proxy_command=f"python3 {file} %h %p"))
    assert remote.run("n1", Command(("echo", "through"))).stdout == "through\n"


@pytest.mark.parametrize("command", ["/no/such/program %h", "false"])
def test_a_proxy_command_that_fails(farm: Farm, command: str) -> None:
    problem = problem_of(farm.remote(farm.sshd().target(proxy_command=command), timeout_s=2))
    assert problem.what == "the ProxyCommand of the inventory gives no connection"
    assert command.split(maxsplit=1)[0] in problem.found


def test_the_users_ssh_config_counts(farm: Farm) -> None:
    server = farm.sshd()
    (farm.home / ".ssh").mkdir()
    (farm.home / ".ssh" / "config").write_text(
        f"Host gpu1\n  HostName 127.0.0.1\n  Port {server.port}\n  User {ME}\n  IdentityFile {farm.key}\n"
    )
    assert farm.remote(SshTarget("gpu1")).run("n1", Command(("echo", "alias"))).stdout == "alias\n"


SUDO_TALK = {
    "asks": "sudo: a password is required",
    "not allowed": "Sorry, user k3 is not allowed to execute '/bin/sh' as root on node.",
    "tty": "sudo: sorry, you must have a tty to run sudo",
}


@pytest.fixture
def plain_user(farm: Farm) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A user without rights, and what starts sshd so that it knows him.

    As root the user exists only in the server's own mount namespace; otherwise it is the one who runs the tests.
    """
    if os.geteuid() != 0:
        yield ME, ()
        return
    need(shutil.which("unshare"), "unshare is missing")
    passwd, shadow = farm.folder / "passwd", farm.folder / "shadow"
    passwd.write_text(Path("/etc/passwd").read_text() + "k3t:x:54321:65534::/:/bin/sh\n")
    shadow.write_text("root:*:19000::::::\nk3t:*:19000::::::\n")
    for folder in (farm.folder, farm.folder.parent, farm.folder.parent.parent):  # pytest's own, mode 0700
        folder.chmod(0o755)
    script = f'mount --bind {passwd} /etc/passwd && mount --bind {shadow} /etc/shadow && exec "$@"'
    yield "k3t", ("unshare", "--mount", "sh", "-c", script, "sh")


def fake_sudo(farm: Farm, body: str) -> dict[str, str]:
    folder = farm.folder / "bin"
    folder.mkdir(mode=0o755)
    (folder / "sudo").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sudo").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize("kind", SUDO_TALK)
def test_no_sudo(farm: Farm, plain_user: tuple[str, tuple[str, ...]], kind: str) -> None:
    user, launcher = plain_user
    path = fake_sudo(farm, f'echo "{SUDO_TALK[kind]}" >&2; exit 1')
    server = farm.sshd(user=user, launcher=launcher, environment=path)
    problem = problem_of(farm.remote(server.target()), command=Command(("id", "-u"), sudo=True))
    assert problem.found == SUDO_TALK[kind]
    assert f"{user} ALL=(ALL) NOPASSWD: ALL" in problem.fix


def test_sudo_is_missing(farm: Farm, plain_user: tuple[str, tuple[str, ...]]) -> None:
    user, launcher = plain_user
    folder = farm.folder / "bin"
    folder.mkdir(mode=0o755)
    for name in ("sh", "env", "id"):
        (folder / name).symlink_to(shutil.which(name) or "")
    server = farm.sshd(user=user, launcher=launcher, environment={"PATH": str(folder)})
    problem = problem_of(farm.remote(server.target()), command=Command(("id", "-u"), sudo=True))
    assert problem.what == "sudo is missing"


# Stands for sudo with a password rule: -n fails, -S reads one line and wants "pa ss".
PASSWORD_SUDO = """case "$1" in
-n) echo "sudo: a password is required" >&2; exit 1;;
-k) read -r p; [ "$p" = "pa ss" ] || { echo "Sorry, try again." >&2; echo "sudo: 1 incorrect password attempt" >&2
    exit 1; }
esac
while [ "$1" != -- ]; do shift; done; shift; exec "$@" """


def test_the_become_password_goes_by_stdin(farm: Farm, plain_user: tuple[str, tuple[str, ...]]) -> None:
    user, launcher = plain_user
    server = farm.sshd(user=user, launcher=launcher, environment=fake_sudo(farm, PASSWORD_SUDO))
    remote = farm.remote(server.target(become_password=Secret("pa ss")))
    result = remote.run("n1", Command(("cat",), stdin=b"data", sudo=True))
    assert (result.status, result.stdout) == (0, "data")
    assert remote.run("n1", Command(("cat",), stdin=b"data")).stdout == "data"


def test_a_password_that_is_not_needed_stays_off_the_commands_stdin(
    farm: Farm, plain_user: tuple[str, tuple[str, ...]]
) -> None:
    user, launcher = plain_user
    free = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    server = farm.sshd(user=user, launcher=launcher, environment=fake_sudo(farm, free))
    remote = farm.remote(server.target(become_password=Secret("pa ss")))
    assert remote.run("n1", Command(("cat",), stdin=b"data", sudo=True)).stdout == "data"


def test_a_wrong_become_password(farm: Farm, plain_user: tuple[str, tuple[str, ...]]) -> None:
    user, launcher = plain_user
    server = farm.sshd(user=user, launcher=launcher, environment=fake_sudo(farm, PASSWORD_SUDO))
    remote = farm.remote(server.target(become_password=Secret("wrong")))
    problem = problem_of(remote, command=Command(("true",), sudo=True))
    assert problem.what == "sudo does not accept the password"
    assert "wrong" not in repr(problem)


@pytest.mark.parametrize("shell", ["fish", "tcsh"])
def test_other_login_shells(farm: Farm, plain_user: tuple[str, tuple[str, ...]], shell: str) -> None:
    path = shutil.which(shell)
    if os.geteuid() != 0 or not path:
        pytest.skip(f"needs root and {shell}")
    user, launcher = plain_user
    passwd = farm.folder / "passwd"
    passwd.write_text(passwd.read_text().replace("65534::/:/bin/sh", f"65534::/:{path}"))
    remote = farm.remote(farm.sshd(user=user, launcher=launcher).target())
    odd = ("it's", "a\\b", "two\nlines", "!x", "$HOME", "~")
    assert remote.run("n1", Command(("printf", "<%s>", *odd))).stdout == "".join(f"<{word}>" for word in odd)
