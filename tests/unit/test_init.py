"""`k3ctl init`: what the flags say becomes an inventory that validates, or one whose gaps validate names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.cluster import Cluster
from k3ctl.commands.init import InitOptions, init
from k3ctl.commands.output import Output
from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.errors import ConfigError
from k3ctl.inventory import scaffold
from k3ctl.inventory.scaffold import UNKNOWN, Host, Scaffold
from k3ctl.profiles.load import load
from k3ctl.yaml_source import parse

GIVEN = InitOptions(
    "mine",
    platform="h200",
    engine="vllm-cpu",
    hosts=("ubuntu@192.0.2.11:2222", "ubuntu@192.0.2.12"),
    fabric=("198.51.100.11/24", "198.51.100.12/24"),
)


@pytest.fixture
def options(tmp_path: Path) -> InitOptions:
    return replace(GIVEN, directory=str(tmp_path / "inventories"))


def read(options: InitOptions) -> Cluster:
    """The inventory that init wrote, by Ansible's loader in this process."""
    return load_cluster(f"{options.directory}/{options.name}", dump=dump)


def refused(options: InitOptions) -> list[tuple[str, str]]:
    """Key and text of every problem; nothing may be left behind."""
    with pytest.raises(ConfigError) as caught:
        init(options, Output())
    folder = Path(options.directory)
    assert not folder.exists() or not list(folder.iterdir())
    return [(problem.key, problem.what) for problem in caught.value.problems]


def test_everything_given(options: InitOptions, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(options, Output()) == 0
    folder = Path(options.directory) / "mine"
    assert capsys.readouterr().out == f"{folder}\n"
    assert UNKNOWN not in "".join(file.read_text() for file in folder.rglob("*.*"))
    cluster = read(options)
    assert (cluster.name, cluster.spec.platform, cluster.spec.engine) == ("mine", "h200", "vllm-cpu")
    assert str(cluster.spec.fabric.subnet) == "198.51.100.0/24"
    nodes = cluster.inventory.nodes
    assert [(n.name, n.ssh.address, n.ssh.port, n.ssh.user, n.fabric_address) for n in nodes] == [
        ("gpu-01", "192.0.2.11", 2222, "ubuntu", "198.51.100.11"),
        ("gpu-02", "192.0.2.12", 22, "ubuntu", "198.51.100.12"),
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["mine"], "nothing beside it"


def test_ranges_are_four_trays(options: InitOptions) -> None:
    asked = replace(options, platform="gb200", hosts=("gpu-[01:04].example.com",), fabric=("198.51.100.[1:4]/28",))
    assert init(asked, Output()) == 0
    nodes = read(options).inventory.nodes
    assert [node.name for node in nodes] == ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
    assert nodes[3].ssh.address == "gpu-04.example.com"
    assert nodes[3].fabric_address == "198.51.100.4"


def test_what_is_left_open_is_what_validate_names(options: InitOptions, capsys: pytest.CaptureFixture[str]) -> None:
    asked = replace(options, nodes=3, platform="b200", fabric=())
    assert init(asked, Output("json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["missing"] == [
        "hosts.yml: ansible_host of gpu-03",
        *(f"hosts.yml: k3ctl_fabric_address of gpu-0{number}" for number in (1, 2, 3)),
    ]
    with pytest.raises(ConfigError) as caught:
        read(options)
    places = [p for p in caught.value.problems if p.what == "a placeholder is still there"]
    assert len(places) == 4
    assert all(place.line and place.file.endswith("hosts.yml") for place in places)


def test_one_host_needs_no_fabric(options: InitOptions) -> None:
    asked = replace(options, platform="b300", hosts=("192.0.2.5",), fabric=())
    assert init(asked, Output()) == 0
    (node,) = read(options).inventory.nodes
    assert node.fabric_address == "192.0.2.5"
    assert not node.ssh.user


def test_different_users_stand_at_their_hosts(options: InitOptions) -> None:
    assert init(replace(options, hosts=("a@192.0.2.11", "b@192.0.2.12")), Output()) == 0
    nodes = read(options).inventory.nodes
    assert [node.ssh.user for node in nodes] == ["a", "b"]


def test_nothing_is_overwritten(options: InitOptions) -> None:
    folder = Path(options.directory) / "mine"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="already something of that name"):
        init(options, Output())
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"platform": ""}, [("--platform", "says which profile to take")]),
        ({"platform": "h2oo"}, [("--platform", "no profile has the name")]),
        ({"platform": "a100"}, [("--platform", "no serving path")]),
        ({"engine": "vlm"}, [("--engine", "no profile has the name")]),
        ({"model": "k4"}, [("--model", "no profile has the name")]),
        ({"name": "Mine"}, [("NAME", "names units and folders")]),
        ({"hosts": (), "fabric": ()}, [("--nodes", "how many nodes?")]),
        ({"nodes": -1, "hosts": (), "fabric": ()}, [("--nodes", "1 or more")]),
        ({"nodes": 1}, [("--host", "2 hosts are given for 1")]),
        ({"hosts": ("192.0.2.11",)}, [("--fabric", "2 fabric addresses are given for 1")]),
        ({"nodes": 9, "fabric": ()}, [("--nodes", "at most 8 nodes")]),
        ({"hosts": ("192.0.2.1:0", "a b", "gpu-[4:1]")}, [("--host", "no host")] * 3),
        ({"fabric": ("198.51.100.11", "198.51.100.12/24")}, [("--fabric", "not all of one network")]),
        ({"fabric": ("198.51.100.11/33",)}, [("--fabric", "no address")]),
        ({"fabric": ("198.51.100.11/24", "203.0.113.1/24")}, [("--fabric", "not all of one network")]),
        ({"hosts": ("192.0.2.11", "192.0.2.11")}, [("ansible_host", "two names are the same host")]),
        ({"fabric": ("198.51.100.11/24", "198.51.100.11/24")}, [("k3ctl_fabric_address", "same fabric address")]),
        ({"fabric": ("198.51.100.0/24", "198.51.100.12/24")}, [("k3ctl_fabric_address", "network or broadcast")]),
    ],
    ids=str,
)
def test_what_is_missing_or_wrong(
    options: InitOptions, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = refused(replace(options, **changes))
    for key, text in expected:
        assert any(where == key and text in what for where, what in found), found


def test_everything_wrong_at_once(options: InitOptions) -> None:
    found = refused(replace(options, name="", platform="x", engine="y", hosts=("@",), fabric=("z",)))
    assert {key for key, _ in found} == {"NAME", "--platform", "--engine", "--host", "--fabric"}


def test_a_place_that_cannot_be_written(options: InitOptions, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        init(replace(options, directory=str(tmp_path / "file")), Output())


def test_the_engine_is_one_that_has_a_layout(options: InitOptions) -> None:
    asked = replace(options, platform="lab", model="kimi-k3-mini", engine="")
    assert init(asked, Output()) == 0
    assert read(options).spec.engine == "vllm-cpu"


# text

_H200 = load().platforms["h200"]
_TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(address=_TEXTS | st.sampled_from(["101", "1e3", "no", "::1", "0x1f", "10:20", "null", "~"]), user=_TEXTS)
def test_text_reads_back_as_text(address: str, user: str) -> None:
    hosts = (Host("a", address, 0, user, "x"), Host("b", "other", 0, "me", "y"))
    made = Scaffold("n", _H200, "kimi-k3", "vllm", hosts, "inventories/n")
    texts = scaffold.files(made)
    source, problems = parse(texts["hosts.yml"], "hosts.yml")
    assert not problems
    assert source is not None
    read = source.value["all"]["children"]["gpu_nodes"]["children"]["head"]["hosts"]["a"]
    assert read["ansible_host"] == address
    assert read.get("ansible_user", user) == user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", Host("", "gpu1")),
        ("me@gpu1:22", Host("", "gpu1", 22, "me")),
        ("2001:db8::0001", Host("", "2001:db8::1")),
        ("me@[2001:db8::1]:2222", Host("", "2001:db8::1", 2222, "me")),
    ],
)
def test_forms_of_hosts(text: str, expected: Host) -> None:
    assert scaffold.host(text) == expected


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (("gpu1.x", "gpu2.x"), ["gpu1", "gpu2"]),
        (("gpu1.x", "gpu1.y"), ["gpu-01", "gpu-02"]),
        (("gpu1", "192.0.2.1"), ["gpu-01", "gpu-02"]),
        (("head", "gpu1"), ["gpu-01", "gpu-02"]),
        (("101", "102"), ["gpu-01", "gpu-02"]),
    ],
)
def test_names_of_nodes(addresses: tuple[str, ...], names: list[str]) -> None:
    made = scaffold.named(tuple(Host("", address) for address in addresses))
    assert [host.name for host in made] == names
