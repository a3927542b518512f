"""The resolver: one pure function from cluster and profiles to a plan, or a refusal that says what does not fit."""

from __future__ import annotations

from k3ctl.cluster import Cluster
from k3ctl.errors import ConfigError, Problem
from k3ctl.memory.forecast import FAMILIES
from k3ctl.plan import ModelPlan, NodePlan, Plan, Timeouts
from k3ctl.plan.forecast import ReplicaPlan
from k3ctl.planner import host, ports, ranks, times, verify
from k3ctl.planner.ranks import bracketed
from k3ctl.planner.runtime import runtime as runtime_of
from k3ctl.planner.select import choose
from k3ctl.planner.shape import Shape
from k3ctl.planner.subject import Subject, subject_of
from k3ctl.profiles.types import Profiles, RuntimeRecord, Unknown


def make_plan(
    cluster: Cluster, profiles: Profiles, record: RuntimeRecord | None = None, *, wan: float | None = None
) -> Plan:
    """Decide what runs where. Raises ConfigError with every reason why it cannot.

    `record` describes the serving environment's archive, where it is one; `wan` is bytes per second of each node, for
    the forecast of times. The result depends on nothing else: same input, same plan.
    """
    subject = subject_of(cluster, profiles)
    choice = choose(subject)
    shape, spec = choice.shape, cluster.spec
    models = _models(subject, shape)
    runtime = runtime_of(subject, record)
    loading = times.load(subject, models)
    made = ranks.render(subject, shape, models, runtime, loading.ready_seconds)
    fixed, spans = ports.fixed(subject, shape, made.nodes), ports.ranges(subject, made.nodes)
    ports.check(subject, made.nodes, fixed, spans)
    environment = host.runtime_bytes(runtime, record)
    limits = subject.engine.timeouts
    replicas = _replicas(subject, made.nodes)
    return Plan(
        cluster=cluster.name,
        platform=subject.platform.name,
        engine=subject.engine.name,
        engine_version=subject.version.version,
        launcher=spec.launcher,
        tensor_parallel=shape.sizes.tp,
        pipeline_parallel=shape.sizes.pp,
        models=models,
        runtime=runtime,
        nodes=made.nodes,
        ports=fixed,
        expected=host.expected(subject, models, runtime, record),
        timeouts=Timeouts(float(loading.ready_seconds), float(limits.canary.value), float(limits.gang_stop.value)),
        rendezvous_port=spec.ports.rendezvous,
        master_port=spec.ports.engine_master,
        endpoint=_endpoint(subject, 0),
        endpoint_port=spec.endpoint.port,
        weights_dir=spec.paths.weights,
        state_dir=f"{spec.paths.state}/{cluster.name}",
        log_dir=f"{spec.paths.logs}/{cluster.name}",
        config_dir=f"/etc/k3ctl/{cluster.name}",
        data_parallel=shape.sizes.dp,
        decode_context_parallel=shape.sizes.dcp,
        expert_parallel=shape.sizes.ep,
        engine_family=subject.engine.family,
        layout=shape.layout.name,
        why=shape.layout.why,
        draft=shape.draft.name if shape.draft else "",
        max_model_len=shape.max_model_len,
        max_num_seqs=shape.max_num_seqs,
        memory=choice.fit.memory if choice.fit else None,
        distances=verify.distances(subject, shape, choice.fit),
        alternatives=choice.alternatives,
        warnings=choice.warnings,
        notes=(*made.notes, *_notes(subject, shape, replicas)),
        budgets=host.budgets(subject, models, environment, loading.ready_seconds),
        times=times.phases(subject, models, runtime, loading, wan),
        port_ranges=spans,
        verification=verify.verification(subject, shape, runtime),
        replicas=replicas,
    )


def _models(subject: Subject, shape: Shape) -> tuple[ModelPlan, ...]:
    """The served model first, then its drafts; each at a commit, in a folder that names it."""
    spec, model = subject.cluster.spec, subject.model
    family = subject.engine.family
    drafts = [d for d in model.drafts if d == shape.draft or (d.always and family in d.families)]
    pairs = [(model.repo, spec.weights.revision or model.revision, model.served_name)]
    pairs += [(draft.repo, draft.revision, "") for draft in drafts]
    plans = []
    for repo, commit, served in pairs:
        if isinstance(commit, Unknown):
            raise ConfigError(
                Problem(
                    what=f"no commit of {repo} is known: {commit.unknown}",
                    key=commit.supply,
                    file=subject.file,
                    fix=f"set {commit.supply} to a commit",
                )
            )
        path = f"{spec.paths.weights}/{repo}/{commit}"
        plans.append(ModelPlan(repo, commit, path, spec.weights.endpoint, served))
    return tuple(plans)


def _replicas(subject: Subject, nodes: tuple[NodePlan, ...]) -> tuple[ReplicaPlan, ...]:
    """Empty for one engine."""
    count = subject.cluster.spec.strategy.replicas
    if count == 1:
        return ()
    return tuple(
        ReplicaPlan(number, tuple(node.name for node in nodes if node.replica == number), _endpoint(subject, number))
        for number in range(count)
    )


def _endpoint(subject: Subject, replica: int) -> str:
    """Base URL of one replica's head; an address of cluster.yml stands for the first one only."""
    spec = subject.cluster.spec
    head = subject.cluster.inventory.nodes[replica * subject.nodes]
    name = (spec.endpoint.address if replica == 0 else "") or head.ssh.address
    return f"http://{bracketed(name)}:{spec.endpoint.port}"


def _notes(subject: Subject, shape: Shape, replicas: tuple[ReplicaPlan, ...]) -> list[str]:
    found = []
    if subject.model.architecture is None:
        found.append(f"memory is not planned: model {subject.model.name} has no figures for it")
    elif subject.engine.family not in FAMILIES:
        found.append(f"memory is not planned: the rules of {subject.engine.title} are not known")
    elif shape.memory is None:
        found.append(f"memory is not planned: layout {shape.layout.name} has no figures for it")
    if shape.draft and shape.draft.attention != "mla":
        found.append(f"the cache of draft {shape.draft.name} is its own and not counted: its sizes are not known")
    if replicas:
        found.append(f"{len(replicas)} engines, each with its own endpoint: the router in front of them is not built")
    return found
