"""What a plan is about: every name of cluster.yml resolved, and what refuses a plan before any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.cluster import Cluster
from k3ctl.errors import ConfigError, Problem
from k3ctl.nearest import nearest
from k3ctl.profiles.supplied import supplied
from k3ctl.profiles.types import Amount, Engine, Gpu, Model, Platform, Profiles, Unknown, Version


@dataclass(frozen=True)
class Subject:
    """Everything that the layouts are judged with. `nodes` is the number of nodes of one replica."""

    cluster: Cluster
    engine: Engine
    version: Version
    platform: Platform
    gpu: Gpu
    model: Model
    nodes: int

    @property
    def world(self) -> int:
        """GPUs of one replica."""
        return self.nodes * self.platform.gpus_per_node

    @property
    def file(self) -> str:
        """Where problems of cluster.yml are."""
        return self.cluster.spec_file

    @property
    def heads(self) -> int:
        """Attention heads of the model."""
        return known(self.model.heads, f"the number of attention heads of {self.model.name}", self.file)


def subject_of(cluster: Cluster, profiles: Profiles) -> Subject:
    """Resolve and judge. Raises ConfigError with every reason why nothing can be planned."""
    engine = engine_of(cluster, profiles)
    version = version_of(cluster, engine)
    platform = profiles.platforms[cluster.spec.platform]
    gpu = _gpu(platform, profiles)
    model = supplied(profiles.models[cluster.spec.model], cluster.spec.model_facts, profiles.models, cluster.spec_file)
    total = len(cluster.inventory.nodes)
    replicas = cluster.spec.strategy.replicas
    problems = [
        *_refused_gpu(cluster, platform, gpu),
        *_node_problems(cluster, platform, total, replicas),
        *_unknown_facts(cluster, model),
    ]
    if problems:
        raise ConfigError(*problems)
    return Subject(cluster, engine, version, platform, gpu, model, total // replicas)


def engine_of(cluster: Cluster, profiles: Profiles) -> Engine:
    """The engine profile that cluster.yml names."""
    _check_names(cluster, profiles)
    return profiles.engines[cluster.spec.engine]


def version_of(cluster: Cluster, engine: Engine) -> Version:
    """The engine's version that cluster.yml asks for, or its default."""
    wanted = cluster.spec.engine_version or engine.default_version
    for version in engine.versions:
        if version.version == wanted:
            return version
    asked = bool(cluster.spec.engine_version)
    raise ConfigError(
        Problem(
            what=f"{engine.name} has no version {wanted}",
            file=cluster.spec_file,
            key="engine_version" if asked else "engine",
            found=wanted,
            expected=", ".join(version.version for version in engine.versions),
            fix="choose one of these, or leave it out" if asked else "correct the engine's profile",
        )
    )


def known(amount: Amount | Unknown, what: str, file: str = "") -> int:
    """The number, or a refusal that says which fact is missing and how to give it."""
    if isinstance(amount, Unknown):
        raise ConfigError(_unknown(amount, what, file))
    return amount.value


def _unknown(fact: Unknown, what: str, file: str) -> Problem:
    return Problem(
        what=f"{what} is not known: {fact.unknown}",
        file=file,
        key=fact.supply,
        fix=f"find it out and set {fact.supply} in cluster.yml",
    )


def _unknown_facts(cluster: Cluster, model: Model) -> list[Problem]:
    """Facts without which nothing can be planned, all that are missing."""
    facts = {
        f"the number of attention heads of {model.name}": model.heads,
        f"the size of {model.name}": model.bytes,
        f"the commit of {model.repo}": cluster.spec.weights.revision or model.revision,
    }
    return [_unknown(fact, what, cluster.spec_file) for what, fact in facts.items() if isinstance(fact, Unknown)]


def _check_names(cluster: Cluster, profiles: Profiles) -> None:
    """Platform, model and engine must be profiles that exist."""
    kinds: tuple[tuple[str, str, Mapping[str, object]], ...] = (
        ("platform", cluster.spec.platform, profiles.platforms),
        ("model", cluster.spec.model, profiles.models),
        ("engine", cluster.spec.engine, profiles.engines),
    )
    problems = [
        Problem(
            what=f"no {key} profile of that name",
            file=cluster.spec_file,
            key=key,
            found=name,
            expected=", ".join(sorted(there)),
            fix=f"did you mean {near}?" if (near := nearest(name, there)) else f"add profiles/{key}s/{name}.yml",
        )
        for key, name, there in kinds
        if name not in there
    ]
    if problems:
        raise ConfigError(*problems)


def _gpu(platform: Platform, profiles: Profiles) -> Gpu:
    if platform.gpu in profiles.gpus:
        return profiles.gpus[platform.gpu]
    raise ConfigError(
        Problem(
            what=f"platform {platform.name} names a GPU without a profile",
            found=platform.gpu,
            expected=", ".join(sorted(profiles.gpus)),
            fix="add the GPU's profile",
        )
    )


def _refused_gpu(cluster: Cluster, platform: Platform, gpu: Gpu) -> list[Problem]:
    if not gpu.refused:
        return []
    return [
        Problem(
            what=f"{gpu.title} cannot serve this: {gpu.refused}",
            file=cluster.spec_file,
            key="platform",
            found=platform.name,
            fix="use another platform",
        )
    ]


def _node_problems(cluster: Cluster, platform: Platform, total: int, replicas: int) -> list[Problem]:
    problems = []
    if total > platform.max_nodes:
        problems.append(
            Problem(
                what=f"{platform.title} is planned for at most {platform.max_nodes} nodes",
                file=cluster.inventory.path,
                found=str(total),
                expected=f"1 to {platform.max_nodes}",
                fix="take nodes out of gpu_nodes",
            )
        )
    if total % replicas:
        problems.append(
            Problem(
                what=f"{total} nodes cannot be divided into {replicas} equal replicas",
                file=cluster.spec_file,
                key="strategy.replicas",
                found=str(replicas),
                expected=", ".join(str(n) for n in range(1, total + 1) if total % n == 0),
                fix="change the number of nodes or of replicas",
            )
        )
    return problems
