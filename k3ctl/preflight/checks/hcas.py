"""RDMA ports against the plan."""

from __future__ import annotations

from k3ctl.facts.devices import HcaFacts, HcaPort
from k3ctl.preflight.check import Case, Check, Verdict, fail, not_needed, ok, value

_FIX = {
    "INIT": "no subnet manager answers: start one (opensm, UFM) on the fabric",
    "DOWN": "see the cable and the switch port",
}


def _port_state(case: Case) -> Verdict:
    wanted = case.plan.expected.hcas
    if wanted == 0:
        return not_needed("the plan uses no RDMA device")
    facts = value(case.facts.hcas, "hcas")
    ports = [(f"{device.name}/{port.port}", port) for device in facts.devices for port in device.ports]
    active = [name for name, port in ports if _active(port)]
    bad = [f"{name}: {port.state or '?'}, {port.physical or '?'}" for name, port in ports if not _active(port)]
    working = _working(facts)
    found = f"{working} of {len(facts.devices)} devices with an active port"
    expected = f"{wanted} devices with an active port (ACTIVE, LinkUp)"
    if working < wanted:
        kinds = dict.fromkeys(port.state or "" for _, port in ports if not _active(port))
        fix = "; ".join(_FIX.get(kind, "see `rdma link` and `dmesg` on the node") for kind in kinds)
        return fail(
            f"{found}{' (' + '; '.join(bad) + ')' if bad else ''}",
            expected,
            fix or "see that the cards are there (`lspci`) and their driver is loaded (`ls /sys/class/infiniband`)",
        )
    return ok(f"{found}: {', '.join(active)}", expected, evidence="\n".join(bad))


def _active(port: HcaPort) -> bool:
    return port.state == "ACTIVE" and port.physical == "LinkUp"


def _working(facts: HcaFacts) -> int:
    return sum(1 for device in facts.devices if any(_active(port) for port in device.ports))


CHECKS = (
    Check(
        name="hca.port_state",
        title="the RDMA ports are up",
        scope="node",
        why="without a port NCCL falls back to TCP in silence, at a tenth of the speed or less",
        judge=_port_state,
        reads=("hcas",),
    ),
)
