"""`k3ctl smoke`: ask the real endpoint."""

from __future__ import annotations

from dataclasses import asdict

from k3ctl.commands.output import Output
from k3ctl.commands.run_phases import run_phases
from k3ctl.phases import lists
from k3ctl.phases.base import Options
from k3ctl.phases.smoke import SmokeResult
from k3ctl.units import duration


def smoke(inventory: str, out: Output) -> int:
    """Every check of the smoke test, also when it passed before."""
    ran = run_phases(lists.UP, Options(inventory, only=("smoke",)), out, "smoke", reads_only=True)
    value = ran.result.outcomes["smoke"].value if ran.result and "smoke" in ran.result.outcomes else None
    if not isinstance(value, SmokeResult):
        return ran.code
    if out.form == "json":
        out.json(asdict(value))
        return ran.code
    table = out.grid("check", "found", "time")
    for check in value.checks:
        table.add_row(check.name, check.found, duration(check.seconds))
    out.table(table)
    out.text(f"question: {value.question}\nanswer: {value.answer.strip()}")
    return ran.code
