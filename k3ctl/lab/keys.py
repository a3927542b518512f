"""Keys of the lab: one that opens all machines, and host keys per machine."""

from __future__ import annotations

import os
from pathlib import Path

from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.process import Runner, must, run

HOST_KEYS = ("ed25519", "ecdsa")


def ensure(lab: LabDefinition, uid: int, gid: int, runner: Runner = run) -> bool:
    """Make the missing keys and the lab's own known_hosts; the lab's key is that user's. True when one was made."""
    ssh = lab.layout.ssh
    ssh.mkdir(parents=True, exist_ok=True)
    made = _generate(lab.layout.key, f"k3ctl lab {lab.name}", "ed25519", runner)
    for host in lab.hosts:
        folder = ssh / "hosts" / host.name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for kind in HOST_KEYS:
            made |= _generate(folder / f"ssh_host_{kind}_key", f"root@{host.name}", kind, runner)
    os.chown(lab.layout.key, uid, gid)
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
