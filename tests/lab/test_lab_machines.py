"""What `lab create` makes: real hosts, as an installer would leave them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.lab.conftest import MachineLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def test_a_second_create_changes_nothing_and_is_fast(lab: MachineLab) -> None:
    began = time.monotonic()
    again = lab.command("create", "{}")
    took = time.monotonic() - began
    assert again.ok, again.stderr
    assert "is up: no change" in again.stderr
    assert "machines: no change" in again.stderr
    assert took < 10  # 1.6 s on two idle cores


def test_machines_are_running_with_no_failed_unit(lab: MachineLab) -> None:
    for node in lab.nodes:
        assert lab.ssh(node, "systemctl is-system-running").stdout == "running\n"
        assert lab.ssh(node, "cat /proc/1/comm").stdout == "systemd\n"


def test_hosts_file_is_the_installer_s(lab: MachineLab) -> None:
    for node in lab.nodes:
        lines = lab.ssh(node, "cat /etc/hosts").stdout.splitlines()
        assert f"127.0.1.1\t{node}" in lines
        others = set(lab.nodes) - {node}
        assert not [line for line in lines for other in others if other in line.split()]
        assert lab.ssh(node, "hostname").stdout == f"{node}\n"


def test_two_networks_on_two_interfaces(lab: MachineLab) -> None:
    for host in lab.definition.hosts:
        found = json.loads(lab.ssh(host.name, "ip -j -4 addr show").stdout)
        held = {link["ifname"]: [a["local"] for a in link["addr_info"]] for link in found}
        assert held["eth0"] == [str(host.management)]
        assert held["eth1"] == [str(host.fabric)]
        assert sorted(lab.ssh(host.name, "ls /sys/class/net").stdout.split()) == ["eth0", "eth1", "lo"]


def test_machines_reach_each_other_on_both_networks(lab: MachineLab) -> None:
    first, second = lab.definition.hosts[:2]
    for address in (second.management, second.fabric):
        assert lab.ssh(first.name, f"ping -c1 -W2 {address}").ok


def test_user_with_sudo_and_root_and_no_shared_identity(lab: MachineLab) -> None:
    identities, keys = set(), set()
    for node in lab.nodes:
        assert lab.ssh(node, "id -un; sudo -n id -un", user="k3").stdout == "k3\nroot\n"
        identities.add(lab.ssh(node, "cat /etc/machine-id").stdout)
        keys.add(lab.ssh(node, "cat /etc/ssh/ssh_host_ed25519_key.pub").stdout)
    assert len(identities) == len(keys) == len(lab.nodes)


def test_packages_can_be_had(lab: MachineLab) -> None:
    updated = lab.ssh(lab.nodes[0], "apt-get update -qq && apt-cache policy chrony | grep Candidate", timeout_s=180)
    assert updated.ok, updated.stderr
    assert "Candidate: (none)" not in updated.stdout


def test_what_the_base_role_installs_is_not_there_yet(lab: MachineLab) -> None:
    assert lab.ssh(lab.nodes[-1], "command -v chronyd ethtool").stdout == ""


def test_a_reboot_comes_back(lab: MachineLab) -> None:
    node = lab.nodes[1]
    before = lab.ssh(node, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat").stdout
    lab.ssh(node, "touch /var/tmp/kept; touch /run/lost; systemctl reboot")
    end = time.monotonic() + 60
    while lab.ssh(node, "test ! -e /run/lost && systemctl is-system-running").stdout != "running\n":
        assert time.monotonic() < end, f"{node} did not come back"
        time.sleep(0.5)
    assert lab.ssh(node, "test -e /var/tmp/kept && rm /var/tmp/kept").ok
    assert lab.ssh(node, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat").stdout != before


# A cgroup v2 hierarchy may come without the memory controller (inside another container).
ACCOUNTS_MEMORY = (
    Path("/sys/fs/cgroup/memory").is_dir() or "memory" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
)


def test_status_as_a_table_and_as_json(lab: MachineLab) -> None:
    table = lab.command("status", "{}")
    assert table.ok, table.stderr
    found = json.loads(lab.command("status", "{}", "-o", "json").stdout)
    assert [m["name"] for m in found["machines"]] == list(lab.nodes)
    for machine in found["machines"]:
        assert machine["up"] is machine["ssh"] is True
        assert machine["state"] == "running"
        assert machine["uptime_s"] > 0
        assert machine["memory_bytes"] > 10_000_000 if ACCOUNTS_MEMORY else machine["memory_bytes"] is None
        assert machine["name"] in table.stdout


def test_shell_runs_a_command_and_returns_its_status(lab: MachineLab) -> None:
    ran = lab.command("shell", "-i", "{}", lab.nodes[0], "--", "hostname; exit 7")
    assert (ran.stdout, ran.status) == (f"{lab.nodes[0]}\n", 7)


def test_an_unknown_machine_is_a_usage_error_that_lists_the_names(lab: MachineLab) -> None:
    ran = lab.command("shell", "-i", "{}", "nobody")
    assert ran.status == 2
    assert lab.nodes[0] in ran.stderr
