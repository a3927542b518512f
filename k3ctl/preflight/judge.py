"""Facts, plan and waivers in; a report out. Pure: the same capture gives the same report anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

from k3ctl.cluster import Waiver
from k3ctl.facts.node import NodeFacts
from k3ctl.facts.pairs import PairFacts
from k3ctl.plan import Plan
from k3ctl.preflight.check import Case, Check, CouldNotTell, Verdict
from k3ctl.preflight.checks import CHECKS
from k3ctl.preflight.finding import Finding
from k3ctl.preflight.report import PreflightReport
from k3ctl.preflight.waivers import Waivers

_ANSWERED = "probe.complete"


def judge(
    plan: Plan,
    waivers: Iterable[Waiver],
    facts: Mapping[str, NodeFacts],
    pairs: PairFacts,
    today: date,
    checks: tuple[Check, ...] = CHECKS,
) -> PreflightReport:
    """Judge the nodes in `facts` (names of the plan); every check gives exactly one finding for each of them."""
    nodes = [node for node in plan.nodes if node.name in facts]
    round_ = _Round(Waivers(waivers, [check.name for check in checks], [node.name for node in plan.nodes], today))
    for check in checks:
        for node in nodes:
            others = {other.name: facts[other.name] for other in nodes if other is not node}
            round_.judge(check, Case(plan, node, facts[node.name], others, pairs, round_.stands))
    findings = tuple(round_.findings.values())
    return PreflightReport(
        cluster=plan.cluster,
        day=today.isoformat(),
        nodes=tuple(node.name for node in nodes),
        findings=findings,
        waivers=round_.waivers.uses(findings),
    )


class _Round:
    """Findings so far, by check and node."""

    def __init__(self, waivers: Waivers) -> None:
        self.waivers = waivers
        self.findings: dict[tuple[str, str], Finding] = {}

    def stands(self, check: str, node: str) -> bool:
        """Did that check pass on that node (or was let pass)?"""
        finding = self.findings.get((check, node))
        return finding is not None and not finding.blocks and not finding.ground

    def judge(self, check: Check, case: Case) -> None:
        """Add the finding of one check on one node."""
        ground = self._ground(check, case)
        verdict = Verdict("skipped", f"not judged, because {ground} failed") if ground else _verdict(check, case)
        finding = Finding(
            check=check.name,
            node=case.node.name,
            severity=verdict.severity,
            found=verdict.found,
            expected=verdict.expected,
            why=check.why,
            fix=verdict.fix,
            evidence=verdict.evidence,
            ground=ground,
        )
        self.findings[(check.name, case.node.name)] = self.waivers.apply(finding)

    def _ground(self, check: Check, case: Case) -> str:
        """The first check that must have passed before this one and did not; empty when the ground is there."""
        node = case.node.name
        for need in check.needs:
            if not self.stands(need, node):
                earlier = self.findings.get((need, node))
                return (earlier.ground if earlier else "") or need
        answered = self.findings.get((_ANSWERED, node))
        silent = any(case.facts.section(name).value is None for name in check.reads)
        # A waived silence is no ground to skip: the check is judged, and says for itself that it could not tell.
        return _ANSWERED if answered and answered.blocks and silent else ""


def _verdict(check: Check, case: Case) -> Verdict:
    try:
        return check.judge(case)
    except CouldNotTell as missing:
        return Verdict("unknown", str(missing), fix="run preflight again; if it stays so, look on the node by hand")
    except Exception as bug:  # noqa: BLE001  a check that breaks must neither end the run nor pass
        fix = "report this as a bug, with the capture of this run"
        return Verdict("unknown", f"the check itself broke: {type(bug).__name__}: {bug}", fix=fix)
