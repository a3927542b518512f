"""Links, namespaces and address translation of a lab: which commands make what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from k3ctl.lab import network
from k3ctl.lab.definition import LabDefinition, define
from k3ctl.lab.network import READY, Link, Seen
from k3ctl.lab.process import Ended
from tests.unit.test_lab_definition import cluster, node

LAB: LabDefinition = define(cluster(node(0), node(1)))
PREFIX = LAB.layout.prefix
NOTHING = Seen({}, frozenset(), frozenset(), ())
MANAGEMENT, FABRIC = LAB.layout.management_bridge, LAB.layout.fabric_bridge
WHOLE = Seen(
    {
        MANAGEMENT: Link(),
        FABRIC: Link(),
        **{LAB.layout.management_link(i): Link(master=MANAGEMENT, alias=READY) for i in (0, 1)},
        **{LAB.layout.fabric_link(i): Link(master=FABRIC) for i in (0, 1)},
    },
    frozenset({f"{PREFIX}-n0", f"{PREFIX}-n1"}),
    frozenset({("ip", PREFIX)}),
    ((LAB.management, MANAGEMENT),),
)


def without(*links: str) -> Seen:
    return replace(WHOLE, links={k: v for k, v in WHOLE.links.items() if k not in links})


def changed(link: str, found: Link) -> Seen:
    return replace(WHOLE, links={**WHOLE.links, link: found})


def test_nothing_is_made_twice() -> None:
    assert network.bridge_commands(LAB, WHOLE) == []
    assert all(network.is_whole(LAB, host, WHOLE) for host in LAB.hosts)


def test_what_is_not_whole() -> None:
    host = LAB.hosts[0]
    mine = LAB.layout.management_link(0)
    for seen in (
        NOTHING,
        without(mine),
        without(LAB.layout.fabric_link(0)),
        changed(mine, Link(master=MANAGEMENT)),  # killed before the last command
        changed(mine, Link(alias=READY)),  # its bridge was deleted
        changed(LAB.layout.fabric_link(0), Link()),
        replace(WHOLE, namespaces=frozenset()),
    ):
        assert not network.is_whole(LAB, host, seen)
    assert network.is_whole(LAB, LAB.hosts[1], without(mine))


def test_a_link_that_is_down_is_still_whole() -> None:
    assert network.is_whole(LAB, LAB.hosts[0], changed(LAB.layout.fabric_link(0), Link(up=False, master=FABRIC)))


def test_a_half_made_host_is_removed_first_and_marked_last() -> None:
    commands = network.host_commands(LAB, LAB.hosts[0], without(LAB.layout.fabric_link(0)))
    assert commands[0] == ["ip", "link", "del", LAB.layout.management_link(0)]
    assert commands[1] == ["ip", "netns", "del", f"{PREFIX}-n0"]
    assert commands[-1] == ["ip", "link", "set", LAB.layout.management_link(0), "alias", READY]
    assert sum(command[:3] == ["ip", "link", "add"] for command in commands) == 2


def test_bridges_from_nothing_half_made_and_down() -> None:
    made = network.bridge_commands(LAB, NOTHING)
    assert [c[-1] for c in made if c[:3] == ["ip", "link", "set"]] == ["up", "up"]
    assert ["ip", "addr", "replace", "10.7.0.1/24", "dev", MANAGEMENT] in made
    assert network.bridge_commands(LAB, changed(FABRIC, Link(up=False))) == [["ip", "link", "set", FABRIC, "up"]]
    unrouted = replace(changed(MANAGEMENT, Link(up=False)), routes=())
    assert [c[1] for c in network.bridge_commands(LAB, unrouted)] == ["addr", "link"]


def test_addresses_of_links_are_fixed_and_differ() -> None:
    every = [network.mac(LAB, f"n{i}/{name}") for i in (0, 1) for name in ("eth0", "eth1")]
    assert len(set(every)) == 4
    assert all(address.startswith("02:") for address in every)
    assert network.mac(LAB, "n0/eth0") == every[0]


def test_a_clash_names_the_link_and_the_key() -> None:
    other = replace(WHOLE, routes=((IPv4Network("10.8.0.0/16"), "tun0"), (LAB.management, MANAGEMENT)))
    (problem,) = network.clashes(LAB, other)
    assert problem.found == "10.8.0.0/16 on tun0"
    assert problem.key == "k3ctl_fabric_address"
    assert network.clashes(LAB, WHOLE) == []


class Kernel:
    """Answers as `ip -j` and `nft -j` do; any other command is an error."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers

    def __call__(
        self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0, env: Mapping[str, str] | None = None
    ) -> Ended:
        return Ended(tuple(argv), 0, json.dumps(self.answers[" ".join(argv)]), "")


def test_looking() -> None:
    seen = network.look(
        Kernel(
            {
                "ip -j link show": [
                    {"ifname": "eth0", "flags": ["UP"], "mtu": 1400},
                    {"ifname": "x", "flags": [], "mtu": 9000, "master": "br", "ifalias": READY},
                ],
                "ip -j netns list": [{"name": "a"}],
                "nft -j list tables": {"nftables": [{"metainfo": {}}, {"table": {"family": "ip", "name": "t"}}]},
                "ip -j -4 route show table all": [
                    {"dst": "default", "dev": "eth0"},
                    {"dst": "10.1.0.0/16", "dev": "eth0"},
                    {"type": "local", "dst": "10.1.2.3", "dev": "eth0"},
                    {"type": "broadcast", "dst": "10.1.255.255", "dev": "eth0"},
                    {"type": "blackhole", "dst": "10.9.0.0/16"},
                ],
            }
        )
    )
    assert seen.mtu == 1400
    assert seen.links["x"] == Link(up=False, master="br", alias=READY)
    assert seen.namespaces == {"a"}
    assert seen.tables == {("ip", "t")}
    assert seen.routes == ((IPv4Network("10.1.0.0/16"), "eth0"), (IPv4Network("10.1.2.3/32"), "eth0"))
