"""Clusters and a small engine for tests of the planner; GPUs, platforms and models are the packaged ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from k3ctl.cluster import Cluster, ClusterSpec
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.profiles.load import load
from k3ctl.profiles.types import Engine, Profiles

DATA = Path(__file__).parents[1] / "data" / "plan"
ENGINE_FILE = DATA / "engine-under-test.yml"


@cache
def packaged() -> Profiles:
    """All packaged profiles."""
    return load()


def engine_under_test(**changes: Any) -> Engine:
    """The small engine, with changes to its top-level keys."""
    raw = yaml.safe_load(ENGINE_FILE.read_text())
    return Engine.model_validate({**raw, **changes})


def profiles(engine: Engine | None = None, **kinds: Any) -> Profiles:
    """Packaged profiles with the engine under test beside the real ones; `kinds` replaces whole kinds."""
    made = engine or engine_under_test()
    base = packaged()
    return base.model_copy(update={"engines": {**base.engines, made.name: made}, **kinds})


def cluster(platform: str = "h200", nodes: int = 2, **spec: Any) -> Cluster:
    """A cluster of that many nodes; `spec` are keys of cluster.yml."""
    raw = {"platform": platform, "model": "kimi-k3", "engine": "under-test", **spec}
    members = tuple(
        Node(f"node{i + 1}", i, SshTarget(f"192.0.2.{11 + i}", user="k3"), f"198.51.100.{11 + i}") for i in range(nodes)
    )
    return Cluster(Inventory("pod", "/inv/pod", members), ClusterSpec.model_validate(raw), "/inv/pod/cluster.yml")


def plan(platform: str = "h200", nodes: int = 2, **spec: Any) -> Plan:
    """The plan of such a cluster with the engine under test."""
    return make_plan(cluster(platform, nodes, **spec), profiles())
