"""Addresses of the network between the nodes. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any


def fabric_address(value: Any) -> tuple[str, str]:
    """A fabric address in canonical form, or an empty text and why it is none."""
    if not isinstance(value, str):
        return "", "is no text"
    if "/" in value:
        return "", "has a prefix length: the subnet stands in cluster.yml, fabric.subnet"
    try:
        address = ip_address(value.strip())
    except ValueError:
        return "", "is no IP address"
    reason = _unfit(address)
    return ("", reason) if reason else (address.compressed, "")


def _unfit(address: IPv4Address | IPv6Address) -> str:
    if address.is_loopback:
        return "is a loopback address: other nodes cannot reach it"
    if address.is_unspecified or address.is_multicast:
        return "is no address of one host"
    if address.is_link_local:
        return "is a link-local address: it means another host on every link"
    return ""


def outside(address: str, subnet: IPv4Network | IPv6Network) -> str:
    """Why an address is no host address of a subnet; empty when it is one."""
    ip = ip_address(address)
    if ip.version != subnet.version:
        return f"is IPv{ip.version}, and fabric.subnet is IPv{subnet.version}"
    if ip not in subnet:
        return "is not inside fabric.subnet"
    if ip.version == 4 and subnet.prefixlen < 31 and ip in (subnet.network_address, subnet.broadcast_address):
        return "is the network or broadcast address of fabric.subnet"
    return ""
