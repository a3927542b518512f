"""What preflight says in the end: every check on every node, and whether the launch may go on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from k3ctl.preflight.finding import SEVERITIES, Finding
from k3ctl.preflight.waivers import WaiverUse

SCHEMA = 1


@dataclass(frozen=True)
class PreflightReport:
    """One finding for each check and node, in gate order. `day` is ISO; waivers counted as of that day."""

    cluster: str
    day: str
    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]
    waivers: tuple[WaiverUse, ...] = ()

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that refuse the launch."""
        return tuple(finding for finding in self.findings if finding.blocks)

    @property
    def verdict(self) -> Literal["ok", "refused"]:
        """`ok` only when something was judged and nothing blocks."""
        return "ok" if self.findings and not self.blocking else "refused"

    def of(self, check: str, node: str) -> Finding | None:
        """The finding of that check on that node."""
        return next((f for f in self.findings if f.check == check and f.node == node), None)

    @property
    def said(self) -> str:
        """One line: '15 checks on 2 nodes: all ok (1 waived, 2 not needed here)'."""
        checks = len({finding.check for finding in self.findings})
        open_ = [finding for finding in self.findings if not finding.waived]
        counts = Counter(finding.severity for finding in open_)
        names = {"fail": "failed", "unknown": "could not be judged", "warn": _plural(counts["warn"], "warning")}
        parts = [
            f"{counts[severity]} {names[severity]}" for severity in SEVERITIES if counts[severity] and severity in names
        ]
        waived = len(self.findings) - len(open_)
        behind = sum(1 for finding in open_ if finding.ground)
        needed = {finding.check for finding in self.findings if finding.severity != "skipped" or finding.ground}
        needless = checks - len(needed)
        notes = [(waived, "waived"), (behind, "skipped behind those"), (needless, "not needed here")]
        brackets = ", ".join(f"{count} {words}" for count, words in notes if count)
        where = f"{checks} {_plural(checks, 'check')} on {len(self.nodes)} {_plural(len(self.nodes), 'node')}"
        return f"{where}: {', '.join(parts) or 'all ok'}{f' ({brackets})' if brackets else ''}"

    def to_json(self) -> str:
        """The report as stable JSON, one finding an object."""
        body: dict[str, Any] = {"schema": SCHEMA, "verdict": self.verdict, "said": self.said, **asdict(self)}
        return json.dumps(body, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PreflightReport:
        """The report from its JSON. Raises ValueError when it is not one."""
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("schema") != SCHEMA:
            raise ValueError("not a preflight report of schema 1")
        body = {key: body[key] for key in ("cluster", "day", "nodes", "findings", "waivers")}
        return _ADAPTER.validate_json(json.dumps(body), strict=True)


_ADAPTER = TypeAdapter(PreflightReport)


def _plural(count: int, word: str) -> str:
    return word if count == 1 else word + "s"
