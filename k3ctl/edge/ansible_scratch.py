"""One private folder per play, and the end of every process that still holds it by name."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Scratch:
    """`path` holds everything of one play (0700). `control` is for ssh sockets: their path may have 104 characters."""

    path: Path
    control: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file of mode 0600 below `path` and return where it is."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        return file

    def read_tail(self, name: str, lines: int) -> str:
        """The last lines of a file of this play; empty when it was never written."""
        try:
            text = (self.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


@contextmanager
def open_scratch(root: Path) -> Iterator[Scratch]:
    """A new private folder for one play. It is gone afterwards, and so is every process that names it.

    A play that was cancelled leaves more than its own process group: core 2.19 starts each worker in a session of its
    own, and ssh masters are daemons. All of them have the folder's name on their command line.
    Folders of runs that were killed are cleaned the same way first; a lock tells the living from the dead.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    clean_dead(root)
    path = Path(tempfile.mkdtemp(prefix="play-", dir=root))
    control = Path(tempfile.mkdtemp(prefix="k3c"))
    (path / "control").symlink_to(control)
    with (path / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield Scratch(path, control)
        finally:
            _clean(path, control)


def clean_dead(root: Path) -> None:
    """Remove what plays of killed runs left below `root`: their variables hold secrets."""
    for old in sorted(root.glob("play-*")):
        _clean_if_dead(old)


def _clean_if_dead(path: Path) -> None:
    try:
        with (path / "owner.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clean(path, (path / "control").readlink())
    except BlockingIOError:
        return  # its owner lives: another k3ctl on this cluster
    except FileNotFoundError:
        shutil.rmtree(path, ignore_errors=True)  # killed between two lines of open_scratch, before anything was started


def _clean(path: Path, control: Path) -> None:
    end_processes(str(path), str(control))
    shutil.rmtree(control, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def end_processes(*names: str) -> None:
    """End every process that has one of the names on its command line: SIGTERM, then SIGKILL after two seconds.

    SIGTERM comes first because an Ansible worker passes it on to its own process group (the ssh client).
    """
    deadline = time.monotonic() + GRACE_SECONDS
    number = signal.SIGTERM
    while pids := _holders(names):
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        if time.monotonic() > deadline + GRACE_SECONDS:
            return  # in uninterruptible sleep: the kernel ends it when it wakes
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _holders(names: tuple[str, ...]) -> list[int]:
    own = os.getpid()
    return [pid for pid, line in _command_lines() if pid != own and any(name in line for name in names)]


def _command_lines() -> Iterable[tuple[int, str]]:
    """(pid, command line) of all processes that we may see; zombies have an empty line."""
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        for entry in proc.iterdir():
            if entry.name.isdigit():
                try:
                    yield (
                        int(entry.name),
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                    )
                except OSError:
                    continue  # ended meanwhile
        return
    listing = subprocess.run(
        ("ps", "-axww", "-o", "pid=,command="), capture_output=True, text=True, check=True, timeout=10
    )
    for line in listing.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        yield int(pid), command
