"""The machines' base system: built once from the distribution's archive, kept in the cache, shared by all labs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from k3ctl.errors import Problem
from k3ctl.lab.layout import CACHE_ROOT
from k3ctl.lab.lending import Lent
from k3ctl.lab.outer import Distribution
from k3ctl.lab.process import LabFailed, Runner, must, run, tail

# What a freshly installed server has. chrony, ethtool and the like are not here: the role `base` installs them.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libnuma1",  # vLLM's CPU extension links it
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "zstd",
)
_VERSION = 1  # raise it when `_settle` changes
_BUILD_SECONDS = 900.0


@dataclass(frozen=True)
class Base:
    """One base system: the folder that is every machine's lower layer."""

    name: str
    root: Path


def recipe(distribution: Distribution, architecture: str) -> str:
    """Name of the base that this recipe makes: codename and a digest. The mirror is no part of it."""
    text = json.dumps([_VERSION, distribution.id, distribution.codename, architecture, PACKAGES])
    return f"{distribution.codename}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def find(distribution: Distribution) -> Base:
    """Where the base of this machine is or will be."""
    name = recipe(distribution, os.uname().machine)
    return Base(name, CACHE_ROOT / "base" / name)


def ensure(
    distribution: Distribution, lent: Lent, say: Callable[[str], None], runner: Runner = run
) -> tuple[Base, bool]:
    """The base, and whether it was built now. A crash leaves only a folder under another name, removed here."""
    base = find(distribution)
    if base.root.is_dir():
        return base, False
    base.root.parent.mkdir(parents=True, exist_ok=True)
    with locked(CACHE_ROOT / "locks" / "base.lock", say, "another `lab create` builds the base system"):
        if base.root.is_dir():
            return base, False
        for left in base.root.parent.glob(f"{base.name}.building-*"):
            must(runner, ["rm", "-rf", "--one-file-system", str(left)], timeout_s=120)
        building = base.root.with_name(f"{base.name}.building-{os.getpid()}")
        say(f"base system {distribution.text}: building it once (about 40 s, mostly downloads)")
        _bootstrap(distribution, lent, building, runner)
        _settle(building)
        building.rename(base.root)
    return base, True


def _bootstrap(distribution: Distribution, lent: Lent, target: Path, runner: Runner) -> None:
    # the outer apt reads the archive: its own proxy and certificate settings are handed on
    options = [f"--aptopt={line.rstrip(';')}" for line in lent.apt_options]
    ended = runner(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            *options,
            distribution.codename,
            str(target),
            *lent.sources,
        ],
        timeout_s=_BUILD_SECONDS,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if not ended.ok:
        runner(["rm", "-rf", "--one-file-system", str(target)], timeout_s=120)
        raise LabFailed(
            Problem(
                what="mmdebstrap could not make the base system",
                found=f"exit status {ended.status}",
                fix="see that `apt-get update` works on this machine",
                evidence=tail(ended.stderr),
            )
        )


def _settle(root: Path) -> None:
    """Remove what must differ between machines."""
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")  # empty: systemd makes one at the first boot
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for file in (root / "etc/apt/sources.list.d").glob("*"):
        file.unlink()


@contextmanager
def locked(file: Path, say: Callable[[str], None], busy: str, *, wait_s: float = _BUILD_SECONDS) -> Iterator[None]:
    """Hold a lock file; says `busy` once when somebody else holds it. The kernel frees it when the holder dies."""
    end = time.monotonic() + wait_s
    told = False
    while (handle := _take(file)) is None:
        if not told:
            say(f"{busy}: waiting")
            told = True
        if time.monotonic() > end:
            raise LabFailed(Problem(what=busy, found=f"still after {wait_s:.0f} s", file=str(file)))
        time.sleep(0.2)
    with handle:
        yield


def _take(file: Path) -> IO[str] | None:
    """The open, locked file, or None. A file that its holder has removed meanwhile is no lock any more."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = file.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle.fileno()).st_ino == file.stat().st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    handle.close()
    return None
