"""A real sshd on loopback for tests: own host key, own authorized keys, own port, gone afterwards."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k3ctl.cluster import Cluster, ClusterSpec
from k3ctl.edge.known_hosts import HostKey, KnownHosts, host_name
from k3ctl.edge.ssh import FabricRemote
from k3ctl.inventory import Inventory, Node, SshTarget

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")
ME = getpass.getuser()


def need(condition: object, reason: str) -> None:
    """Skip on a developer's machine, fail in CI: there nothing may be left out."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def make_key(file: Path, passphrase: str = "") -> Path:
    """A new ed25519 key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(file)], check=True)
    return file


@dataclass
class Sshd:
    """One running server. `key` opens it; `user` is who logs in."""

    folder: Path
    port: int
    key: Path
    user: str
    process: subprocess.Popen[bytes] | None = None
    options: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    def known(self, address: str = "127.0.0.1") -> HostKey:
        """This server's key as known_hosts has it."""
        keytype, key, *_ = self.host_key.with_suffix(".pub").read_text().split()
        return HostKey(host_name(address, self.port), keytype, key)

    def start(self) -> None:
        """Start and wait until it answers with its banner."""
        set_env = " ".join(f'{name}="{value}"' for name, value in self.environment.items())
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(["ListenAddress ::1"] if has_ipv6() else []),
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "PrintMotd no",
            *([f"SetEnv {set_env}"] if set_env else []),
            *self.options,
        ]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation wants it
        argv = [*self.launcher, str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                    if sock.recv(4) == b"SSH-":
                        return
            except OSError:
                time.sleep(0.05)
        pytest.fail(f"sshd did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """End the server and its sessions."""
        process, self.process = self.process, None
        if process is None:
            return
        subprocess.run(["pkill", "-TERM", "-P", str(process.pid)], check=False)
        process.terminate()
        process.wait(10)

    def renew_host_key(self) -> None:
        """What a reinstallation does."""
        self.host_key.unlink()
        self.host_key.with_suffix(".pub").unlink()
        make_key(self.host_key)

    def target(self, **changes: object) -> SshTarget:
        """How to reach it."""
        values: dict[str, object] = {
            "address": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "key_file": str(self.key),
        }
        return SshTarget(**(values | changes))  # type: ignore[arg-type]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def has_ipv6() -> bool:
    """True when this machine has ::1."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


class Farm:
    """Makes servers and remotes for one test and takes them all down again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.home = folder / "home"
        self.home.mkdir()
        self.key = make_key(folder / "id")
        self.servers: list[Sshd] = []
        self.remotes: list[FabricRemote] = []

    def sshd(
        self,
        *options: str,
        user: str = ME,
        launcher: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        trusted: bool = True,
    ) -> Sshd:
        """A running server that accepts the farm's key."""
        place = self.folder / f"sshd{len(self.servers)}"
        place.mkdir()
        server = Sshd(place, free_port(), self.key, user, None, options, launcher, environment or {})
        make_key(server.host_key)
        (place / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        self.servers.append(server)
        server.start()
        if trusted:
            self.trust(server)
        return server

    def trust(self, server: Sshd, address: str = "127.0.0.1") -> None:
        KnownHosts.of(self.state).put([server.known(address)])

    def remote(self, *targets: SshTarget, say: list[str] | None = None, timeout_s: float = 5.0) -> FabricRemote:
        """A remote for nodes n1, n2, ..."""
        remote = FabricRemote(
            cluster_of(*targets),
            self.state,
            connect_timeout_s=timeout_s,
            home=self.home,
            say=(lambda _: None) if say is None else say.append,
        )
        self.remotes.append(remote)
        return remote

    def close(self) -> None:
        for remote in self.remotes:
            remote.close()
        for server in self.servers:
            server.stop()


def cluster_of(*targets: SshTarget) -> Cluster:
    """A cluster of nodes n1, n2, ... that are reached that way."""
    nodes = tuple(Node(f"n{i + 1}", i, target, f"10.0.0.{i + 1}") for i, target in enumerate(targets))
    inventory = Inventory("k3d", "inventories/k3d", nodes)
    return Cluster(inventory, ClusterSpec(platform="p", model="m", engine="e"), "inventories/k3d/cluster.yml")


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    """Servers and remotes for one test. Needs OpenSSH's server and ssh-keygen."""
    need(SSHD and shutil.which("ssh-keygen"), "sshd is missing: apt-get install openssh-server")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    farm = Farm(tmp_path)
    try:
        yield farm
    finally:
        farm.close()
