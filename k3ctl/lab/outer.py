"""What the outer machine is, and what it lacks to carry a lab."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed, Runner, must, run

# program -> (Debian/Ubuntu package, what for)
_PROGRAMS = {
    "systemd-nspawn": ("systemd-container", "boots the machines"),
    "mmdebstrap": ("mmdebstrap", "makes the machines' base system"),
    "nft": ("nftables", "lets the machines reach the package servers"),
    "ip": ("iproute2", "makes links and network namespaces"),
    "ssh": ("openssh-client", "logs in to the machines"),
    "ssh-keygen": ("openssh-client", "makes the machines' keys"),
    "cc": ("gcc", "builds the stand-in GPU library"),
    "zstd": ("zstd", "packs the serving environment"),
}
_PACKAGES = {"cc": ("libc6-dev", "/usr/include/stdlib.h")}
_CODENAMES = {("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}


@dataclass(frozen=True)
class Distribution:
    """The outer machine's distribution; the machines get the same."""

    id: str
    version: str
    codename: str

    @property
    def text(self) -> str:
        """For people: `debian 12 (bookworm)`."""
        return f"{self.id} {self.version} ({self.codename})"


def parse_os_release(text: str) -> Distribution:
    """Read the text of /etc/os-release."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    get = {key: value.strip().strip("\"'") for key, value in values.items()}
    return Distribution(get.get("ID", ""), get.get("VERSION_ID", ""), get.get("VERSION_CODENAME", ""))


def distribution() -> Distribution:
    """The outer machine's distribution, or LabFailed when the lab cannot follow it."""
    file = Path("/etc/os-release")
    found = parse_os_release(file.read_text()) if file.is_file() else Distribution("", "", "")
    if (found.id, found.version) not in _CODENAMES:
        raise LabFailed(
            Problem(
                what="the lab follows the distribution of the machine it runs on, and does not know this one",
                found=found.text if found.id else "no /etc/os-release",
                expected="Debian 12 or 13, Ubuntu 22.04 or 24.04",
            )
        )
    return found


def booted_with_systemd() -> bool:
    """Is systemd the service manager of the outer machine? (sd_booted(3))"""
    return Path("/run/systemd/system").is_dir()


def missing_packages(which: Callable[[str], str | None] = shutil.which) -> dict[str, str]:
    """Packages that the outer machine lacks -> what for."""
    lacking: dict[str, str] = {}
    for program, (package, purpose) in _PROGRAMS.items():
        if which(program) is None:
            lacking[package] = purpose
        if program in _PACKAGES and not Path(_PACKAGES[program][1]).exists():
            lacking[_PACKAGES[program][0]] = purpose
    return lacking


def root_problem(system: str, uid: int) -> Problem | None:
    """Why this machine and user cannot carry a lab, or None. Pure."""
    if system != "Linux":
        return Problem(
            what="the lab needs Linux",
            found=system,
            expected="Linux with root: the machines are systemd-nspawn containers in network namespaces",
            fix="run it on a Debian or Ubuntu machine, for example a virtual one",
        )
    if uid != 0:
        return Problem(
            what="the lab needs root",
            found=f"user id {uid}",
            expected="root: it mounts file systems, makes network links and boots systemd-nspawn machines",
            fix="run the same command with sudo",
        )
    return None


def require_root() -> None:
    """LabFailed unless this is Linux and root. Adds the folders of root's programs to PATH: `su` does not."""
    problem = root_problem(platform.system(), os.geteuid())
    if problem is not None:
        raise LabFailed(problem)
    os.environ["PATH"] = with_sbin(os.environ.get("PATH", ""))


def with_sbin(path: str) -> str:
    """A PATH with /usr/sbin and /sbin in it. Pure."""
    parts = [part for part in path.split(":") if part]
    return ":".join([*parts, *(part for part in ("/usr/sbin", "/sbin") if part not in parts)])


def require(*, install: bool, say: Callable[[str], None], runner: Runner = run) -> Distribution:
    """All that a lab needs of the outer machine, or LabFailed that names every lack. `install` runs apt-get."""
    require_root()
    found = distribution()
    lacking = missing_packages()
    if lacking and install:
        say(f"installing {', '.join(sorted(lacking))}")
        _install(sorted(lacking), runner)
        lacking = missing_packages()
    if lacking:
        names = " ".join(sorted(lacking))
        raise LabFailed(
            Problem(
                what="packages are missing on this machine",
                found="no " + ", ".join(sorted(lacking)),
                expected="; ".join(f"{package} {purpose}" for package, purpose in sorted(lacking.items())),
                fix=f"apt-get install -y --no-install-recommends {names}   (or `k3ctl lab create --install`)",
            )
        )
    return found


def _install(packages: list[str], runner: Runner) -> None:
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120"]
    must(runner, [*command, "update"], timeout_s=300)
    must(runner, [*command, "install", "--no-install-recommends", *packages], timeout_s=900)


def file_system_of(folder: Path, mounts: str) -> str:
    """Type of the file system that holds `folder`, from the text of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
