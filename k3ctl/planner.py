"""The resolver: one pure function from cluster and profiles to a plan, or a refusal that says what does not fit."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping

from k3ctl.cluster import Cluster
from k3ctl.errors import ConfigError, Problem
from k3ctl.plan import Expected, ModelPlan, NodePlan, Plan, PortPlan, RuntimePlan, Timeouts
from k3ctl.profiles.types import (
    Amount,
    BundleRuntime,
    Engine,
    Layout,
    Model,
    Platform,
    Profiles,
    RuntimeRecord,
    Unknown,
    Version,
)

_FIELD = re.compile(r"\{([a-z_]+)\}")


def engine_of(cluster: Cluster, profiles: Profiles) -> Engine:
    """The engine profile that cluster.yml names."""
    _check_names(cluster, profiles)
    return profiles.engines[cluster.spec.engine]


def version_of(cluster: Cluster, engine: Engine) -> Version:
    """The engine's version that cluster.yml asks for, or its default."""
    for version in engine.versions:
        if version.version == engine.default_version:
            return version
    raise ConfigError(
        Problem(
            what=f"{engine.name} has no version {engine.default_version}",
            file=cluster.spec_file,
            expected=", ".join(version.version for version in engine.versions),
            fix="correct the engine's profile",
        )
    )


def make_plan(cluster: Cluster, profiles: Profiles, record: RuntimeRecord) -> Plan:
    """Decide what runs where. Raises ConfigError with every reason why it cannot.

    `record` describes the serving environment's archive. The result depends on nothing else: same input, same plan.
    """
    engine = engine_of(cluster, profiles)
    version = version_of(cluster, engine)
    spec = cluster.spec
    platform = profiles.platforms[spec.platform]
    model = profiles.models[spec.model]
    layout = _layout(cluster, engine, platform, model)
    parallel = _tensor_parallel(cluster, platform, model)
    models = _models(cluster, engine, model)
    runtime = _runtime(cluster, version, record)
    host = spec.endpoint.address or cluster.inventory.head.ssh.address
    plan = Plan(
        cluster=cluster.name,
        platform=platform.name,
        engine=engine.name,
        engine_version=version.version,
        launcher=spec.launcher,
        tensor_parallel=parallel,
        pipeline_parallel=1,
        models=models,
        runtime=runtime,
        nodes=_nodes(cluster, engine, layout, models[0], runtime, parallel),
        ports=_ports(cluster, engine),
        expected=_expected(platform, profiles, model, models, record),
        timeouts=Timeouts(
            engine_ready=float(engine.timeouts.engine_ready.value),
            canary=float(engine.timeouts.canary.value),
            gang_stop=float(engine.timeouts.gang_stop.value),
        ),
        rendezvous_port=spec.ports.rendezvous,
        master_port=spec.ports.engine_master,
        endpoint=f"http://{_bracketed(host)}:{spec.endpoint.port}",
        endpoint_port=spec.endpoint.port,
        weights_dir=spec.paths.weights,
        state_dir=f"{spec.paths.state}/{cluster.name}",
        log_dir=f"{spec.paths.logs}/{cluster.name}",
        config_dir=f"/etc/k3ctl/{cluster.name}",
    )
    _check_ports(plan, cluster)
    return plan


def _runtime(cluster: Cluster, version: Version, record: RuntimeRecord) -> RuntimePlan:
    """The serving environment of that version, as the record of its archive names it."""
    runtime = version.runtime
    if not isinstance(runtime, BundleRuntime):
        raise ConfigError(
            Problem(
                what=f"version {version.version} has no archive, only container images",
                file=cluster.spec_file,
                key="engine",
                fix="choose an engine whose serving environment is an archive",
            )
        )
    return RuntimePlan(
        kind=runtime.kind,
        name=runtime.name,
        url=_fill(runtime.url, {"hub": cluster.spec.weights.endpoint, "archive": record.archive}),
        digest=record.sha256,
        bytes=record.bytes,
        path=record.install_path,
        bin=f"{record.install_path}/bin",
    )


def known(amount: Amount | Unknown, what: str) -> int:
    """The number, or a refusal that says which fact is missing and how to give it."""
    if isinstance(amount, Unknown):
        raise ConfigError(
            Problem(what=f"{what} is not known: {amount.unknown}", key=amount.supply, fix=f"set {amount.supply}")
        )
    return amount.value


def _check_names(cluster: Cluster, profiles: Profiles) -> None:
    """Platform, model and engine must be profiles that exist."""
    problems = []
    known: Iterable[tuple[str, str, Mapping[str, object]]] = (
        ("platform", cluster.spec.platform, profiles.platforms),
        ("model", cluster.spec.model, profiles.models),
        ("engine", cluster.spec.engine, profiles.engines),
    )
    for key, name, there in known:
        if name not in there:
            near = difflib.get_close_matches(name, list(there), n=1)
            problems.append(
                Problem(
                    what=f"no {key} profile of that name",
                    file=cluster.spec_file,
                    key=key,
                    found=name,
                    expected=", ".join(sorted(there)),
                    fix=f"did you mean {near[0]}?" if near else f"add k3ctl/profiles/{key}s/{name}.yml",
                )
            )
    if problems:
        raise ConfigError(*problems)


def _layout(cluster: Cluster, engine: Engine, platform: Platform, model: Model) -> Layout:
    """The engine's layout for this platform and model."""
    for layout in engine.layouts:
        if platform.name in layout.platforms and model.name in layout.models:
            return layout
    raise ConfigError(
        Problem(
            what=f"{engine.name} has no layout for {model.name} on {platform.name}",
            file=cluster.spec_file,
            key="engine",
            found=engine.name,
            expected="; ".join(f"{', '.join(lay.models)} on {', '.join(lay.platforms)}" for lay in engine.layouts),
            fix="choose another engine, or add a layout with its source to the engine's profile",
        )
    )


def _tensor_parallel(cluster: Cluster, platform: Platform, model: Model) -> int:
    """All GPUs in one tensor-parallel group unless cluster.yml says otherwise; heads must divide."""
    world = platform.gpus_per_node * len(cluster.inventory.nodes)
    asked = cluster.spec.strategy
    parallel = asked.tensor_parallel or world
    heads = known(model.heads, f"the number of attention heads of {model.name}")
    problems = []
    if parallel != world:
        problems.append(
            Problem(
                what=f"{world} GPUs need {world} ranks",
                file=cluster.spec_file,
                key="strategy.tensor_parallel",
                found=f"tensor_parallel {parallel} x pipeline_parallel 1 = {parallel} ranks",
                expected=f"{len(cluster.inventory.nodes)} nodes x {platform.gpus_per_node} GPUs = {world}",
                fix=f"set tensor_parallel to {world}, or leave it out",
            )
        )
    if (asked.pipeline_parallel or 1) != 1:
        problems.append(
            Problem(
                what="this platform has no layout with pipeline stages",
                file=cluster.spec_file,
                key="strategy.pipeline_parallel",
                found=str(asked.pipeline_parallel),
                expected="1",
                fix="leave it out",
            )
        )
    if heads % parallel:
        problems.append(
            Problem(
                what=f"{model.name} has {heads} attention heads, which {parallel} ranks do not divide",
                file=cluster.spec_file,
                key="strategy.tensor_parallel",
                found=str(parallel),
                expected=", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0),
                fix="use a number of nodes whose GPUs divide the heads",
            )
        )
    if len(cluster.inventory.nodes) > platform.max_nodes:
        problems.append(
            Problem(
                what=f"{platform.title} is planned for at most {platform.max_nodes} nodes",
                file=cluster.inventory.path,
                found=str(len(cluster.inventory.nodes)),
                expected=f"1 to {platform.max_nodes}",
                fix="take nodes out of gpu_nodes",
            )
        )
    if problems:
        raise ConfigError(*problems)
    return parallel


def _models(cluster: Cluster, engine: Engine, model: Model) -> tuple[ModelPlan, ...]:
    """The served model first, then its drafts; each at a commit, in a folder that names it."""
    spec = cluster.spec
    pairs = [(model.repo, spec.weights.revision or model.revision, model.served_name)]
    pairs += [(d.repo, d.revision, "") for d in model.drafts if d.always and engine.family in d.families]
    plans = []
    for repo, commit, served in pairs:
        if isinstance(commit, Unknown):
            raise ConfigError(
                Problem(
                    what=f"no commit of {repo} is known: {commit.unknown}",
                    key=commit.supply,
                    file=cluster.spec_file,
                    fix=f"set {commit.supply} to a commit",
                )
            )
        path = f"{spec.paths.weights}/{repo}/{commit}"
        plans.append(ModelPlan(repo, commit, path, spec.weights.endpoint, served))
    return tuple(plans)


def _nodes(
    cluster: Cluster, engine: Engine, layout: Layout, model: ModelPlan, runtime: RuntimePlan, parallel: int
) -> tuple[NodePlan, ...]:
    """Each rank's argv and environment, from the layout's templates."""
    spec = cluster.spec
    nodes = []
    for node in cluster.inventory.nodes:
        values = {
            "bin": runtime.bin,
            "model": model.path,
            "served_name": model.served_name,
            "tp": str(parallel),
            "pp": "1",
            "nnodes": str(len(cluster.inventory.nodes)),
            "node_rank": str(node.rank),
            "head": cluster.inventory.head.fabric_address,
            "address": node.fabric_address,
            "interface": node.fabric_interface,
            "port": str(spec.endpoint.port),
            "master_port": str(spec.ports.engine_master),
            "max_model_len": str(spec.strategy.max_model_len or layout.max_model_len),
            "max_num_seqs": str(spec.strategy.max_num_seqs or layout.max_num_seqs),
            "ready_seconds": str(engine.timeouts.engine_ready.value),
        }
        argv = engine.program + layout.argv + (layout.argv_head if node.rank == 0 else layout.argv_worker)
        nodes.append(
            NodePlan(
                name=node.name,
                rank=node.rank,
                address=node.fabric_address,
                interface=node.fabric_interface,
                engine_argv=tuple(_fill(text, values) for text in argv),
                engine_env={key: _fill(text, values) for key, text in sorted(layout.env.items())},
            )
        )
    return tuple(nodes)


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fill {fields}; a field that does not exist is an error. JSON braces stay: only {word} is a field."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise ConfigError(
                Problem(
                    what=f"layout template names {{{name}}}, which does not exist",
                    found=template,
                    expected=", ".join(sorted(values)),
                    fix="correct the engine's profile",
                )
            )
        return values[name]

    return _FIELD.sub(value, template)


def _ports(cluster: Cluster, engine: Engine) -> tuple[PortPlan, ...]:
    """Every fixed listening port. The rest of the nodes' ephemeral ranges must be open between them too."""
    spec = cluster.spec
    count = len(cluster.inventory.nodes)
    values = {
        "port": str(spec.endpoint.port),
        "rendezvous": str(spec.ports.rendezvous),
        "master_port": str(spec.ports.engine_master),
    }
    return tuple(
        PortPlan(
            int(_fill(rule.port, values)),
            (0,) if rule.ranks == "head" else tuple(range(count)),
            rule.reached_by,
            rule.purpose,
        )
        for rule in engine.ports
        if count > 1 or not rule.several_nodes_only
    )


def _check_ports(plan: Plan, cluster: Cluster) -> None:
    """No port twice on a node."""
    seen: dict[tuple[int, int], PortPlan] = {}
    problems = []
    for port in plan.ports:
        for rank in port.ranks:
            other = seen.setdefault((rank, port.port), port)
            if other is not port:
                problems.append(
                    Problem(
                        what=f"port {port.port} is planned twice on {plan.nodes[rank].name}",
                        file=cluster.spec_file,
                        key="ports",
                        found=f"{other.purpose} and {port.purpose}",
                        fix="give one of them another port in cluster.yml",
                    )
                )
    if problems:
        raise ConfigError(*problems)


def _expected(
    platform: Platform, profiles: Profiles, model: Model, models: tuple[ModelPlan, ...], record: RuntimeRecord
) -> Expected:
    """What preflight holds each node against."""
    if platform.gpu not in profiles.gpus:
        raise ConfigError(
            Problem(
                what=f"platform {platform.name} names a GPU without a profile",
                found=platform.gpu,
                expected=", ".join(sorted(profiles.gpus)),
                fix="add the GPU's profile",
            )
        )
    simulated = platform.simulated
    staged = {plan.repo for plan in models}
    weights = known(model.bytes, f"the size of {model.name}")
    weights += sum(draft.bytes.value for draft in model.drafts if draft.repo in staged)
    return Expected(
        gpus=platform.gpus_per_node,
        gpu_name=profiles.gpus[platform.gpu].reported_names[0],
        hcas=platform.nics.count,
        min_memory_bytes=platform.memory_bytes.value,
        min_free_bytes=weights + platform.reserve_bytes.value,
        min_runtime_bytes=record.bytes + record.unpacked_bytes,
        memlock=platform.memlock,
        sysfs_root=simulated.sysfs_root if simulated else "/sys",
        nvml_library_path=simulated.nvml_library_path if simulated else "",
        architecture=platform.architecture,
    )


def _bracketed(host: str) -> str:
    """An IPv6 address in brackets, as URLs want it; anything else unchanged."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
