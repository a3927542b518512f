"""The host: operating system, architecture, memory."""

from __future__ import annotations

from k3ctl.preflight.check import Case, Check, Verdict, fail, known, ok, value
from k3ctl.units import size

_SYSTEMS = (("ubuntu", "22.04"), ("ubuntu", "24.04"), ("debian", "12"), ("debian", "13"))
_DEFAULT_ARCHITECTURE = "x86_64"


def _os_arch(case: Case) -> Verdict:
    host = value(case.facts.host, "host")
    system = (known(host.os_id, "its system (/etc/os-release)"), known(host.os_version, "its system's version"))
    architecture = known(host.architecture, "its architecture")
    wanted = case.plan.expected.architecture or _DEFAULT_ARCHITECTURE
    names = ", ".join(f"{name} {version}" for name, version in _SYSTEMS)
    found, expected = f"{system[0]} {system[1]} on {architecture}", f"one of {names}, on {wanted}"
    if system not in _SYSTEMS:
        return fail(found, expected, "install a supported release; packages and drivers are chosen for these")
    if wanted not in ("any", architecture):
        return fail(found, expected, f"use {wanted} hosts, or choose the platform in cluster.yml that has this kind")
    return ok(found, expected)


def _memory(case: Case) -> Verdict:
    memory = known(value(case.facts.host, "host").memory_bytes, "its memory (MemTotal)")
    least = case.plan.expected.min_memory_bytes
    found, expected = size(memory), f"at least {size(least)}"
    if memory < least:
        return fail(found, expected, "add memory, or see whether a module failed (`dmidecode -t memory`)")
    return ok(found, expected)


CHECKS = (
    Check(
        name="host.os_arch",
        title="a supported system on the right architecture",
        scope="node",
        why="packages, drivers and the serving environment exist for these systems only",
        judge=_os_arch,
        reads=("host",),
    ),
    Check(
        name="host.memory",
        title="enough main memory",
        scope="node",
        why="loading pins and caches weights in main memory; too little ends in the out-of-memory killer",
        judge=_memory,
        reads=("host",),
    ),
)
