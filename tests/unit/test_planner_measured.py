"""Every layout of every engine, planned as it is written, against what was measured of exactly that layout.

Weights within 2 %, KV tokens within 5 %; tests/data/plan/distances.yml has the reasons where that cannot be.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from k3ctl.errors import ConfigError
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from tests.unit.plan_fixtures import DATA, cluster, packaged

BOUNDS = {"weights_per_gpu": 2.0, "kv_tokens": 5.0}
REASONS: dict[str, str] = yaml.safe_load((DATA / "distances.yml").read_text())
LAYOUTS = [
    (engine.name, layout.name, platform)
    for engine in packaged().engines.values()
    if not engine.name.endswith("-cpu")
    for layout in engine.layouts
    for platform in layout.platforms
]


def planned(engine: str, layout: str, platform: str) -> Plan:
    """The plan of a layout on the smallest number of nodes that it is for."""
    found = next(one for one in packaged().engines[engine].layouts if one.name == layout)
    spec: dict[str, Any] = {"engine": engine, "model": found.models[0], "strategy": {"layout": layout}}
    return make_plan(cluster(platform, min(found.nodes), **spec), packaged())


@pytest.mark.parametrize(("engine", "layout", "platform"), LAYOUTS)
def test_distances(engine: str, layout: str, platform: str) -> None:
    key = f"{engine} {layout} {platform}"
    if key in REASONS:
        with pytest.raises(ConfigError, match="does not fit"):
            planned(engine, layout, platform)
        return
    made = planned(engine, layout, platform)
    assert made.layout == layout
    for one in made.distances:
        if one.what in BOUNDS and one.percent is not None:
            reason = REASONS.get(f"{key} {one.what}")
            within = abs(one.percent) <= BOUNDS[one.what]
            assert within or reason, f"{key}: {one.what} is {one.percent:+.1f} % off"
            assert not (within and reason), f"{key} {one.what} no longer needs its reason"


def test_every_reason_is_of_a_layout() -> None:
    known = {f"{engine} {layout} {platform}" for engine, layout, platform in LAYOUTS}
    assert {key for key in REASONS if key not in known and key.rsplit(" ", 1)[0] not in known} == set()


@pytest.mark.parametrize(("engine", "layout", "platform"), LAYOUTS)
def test_every_layout_uses_every_gpu(engine: str, layout: str, platform: str) -> None:
    if f"{engine} {layout} {platform}" in REASONS:
        pytest.skip("refused by arithmetic, see test_distances")
    made = planned(engine, layout, platform)
    world = made.tensor_parallel * made.pipeline_parallel * made.data_parallel
    assert world == len(made.nodes) * made.expected.gpus
    assert made.memory is not None, "every layout on GPUs has figures for its memory"
