"""Limits that the engine's service will get."""

from __future__ import annotations

from k3ctl.preflight.check import Case, Check, CouldNotTell, Verdict, fail, known, not_needed, ok, value
from k3ctl.units import size

_ENOUGH = 32 << 30  # finite limits from here on are known to work (AMD's and AWS's own node checks use 16 to 32 GiB)


def _memlock(case: Case) -> Verdict:
    if not case.plan.expected.memlock:
        return not_needed("this platform registers no memory with a network card")
    limits = value(case.facts.limits, "limits")
    default = limits.memlock_service
    if default is None:
        raise CouldNotTell("the node could not tell the limit that systemd gives to services (DefaultLimitMEMLOCK)")
    expected = f"unlimited, at least {size(_ENOUGH)}, or a host that lets the unit raise it"
    if default == "unlimited" or (isinstance(default, int) and default >= _ENOUGH):
        return ok(f"services get {_words(default)}", expected)
    if known(limits.can_raise, "whether process 1 may raise limits (CapBnd)"):
        return ok(f"services get {_words(default)}; the engine's unit raises it, and this host allows that", expected)
    return fail(
        f"services get {_words(default)}, and process 1 may not raise it (no CAP_SYS_RESOURCE)",
        expected,
        "set DefaultLimitMEMLOCK=infinity in /etc/systemd/system.conf, or give the container/VM CAP_SYS_RESOURCE",
    )


def _words(limit: int | str) -> str:
    return limit if isinstance(limit, str) else size(limit)


CHECKS = (
    Check(
        name="limits.memlock",
        title="services may lock memory",
        scope="node",
        why="RDMA registration fails with ENOMEM under the default of 8 MB; NCCL then dies or falls back to sockets",
        judge=_memlock,
        reads=("limits",),
    ),
)
