"""Every argument list that the inventories render for one engine: each layout, each version, each draft, each rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from k3ctl.cluster import Cluster
from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.errors import ConfigError
from k3ctl.planner import make_plan
from k3ctl.profiles.load import load
from k3ctl.profiles.types import Gpu, Platform, Profiles

INVENTORIES = Path(__file__).parents[2] / "inventories"
LABS = ("lab", "lab4")


@dataclass(frozen=True)
class Rendered:
    """One rank of one plan."""

    name: str  # inventory/layout/draft/rank
    version: str
    platform: Platform
    gpu: Gpu
    argv: tuple[str, ...]  # after the program's own words
    env: dict[str, str]
    draft: str


@cache
def profiles() -> Profiles:
    """The packaged profiles."""
    return load()


@cache
def clusters() -> tuple[Cluster, ...]:
    """Every inventory but the labs."""
    known = profiles()
    vocabulary = {"platform": known.platforms, "model": known.models}
    folders = sorted(folder for folder in INVENTORIES.iterdir() if folder.is_dir() and folder.name not in LABS)
    return tuple(load_cluster(str(folder), check_keys=False, dump=dump, vocabulary=vocabulary) for folder in folders)


def rendered(engine: str) -> Iterator[Rendered]:
    """Of every layout that fits its place; those that do not fit are refused and render nothing."""
    for cluster in clusters():
        for layout, draft, version in _wishes(cluster, engine):
            yield from _of(cluster, engine, layout, draft, version)


def layouts_of(cluster: Cluster, engine: str) -> list[str]:
    """Names of the layouts for this inventory's place, refused ones too."""
    spec, nodes = cluster.spec, len(cluster.inventory.nodes)
    return [
        layout.name
        for layout in profiles().engines[engine].layouts
        if spec.platform in layout.platforms and spec.model in layout.models and nodes in layout.nodes
    ]


def _wishes(cluster: Cluster, engine: str) -> Iterator[tuple[str, str, str]]:
    profile = profiles().engines[engine]
    family_drafts = [draft.name for draft in profiles().models[cluster.spec.model].drafts]
    drafts = ["", *(name for name in family_drafts if f"draft-{name}" in profile.sets)]
    for layout in layouts_of(cluster, engine):
        for draft in drafts:
            for version in profile.versions:
                yield layout, draft, version.version


def _of(cluster: Cluster, engine: str, layout: str, draft: str, version: str) -> Iterator[Rendered]:
    known = profiles()
    strategy = cluster.spec.strategy.model_copy(update={"layout": layout, "draft": draft or None})
    spec = cluster.spec.model_copy(update={"engine": engine, "engine_version": version, "strategy": strategy})
    try:
        plan = make_plan(replace(cluster, spec=spec), known)
    except ConfigError:
        return  # does not fit, or this version has no speculation with stages
    platform = known.platforms[cluster.spec.platform]
    program = len(known.engines[engine].program) - 1  # the model is the parser's
    for node in plan.nodes:
        yield Rendered(
            name=f"{cluster.name}/{layout}/{draft or 'none'}/{node.rank}",
            version=version,
            platform=platform,
            gpu=known.gpus[platform.gpu],
            argv=node.engine_argv[program:],
            env=dict(node.engine_env),
            draft=draft,
        )
