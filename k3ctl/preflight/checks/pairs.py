"""Can every node reach every other one over the fabric network?"""

from __future__ import annotations

from k3ctl.facts.pairs import Link, NodeReach
from k3ctl.preflight.check import Case, Check, CouldNotTell, Verdict, fail, not_needed, ok
from k3ctl.units import size

_WORDS = {
    "refused": "connection refused",
    "timeout": "no answer",
    "no_route": "no route",
    "no_address": "the own address cannot be used",
    "forbidden": "forbidden by this node's own rules",
    "stalled": "connected, but a large payload did not come back",
    "wrong_echo": "something else answered there",
    "failed": "connection failed",
}
_FIX = {
    "refused": "a firewall rejects it (the listener was up): allow all TCP between the nodes' fabric addresses",
    "timeout": "a firewall drops it, or cable, VLAN or switch port is wrong: allow all TCP between the nodes",
    "no_route": "see that both addresses are in one subnet, or that a route leads there (`ip route get ADDRESS`)",
    "stalled": "an MTU on the way is smaller than the interfaces': try `ping -M do -s 8972 ADDRESS`, see the switches",
    "wrong_echo": "address translation or a proxy sits between the nodes; connect them directly",
}
_OTHER_FIX = "see `ip addr`, `nft list ruleset` and `ip route` on this node"
_OPEN_ALL = "a firewall opens named ports only: NCCL and gloo use ephemeral ports, allow all TCP between the nodes"


def _pairs(case: Case) -> Verdict:
    targets = [n.name for n in case.plan.nodes if n.name in case.others and case.stands("net.fabric_address", n.name)]
    if not case.others:
        return not_needed("no second node in this run")
    if not targets:
        return not_needed("no peer with a usable fabric address (see net.fabric_address there)")
    if case.pairs.without:
        raise CouldNotTell(case.pairs.without)
    own = _reply(case, case.node.name)
    deaf = [f"port {door.port}: {door.error}" for door in own.listening if door.error]
    if deaf or not own.listening:
        raise CouldNotTell(f"this node could not listen ({'; '.join(deaf) or 'no port was tried'})")
    links = [link for target in targets for link in _links(case, own, target)]
    bad = [link for link in links if link.result != "ok"]
    if bad:
        return _refuse(case, bad, links)
    if not links:
        return not_needed("no peer could listen (see net.pairs there)")
    slowest = max(link.connect_s or 0.0 for link in links)
    reached = list(dict.fromkeys(link.to for link in links))
    found = f"{len(reached)} of {len(targets)} peers on ports {_ports(links)}, slowest {slowest * 1000:.1f} ms"
    return ok(found, f"TCP and {size(links[0].echoed_bytes)} echoed to every peer")


def _reply(case: Case, node: str) -> NodeReach:
    reply = case.pairs.nodes.get(node)
    if reply is None:
        raise CouldNotTell(case.pairs.errors.get(node) or "this node was not asked to reach its peers")
    return reply


def _links(case: Case, own: NodeReach, target: str) -> list[Link]:
    """The links to one peer that can be judged: not those to ports on which the peer itself could not listen."""
    there = case.pairs.nodes.get(target)
    if there is None:
        return []
    deaf = {door.port for door in there.listening if door.error}
    found = {link.port: link for link in own.links if link.to == target}
    missing = [port for port in case.pairs.ports if port not in found]
    if missing:
        raise CouldNotTell(f"no result for {target} on ports {', '.join(map(str, missing))}")
    return [found[port] for port in case.pairs.ports if port not in deaf]


def _refuse(case: Case, bad: list[Link], links: list[Link]) -> Verdict:
    only_ephemeral = {link.port for link in bad} == {case.pairs.ephemeral} and len(case.pairs.ports) > 1
    kinds = list(dict.fromkeys(link.result for link in bad))
    fix = "; ".join(_FIX.get(kind, _OTHER_FIX) for kind in kinds)
    return fail(
        "; ".join(f"{link.to} port {link.port}: {_WORDS.get(link.result, link.result)}" for link in bad),
        f"TCP from {case.node.address} to every peer on ports {_ports(links)}",
        _OPEN_ALL if only_ephemeral and "stalled" not in kinds else fix,
        evidence="\n".join(dict.fromkeys(f"{link.to}: {link.detail}" for link in bad if link.detail)),
    )


def _ports(links: list[Link]) -> str:
    return ", ".join(str(port) for port in sorted({link.port for link in links}))


CHECKS = (
    Check(
        name="net.pairs",
        title="every node reaches every other over the fabric",
        scope="pair",
        why="ranks connect to each other on fixed and ephemeral ports; one closed pair hangs the whole start",
        judge=_pairs,
        needs=("net.fabric_address",),
        reads=("network",),
    ),
)
