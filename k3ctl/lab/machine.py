"""One machine: an overlay over the base, the files that make it this host, and the systemd-nspawn that boots it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.base import Base
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.keys import HOST_KEYS
from k3ctl.lab.layout import CACHE_ROOT, Layout
from k3ctl.lab.lending import Lent, pip_conf
from k3ctl.lab.outer import file_system_of
from k3ctl.lab.process import LabFailed, Runner, must, run
from k3ctl.lab.services import Service

_MOUNTS = Path("/proc/self/mountinfo")
SIMULATED = "opt/k3sim"  # simulated hardware inside a machine
# The machines share the outer machine's clock: chrony may watch it there, not set it.
_CHRONY = """[Unit]
ConditionCapability=
[Service]
EnvironmentFile=
Environment="DAEMON_OPTS=-F 1 -x"
"""
# The devices are the outer machine's; udev in a machine would trigger and set them.
_MASKED = (
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
)


@dataclass(frozen=True)
class NodeFile:
    """A file of a machine: path without the leading slash, content, mode."""

    path: str
    content: bytes
    mode: int = 0o644


def files(lab: LabDefinition, host: LabHost, lent: Lent) -> list[NodeFile]:
    """The files that make the base this host: what an installer would have written. Pure but for the keys."""
    public = lab.layout.key.with_suffix(".pub").read_bytes()
    keys = lab.layout.ssh / "hosts" / host.name
    found = [
        NodeFile("etc/hostname", f"{host.name}\n".encode()),
        # Debian's installer writes exactly this; the other hosts are for provisioning to add
        NodeFile("etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{host.name}\n".encode()),
        NodeFile("etc/apt/sources.list.d/lab.list", "".join(f"{s}\n" for s in lent.sources).encode()),
        NodeFile("etc/apt/apt.conf.d/90lab", "".join(f"{o}\n" for o in lent.apt_options).encode()),
        NodeFile(f"etc/sudoers.d/{lab.user}", f"{lab.user} ALL=(ALL) NOPASSWD: ALL\n".encode(), 0o440),
        NodeFile("etc/systemd/system/chrony.service.d/lab.conf", _CHRONY.encode()),
        NodeFile("root/.ssh/authorized_keys", public, 0o600),
        NodeFile(f"home/{lab.user}/.ssh/authorized_keys", public, 0o600),
        *(NodeFile(path.lstrip("/"), content) for path, content in lent.files.items()),
    ]
    if lent.pip:
        found.append(NodeFile("etc/pip.conf", pip_conf(lent.pip).encode()))
    for kind in HOST_KEYS:
        name = f"ssh_host_{kind}_key"
        found.append(NodeFile(f"etc/ssh/{name}", (keys / name).read_bytes(), 0o600))
        found.append(NodeFile(f"etc/ssh/{name}.pub", (keys / f"{name}.pub").read_bytes()))
    return found


def mounted(layout: Layout, host: str, mounts: str | None = None) -> bool:
    """Is the machine's root mounted?"""
    text = _MOUNTS.read_text() if mounts is None else mounts
    return any(line.split()[4] == str(layout.machine(host) / "root") for line in text.splitlines())


def prepare(lab: LabDefinition, host: LabHost, base: Base, lent: Lent, runner: Runner = run) -> bool:
    """Mount the machine's root and, the first time, write its files. True when something was done.

    The base that a machine was made from is noted: it keeps that one when the recipe changes. `.prepared` is written
    last: without it the upper layer is half made (and never booted), and is thrown away.
    """
    folder = lab.layout.machine(host.name)
    if mounted(lab.layout, host.name) and (folder / ".prepared").exists():
        return _refresh_resolver(folder / "root", lent)
    for part in ("root", "upper", "work"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "folders").write_text("".join(f"{path}\n" for path in lent.folders))
    note = folder / "base"
    if not note.exists():
        note.write_text(base.name)
    lower = CACHE_ROOT / "base" / note.read_text().strip()
    if not lower.is_dir():
        raise LabFailed(
            Problem(
                what=f"the base system of {host.name} is gone",
                found=f"no {lower}",
                fix="destroy this lab and create it again",
                node=host.name,
            )
        )
    prepared = (folder / ".prepared").exists()
    if not prepared:
        _discard(lab.layout, host.name, runner)
    if not mounted(lab.layout, host.name):
        _mount(folder, lower, runner)
    if not prepared:
        _settle(lab, host, lent, folder / "root", runner)
        (folder / ".prepared").touch()
    _refresh_resolver(folder / "root", lent)
    return True


def _discard(layout: Layout, host: str, runner: Runner) -> None:
    """Empty the upper layer: a killed `useradd`, for one, cannot be completed."""
    folder = layout.machine(host)
    if mounted(layout, host):
        must(runner, ["umount", str(folder / "root")])
    for part in ("upper", "work"):
        must(runner, ["rm", "-rf", "--one-file-system", str(folder / part)], timeout_s=60)
        (folder / part).mkdir()


def _mount(folder: Path, lower: Path, runner: Runner) -> None:
    if file_system_of(folder, _MOUNTS.read_text()) == "overlay":
        raise LabFailed(
            Problem(
                what="the machines need a file system that can be the upper layer of an overlay",
                found=f"{folder} is itself on an overlay (a container's own file system)",
                expected="a real file system (ext4, xfs, btrfs, tmpfs)",
                fix="mount a volume on /var/lib/k3ctl-lab",
            )
        )
    options = f"lowerdir={lower},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    must(runner, ["mount", "-t", "overlay", "-o", options, "overlay", str(folder / "root")])


def _settle(lab: LabDefinition, host: LabHost, lent: Lent, root: Path, runner: Runner) -> None:
    must(runner, ["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", lab.user])
    for file in files(lab, host, lent):
        write(root, file)
    must(runner, ["chroot", str(root), "chown", "-R", f"{lab.user}:{lab.user}", f"/home/{lab.user}"])
    for folder in (root / "root/.ssh", root / f"home/{lab.user}/.ssh"):
        folder.chmod(0o700)
    for unit in _MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    (root / SIMULATED).mkdir(parents=True, exist_ok=True)


def write(root: Path, file: NodeFile) -> None:
    """Write one file of a machine, atomically."""
    target = root / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".lab-new")
    temporary.write_bytes(file.content)
    temporary.chmod(file.mode)
    temporary.rename(target)


def _refresh_resolver(root: Path, lent: Lent) -> bool:
    """A laptop moves between networks: the machines follow its resolver."""
    target = root / "etc/resolv.conf"
    if not lent.resolv_conf or (
        target.is_file() and not target.is_symlink() and target.read_text() == lent.resolv_conf
    ):
        return False
    write(root, NodeFile("etc/resolv.conf", lent.resolv_conf.encode()))
    return True


def nspawn(lab: LabDefinition, host: LabHost, folders: tuple[str, ...]) -> list[str]:
    """argv that boots a machine. Pure.

    All capabilities (nftables, sysctl.net, mounts) but the clock, which would be the outer machine's. --register=no:
    works where no machined runs. The system calls are Docker's and those of nested mounts.
    """
    unit = lab.layout.unit(host.name)
    space = f"/run/netns/{unit}"
    return [
        # nspawn mounts /sys before it changes the namespace: started outside, /sys/class/net would be the outer one
        *("nsenter", f"--net={space}"),
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={lab.layout.machine(host.name) / 'root'}",
        f"--machine={unit}",
        f"--hostname={host.name}",
        f"--network-namespace-path={space}",
        "--register=no",
        "--keep-unit",
        "--console=pipe",
        "--capability=all",
        "--drop-capability=CAP_SYS_TIME",
        "--system-call-filter=add_key keyctl bpf @mount",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        *(f"--bind-ro={folder}" for folder in folders),
    ]


def service(lab: LabDefinition, host: LabHost) -> Service:
    """The machine as a service; a reboot inside starts it again."""
    folder = lab.layout.machine(host.name)
    note = folder / "folders"
    folders = tuple(note.read_text().splitlines()) if note.is_file() else ()
    return Service(
        unit=lab.layout.unit(host.name),
        argv=tuple(nspawn(lab, host, folders)),
        folder=folder / "service",
        log=folder / "console.log",
        # both are needed where the outer cgroups are v1 or hybrid, and harmless where they are v2
        env={"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    )


def leader(main_pid: int) -> int | None:
    """Process 1 of a machine as the outer machine sees it: the child of systemd-nspawn."""
    try:
        children = Path(f"/proc/{main_pid}/task/{main_pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def unmount_all(layout: Layout, say: Callable[[str], None], runner: Runner = run) -> None:
    """Unmount everything below the lab's folder, deepest first; LabFailed when something stays."""
    del say
    for lazy in ([], ["--lazy"]):
        points = [line.split()[4] for line in _MOUNTS.read_text().splitlines()]
        below = [p for p in points if p.startswith(f"{layout.state}{os.sep}")]
        for point in sorted(below, key=len, reverse=True):
            runner(["umount", *lazy, point])
    left = [line.split()[4] for line in _MOUNTS.read_text().splitlines() if f" {layout.state}{os.sep}" in line]
    if left:
        raise LabFailed(Problem(what="a mount of the lab does not go away", found=", ".join(left)))
