"""Plans and captures for the tests of preflight: four healthy nodes of eight GPUs, as data, and edits to them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3ctl.plan import Expected, ModelPlan, NodePlan, Plan, PortPlan, RuntimePlan, Timeouts

DATA = Path(__file__).parents[1] / "data" / "preflight"
HEALTHY: dict[str, Any] = json.loads((DATA / "healthy.json").read_text())
COMMIT = "0" * 40


def expected(**changes: Any) -> Expected:
    """Two rows of H200 and 400G InfiniBand."""
    base = Expected(
        gpus=8,
        gpu_name="NVIDIA H200",
        hcas=8,
        min_memory_bytes=1_000_000_000_000,
        min_free_bytes=1_750_000_000_000,
        min_runtime_bytes=60_000_000_000,
        memlock=True,
        sysfs_root="/sys",
        nvml_library_path="",
    )
    return replace(base, **changes)


def plan(nodes: int = 4, *, env: Mapping[str, str] | None = None, **changes: Any) -> Plan:
    """`changes` are fields of Expected."""
    return Plan(
        cluster="pod",
        platform="h200x16",
        engine="vllm",
        engine_version="0.32.0",
        launcher="torchrun",
        tensor_parallel=8 * nodes,
        pipeline_parallel=1,
        models=(ModelPlan("a/b", COMMIT, f"/srv/k3ctl/weights/a/b/{COMMIT}", "https://hub.test", "b"),),
        runtime=RuntimePlan("bundle", "r", "http://x", "0" * 64, 1, "/opt/k3ctl/runtimes/r-0123456789ab", "/x/bin"),
        nodes=tuple(
            NodePlan(f"node{i}", i - 1, f"10.78.0.{10 + i}", "", ("serve",), dict(env or {}))
            for i in range(1, nodes + 1)
        ),
        ports=(
            PortPlan(8000, (0,), "clients", "API"),
            PortPlan(29400, (0,), "nodes", "torchrun rendezvous"),
            PortPlan(29501, (0,), "nodes", "engine's world group"),
        ),
        expected=expected(**changes),
        timeouts=Timeouts(3600.0, 60.0, 30.0),
        rendezvous_port=29400,
        master_port=29501,
        endpoint="http://10.77.0.11:8000",
        endpoint_port=8000,
        weights_dir="/srv/k3ctl/weights",
        state_dir="/var/lib/k3ctl/pod",
        log_dir="/var/log/k3ctl/pod",
    )


def capture(nodes: Iterable[str] | int = 4) -> dict[str, Any]:
    """The healthy capture as JSON, of the first so many nodes or of those named."""
    names = {f"node{i}" for i in range(1, nodes + 1)} if isinstance(nodes, int) else set(nodes)
    body = copy.deepcopy(HEALTHY)
    body["nodes"] = {name: raw for name, raw in body["nodes"].items() if name in names}
    replies = {name: raw for name, raw in body["pairs"]["replies"].items() if name in names}
    for raw in replies.values():
        raw["links"] = [link for link in raw["links"] if link["to"] in names]
    body["pairs"]["replies"] = replies
    return body


def put(body: Any, path: str, value: Any) -> None:
    """Set what lies at a dotted path; a number is an index, `*` every element. `gone` removes it."""
    first, _, rest = path.partition(".")
    keys: list[Any] = [first]
    if isinstance(body, list):
        keys = list(range(len(body))) if first == "*" else [int(first)]
    elif first == "*":
        keys = list(body)
    for key in reversed(keys):
        if rest:
            put(body[key], rest, value)
        elif value == "gone":
            del body[key]
        else:
            body[key] = copy.deepcopy(value)
