"""Each fault breaks what it says, shows in status, and is taken back."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator

import pytest

from k3ctl.lab import record
from tests.lab.conftest import MachineLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

CONNECT = "import socket; socket.create_connection(({address!r}, {port}), 2).close()"


def reaches(lab: MachineLab, source: str, address: str, port: int = 22) -> bool:
    """Can `source` open a TCP connection there?"""
    return lab.ssh(source, f"python3 -c {shlex.quote(CONNECT.format(address=address, port=port))}").ok


def faults(lab: MachineLab, node: str) -> list[str]:
    """Names of the active faults of a machine, from the lab's record."""
    return [f["name"] for f in record.faults(lab.definition.layout).values() if f["node"] == node]


@pytest.fixture
def broken(lab: MachineLab) -> Iterator[MachineLab]:
    """The lab; whatever a test left active is cleared."""
    yield lab
    for node in lab.nodes:
        for name in faults(lab, node):
            lab.command("fault", node, name, "--clear", "-i", "{}")


def inject(lab: MachineLab, node: str, name: str, *options: str) -> None:
    words = [word for option in options for word in ("-s", option)]
    made = lab.command("fault", node, name, "-i", "{}", *words)
    assert made.ok, made.stderr
    assert name in faults(lab, node)
    assert "no change" in lab.command("fault", node, name, "-i", "{}", *words).stderr


def clear(lab: MachineLab, node: str, name: str) -> None:
    cleared = lab.command("fault", node, name, "--clear", "-i", "{}")
    assert cleared.ok, cleared.stderr
    assert faults(lab, node) == []
    assert "no change" in lab.command("fault", node, name, "--clear", "-i", "{}").stderr


def test_link_down(broken: MachineLab) -> None:
    first, second = broken.definition.hosts[:2]
    inject(broken, second.name, "link-down")
    assert not reaches(broken, first.name, str(second.fabric))
    assert broken.ssh(second.name, "cat /sys/class/net/eth1/carrier").stdout == "0\n"
    assert reaches(broken, first.name, str(second.management))
    clear(broken, second.name, "link-down")
    assert reaches(broken, first.name, str(second.fabric))


def test_partition(broken: MachineLab) -> None:
    first, second = broken.definition.hosts[:2]
    inject(broken, first.name, "partition", f"peer={second.name}")
    assert not reaches(broken, first.name, str(second.fabric))
    assert not reaches(broken, second.name, str(first.fabric))
    assert broken.ssh(second.name, "cat /sys/class/net/eth1/carrier").stdout == "1\n"
    clear(broken, first.name, "partition")
    assert reaches(broken, second.name, str(first.fabric))


def test_mtu(broken: MachineLab) -> None:
    node = broken.nodes[1]
    inject(broken, node, "mtu", "mtu=1300")
    shown = json.loads(broken.command("status", "{}", "-o", "json").stdout)
    assert [m["faults"] for m in shown["machines"] if m["name"] == node] == [["mtu mtu=1300 network=fabric"]]
    assert broken.ssh(node, "cat /sys/class/net/eth1/mtu").stdout == "1300\n"
    clear(broken, node, "mtu")
    assert broken.ssh(node, "cat /sys/class/net/eth1/mtu").stdout == "1500\n"


def test_firewall_and_port_in_use(broken: MachineLab) -> None:
    first, second = broken.definition.hosts[:2]
    inject(broken, second.name, "port-in-use", "port=29400")
    assert reaches(broken, first.name, str(second.fabric), 29400)
    inject(broken, second.name, "firewall", "port=29400")
    assert not reaches(broken, first.name, str(second.fabric), 29400)
    assert broken.command("fault", second.name, "firewall", "--clear", "-i", "{}").ok
    assert reaches(broken, first.name, str(second.fabric), 29400)
    clear(broken, second.name, "port-in-use")
    assert not reaches(broken, first.name, str(second.fabric), 29400)


def test_full_disk(broken: MachineLab) -> None:
    node = broken.nodes[0]
    inject(broken, node, "full-disk", "path=/srv/k3t", "leave=5M")
    assert not broken.ssh(node, "head -c 10000000 /dev/zero > /srv/k3t/f").ok
    clear(broken, node, "full-disk")
    assert broken.ssh(node, "head -c 10000000 /dev/zero > /srv/k3t/f && rm -r /srv/k3t").ok


def test_wrong_hosts(broken: MachineLab) -> None:
    first, second = broken.nodes[:2]
    before = broken.ssh(first, "cat /etc/hosts").stdout
    inject(broken, first, "wrong-hosts", f"name={second}", "address=192.0.2.7")
    assert broken.ssh(first, f"getent hosts {second}").stdout.startswith("192.0.2.7")
    clear(broken, first, "wrong-hosts")
    assert broken.ssh(first, "cat /etc/hosts").stdout == before


def test_rate_limit(broken: MachineLab) -> None:
    node = broken.nodes[1]

    def seconds() -> float:
        began = time.monotonic()
        assert len(broken.ssh(node, "head -c 1000000 /dev/zero | base64 -w0").stdout) == 1333336
        return time.monotonic() - began

    assert seconds() < 4
    inject(broken, node, "rate-limit", "rate=2mbit")
    assert seconds() > 4  # 1.33 MB at 2 Mbit/s takes 5.3 s
    clear(broken, node, "rate-limit")
    assert seconds() < 4


def test_second_default_route(broken: MachineLab) -> None:
    node = broken.nodes[1]
    inject(broken, node, "second-default-route")
    assert "dev eth1" in broken.ssh(node, "ip route get 192.0.2.1").stdout
    clear(broken, node, "second-default-route")
    assert "dev eth0" in broken.ssh(node, "ip route get 192.0.2.1").stdout


def test_power_off(broken: MachineLab) -> None:
    node = broken.nodes[1]
    inject(broken, node, "power-off")
    status = broken.command("status", "{}")
    assert status.status == 1
    assert broken.ssh(node, "true").status == 255
    clear(broken, node, "power-off")
    assert broken.ssh(node, "systemctl is-system-running").stdout == "running\n"


def test_power_off_is_undone_by_create(broken: MachineLab) -> None:
    node = broken.nodes[1]
    inject(broken, node, "power-off")
    created = broken.command("create", "{}")
    assert created.ok, created.stderr
    assert f"started {node}" in created.stderr
    assert faults(broken, node) == []


def test_gpu_lost(broken: MachineLab) -> None:
    node = broken.nodes[0]
    before = broken.ssh(node, "cat /opt/k3sim/machine.txt").stdout
    inject(broken, node, "gpu-lost")
    assert broken.ssh(node, "cat /opt/k3sim/machine.txt").stdout != before
    clear(broken, node, "gpu-lost")
    assert broken.ssh(node, "cat /opt/k3sim/machine.txt").stdout == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "link-down"),
        (("mtu", "-s", "speed=1"), "mtu, network"),
        (("mtu", "-s", "mtu=big"), "is a number"),
        (("link-down", "-s", "network=wifi"), "fabric or management"),
        (("mtu", "-s", "mtu"), "NAME=VALUE"),
        (("full-disk", "-s", "path=relative"), "absolute path"),
    ],
)
def test_bad_faults_are_refused_and_nothing_is_recorded(lab: MachineLab, words: tuple[str, ...], said: str) -> None:
    refused = lab.command("fault", lab.nodes[0], "-i", "{}", *words)
    assert refused.status == 2, refused.stderr
    assert said in refused.stderr
    assert faults(lab, lab.nodes[0]) == []
