"""`lab create` killed half way, `lab destroy`, two labs at once: nothing is left, nothing blocks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.lab import network
from k3ctl.lab.layout import STATE_ROOT
from tests.lab.conftest import LAB, MachineLab, Maker

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
Processes = Callable[[str], list[str]]


def traces(lab: MachineLab, processes: Processes) -> list[str]:
    """Everything on this machine that carries the lab's prefix or lies in its folder."""
    layout, seen = lab.definition.layout, network.look()
    prefix = layout.prefix
    found = [*seen.links, *seen.namespaces, *(name for _, name in seen.tables)]
    found += [str(path) for path in Path("/run/systemd/nspawn").glob("*/*")]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/**/{prefix}-*")]
    found += [str(path) for path in Path("/run/systemd/transient").glob("*")]
    held = [name for name in found if prefix in name]
    held += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{layout.state}/" in line]
    held += processes(prefix) + processes(str(layout.state))
    held += [str(layout.state)] if layout.state.exists() else []
    return held


def test_destroy_leaves_nothing_and_keeps_the_base(new_inventory: Maker, processes: Processes) -> None:
    lab = new_inventory("d", hosts=1)
    assert traces(lab, processes) == []
    created = lab.command("create", "{}", timeout_s=600)
    assert created.ok, created.stderr
    assert len(traces(lab, processes)) > 5
    gone = lab.command("destroy", "{}")
    assert gone.ok, gone.stderr
    assert traces(lab, processes) == []
    again = lab.command("destroy", "{}")
    assert again.ok, again.stderr
    assert "no change" in again.stderr
    rebuilt = lab.command("create", "{}")
    assert "base system: no change" in rebuilt.stderr, rebuilt.stderr


@pytest.mark.parametrize(
    ("line", "delay"),
    [("keys:", 0.0), ("base system:", 0.1), ("network:", 0.0), ("network:", 0.15), ("machines:", 0.3)],
)
def test_create_killed_half_way_then_create(
    new_inventory: Maker, processes: Processes, line: str, delay: float
) -> None:
    lab = new_inventory(f"k{line[0]}{int(delay * 100)}")
    argv = [*LAB, "create", str(lab.inventory)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(said.startswith(f"[lab] {line}") for said in process.stderr)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
    created = lab.command("create", "{}", timeout_s=300)
    assert created.ok, created.stderr
    for node in lab.nodes:
        assert lab.ssh(node, "systemctl is-system-running; ip route show default").stdout.startswith("running\ndefault")
    assert lab.command("destroy", "{}").ok
    assert traces(lab, processes) == []


def test_destroy_of_one_lab_leaves_the_other(lab: MachineLab, new_inventory: Maker, processes: Processes) -> None:
    other = new_inventory("o", hosts=1)
    created = other.command("create", "{}")
    assert created.ok, created.stderr
    before = traces(lab, processes)
    assert other.command("destroy", "{}").ok
    assert sorted(traces(lab, processes)) == sorted(before)
    assert lab.ssh(lab.nodes[0], "true").ok


def test_destroy_works_without_the_inventory(new_inventory: Maker, processes: Processes) -> None:
    lab = new_inventory("w", hosts=1)
    assert lab.command("create", "{}").ok
    texts = {file: file.read_text() for file in lab.inventory.rglob("*.yml")}
    for file in texts:
        file.unlink()
    gone = lab.command("destroy", "{}")
    for file, text in texts.items():
        file.write_text(text)
    assert gone.ok, gone.stderr
    assert traces(lab, processes) == []


def test_networks_of_another_lab_are_refused_by_name(lab: MachineLab, new_inventory: Maker) -> None:
    other = new_inventory("c", hosts=1)
    hosts = other.inventory / "hosts.yml"
    mine, theirs = (str(one.definition.management[0]).rpartition(".")[0] for one in (other, lab))
    hosts.write_text(hosts.read_text().replace(mine + ".", theirs + "."))
    refused = other.command("create", "{}")
    assert refused.status == 1
    assert "already in use" in refused.stderr
    assert lab.definition.layout.management_bridge in refused.stderr
    assert not (STATE_ROOT / other.definition.name).exists()
    hosts.write_text(hosts.read_text().replace(theirs + ".", mine + "."))


def test_a_changed_inventory_is_refused(new_inventory: Maker) -> None:
    lab = new_inventory("x", hosts=1)
    assert lab.command("create", "{}").ok
    hosts = lab.inventory / "hosts.yml"
    text = hosts.read_text()
    hosts.write_text(text.replace(".11\n", ".12\n"))
    refused = lab.command("create", "{}")
    hosts.write_text(text)
    assert refused.status == 1
    assert "has changed since the lab was made" in refused.stderr


def test_what_was_broken_by_hand_is_healed(new_inventory: Maker) -> None:
    lab = new_inventory("h")
    assert lab.command("create", "{}").ok
    layout, node = lab.definition.layout, lab.nodes[0]
    for argv in (
        ["ip", "link", "del", layout.management_link(0)],
        ["ip", "link", "del", layout.fabric_bridge],
        ["nft", "delete", "table", "ip", layout.prefix],
    ):
        subprocess.run(argv, check=True)
    healed = lab.command("create", "{}")
    assert healed.ok, healed.stderr
    for peer in (lab.definition.hosts[1].management, lab.definition.hosts[1].fabric):
        assert lab.ssh(node, f"ping -c1 -W2 {peer}").ok
    assert lab.ssh(node, "apt-get update -qq", timeout_s=120).ok
