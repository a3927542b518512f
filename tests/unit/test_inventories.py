"""The inventories of the repository: each loads, fits its name and its platform, and says what it is for."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.profiles.load import load
from k3ctl.profiles.types import Profiles
from k3ctl.schemas import file_of

ROOT = Path(__file__).parents[2] / "inventories"
LABS = ("lab", "lab4")
ALL = sorted(folder.name for folder in ROOT.iterdir() if folder.is_dir())
SERVERS = [name for name in ALL if name not in LABS]
EXPECTED = {  # platform and nodes
    "h200x16": ("h200", 2),
    "h200x32": ("h200", 4),
    "h100x32": ("h100", 4),
    "b200x16": ("b200", 2),
    "b300x8": ("b300", 1),
    "b300x16": ("b300", 2),
    "gb300x8": ("gb300", 2),
    "gb200x16": ("gb200", 4),
    "gb300x16": ("gb300", 4),
    "mi355x8": ("mi355x", 1),
    "rtx6000dx32": ("rtx6000d", 2),
}
EXAMPLES = (ip_network("192.0.2.0/24"), ip_network("198.51.100.0/24"))


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return load()


def test_all_are_there() -> None:
    assert set(SERVERS) == set(EXPECTED)


@pytest.mark.parametrize("name", ALL)
def test_it_loads_and_fits_its_name(name: str, profiles: Profiles) -> None:
    vocabulary = {"platform": profiles.platforms, "model": profiles.models}
    cluster = load_cluster(str(ROOT / name), check_keys=False, dump=dump, vocabulary=vocabulary)
    platform = profiles.platforms[cluster.spec.platform]
    nodes = len(cluster.inventory.nodes)
    assert cluster.spec.fabric.subnet is not None
    assert nodes <= platform.max_nodes
    if name in LABS:
        return
    assert (platform.name, nodes) == EXPECTED[name]
    assert int(name.rpartition("x")[2]) == nodes * platform.gpus_per_node
    assert cluster.spec.model == "kimi-k3"
    assert [node.name for node in cluster.inventory.nodes] == [f"gpu-a-{n:02d}" for n in range(1, nodes + 1)]
    for node in cluster.inventory.nodes:
        assert ip_address(node.ssh.address) in EXAMPLES[0]
        assert ip_address(node.fabric_address) in EXAMPLES[1]
        assert node.ssh.user == "ubuntu"
        assert not node.ssh.key_file


@pytest.mark.parametrize("name", ALL)
def test_cluster_yml_names_its_schema(name: str) -> None:
    first = (ROOT / name / "cluster.yml").read_text(encoding="utf-8").splitlines()[0]
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert (ROOT / name / path).resolve() == file_of("cluster")


@pytest.mark.parametrize("name", SERVERS)
def test_it_says_what_it_is_for(name: str) -> None:
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}: ")
    assert "\nWho has run Kimi-K3 on it:\n" in text
    assert "k3ctl itself has not been run on this hardware." in text, "say so until somebody has"
    assert f"k3ctl up inventories/{name}" in text
    assert not re.search(r"CHANGE_ME|k3ctl-lab|/work", text)
