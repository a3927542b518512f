"""A finding: what one check says about one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warn", "fail", "unknown", "skipped"]
SEVERITIES: tuple[Severity, ...] = ("fail", "unknown", "warn", "skipped", "ok")  # worst first


@dataclass(frozen=True)
class Finding:
    """`unknown` means that the check could not tell; it is never ok and blocks like `fail`.

    `ground` of a skipped finding names the check that failed before it; empty when the check does not apply here.
    `waived` is the reason of the waiver that lets the finding pass.
    """

    check: str
    node: str
    severity: Severity
    found: str
    expected: str = ""
    why: str = ""
    fix: str = ""
    evidence: str = ""
    ground: str = ""
    waived: str = ""

    @property
    def blocks(self) -> bool:
        """Does this finding keep the launch from going on?"""
        return self.severity in ("fail", "unknown") and not self.waived
