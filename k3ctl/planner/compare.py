"""Two layouts against each other, in numbers: the forecast cache and what was measured of both."""

from __future__ import annotations

from k3ctl.memory.forecast import Fit
from k3ctl.planner.shape import Shape
from k3ctl.profiles.types import Measured

_MEASURED = {"peak_throughput": "peak", "single_stream": "one request"}


def against(this: Shape, this_fit: Fit | None, other: Shape, other_fit: Fit | None) -> str:
    """'TP16 instead of TP8 x PP2: 55,377 against 1,450,066 KV tokens (planned); measured peak 437 against 2,202 tok/s'.

    Throughput is compared only where both were measured under the same conditions.
    """
    numbers = []
    if this_fit and other_fit:
        mine, others = this_fit.memory.tokens * this.sizes.dp, other_fit.memory.tokens * other.sizes.dp
        numbers.append(f"{mine:,} against {others:,} KV tokens (planned)")
    for what, word in _MEASURED.items():
        pair = _pair(this, other, what)
        if pair:
            numbers.append(f"measured {word} {pair[0].value:,g} against {pair[1].value:,g} {pair[0].unit}")
    told = "; ".join(numbers) if numbers else "nothing that can be compared was published"
    names = (this.text, other.text) if this.text != other.text else (this.layout.name, other.layout.name)
    return f"{names[0]} instead of {names[1]}: {told}"


def _pair(this: Shape, other: Shape, what: str) -> tuple[Measured, Measured] | None:
    """Two measurements of one thing, preferably from one source."""
    mine = [one for one in this.layout.measured if one.what == what]
    others = [one for one in other.layout.measured if one.what == what]
    for first in mine:
        for second in others:
            if first.source == second.source and first.context == second.context:
                return first, second
    return (mine[0], others[0]) if mine and others else None
