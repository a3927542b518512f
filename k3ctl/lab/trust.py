"""The lab made the machines' host keys, so it writes them into the cluster's managed known_hosts itself."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from k3ctl.edge.known_hosts import FILE, HostKey, KnownHosts
from k3ctl.edge.store import write_private
from k3ctl.lab.definition import LabDefinition
from k3ctl.lab.keys import host_lines


@dataclass(frozen=True)
class Invoker:
    """A user of the controller: ids, home, and the folder of k3ctl's state."""

    uid: int
    gid: int
    home: Path
    state: Path


def invokers() -> list[Invoker]:
    """This process's user, and behind sudo also the user who called it (last): both may run `k3ctl up` next."""
    home = Path.home()
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local/state")
    found = [Invoker(os.geteuid(), os.getegid(), home, state / "k3ctl")]
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() == 0 and name not in ("", "root"):
        entry = pwd.getpwnam(name)
        # sudo drops XDG_STATE_HOME or keeps root's: the user's default is the only thing to rely on
        own = Path(entry.pw_dir) / ".local/state/k3ctl"
        found.append(Invoker(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), own))
    return found


def host_keys(lab: LabDefinition) -> list[HostKey]:
    """All keys of the lab, by address and by name."""
    keys = []
    for host in lab.hosts:
        for line in host_lines(lab, host):
            names, keytype, key = line.split()
            keys += [HostKey(name, keytype, key) for name in names.split(",")]
    return keys


def trust(lab: LabDefinition) -> list[str]:
    """Write the keys where they are not yet; the files that changed."""
    wanted = host_keys(lab)
    changed = []
    for user in invokers():
        known = KnownHosts.of(user.state / lab.name)
        if not set(wanted) <= set(known.read()):
            _make_folder(known.path.parent, user)
            known.put(wanted)
            os.chown(known.path, user.uid, user.gid)
            changed.append(str(known.path))
    return changed


def distrust(lab: LabDefinition) -> list[str]:
    """Take the lab's keys out again; a file that is then empty goes. The files that changed."""
    changed = []
    for user in invokers():
        file = user.state / lab.name / FILE
        if not file.is_file():
            continue
        before = file.read_text()
        after = without(before, [n for host in lab.hosts for n in (str(host.management), host.name)])
        if after.strip():
            write_private(file, after.encode())
            os.chown(file, user.uid, user.gid)
        else:
            file.unlink()
            with contextlib.suppress(OSError):
                file.parent.rmdir()  # only if nothing else is in it
        if after != before:
            changed.append(str(file))
    return changed


def without(text: str, names: Iterable[str]) -> str:
    """A known_hosts text without the lines that name any of these hosts. Pure."""
    drop = set(names)
    kept = [line for line in text.splitlines() if not line.strip() or not drop & set(line.split()[0].split(","))]
    return "".join(f"{line}\n" for line in kept)


def _make_folder(folder: Path, user: Invoker) -> None:
    """Make the cluster's folder (0700) and what is missing above it, all owned by that user."""
    missing = []
    for part in (folder, *folder.parents):
        if part.is_dir():
            break
        missing.append(part)
    for part in reversed(missing):
        part.mkdir(mode=0o700)
        os.chown(part, user.uid, user.gid)
    folder.chmod(0o700)
