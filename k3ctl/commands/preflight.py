"""`k3ctl preflight`: the report, verdict first."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from k3ctl.commands.output import Output
from k3ctl.commands.run_phases import run_phases
from k3ctl.phases import lists
from k3ctl.phases.base import Options
from k3ctl.preflight.finding import SEVERITIES, Finding
from k3ctl.preflight.report import PreflightReport

COLOURS = {"fail": "red", "unknown": "magenta", "warn": "yellow", "skipped": "dim", "ok": "green"}


def preflight(options: Options, out: Output) -> int:
    """Probe, judge and print every finding, also when the launch is refused."""
    ran = run_phases(lists.UP, options, out, "preflight", reads_only=True)
    text = ran.session.store.read("preflight.json") if ran.session is not None else None
    if text is None:
        return ran.code
    if out.form == "json":
        out.json(json.loads(text))
        return ran.code
    report = PreflightReport.from_json(text)
    out.text(f"{report.cluster}: {report.verdict}. {report.said}")
    open_ = [finding for finding in report.findings if finding.severity != "ok"]
    if open_:
        out.table(_table(open_, report.nodes))
    good = sorted({f.check for f in report.findings} - {f.check for f in open_})
    if good:
        out.text(f"ok on all nodes: {', '.join(good)}")
    return ran.code


def _table(findings: Sequence[Finding], nodes: Sequence[str]) -> Table:
    """One row per check and cause; nodes with the same finding share it. Worst first."""
    table = Output.grid("", "check", "nodes", "found", "fix")
    rows: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        rows.setdefault((finding.severity, finding.check, finding.found, finding.fix), []).append(finding)
    for (severity, check, found, fix), same in sorted(rows.items(), key=lambda row: _order(row[1][0])):
        word = f"waived: {same[0].waived}" if same[0].waived else severity
        table.add_row(Text(word, COLOURS[severity]), check, _names(same, nodes), found, fix)
    return table


def _order(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _names(findings: Sequence[Finding], nodes: Sequence[str]) -> str:
    names = [finding.node for finding in findings]
    return "all" if set(names) >= set(nodes) and len(nodes) > 1 else ", ".join(name or "cluster" for name in names)
