"""Facts about a node's network: interfaces, routes, listening ports, names."""

from __future__ import annotations

from ipaddress import ip_address

from k3ctl.facts.section import Count, Fact, PortNumber


class Interface(Fact):
    """`up`: administratively up and with carrier. MTU in bytes, speed in Mb/s."""

    name: str
    up: bool
    state: str | None = None
    loopback: bool
    mtu: Count | None
    speed_mbps: Count | None = None
    addresses: tuple[str, ...]


class Listener(Fact):
    """A listening TCP port. The owner is looked up for planned ports only, and is None where it is not visible."""

    address: str
    port: PortNumber
    pid: Count | None = None
    program: str | None = None
    unit: str | None = None


class Route(Fact):
    """A default route."""

    via: str | None = None
    interface: str | None = None


class NetworkFacts(Fact):
    """Interfaces, default routes, listening ports, and the range of ephemeral ports (first, last)."""

    interfaces: tuple[Interface, ...]
    listening: tuple[Listener, ...]
    ephemeral: tuple[PortNumber, PortNumber] | None = None
    default_routes: tuple[Route, ...] | None = None

    def holder(self, address: str) -> Interface | None:
        """The interface that holds the address; an interface that is up first."""
        holders = [i for i in self.interfaces if any(same_address(a, address) for a in i.addresses)]
        return next((i for i in holders if i.up), holders[0] if holders else None)


class Resolved(Fact):
    """What a name resolves to on the node: addresses, or an error."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str | None = None


class NameFacts(Fact):
    """The node's own host name and the names of its peers."""

    own: Resolved
    peers: tuple[Resolved, ...] = ()


def same_address(one: str, other: str) -> bool:
    """Are two texts the same address? '::1' and '0:0::1' are; what is no address equals nothing."""
    try:
        return ip_address(one.partition("%")[0]) == ip_address(other.partition("%")[0])
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 or ::1; what is no address is not."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
