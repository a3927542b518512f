"""Which engine runs what on which servers: the planner's own answer for every place that a profile knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k3ctl.cluster import Cluster, ClusterSpec
from k3ctl.errors import ConfigError
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.profiles.types import Engine, Platform, Profiles, RuntimeRecord

# An archive that stands for one that `k3ctl lab create` has not built; nothing on the page depends on it.
_RECORD = RuntimeRecord(
    name="any", build_id="0", archive="any", sha256="0" * 64, bytes=1, unpacked_bytes=1, install_path="/opt/any"
)


@dataclass(frozen=True)
class Place:
    """One answer of the planner. `layout` empty: refused, and `said` is why; else `said` is the layout's source."""

    platform: str
    engine: str
    model: str
    nodes: int
    layout: str
    sizes: str
    status: str
    said: str


def places(profiles: Profiles) -> Iterator[Place]:
    """Every platform, engine, model and number of nodes that an engine's layouts name, in the order of names."""
    for platform in profiles.platforms.values():
        for engine in profiles.engines.values():
            found = {
                (model, nodes)
                for layout in engine.layouts
                if platform.name in layout.platforms
                for model in layout.models
                for nodes in layout.nodes
            }
            for model, nodes in sorted(found):
                yield _place(profiles, platform, engine, model, nodes)


def without(profiles: Profiles) -> Iterator[tuple[Platform, str]]:
    """Platforms that no layout names, each with the reason where its GPU's profile has one."""
    named = {name for engine in profiles.engines.values() for layout in engine.layouts for name in layout.platforms}
    for platform in profiles.platforms.values():
        if platform.name not in named:
            yield platform, profiles.gpus[platform.gpu].refused or "no engine's profile has a layout for it"


def _place(profiles: Profiles, platform: Platform, engine: Engine, model: str, nodes: int) -> Place:
    spec = ClusterSpec(platform=platform.name, model=model, engine=engine.name)
    members = tuple(
        Node(f"node{rank + 1}", rank, SshTarget(f"192.0.2.{11 + rank}"), f"198.51.100.{11 + rank}")
        for rank in range(nodes)
    )
    cluster = Cluster(Inventory("any", "", members), spec, "cluster.yml")
    try:
        made = make_plan(cluster, profiles, _RECORD)
    except ConfigError as error:
        said = "; ".join(problem.what for problem in error.problems)
        return Place(platform.name, engine.name, model, nodes, "", "", "refused", said)
    layout = next(one for one in engine.layouts if one.name == made.layout)
    status = made.verification.status if made.verification else "unverified"
    said = f"{layout.verdict.status}: {layout.verdict.source}"
    said += f" ({layout.verdict.note})" if layout.verdict.note else ""
    return Place(platform.name, engine.name, model, nodes, made.layout, _sizes(made), status, said)


def _sizes(plan: Plan) -> str:
    """`TP8 x PP2 + EP8`, as a layout is spoken of."""
    parts = [
        f"{name}{size}"
        for name, size in (("TP", plan.tensor_parallel), ("PP", plan.pipeline_parallel), ("DP", plan.data_parallel))
        if size > 1 or name == "TP"
    ]
    text = " x ".join(parts)
    text += f" + EP{plan.tensor_parallel * plan.data_parallel}" if plan.expert_parallel else ""
    text += f" + DCP{plan.decode_context_parallel}" if plan.decode_context_parallel > 1 else ""
    return text + (f" + draft {plan.draft}" if plan.draft else "")
