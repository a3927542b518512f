"""Bytes and seconds of the long phases, and the time limits that follow from them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from k3ctl.errors import ConfigError, Problem
from k3ctl.plan import ModelPlan, RuntimePlan
from k3ctl.plan.forecast import PhaseTime
from k3ctl.planner.host import weights_bytes
from k3ctl.planner.subject import Subject
from k3ctl.units import duration, rate

_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*(k|M|G|T)(bit|B)(?:/s|ps)?$")
_FACTOR = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
FABRIC_SHARE = 0.5  # of one interface: TCP on a 400G card carries about 200 Gbit/s


@dataclass(frozen=True)
class Load:
    """How long reading the weights takes. `seconds` is None when the disk's rate is not known."""

    bytes: int
    seconds: float | None
    ready_seconds: int
    how: str


def wan_rate(text: str) -> float:
    """'10Gbit' or '1.2GB/s' to bytes per second. Raises ConfigError."""
    match = _RATE.match(text.strip())
    if not match or not float(match[1]):
        raise ConfigError(
            Problem(what="that is no rate", key="--wan", found=text, expected="a number and a unit: 10Gbit, 800MB/s")
        )
    return float(match[1]) * _FACTOR[match[2]] / (8 if match[3] == "bit" else 1)


def load(subject: Subject, models: Sequence[ModelPlan]) -> Load:
    """Loading as forecast, and the ready limit: the forecast times the engine's margin, never below its minimum.

    Every node reads all shards in the worst case: an engine opens each file to find its part of the tensors.
    """
    limits, read = subject.engine.timeouts, subject.platform.disk_read
    count = weights_bytes(subject, models)
    least = limits.engine_ready.value
    if read is None:
        slowest = rate(count / least)
        how = f"no disk rate is known for this server; the engine's minimum of {duration(least)} needs {slowest}"
        return Load(count, None, least, how)
    seconds = count / read.value
    wanted = math.ceil(seconds * limits.load_margin)
    limit = max(least, wanted)
    how = (
        f"every node reads all of it at {rate(read.value)}; ready limit {duration(limit)}: "
        + (f"{limits.load_margin:g} x the load" if wanted > least else "the engine's minimum")
        + f", {limit / seconds:.1f} x the load"
    )
    return Load(count, seconds, limit, how)


def phases(
    subject: Subject, models: Sequence[ModelPlan], runtime: RuntimePlan, loading: Load, wan: float | None
) -> tuple[PhaseTime, ...]:
    """Download at `wan` bytes per second and node, environment, load."""
    nodes = len(subject.cluster.inventory.nodes)
    weights = weights_bytes(subject, models)
    return (
        _stage(subject, weights, nodes, wan),
        PhaseTime(
            "runtime",
            runtime.bytes,
            None if wan is None else runtime.bytes / wan,
            "the serving environment, on each node; a container image is smaller on its way",
        ),
        PhaseTime("load", loading.bytes, loading.seconds, loading.how),
    )


def _stage(subject: Subject, weights: int, nodes: int, wan: float | None) -> PhaseTime:
    """Each node fetches its share and hands it on: one copy crosses the WAN, whatever the number of nodes."""
    if wan is None:
        return PhaseTime("stage", weights, None, "give --wan RATE for a time")
    if nodes == 1:
        return PhaseTime("stage", weights, weights / wan, f"one node at {rate(wan)}")
    nics = subject.platform.nics
    between = nics.count * nics.rate.value / 8 * FABRIC_SHARE
    together = weights / (nodes * wan)
    exchange = weights * (nodes - 1) / nodes / between if between else 0.0
    alone = duration(weights / wan)
    how = f"{nodes} nodes share it at {rate(wan)} each; {alone} if each fetched all"
    return PhaseTime("stage", weights, max(together, exchange), how)
