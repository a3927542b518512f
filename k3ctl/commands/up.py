"""`k3ctl up` and the verbs that run a part of its road: stage, start, stop, restart, down."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from rich.table import Table

from k3ctl.commands.output import Output
from k3ctl.commands.run_phases import Ran, phase_record, run_phases
from k3ctl.commands.session import Session
from k3ctl.edge.program import program
from k3ctl.errors import ExitCode
from k3ctl.phases import lists
from k3ctl.phases.base import Options, Outcome
from k3ctl.phases.remove import Remove
from k3ctl.phases.smoke import SmokeResult
from k3ctl.units import duration


def up(options: Options, out: Output) -> int:
    """The whole road."""
    ran = run_phases(lists.UP, options, out, "up")
    _summary(ran, options, out, "up")
    return ran.code


def stage(options: Options, out: Output) -> int:
    """Weights only."""
    ran = run_phases(lists.UP, options, out, "stage")
    _summary(ran, options, out, "stage")
    return ran.code


def start(options: Options, out: Output) -> int:
    """Launch and readiness."""
    ran = run_phases(lists.START, options, out, "start")
    _summary(ran, options, out, "start")
    return ran.code


def stop(options: Options, out: Output) -> int:
    """Every rank, proven gone."""
    ran = run_phases(lists.STOP, options, out, "stop")
    _summary(ran, options, out, "stop")
    return ran.code


def restart(options: Options, out: Output) -> int:
    """Stop, then start."""
    ran = run_phases(lists.STOP, options, out, "stop")
    return ran.code if ran.code else start(options, out)


def down(options: Options, out: Output, *, purge_weights: bool) -> int:
    """Stop and remove; removing weights is confirmed first."""
    if purge_weights and not options.yes and not options.dry_run and not _confirmed(options, out):
        return int(ExitCode.USAGE)
    phases = tuple(replace(p, purge_weights=purge_weights) if isinstance(p, Remove) else p for p in lists.DOWN)
    ran = run_phases(phases, options, out, "down")
    _summary(ran, options, out, "down")
    return ran.code


def _confirmed(options: Options, out: Output) -> bool:
    """Ask for the cluster's name; without a terminal nobody can answer, so the answer is no."""
    name = options.inventory.rstrip("/").rsplit("/", 1)[-1]
    out.line(
        f"--purge-weights removes the staged weights of {name} on every node; they must be fetched again.", "yellow"
    )
    if not sys.stdin.isatty():
        out.line("There is no terminal to ask: give -y to confirm. Nothing was removed.", "red")
        return False
    out.line(f"Type {name} to go on:")
    if sys.stdin.readline().strip() == name:
        return True
    out.line("Not confirmed. Nothing was removed.")
    return False


def _summary(ran: Ran, options: Options, out: Output, command: str) -> None:
    """What was done, how long each phase took, what runs where, what next."""
    if ran.session is None or ran.result is None:
        return
    plan = ran.session.plan
    outcomes = ran.result.outcomes
    if out.form == "json":
        out.json(
            {
                "command": command,
                "ok": ran.code == 0,
                "dry_run": options.dry_run,
                "seconds": round(ran.seconds, 3),
                "endpoint": plan.endpoint,
                "model": plan.model.served_name,
                "nodes": [{"name": n.name, "rank": n.rank, "address": n.address} for n in plan.nodes],
                "phases": {name: phase_record(outcome) for name, outcome in outcomes.items()},
                "run_directory": str(ran.session.store.run_dir),
            }
        )
        return
    if options.dry_run:
        _planned(outcomes, out)
        return
    if ran.code:
        out.line(f"stopped after {duration(ran.seconds)}; {command} again goes on where this ended", "dim")
        out.line(f"records: {ran.session.store.run_dir}", "dim")
        return
    table = out.grid("phase", "", "time", "what", title=f"{command} {plan.cluster}: {duration(ran.seconds)}")
    for name, outcome in outcomes.items():
        if outcome.status != "skipped":
            word = {"unchanged": "no change"}.get(outcome.status, outcome.status)
            table.add_row(name, word, duration(outcome.seconds), outcome.said)
    out.table(table)
    _skipped(outcomes, out)
    if "smoke" in outcomes and outcomes["smoke"].status != "skipped":
        _endpoint(ran.session, outcomes["smoke"].value, options.inventory, out)


def _skipped(outcomes: Mapping[str, Outcome], out: Output) -> None:
    """What --limit, --only or --from left out, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.status == "skipped":
            reasons.setdefault(outcome.said, []).append(name)
    for reason, names in reasons.items():
        out.line(f"skipped: {', '.join(names)}: {reason}", "dim")


def _planned(outcomes: Mapping[str, Outcome], out: Output) -> None:
    """The dry run's answer: every change, in phase order."""
    total = 0
    for name, outcome in outcomes.items():
        if outcome.status == "skipped":
            continue
        if not outcome.changes:
            out.text(f"{name}: no change: {outcome.said}")
        for change in outcome.changes:
            total += 1
            out.text(f"{name}: {f'{change.node}: ' if change.node else ''}{change.text}")
            if change.diff:
                out.text(change.diff.rstrip())
    out.text(f"dry run: {total} changes; nothing was changed")


def _endpoint(session: Session, smoke: object, inventory: str, out: Output) -> None:
    """Where to ask, and how."""
    plan = session.plan
    key = session.state_dir / "secrets" / "api_key"
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("endpoint", f"{plan.endpoint}/v1")
    facts.add_row("model", plan.model.served_name)
    facts.add_row("API key", f"in {key}")
    for node in plan.nodes:
        facts.add_row(f"rank {node.rank}", f"{node.name} ({node.address}){', API' if node.rank == 0 else ''}")
    if isinstance(smoke, SmokeResult) and smoke.answer:
        facts.add_row("answer", smoke.answer.strip())
    out.table(facts)
    shown = program()
    out.line(f"next: {shown} status {inventory}   {shown} logs -f {inventory}   {shown} down {inventory}", "dim")
