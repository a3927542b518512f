"""Keys of the lab: one that opens all machines, host keys per machine, and the known_hosts that follow from them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.process import Runner, must, run

HOST_KEYS = ("ed25519", "ecdsa")


@dataclass(frozen=True)
class Invoker:
    """Who called: behind sudo that is the user, not root. The lab's key is readable for that user."""

    uid: int
    gid: int
    home: Path
    state: Path  # XDG_STATE_HOME


def invoker() -> Invoker:
    """From SUDO_USER, else this process."""
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() == 0 and name and name != "root":
        entry = pwd.getpwnam(name)
        # sudo drops XDG_STATE_HOME or keeps root's: the user's default is the only thing to rely on
        return Invoker(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), Path(entry.pw_dir) / ".local/state")
    home = Path.home()
    return Invoker(os.geteuid(), os.getegid(), home, Path(os.environ.get("XDG_STATE_HOME") or home / ".local/state"))


def ensure(lab: LabDefinition, user: Invoker, runner: Runner = run) -> bool:
    """Make the keys that are missing and write known_hosts; True when something was made."""
    ssh = lab.layout.ssh
    ssh.mkdir(parents=True, exist_ok=True)
    made = _generate(lab.layout.key, f"k3ctl lab {lab.name}", "ed25519", runner)
    for host in lab.hosts:
        folder = ssh / "hosts" / host.name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for kind in HOST_KEYS:
            made |= _generate(folder / f"ssh_host_{kind}_key", f"root@{host.name}", kind, runner)
    os.chown(lab.layout.key, user.uid, user.gid)
    (ssh / "known_hosts").write_text("".join(f"{line}\n" for host in lab.hosts for line in host_lines(lab, host)))
    return made


def _generate(file: Path, comment: str, kind: str, runner: Runner) -> bool:
    if file.exists() and file.with_name(file.name + ".pub").exists():
        return False
    file.unlink(missing_ok=True)
    must(runner, ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(file)])
    return True


def host_lines(lab: LabDefinition, host: LabHost) -> list[str]:
    """known_hosts lines of one machine, one a key, for its address and its name."""
    lines = []
    for kind in HOST_KEYS:
        public = (lab.layout.ssh / "hosts" / host.name / f"ssh_host_{kind}_key.pub").read_text().split()
        lines.append(f"{host.management},{host.name} {public[0]} {public[1]}")
    return lines


def without(text: str, names: Iterable[str]) -> str:
    """A known_hosts text without the lines that name any of these hosts. Pure."""
    drop = set(names)
    kept = [line for line in text.splitlines() if not line.strip() or not drop & set(line.split()[0].split(","))]
    return "".join(f"{line}\n" for line in kept)


def managed_file(lab: LabDefinition, user: Invoker) -> Path:
    """The cluster's managed known_hosts in the controller's state folder."""
    return user.state / "k3ctl" / lab.name / "known_hosts"


def trust(lab: LabDefinition, user: Invoker) -> bool:
    """Write the machines' keys into the cluster's known_hosts; True when it changed."""
    file = managed_file(lab, user)
    names = [n for host in lab.hosts for n in (str(host.management), host.name)]
    before = file.read_text() if file.is_file() else ""
    after = without(before, names) + "".join(f"{line}\n" for host in lab.hosts for line in host_lines(lab, host))
    if after == before:
        return False
    folder = user.state
    for part in (user.state.parent, user.state, user.state / "k3ctl", user.state / "k3ctl" / lab.name):
        folder = part
        if not folder.is_dir():
            folder.mkdir()
            os.chown(folder, user.uid, user.gid)
    folder.chmod(0o700)
    _write(file, after, user)
    return True


def distrust(lab: LabDefinition, user: Invoker) -> bool:
    """Take the machines' keys out again; a file that is empty then goes. True when it changed."""
    file = managed_file(lab, user)
    if not file.is_file():
        return False
    before = file.read_text()
    after = without(before, [n for host in lab.hosts for n in (str(host.management), host.name)])
    if after.strip():
        _write(file, after, user)
    else:
        file.unlink()
    return after != before


def _write(file: Path, text: str, user: Invoker) -> None:
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o600)
    os.chown(temporary, user.uid, user.gid)
    temporary.rename(file)
