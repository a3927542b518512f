"""Errors as text: equal problems of several nodes are put together, with host, found, expected and fix."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from k3ctl.errors import Problem
from k3ctl.fanout import group_equal


def lines(problems: Iterable[Problem]) -> list[str]:
    """All problems as lines of text, without colour."""
    text: list[str] = []
    for problem, nodes in group_equal(problems):
        place = problem.file + (f":{problem.line}" if problem.line else "")
        where = " ".join(part for part in (place, problem.phase, ", ".join(nodes)) if part)
        text.append(f"{where}: {problem.what}" if where else problem.what)
        for label in ("key", "found", "expected", "fix"):
            value = getattr(problem, label)
            if value:
                first, *rest = str(value).splitlines() or [""]
                text.append(f"  {label + ':':<10}{first}")
                text.extend(f"  {'':<10}{more}" for more in rest)
        if problem.evidence:
            text.extend(textwrap.indent(problem.evidence.rstrip(), "  | ", lambda _line: True).splitlines())
    return text
