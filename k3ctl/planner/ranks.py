"""Every rank's command line and environment, from the layout's templates."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from k3ctl.errors import ConfigError, Problem
from k3ctl.inventory import Node
from k3ctl.plan import ModelPlan, NodePlan, RuntimePlan
from k3ctl.planner import agree
from k3ctl.planner.arguments import Arguments, fill, filled, for_version, join, override
from k3ctl.planner.shape import Shape
from k3ctl.planner.subject import Subject
from k3ctl.profiles.types import ArgumentSet

_KV = {"vllm": {"fp8": "fp8", "bf16": "bfloat16"}, "sglang": {"fp8": "fp8_e4m3", "bf16": "bf16"}}


@dataclass(frozen=True)
class Ranks:
    """All nodes of all replicas in inventory order, and what was said while they were rendered."""

    nodes: tuple[NodePlan, ...]
    notes: tuple[str, ...]


def render(
    subject: Subject, shape: Shape, models: Sequence[ModelPlan], runtime: RuntimePlan, ready_seconds: int
) -> Ranks:
    """Raises ConfigError: templates that do not fill, sources in conflict, flags that contradict the plan."""
    made: list[NodePlan] = []
    notes: dict[str, None] = {}
    nodes = subject.cluster.inventory.nodes
    for index, node in enumerate(nodes):
        replica, rank = divmod(index, subject.nodes)
        head = nodes[replica * subject.nodes]
        values = _values(subject, shape, models, runtime, (node, head, rank, ready_seconds))
        arguments = filled(_arguments(subject, shape, rank), values)
        agree.check(subject, shape, arguments, values)
        notes |= dict.fromkeys(arguments.notes)
        program = (_program(word, values) for word in subject.engine.program)
        made.append(
            NodePlan(
                name=node.name,
                rank=node.rank,
                address=node.fabric_address,
                interface=node.fabric_interface,
                engine_argv=(*program, *(word for item in arguments.items for word in item.words())),
                engine_env={name: value for name, (value, _) in sorted(arguments.env.items())},
                replica=replica,
                engine_rank=rank if subject.cluster.spec.strategy.replicas > 1 else None,
            )
        )
    return Ranks(tuple(made), tuple(notes))


def bracketed(host: str) -> str:
    """An IPv6 address in brackets, as URLs want it; anything else unchanged."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _arguments(subject: Subject, shape: Shape, rank: int) -> Arguments:
    """What one rank is given, in order: sets, layout, its part for head or workers; then wishes; then the version."""
    engine, layout = subject.engine, shape.layout
    sources: list[tuple[str, Iterable[str], Mapping[str, str]]] = []
    for name in _set_names(shape):
        found = _set(subject, name, layout.name)
        sources.append((f"set {name}", found.argv, found.env))
    sources.append((f"layout {layout.name}", layout.argv, layout.env))
    part = layout.argv_head if rank == 0 else layout.argv_worker
    sources.append((f"layout {layout.name} ({'head' if rank == 0 else 'worker'})", part, {}))
    arguments = _wishes(subject, join(engine, sources))
    return for_version(engine, subject.version.version, arguments)


def _set_names(shape: Shape) -> list[str]:
    names = list(shape.layout.sets)
    if shape.draft and shape.draft.name != shape.layout.draft:
        names.append(f"draft-{shape.draft.name}")
    return names


def _set(subject: Subject, name: str, layout: str) -> ArgumentSet:
    if name in subject.engine.sets:
        return subject.engine.sets[name]
    raise ConfigError(
        Problem(
            what=f"layout {layout} names a set that does not exist",
            file=f"engines/{subject.engine.name}.yml",
            found=name,
            expected=", ".join(sorted(subject.engine.sets)),
            fix="correct the engine's profile",
        )
    )


def _wishes(subject: Subject, arguments: Arguments) -> Arguments:
    """Flags that cluster.yml changes and that no template carries."""
    kv = subject.cluster.spec.strategy.kv_cache
    if kv and subject.engine.family in _KV:
        value = _KV[subject.engine.family][kv]
        return override(arguments, "--kv-cache-dtype", value, f"strategy.kv_cache of {subject.file}")
    return arguments


def _values(
    subject: Subject,
    shape: Shape,
    models: Sequence[ModelPlan],
    runtime: RuntimePlan,
    place: tuple[Node, Node, int, int],
) -> dict[str, str]:
    """What templates may name, for one rank."""
    node, head, rank, ready_seconds = place
    spec, sizes = subject.cluster.spec, shape.sizes
    per_engine = sizes.tp * sizes.pp
    per_node = subject.platform.gpus_per_node
    draft = next((model.path for model in models if shape.draft and model.repo == shape.draft.repo), "")
    values = {
        "bin": runtime.bin,
        "model": models[0].path,
        "served_name": models[0].served_name,
        "tp": sizes.tp,
        "pp": sizes.pp,
        "dp": sizes.dp,
        "dp_local": max(1, per_node // per_engine),
        "dp_start": rank * per_node // per_engine,
        "dcp": sizes.dcp,
        "ep": sizes.tp * sizes.dp if sizes.ep else 1,
        "world": subject.world,
        "nnodes": subject.nodes,
        "node_rank": rank,
        "head": head.fabric_address,
        "head_host": bracketed(head.fabric_address),
        "address": node.fabric_address,
        "port": spec.endpoint.port,
        "master_port": spec.ports.engine_master,
        "max_model_len": shape.max_model_len,
        "max_num_seqs": shape.max_num_seqs,
        "max_batched": shape.max_batched,
        "ready_seconds": ready_seconds,
    }
    if node.fabric_interface:
        values["interface"] = node.fabric_interface
    if shape.memory:
        values["utilization"] = f"{shape.memory.utilization:g}"
    if shape.draft and draft:
        values |= {"draft": draft, "draft_tokens": shape.draft.tokens}
    return {name: str(value) for name, value in values.items()}


def _program(word: str, values: Mapping[str, str]) -> str:
    """A word of the program; in a container its folder is not known, the image's own PATH finds it."""
    if not values["bin"]:
        word = word.removeprefix("{bin}/")
    return fill(word, values, "the program")
