"""What one node says about itself: NodeFacts, made from the reply of `k3node probe`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.facts.devices import GpuFacts, HcaFacts
from k3ctl.facts.host import ClockFacts, DiskFacts, HostFacts, LimitFacts, ServiceFacts
from k3ctl.facts.network import NameFacts, NetworkFacts
from k3ctl.facts.section import Fact, Section, parse_section

SECTIONS = ("host", "limits", "disk", "network", "names", "clock", "gpus", "hcas", "services")


@dataclass(frozen=True)
class Heard:
    """A probe's reply with the controller's clock around it (seconds since the epoch), or why there is none."""

    reply: Mapping[str, Any] | None
    sent: float = 0.0
    received: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class ClockOffset:
    """How far the node's clock is ahead of the controller's: between `low` and `high` seconds.

    The node wrote its time when the probe started and ended, both after the call was sent and before the answer came.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The best guess, seconds."""
        return (self.low + self.high) / 2

    @property
    def doubt(self) -> float:
        """How far the guess may be off, seconds."""
        return abs(self.high - self.low) / 2


@dataclass(frozen=True)
class NodeFacts:
    """All sections of one node. `lost` says why the node gave no usable reply at all; every section repeats it."""

    node: str
    host: Section[HostFacts]
    limits: Section[LimitFacts]
    disk: Section[DiskFacts]
    network: Section[NetworkFacts]
    names: Section[NameFacts]
    clock: Section[ClockFacts]
    gpus: Section[GpuFacts]
    hcas: Section[HcaFacts]
    services: Section[ServiceFacts]
    offset: ClockOffset | None = None
    lost: str = ""

    def section(self, name: str) -> Section[Any]:
        """The section of that collector."""
        if name not in SECTIONS:
            raise KeyError(name)
        found: Section[Any] = getattr(self, name)
        return found


_KINDS: Mapping[str, type[Fact]] = {
    "host": HostFacts,
    "limits": LimitFacts,
    "disk": DiskFacts,
    "network": NetworkFacts,
    "names": NameFacts,
    "clock": ClockFacts,
    "gpus": GpuFacts,
    "hcas": HcaFacts,
    "services": ServiceFacts,
}


def parse_facts(node: str, heard: Heard) -> NodeFacts:
    """Facts of one node from what was heard; never raises: what is missing or senseless is an error of its section."""
    reply = heard.reply
    sections = reply.get("sections") if isinstance(reply, Mapping) else None
    lost = heard.error
    if not lost and not isinstance(sections, Mapping):
        lost = "the probe's answer has no sections"
    if lost or not isinstance(sections, Mapping) or reply is None:
        empty: dict[str, Any] = {name: Section(error=lost) for name in SECTIONS}
        return NodeFacts(node=node, lost=lost, **empty)
    parsed: dict[str, Any] = {name: parse_section(_KINDS[name], sections.get(name)) for name in SECTIONS}
    return NodeFacts(node=node, offset=_offset(reply, heard), **parsed)


def _offset(reply: Mapping[str, Any], heard: Heard) -> ClockOffset | None:
    started, ended = _time(reply.get("started")), _time(reply.get("ended"))
    if started is None or ended is None or ended < started or heard.received < heard.sent:
        return None
    return ClockOffset(low=ended - heard.received, high=started - heard.sent)


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
