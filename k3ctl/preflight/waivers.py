"""Waivers: findings that an operator lets pass by name, with a reason, until a day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal

from k3ctl.cluster import Waiver
from k3ctl.preflight.finding import Finding

WaiverState = Literal["applied", "not_used", "expired", "no_such_check", "no_such_node"]


@dataclass(frozen=True)
class WaiverUse:
    """What became of one waiver. `until` is ISO (2026-12-31), its last day; `applied_to` are the nodes it let pass."""

    check: str
    reason: str
    until: str
    nodes: tuple[str, ...]
    state: WaiverState
    applied_to: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """One line for people, shown every time."""
        where = f" on {' '.join(self.applied_to or self.nodes)}" if self.applied_to or self.nodes else ""
        words = {
            "applied": f"waived{where} until {self.until}",
            "not_used": f"waiver{where} until {self.until} is not needed: nothing to let pass",
            "expired": f"waiver{where} expired on {self.until} and is not applied",
            "no_such_check": "waiver names a check that does not exist, and is not applied",
            "no_such_node": f"waiver names nodes that do not exist ({' '.join(self.nodes)}), and is not applied",
        }
        return f"{self.check}: {words[self.state]} ({self.reason})"


class Waivers:
    """The waivers of cluster.yml that count today."""

    def __init__(self, waivers: Iterable[Waiver], checks: Iterable[str], nodes: Iterable[str], today: date) -> None:
        known_checks, known_nodes = set(checks), set(nodes)
        self._states: list[tuple[Waiver, WaiverState]] = []
        for waiver in waivers:
            state: WaiverState = "not_used"
            if waiver.check not in known_checks:
                state = "no_such_check"
            elif not set(waiver.nodes) <= known_nodes:
                state = "no_such_node"
            elif today > waiver.until:
                state = "expired"
            self._states.append((waiver, state))

    def apply(self, finding: Finding) -> Finding:
        """The finding, with the reason on it where a valid waiver lets it pass."""
        if finding.severity not in ("fail", "unknown", "warn"):
            return finding
        for waiver, state in self._states:
            if (
                state == "not_used"
                and waiver.check == finding.check
                and finding.node in (waiver.nodes or (finding.node,))
            ):
                return replace(finding, waived=waiver.reason)
        return finding

    def uses(self, findings: Iterable[Finding]) -> tuple[WaiverUse, ...]:
        """What became of each waiver, in the order of cluster.yml."""
        waived: Mapping[str, list[Finding]] = _by_check(finding for finding in findings if finding.waived)
        uses = []
        for waiver, state in self._states:
            nodes = tuple(
                finding.node
                for finding in waived.get(waiver.check, [])
                if state == "not_used"
                and finding.waived == waiver.reason
                and finding.node in (waiver.nodes or (finding.node,))
            )
            final: WaiverState = "applied" if nodes else state
            uses.append(WaiverUse(waiver.check, waiver.reason, waiver.until.isoformat(), waiver.nodes, final, nodes))
        return tuple(uses)


def _by_check(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.check, []).append(finding)
    return grouped
