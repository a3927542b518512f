"""A new GPU, platform, model and engine as files alone: no code knows their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from k3ctl.planner import make_plan
from k3ctl.profiles.load import PACKAGED, load
from tests.unit.plan_fixtures import ENGINE_FILE, cluster

GPU = {
    "name": "x900",
    "title": "X900, 256 GB",
    "vendor": "nvidia",
    "reported_names": ["NVIDIA X900"],
    "compute": "10.9",
    "memory_bytes": {"value": 256 * 2**30, "source": "data sheet", "status": "published"},
    "verdict": {"status": "unverified", "source": "data sheet"},
}
PLATFORM = {
    "name": "x900",
    "title": "4x X900 server",
    "gpu": "x900",
    "gpus_per_node": 4,
    "link_domain": 4,
    "architecture": "x86_64",
    "nics": {
        "count": 4,
        "kind": "roce",
        "rate": {"value": 800_000_000_000, "source": "data sheet", "status": "published"},
    },
    "memory_bytes": {"value": 10**12, "source": "data sheet", "status": "published"},
    "disk_read": {"value": 10**10, "source": "data sheet", "status": "published"},
    "reserve_bytes": {"value": 10**11, "source": "guess", "status": "inferred"},
    "memlock": True,
    "max_nodes": 4,
    "verdict": {"status": "unverified", "source": "data sheet"},
}


def write(root: Path, kind: str, value: dict[str, Any]) -> None:
    (root / kind).mkdir(exist_ok=True)
    (root / kind / f"{value['name']}.yml").write_text(yaml.safe_dump(value))


def test_new_files_alone(tmp_path: Path) -> None:
    model = yaml.safe_load((PACKAGED / "models" / "kimi-k3.yml").read_text())
    half = {**model, "name": "half-k3", "repo": "example/half-k3", "served_name": "half"}
    half["bytes"] = {"value": 780 * 10**9, "source": "example", "status": "published"}
    half["architecture"] = {**model["architecture"], "experts": 448}
    engine = yaml.safe_load(ENGINE_FILE.read_text())
    layout = next(layout for layout in engine["layouts"] if layout["name"] == "b300-tp8")
    engine["layouts"] = [{**layout, "name": "x900-tp4", "platforms": ["x900"], "models": ["half-k3"], "tp": 4}]
    for kind, value in (("gpus", GPU), ("platforms", PLATFORM), ("models", half), ("engines", engine)):
        write(tmp_path, kind, value)
    made = make_plan(cluster("x900", 1, model="half-k3"), load(tmp_path))
    assert (made.layout, made.tensor_parallel, made.model.repo) == ("x900-tp4", 4, "example/half-k3")
    assert made.memory is not None
    assert made.memory.requests >= 1
    assert made.expected.gpu_name == "NVIDIA X900"
    assert made.verification is not None
    assert made.verification.status == "unverified"


def test_time_limits_follow_the_disks(tmp_path: Path) -> None:
    engine = yaml.safe_load(ENGINE_FILE.read_text())
    layout = next(layout for layout in engine["layouts"] if layout["name"] == "b300-tp8")
    engine["layouts"] = [{**layout, "platforms": ["x900"], "nodes": [2]}]
    model = yaml.safe_load((PACKAGED / "models" / "kimi-k3.yml").read_text())
    slow = {**PLATFORM, "disk_read": {"value": 4 * 10**8, "source": "a slow disk", "status": "verified"}}
    for platform, seconds in ((PLATFORM, 3600), (slow, 11708)):
        for kind, value in (("gpus", GPU), ("platforms", platform), ("models", model), ("engines", engine)):
            write(tmp_path, kind, value)
        made = make_plan(cluster("x900", 2), load(tmp_path), wan=1.25e9)
        assert made.timeouts.engine_ready == seconds
        assert made.head.engine_env["VLLM_ENGINE_READY_TIMEOUT_S"] == str(seconds)
        times = {one.phase: one for one in made.times}
        assert times["stage"].seconds is not None
        assert round(times["stage"].seconds) == 624, "two nodes share the download: 1.56 TB at 2 x 10 Gbit/s"
        assert times["load"].bytes == 1_560_998_988_078
