"""Did the node answer, and every collector that this plan needs?"""

from __future__ import annotations

from k3ctl.facts.node import SECTIONS
from k3ctl.plan import Plan
from k3ctl.preflight.check import Case, Check, Verdict, ok

_FIX = {
    "gpus": "look for Xid errors (79, 119) in `dmesg`; if nvidia-smi hangs too, reset the GPU or reboot the node",
    "hcas": "see that the RDMA driver is loaded (`ls /sys/class/infiniband`)",
    "services": "see `systemctl is-system-running` on the node",
    "network": "install iproute2 on the node, or see `ip addr` there",
}


def _complete(case: Case) -> Verdict:
    if case.facts.lost:
        return Verdict(
            "unknown",
            f"the node gave no usable answer: {case.facts.lost}",
            "an answer from every node",
            "see that the node is up and answers over SSH, then run preflight again",
        )
    silent = [name for name in needed(case.plan) if case.facts.section(name).value is None]
    if not silent:
        return ok(f"{len(needed(case.plan))} collectors answered")
    reasons = [f"{name}: {case.facts.section(name).error}" for name in silent]
    return Verdict(
        "unknown",
        "; ".join(reasons),
        "every collector answers",
        "; ".join(_FIX.get(name, f"run preflight again; if `{name}` stays silent, report it") for name in silent),
    )


def needed(plan: Plan) -> tuple[str, ...]:
    """The sections that a verdict on this plan needs: without GPUs or HCAs in the plan, those may be silent."""
    unused = {"gpus": plan.expected.gpus == 0, "hcas": plan.expected.hcas == 0}
    return tuple(name for name in SECTIONS if not unused.get(name, False))


CHECKS = (
    Check(
        name="probe.complete",
        title="the node answers, and all its collectors",
        scope="node",
        why="what could not be read cannot be called good; a driver call that hangs will hang the engine too",
        judge=_complete,
    ),
)
