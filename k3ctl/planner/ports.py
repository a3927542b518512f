"""The port plan: every listening port on every node, ranges that are picked at run time, and no port twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3ctl.errors import ConfigError, Problem
from k3ctl.plan import NodePlan, PortPlan
from k3ctl.plan.forecast import PortRange
from k3ctl.planner.arguments import fill
from k3ctl.planner.shape import Shape
from k3ctl.planner.subject import Subject
from k3ctl.profiles.types import PortRule

# net.ipv4.ip_local_port_range as Linux has it; preflight compares with the node's own.
EPHEMERAL = (32768, 60999)


def fixed(subject: Subject, shape: Shape, nodes: Sequence[NodePlan]) -> tuple[PortPlan, ...]:
    """Every fixed listening port of all nodes."""
    spec = subject.cluster.spec
    values = {
        "port": str(spec.endpoint.port),
        "rendezvous": str(spec.ports.rendezvous),
        "master_port": str(spec.ports.engine_master),
    }
    heads = tuple(node.rank for node in nodes if (node.engine_rank or 0) == 0 and _first(subject, node))
    everyone = tuple(node.rank for node in nodes)
    ranks = {"head": heads, "workers": tuple(rank for rank in everyone if rank not in heads), "all": everyone}
    return tuple(
        PortPlan(_number(subject, rule, values), ranks[rule.ranks], *_what(rule))
        for rule in subject.engine.ports
        if _applies(rule, subject, shape)
    )


def ranges(subject: Subject, nodes: Sequence[NodePlan]) -> tuple[PortRange, ...]:
    """Ports that the engine picks itself, on each node."""
    found = []
    for rule in subject.engine.random_ports:
        if rule.several_nodes_only and subject.nodes == 1:
            continue
        first, last = EPHEMERAL if rule.range == "ephemeral" else map(int, rule.range.split("-"))
        count = rule.per_gpu * subject.platform.gpus_per_node + rule.per_node
        ranks = tuple(node.rank for node in nodes)
        found.append(PortRange(first, last, count, ranks, rule.purpose, rule.source))
    return tuple(found)


def check(subject: Subject, nodes: Sequence[NodePlan], ports: Sequence[PortPlan], spans: Sequence[PortRange]) -> None:
    """Raise ConfigError when a port is planned twice on a node, or could be taken by a port picked at run time."""
    problems = [*_twice(subject, nodes, ports), *_inside(subject, ports, spans)]
    if problems:
        raise ConfigError(*problems)


def _twice(subject: Subject, nodes: Sequence[NodePlan], ports: Sequence[PortPlan]) -> Iterator[Problem]:
    seen: dict[tuple[int, int], PortPlan] = {}
    for port in ports:
        for rank in port.ranks:
            other = seen.setdefault((rank, port.port), port)
            if other is not port:
                yield Problem(
                    what=f"port {port.port} is planned twice on {nodes[rank].name}",
                    file=subject.file,
                    key="ports",
                    found=f"{other.purpose} and {port.purpose}",
                    fix="give one of them another port in cluster.yml",
                )


def _inside(subject: Subject, ports: Sequence[PortPlan], spans: Sequence[PortRange]) -> Iterator[Problem]:
    for port in ports:
        for span in spans:
            if span.first <= port.port <= span.last and span.per_node and not {*port.ranks}.isdisjoint(span.ranks):
                yield Problem(
                    what=f"port {port.port} ({port.purpose}) may be taken by a port that is picked at run time",
                    file=subject.file,
                    key="ports",
                    found=f"{span.first} to {span.last}: {span.purpose}",
                    expected=f"a port outside {span.first} to {span.last}",
                    fix="give it another port in cluster.yml",
                )


def _first(subject: Subject, node: NodePlan) -> bool:
    return node.rank % subject.nodes == 0


def _applies(rule: PortRule, subject: Subject, shape: Shape) -> bool:
    if rule.several_nodes_only and subject.nodes == 1:
        return False
    return not rule.data_parallel_only or shape.sizes.dp > 1


def _what(rule: PortRule) -> tuple[str, str]:
    return rule.reached_by, rule.purpose


def _number(subject: Subject, rule: PortRule, values: dict[str, str]) -> int:
    """`8998`, `{master_port}` or `{master_port}+1`."""
    terms = fill(rule.port, values, f"the port of {rule.purpose}").split("+")
    if not all(term.strip().isdigit() for term in terms) or not 0 < (port := sum(map(int, terms))) < 65536:
        raise ConfigError(
            Problem(
                what=f"the port of {rule.purpose} is no port",
                file=f"engines/{subject.engine.name}.yml",
                key="ports",
                found=rule.port,
                expected="a number, a template of one, or `{master_port}+1`",
            )
        )
    return port
