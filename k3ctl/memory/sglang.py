"""SGLang's split of what the weights leave: a pool of KDA state slots and a pool of MLA KV tokens.

Formulas of SGLang 0.5.23; the published token counts of three runs follow from one free figure each, the memory that
was left after weights (tests/unit/test_memory.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3ctl.memory import vllm
from k3ctl.memory.architecture import Architecture, Layout
from k3ctl.memory.vllm import CacheSettings

SLOTS_PER_REQUEST = {"extra_buffer": 5, "extra_buffer_lazy": 4, "no_buffer": 3, "off": 1}


RING_LENGTH = 16  # entries of the ring that replays KDA states instead of keeping one per draft token


@dataclass(frozen=True)
class Speculation:
    """A draft at work: `tokens` per step; `replay` is --enable-linear-replayssm-spec."""

    tokens: int
    replay: bool


@dataclass(frozen=True)
class Pools:
    """What `rest` bytes give. `tokens` already counts decode context parallelism."""

    slots: int
    slot_bytes: float
    kv_bytes: float
    tokens: int
    requests: int


def rest(free_before: float, weights: float, mem_fraction: float, other: float = 0.0) -> float:
    """Bytes for both pools: free memory after weights, less the part that --mem-fraction-static keeps back."""
    return free_before - weights - other - (1 - mem_fraction) * free_before


def pools(
    arch: Architecture,
    layout: Layout,
    available: float,
    *,
    ratio: float,
    kv_bytes: int,
    state_bytes: int = 4,
    cache_strategy: str = "extra_buffer",
    speculation: Speculation | None = None,
) -> Pools:
    """Divide `available` bytes. `ratio` is --mamba-full-memory-ratio, `cache_strategy` a key of SLOTS_PER_REQUEST."""
    per_request = SLOTS_PER_REQUEST[cache_strategy]
    stages = layout.stages(arch.layers)
    mla = max(arch.mla_in(*bounds) for bounds in stages)
    kda = max(last - first + 1 - arch.mla_in(first, last) for first, last in stages)
    slot = kda * vllm.state_bytes(arch, layout.tp, CacheSettings(kv_bytes, state_bytes))
    extra = 0
    if speculation and speculation.replay:
        slot += kda * ring_bytes(arch, layout.tp)
    elif speculation:
        extra = speculation.tokens + 1  # one state for each drafted token and the one that follows
    state_pool = available * ratio / (1 + ratio)
    slots = max(0, math.floor((state_pool - slot * (1 + extra)) / (slot * (1 + extra / per_request))))
    kv = available - state_pool
    per_token = (arch.mla_kv_rank + arch.mla_rope) * mla * kv_bytes
    tokens = int(kv // per_token) * layout.dcp
    return Pools(slots, slot, kv, max(0, tokens), slots // per_request)


def ring_bytes(arch: Architecture, tp: int) -> float:
    """One layer's replay ring of one slot: per head and entry three fp32 rows' worth of keys, values and gates."""
    return RING_LENGTH * arch.heads / tp * (12 * arch.kda_head + 4)
