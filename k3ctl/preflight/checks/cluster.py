"""The nodes compared with each other: clocks and versions."""

from __future__ import annotations

from statistics import median

from k3ctl.facts.node import NodeFacts
from k3ctl.preflight.check import Case, Check, Verdict, fail, known, not_needed, ok, value, warn
from k3ctl.preflight.siblings import odd_one_out
from k3ctl.units import duration

_WARN_S = 1.0  # logs can no longer be put side by side; leases of etcd-like stores expire oddly
_FAIL_S = 30.0  # certificates and tokens are refused


def _skew(case: Case) -> Verdict:
    own = known(case.facts.offset, "its time")
    # The controller's clock (0) votes too: with two nodes a median of both alone could not say which one is wrong.
    middles = [0.0, own.middle, *(facts.offset.middle for facts in case.others.values() if facts.offset)]
    off = own.middle - median(middles)
    sure = max(abs(off) - own.doubt, 0.0)
    clock = case.facts.clock.value
    keeper = "not known" if clock is None or clock.synchronised is None else ("yes" if clock.synchronised else "no")
    found = f"{_signed(off)} (give or take {duration(own.doubt)}), kept in time: {keeper}"
    expected = f"within {duration(_WARN_S)} of the other clocks"
    fix = "see that chrony runs and reaches its servers (`chronyc sources`), then `chronyc makestep`"
    if sure > _FAIL_S:
        return fail(found, expected, fix)
    if sure > _WARN_S:
        return warn(found, expected, fix)
    return ok(found, expected)


def _signed(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'ahead' if seconds >= 0 else 'behind'}"


def _versions(case: Case) -> Verdict:
    if not case.others:
        return not_needed("no second node in this run")
    odd = []
    worst = "ok"
    for what, severity in (("system", "fail"), ("architecture", "fail"), ("driver", "fail"), ("kernel", "warn")):
        if what == "driver" and (case.plan.expected.gpus == 0 or case.facts.gpus.value is None):
            continue  # no driver is needed, or probe.complete says already that it does not answer
        values = {name: found for name, facts in case.others.items() if (found := _version(facts, what)) is not None}
        own = known(_version(case.facts, what), f"its {what} version")
        differs = odd_one_out(case, {**values, case.node.name: own})
        if differs:
            odd.append(f"{what} {own}, but {differs.usual} on {differs.shared_by}")
            worst = "fail" if severity == "fail" or worst == "fail" else "warn"
    expected = "one system, kernel and driver version on all nodes"
    if not odd:
        return ok("like its peers", expected)
    found, fix = "; ".join(odd), "install one version on all nodes and hold the packages (`apt-mark hold`)"
    return fail(found, expected, fix) if worst == "fail" else warn(found, expected, fix)


def _version(facts: NodeFacts, what: str) -> str | None:
    if what == "driver":
        return facts.gpus.value.driver if facts.gpus.value else None
    host = facts.host.value
    if host is None:
        return None
    if what == "system":
        return f"{host.os_id} {host.os_version}" if host.os_id and host.os_version else None
    return host.architecture if what == "architecture" else host.kernel


def _identity(case: Case) -> Verdict:
    own = known(value(case.facts.host, "host").hostname, "its host name")
    twins = [name for name, facts in case.others.items() if facts.host.value and facts.host.value.hostname == own]
    if twins:
        fix = "give every host a name of its own (`hostnamectl set-hostname`); see that no host is listed twice"
        return fail(f"{own}, and so is {' '.join(twins)}", "a host name that no other node has", fix)
    return ok(own, "a host name that no other node has")


CHECKS = (
    Check(
        name="time.skew",
        title="the clocks agree",
        scope="cluster",
        why="logs of several nodes cannot be put in order, and certificates and hub tokens are refused",
        judge=_skew,
        reads=("clock",),
    ),
    Check(
        name="cluster.identity_unique",
        title="no two nodes have one host name",
        scope="cluster",
        why="NCCL and others take two ranks with one host name for neighbours that share memory, and hang",
        judge=_identity,
        reads=("host",),
    ),
    Check(
        name="cluster.versions_same",
        title="the same system, kernel and driver everywhere",
        scope="cluster",
        why="one odd driver or kernel breaks collectives on that node only, which looks like anything but versions",
        judge=_versions,
        reads=("host",),
    ),
)
