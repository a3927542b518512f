"""A lab is defined by an inventory: what is judged, and what it is called on the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.cluster import Cluster, ClusterSpec, Weights
from k3ctl.errors import ConfigError
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.lab import record
from k3ctl.lab.definition import MAX_HOSTS, define, load
from k3ctl.lab.layout import Layout
from k3ctl.lab.process import LabFailed

INVENTORIES = Path(__file__).parents[2] / "inventories"
KEY = "/var/lib/k3ctl-lab/l/ssh/id_ed25519"


def node(index: int, **changes: object) -> Node:
    """Host number `index` of a good lab; `address`, `user`, `key_file`, `port` change its SSH part."""
    own = {k: v for k, v in changes.items() if k in ("name", "fabric_address")}
    ssh = replace(
        SshTarget(f"10.7.0.{11 + index}", user="k3", key_file=KEY),
        **{k: v for k, v in changes.items() if k not in own},  # type: ignore[arg-type]
    )
    return replace(Node(f"n{index}", index, ssh, f"10.8.0.{11 + index}"), **own)  # type: ignore[arg-type]


def cluster(*nodes: Node, endpoint: str = "http://10.7.0.1:8901", name: str = "l") -> Cluster:
    """A cluster of these nodes."""
    spec = ClusterSpec(platform="lab", model="m", engine="e", weights=Weights(endpoint=endpoint))
    return Cluster(Inventory(name, f"/x/{name}", nodes), spec, "cluster.yml")


@pytest.mark.parametrize(("name", "hosts", "last"), [("lab", 2, "10.77.0.12"), ("lab4", 4, "10.92.0.14")])
def test_the_labs_of_the_repository(name: str, hosts: int, last: str) -> None:
    found = load(INVENTORIES / name)
    assert len(found.hosts) == hosts
    assert str(found.hosts[-1].management) == last
    assert found.hub_port == 8901
    assert found.user == "k3"
    assert found.gateway == found.management[1]


@pytest.mark.parametrize("count", [1, 2, MAX_HOSTS])
def test_one_to_eight_hosts(count: int) -> None:
    assert len(define(cluster(*(node(i) for i in range(count)))).hosts) == count


@pytest.mark.parametrize("count", [0, MAX_HOSTS + 1])
def test_no_and_too_many_hosts_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="1 to 8 hosts"):
        define(cluster(*(node(i) for i in range(count))))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (node(1, address="server.example"), "must be an IPv4 address"),
        (node(1, address="fd00::12"), "must be an IPv4 address"),
        (node(1, address="10.7.0.11"), "given twice"),
        (node(1, address="10.7.1.12"), "in one /24"),
        (node(1, address="10.7.0.1"), "gateway"),
        (node(1, fabric_address="10.8.0.255"), "broadcast"),
        (node(1, name="Node_2"), "not a host name"),
        (node(1, user="other"), "one login user"),
        (node(1, user="root"), "not a login user"),
        (node(1, key_file="/root/.ssh/id"), "the lab makes its own key"),
        (node(1, port=2222), "port 22"),
    ],
)
def test_a_host_that_no_lab_can_have(second: Node, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        define(cluster(node(0), second))


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        define(cluster(node(0, port=23), node(1, key_file=""), node(2, name="X")))
    assert len(caught.value.problems) == 3


def test_the_two_networks_differ() -> None:
    with pytest.raises(ConfigError, match="different networks"):
        define(cluster(node(0, fabric_address="10.7.0.21")))


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://10.7.0.1:8901", 8901), ("https://huggingface.co", 0), ("http://10.9.0.1:1", 0)]
)
def test_the_hub_is_the_lab_s_only_on_the_gateway(endpoint: str, port: int) -> None:
    assert define(cluster(node(0), endpoint=endpoint)).hub_port == port


@pytest.mark.parametrize("endpoint", ["http://10.7.0.11:8901", "http://10.7.0.1"])
def test_a_hub_elsewhere_in_the_lab_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="gateway address"):
        define(cluster(node(0), endpoint=endpoint))


def test_an_unknown_host_lists_the_names() -> None:
    with pytest.raises(ConfigError) as caught:
        define(cluster(node(0), node(1))).host("n9")
    assert caught.value.problems[0].expected == "one of n0, n1"


def test_names_fit_and_differ_between_labs() -> None:
    one, two = Layout("lab", Path("/a/lab")), Layout("lab", Path("/b/lab"))
    assert one.prefix != two.prefix
    assert len(one.prefix) == 8
    for name in (one.management_bridge, one.fabric_bridge, one.management_link(99), one.fabric_link(99)):
        assert len(name) <= 15
        assert name.startswith(one.prefix)


def test_the_record_is_the_definition() -> None:
    lab = define(cluster(node(0), node(1)))
    assert record.decode(record.encode(lab)) == lab


def test_what_may_be_made_over_what_is_there() -> None:
    old = define(cluster(node(0)))
    assert record.judge(old, None) is False
    assert record.judge(old, old) is True
    assert record.judge(define(cluster(node(0), node(1))), old) is False
    with pytest.raises(LabFailed, match="has changed"):
        record.judge(old, define(cluster(node(0), node(1))))
    moved = replace(old, layout=Layout("l", Path("/y/l")))
    with pytest.raises(LabFailed, match="another inventory"):
        record.judge(moved, old)
