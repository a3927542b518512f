"""cluster.yml: its schema file, its models, and what one run of damage after another makes of an inventory."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from k3ctl.cluster import Cluster, ClusterSpec, origins
from k3ctl.cluster_text import read_spec
from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.errors import ConfigError
from k3ctl.inventory import Inventory
from k3ctl.inventory.view import view_of
from k3ctl.schemas import KINDS, file_of, schema, text
from tests.unit.inventory_cases import ROOT

FULL = """\
platform: lab
model: kimi-k3-mini
engine: vllm-cpu
launcher: torchrun
strategy: {tensor_parallel: 2, expert_parallel: true}
weights: {endpoint: "http://192.0.2.1:8901", revision: "0123456789012345678901234567890123456789"}
paths: {weights: /data/weights}
fabric: {subnet: "fd00::/64"}
endpoint: {port: 8001, address: models.example.com}
ports: {rendezvous: 29500}
security: {api_key: /etc/keys/api}
waivers:
  - {check: disk-free, reason: known and accepted, until: 2031-01-31, nodes: [a, b]}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_files_are_current(kind: str) -> None:
    assert file_of(kind).read_text(encoding="utf-8") == text(kind), "run `make schema`"


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_refuse_unknown_keys_everywhere(kind: str) -> None:
    made = schema(kind)
    objects = [made, *made["$defs"].values()]
    assert all(item["additionalProperties"] is False for item in objects if item["type"] == "object")
    assert json.loads(text(kind)) == made


def test_everything_at_once() -> None:
    spec, given_, problems = read_spec(FULL.encode(), "cluster.yml")
    assert not problems
    assert spec is not None
    assert spec.strategy.tensor_parallel == 2
    assert str(spec.fabric.subnet) == "fd00::/64"
    assert spec.waivers[0].nodes == ("a", "b")
    found = origins(Cluster(Inventory("x", "/x", ()), spec, "cluster.yml", given_))
    assert found["waivers[0].nodes[1]"].line == 13
    assert found["paths.weights"].kind == "inventory"
    assert found["paths.logs"].kind == "default"
    assert {origin.kind for origin in found.values()} == {"default", "inventory"}
    assert given_.keys() <= found.keys(), "a key of the file that the spec does not have"


def test_the_smallest() -> None:
    spec, _, problems = read_spec(b"platform: a\nmodel: b\nengine: c\n", "cluster.yml")
    assert spec == ClusterSpec(platform="a", model="b", engine="c")
    assert not problems


@pytest.mark.parametrize("key", [name for name in ClusterSpec.model_fields if name not in ("waivers",)])
def test_a_list_or_nothing_is_refused_for_every_key(key: str) -> None:
    base = {"platform": "a", "model": "b", "engine": "c"}
    for value, what in (("[1]", "is not what it should be"), ("", "is empty")):
        lines = {**base, key: value}
        body = "".join(f"{name}: {item}\n" for name, item in lines.items())
        spec, _, problems = read_spec(body.encode(), "cluster.yml")
        assert spec is None
        assert [(p.key, p.line) for p in problems] == [(key, list(lines).index(key) + 1)]
        assert what in problems[0].what
        assert problems[0].expected


def test_warnings_of_ansible_become_problems() -> None:
    view = view_of({"warnings": ["Skipping key (x) in /r/hosts.yml", "some deprecation"]}, "/r", "inv")
    assert [(p.what, p.file) for p in view.problems] == [
        ("Ansible warns about the inventory: Skipping key (x) in inv/hosts.yml", "inv")
    ]


# damage

FILES = ("hosts.yml", "cluster.yml", "group_vars/all.yml")
PIECES = [
    "\t",
    ":",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    "#",
    "&a ",
    "*a",
    "!x ",
    "|",
    "\n",
    " ",
    "0",
    "null",
    "yes",
    "~",
]
PIECES += ["{{ x }}", "---\n", "\0", "\ufeff", "\u2028", "é", "?", "<<: ", "%", "@", "1e9", "101", "CHANGE_ME"]


def damaged(body: str, cuts: list[tuple[float, int, str]]) -> str:
    """Put pieces in, each in place of some characters; positions are parts of the whole."""
    for where, length, piece in cuts:
        at = int(where * len(body))
        body = body[:at] + piece + body[at + length :]
    return body


CUTS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(file=st.sampled_from(FILES), cuts=CUTS)
@example(file="hosts.yml", cuts=[(0.0, 10_000, "")])
@example(file="cluster.yml", cuts=[(0.0, 10_000, "[]")])
def test_damage_gives_a_cluster_or_a_config_error(file: str, cuts: list[tuple[float, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "cluster"
        shutil.copytree(ROOT / "base", folder)
        path = folder / file
        path.write_bytes(damaged(path.read_text(), cuts).encode())
        try:
            cluster = load_cluster(str(folder), dump=dump)
        except ConfigError as error:
            for problem in error.problems:
                assert problem.what
                assert problem.file.startswith(str(folder))
                assert not re.search(r"Traceback|\bobject at 0x", problem.what)
        else:
            assert cluster.inventory.nodes
            assert all(node.fabric_address and node.ssh.address for node in cluster.inventory.nodes)
            assert cluster.inventory.head.rank == 0
