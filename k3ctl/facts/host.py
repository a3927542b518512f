"""Facts about the host itself: system, limits, disks, clock, services."""

from __future__ import annotations

from typing import Literal

from k3ctl.facts.section import Bytes, Count, Fact, Seconds

Limit = Count | Literal["unlimited"] | None


class HostFacts(Fact):
    """Operating system, kernel, processors and memory. Sizes in bytes."""

    os_id: str | None
    os_version: str | None
    os_name: str | None = None
    architecture: str | None
    kernel: str | None
    hostname: str | None
    boot_id: str | None = None
    uptime_s: Seconds | None = None
    cpus: Count | None = None
    cpus_usable: Count | None = None
    memory_bytes: Bytes | None
    memory_available_bytes: Bytes | None = None
    swap_bytes: Bytes | None = None
    virtualisation: str | None = None
    python: str | None = None
    is_root: bool | None = None


class LimitFacts(Fact):
    """Limits of services (systemd's defaults), of the probe itself, and whether process 1 may raise them."""

    memlock_service: Limit
    memlock_own: Limit
    nofile_service: Limit = None
    nofile_own: Limit = None
    can_raise: bool | None
    shm_bytes: Bytes | None = None
    shm_free_bytes: Bytes | None = None


class PathSpace(Fact):
    """Room on the file system that holds (or will hold) one folder of the plan. `at` is its nearest existing parent."""

    name: str
    path: str
    at: str
    device: int
    fs_type: str | None = None
    read_only: bool | None
    total_bytes: Bytes | None = None
    free_bytes: Bytes
    free_inodes: Count | None = None
    held_bytes: Bytes | None
    complete: bool | None = None


class DiskFacts(Fact):
    """Room for every folder that was asked about."""

    paths: tuple[PathSpace, ...]

    def of(self, name: str) -> PathSpace | None:
        """The folder of that name."""
        return next((path for path in self.paths if path.name == name), None)


class ClockFacts(Fact):
    """`synchronised` None: neither chrony nor timedatectl could say."""

    now: Seconds
    synchronised: bool | None = None
    by: str | None = None


class UnitState(Fact):
    """systemd's words for one unit."""

    name: str
    load: str | None = None
    active: str | None = None
    sub: str | None = None


class ServiceFacts(Fact):
    """The state of the system as systemd sees it, failed units and our own units."""

    state: str | None
    failed: tuple[str, ...] | None = None
    units: tuple[UnitState, ...] = ()
