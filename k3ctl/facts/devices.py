"""Facts about GPUs and RDMA devices."""

from __future__ import annotations

from k3ctl.facts.section import Bytes, Count, Fact


class Gpu(Fact):
    """One GPU; with `error` set, the driver counts it and cannot use it. Memory in bytes, power in mW."""

    index: Count
    error: str | None = None
    name: str | None = None
    uuid: str | None = None
    serial: str | None = None
    bus_id: str | None = None
    capability: str | None = None
    memory_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    ecc_on: bool | None = None
    ecc_pending_on: bool | None = None
    ecc_uncorrected: Count | None = None
    temperature_c: Count | None = None
    power_mw: Count | None = None
    utilisation_percent: Count | None = None


class GpuFacts(Fact):
    """The GPUs that the driver counts, and its versions."""

    count: Count
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...]


class HcaPort(Fact):
    """One port, in the kernel's words: state ACTIVE, INIT, DOWN; physical LinkUp, Polling, Disabled. Rate in Gb/s."""

    port: Count
    state: str | None
    physical: str | None
    link_layer: str | None = None
    rate_gbps: float | None = None
    link_downed: Count | None = None


class Hca(Fact):
    """One RDMA device."""

    name: str
    type: str | None = None
    firmware: str | None = None
    board: str | None = None
    node_guid: str | None = None
    netdevs: tuple[str, ...] = ()
    ports: tuple[HcaPort, ...]


class HcaFacts(Fact):
    """All RDMA devices."""

    devices: tuple[Hca, ...]
