"""The network as one node sees it: its cluster address, its ports, its names, its MTU among its peers."""

from __future__ import annotations

from k3ctl.facts.network import Interface, Listener, NetworkFacts, is_loopback, same_address
from k3ctl.preflight.check import Case, Check, CouldNotTell, Verdict, fail, known, not_needed, ok, value, warn
from k3ctl.preflight.siblings import odd_one_out

_WILDCARDS = ("0.0.0.0", "::")  # addresses that sockets are compared with
_OWN_ADDRESS_VARIABLES = ("VLLM_HOST_IP", "SGLANG_HOST_IP")


def _fabric_address(case: Case) -> Verdict:
    network = value(case.facts.network, "network")
    address, wanted = case.node.address, case.node.interface
    expected = f"{address} on {wanted or 'an interface'} that is up"
    fix = "set k3ctl_fabric_address (and k3ctl_fabric_interface) of this host to what `ip addr` shows there"
    if is_loopback(address):
        return fail(f"the planned address {address} is a loopback address", expected, fix)
    holder = network.holder(address)
    if holder is None:
        have = ", ".join(f"{i.name} {' '.join(i.addresses)}" for i in network.interfaces if i.addresses)
        return fail(f"no interface has {address}", expected, fix, evidence=have)
    if wanted and holder.name != wanted:
        return fail(f"{address} is on {holder.name}", expected, fix)
    if not holder.up:
        how = f"{address} is on {holder.name}, which is {(holder.state or 'not up').lower()}"
        return fail(
            how, expected, f"`ip link set {holder.name} up`; if it stays down, see the cable and the switch port"
        )
    return ok(f"{address} on {holder.name}, up", expected)


def _ports_free(case: Case) -> Verdict:
    network = value(case.facts.network, "network")
    wanted = [port for port in case.plan.ports if case.node.rank in port.ranks]
    if not wanted:
        return not_needed("the plan has no fixed ports on this node")
    own_unit = f"k3ctl-{case.plan.cluster}.service"
    taken, ours = [], []
    for port in wanted:
        for listener in network.listening:
            if listener.port != port.port or not _in_the_way(listener, case.node.address):
                continue
            if listener.unit == own_unit:
                ours.append(port.port)
            else:
                taken.append(f"{port.port} ({port.purpose}) by {_owner(listener)}")
    expected = ", ".join(str(port.port) for port in wanted) + " free"
    if taken:
        fix = "stop that program, or choose another port in cluster.yml"
        return fail("taken: " + "; ".join(dict.fromkeys(taken)), expected, fix)
    held = f"; {', '.join(map(str, sorted(set(ours))))} held by our own {own_unit}" if ours else ""
    return ok(f"{len(wanted)} planned ports are free{held}" if not ours else f"no stranger on them{held}", expected)


def _in_the_way(listener: Listener, address: str) -> bool:
    place = listener.address.replace("::ffff:", "")
    return place in _WILDCARDS or is_loopback(place) or same_address(place, address)


def _owner(listener: Listener) -> str:
    if listener.pid is None:
        return f"a process that is not visible, at {listener.address}"
    return f"{listener.program or '?'} (pid {listener.pid}{', ' + listener.unit if listener.unit else ''})"


def _hostname(case: Case) -> Verdict:
    names = value(case.facts.names, "names")
    network = value(case.facts.network, "network")
    explicit = [key for key in _OWN_ADDRESS_VARIABLES if case.node.engine_env.get(key) == case.node.address]
    expected = f"{names.own.name} -> {case.node.address}, and every peer's name to that peer or to nothing"
    troubles = [*_own_name(case, network), *_peer_names(case)]
    if not troubles:
        return ok(f"{names.own.name} -> {', '.join(names.own.addresses)}", expected)
    found = "; ".join(troubles)
    fix = f"in /etc/hosts, give {names.own.name} the address {case.node.address} in place of 127.0.1.1"
    if explicit:
        fix += f"; not urgent: this launch goes by addresses ({', '.join(explicit)})"
        return warn(found, expected, fix)
    return fail(found, expected, fix)


def _own_name(case: Case, network: NetworkFacts) -> list[str]:
    own = value(case.facts.names, "names").own
    if not own.addresses:
        return [f"its own name {own.name} does not resolve ({own.error or 'no address'})"]
    if all(is_loopback(address) for address in own.addresses):
        return [f"its own name {own.name} is {', '.join(own.addresses)}, which no peer can reach"]
    strangers = [a for a in own.addresses if not is_loopback(a) and network.holder(a) is None]
    if strangers:
        return [f"its own name {own.name} is {', '.join(strangers)}, which is not on this node"]
    return []


def _peer_names(case: Case) -> list[str]:
    troubles = []
    for peer in value(case.facts.names, "names").peers:
        facts = case.others.get(peer.name)
        if facts is None or facts.network.value is None:
            continue
        wrong = [address for address in peer.addresses if facts.network.value.holder(address) is None]
        wrong += [address for address in peer.addresses if is_loopback(address)]
        if wrong:
            troubles.append(f"{peer.name} is {', '.join(dict.fromkeys(wrong))} here, which is not that node")
    return troubles


def _mtu(case: Case) -> Verdict:
    mtus = {name: _mtu_of(interface) for name, interface in _fabric_interfaces(case).items()}
    own = known(mtus.get(case.node.name), "the MTU of its fabric interface")
    if len(mtus) < 2:
        return not_needed("no peer to compare with")
    odd = odd_one_out(case, {name: str(mtu) for name, mtu in mtus.items() if mtu is not None})
    if odd is None:
        return ok(f"{own}, like its peers")
    fix = "give all fabric interfaces and switch ports one MTU (9000, or 4200 for RoCE)"
    found, expected = f"{own}", f"{odd.usual}, as {odd.shared_by}"
    return fail(found, expected, fix) if case.plan.expected.hcas else warn(found, expected, fix)


def _mtu_of(interface: Interface | None) -> int | None:
    return interface.mtu if interface else None


def _fabric_interfaces(case: Case) -> dict[str, Interface | None]:
    found: dict[str, Interface | None] = {}
    for node in case.plan.nodes:
        facts = case.facts if node.name == case.node.name else case.others.get(node.name)
        if facts is None or facts.network.value is None:
            continue
        if node.name == case.node.name or case.stands("net.fabric_address", node.name):
            found[node.name] = facts.network.value.holder(node.address)
    if case.node.name not in found:
        raise CouldNotTell("the node said nothing about its network")
    return found


CHECKS = (
    Check(
        name="net.fabric_address",
        title="the planned cluster address is on an interface that is up",
        scope="node",
        why="every rank binds and announces this address; a wrong one ends in a rendezvous that times out",
        judge=_fabric_address,
        reads=("network",),
    ),
    Check(
        name="net.ports_free",
        title="nobody else listens on the planned ports",
        scope="node",
        why="the engine would load for minutes and then die with 'address already in use'",
        judge=_ports_free,
        reads=("network",),
    ),
    Check(
        name="net.hostname_resolution",
        title="names lead to the right nodes",
        scope="node",
        why="gloo and Ray look up the host name when no address is given: 127.0.1.1 makes peers connect to themselves",
        judge=_hostname,
        reads=("names", "network"),
    ),
    Check(
        name="net.fabric_mtu",
        title="one MTU on all fabric interfaces",
        scope="cluster",
        why="RDMA between unequal MTUs hangs on large messages while small ones pass",
        judge=_mtu,
        needs=("net.fabric_address",),
        reads=("network",),
    ),
)
