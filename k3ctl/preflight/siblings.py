"""Which node is unlike the others? By majority; where there is none, the head's value is the usual one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.preflight.check import Case


@dataclass(frozen=True)
class Odd:
    """The usual value, and in words who has it."""

    usual: str
    shared_by: str


def odd_one_out(case: Case, values: Mapping[str, str]) -> Odd | None:
    """None when this node has the usual value. `values` maps node -> value, in any order, this node's included."""
    counts = Counter(values.values())
    most = max(counts.values())
    leaders = {value for value, count in counts.items() if count == most}
    first = next(values[node.name] for node in case.plan.nodes if values.get(node.name) in leaders)
    if values[case.node.name] == first:
        return None
    return Odd(first, " ".join(name for name in sorted(values) if values[name] == first))
