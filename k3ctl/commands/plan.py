"""`k3ctl plan`: what will run on every rank, without touching a host."""

from __future__ import annotations

import dataclasses
import shlex

from rich.table import Table

from k3ctl.commands.output import Output
from k3ctl.commands.session import load_plan
from k3ctl.errors import ExitCode
from k3ctl.plan import Plan
from k3ctl.units import duration, size


def plan(inventory: str, out: Output) -> int:
    """Print the plan as tables or JSON."""
    _cluster, made, _summary = load_plan(inventory)
    if out.form == "json":
        out.json(dataclasses.asdict(made))
        return int(ExitCode.OK)
    _tables(made, out)
    return int(ExitCode.OK)


def _tables(plan: Plan, out: Output) -> None:
    facts = Table(show_header=False, box=None, pad_edge=False)
    for key, value in (
        ("cluster", f"{plan.cluster} on {plan.platform}"),
        ("engine", f"{plan.engine} {plan.engine_version} by {plan.launcher}"),
        ("layout", f"tensor parallel {plan.tensor_parallel}, pipeline stages {plan.pipeline_parallel}"),
        *(("model" if m.served_name else "draft", f"{m.repo} @ {m.commit[:12]} -> {m.path}") for m in plan.models),
        (
            "runtime",
            f"{plan.runtime.name} {plan.runtime.digest[:12]} ({size(plan.runtime.bytes)}) -> {plan.runtime.path}",
        ),
        ("endpoint", plan.endpoint),
        ("ready within", duration(plan.timeouts.engine_ready)),
    ):
        facts.add_row(key, value)
    out.table(facts)
    ports = Table("port", "nodes", "reached by", "purpose", title="Ports", title_justify="left")
    for port in plan.ports:
        names = ", ".join(plan.nodes[rank].name for rank in port.ranks)
        ports.add_row(str(port.port), names, port.reached_by, port.purpose)
    ports.add_row("ephemeral range", "all", "nodes", "the engine's own sockets (about 16 a worker)")
    out.table(ports)
    for node in plan.nodes:
        out.text(f"\nrank {node.rank} on {node.name} ({node.address})")
        for key, value in node.engine_env.items():
            out.text(f"  {key}={value}")
        out.text("  " + shlex.join(node.engine_argv))
