"""What the planner expects of a plan: memory, alternatives, budgets, times. Frozen and serialisable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One consumer of a GPU's memory. `kind` is weights, draft, workspace, state, kv or reserve."""

    name: str  # for people
    kind: str
    bytes: int  # on one GPU


@dataclass(frozen=True)
class StageMemory:
    """One GPU of one pipeline stage, by part; the parts add up to the GPU's memory."""

    stage: int  # from 0
    first_layer: int  # counted from 1
    last_layer: int  # counted from 1, included
    parts: tuple[Part, ...]  # they add up to the GPU's memory

    def total(self, *kinds: str) -> int:
        """Bytes of all parts of these kinds; of all kinds when none is named."""
        return sum(part.bytes for part in self.parts if not kinds or part.kind in kinds)


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of the smallest GPU of the plan, and what its cache holds.

    `pool_bytes` is what the fullest stage has left for KV and KDA state. `tokens` counts one engine (one data-parallel
    rank); `requests` are full-length requests at once. vLLM has blocks, SGLang has slots: the other's fields are 0.
    """

    gpu_bytes: int  # as the driver reports it
    utilization: float  # the engine's own fraction flag, 0 to 1
    kv: str  # format of the KV cache
    state: str  # format of the KDA state
    stages: tuple[StageMemory, ...]  # one for each pipeline stage
    pool_bytes: int
    tokens: int
    requests: float
    block_tokens: int = 0  # tokens of one block (vLLM)
    block_bytes: int = 0  # on one GPU (vLLM)
    blocks: int = 0  # in the pool (vLLM)
    blocks_per_request: int = 0  # of full length (vLLM)
    slots: int = 0  # KDA states in the pool (SGLang)
    slot_bytes: int = 0  # on one GPU (SGLang)

    @property
    def weights_bytes(self) -> int:
        """Weights on a GPU of the stage that has most of them, without the draft's."""
        return max(stage.total("weights") for stage in self.stages)


@dataclass(frozen=True)
class Alternative:
    """A layout that the plan does not use. `documented` ones are in the engine's profile; the rest are by rule."""

    layout: str  # tensor parallel 16, as `sizes` of Plan says it
    name: str  # of a documented layout, else empty
    documented: bool
    fits: bool | None  # None: its memory could not be planned
    why: str  # the measured or calculated reason


@dataclass(frozen=True)
class Distance:
    """A published figure of the plan's own layout beside the plan's. `planned` is None where nothing is forecast."""

    what: str  # as `measured` of a layout calls it
    unit: str  # of both numbers
    measured: float  # the published figure
    planned: float | None
    context: str  # under what settings
    source: str  # who measured

    @property
    def percent(self) -> float | None:
        """How far the plan is above the measurement, in percent."""
        if self.planned is None or not self.measured:
            return None
        return (self.planned - self.measured) / self.measured * 100


@dataclass(frozen=True)
class Budget:
    """One thing a node (or the whole plan) must have. `has` is what the profile says, empty when it says nothing."""

    what: str  # memory, disk, network, power
    scope: str  # node | plan
    needs: str  # for people, with its unit
    has: str
    verdict: str  # ok | short | unknown
    source: str  # of `has`, or of `needs` where there is none


@dataclass(frozen=True)
class PhaseTime:
    """Bytes and seconds of a long phase. `seconds` is None when a rate is not known; `how` says what was multiplied."""

    phase: str  # stage, runtime or load
    bytes: int  # on each node
    seconds: float | None
    how: str


@dataclass(frozen=True)
class PortRange:
    """Ports that the engine picks at run time: which range, how many on a node, for what."""

    first: int  # number
    last: int  # number, included
    per_node: int  # how many on each node
    ranks: tuple[int, ...]  # node ranks, from 0
    purpose: str  # what they are for
    source: str  # who says so


@dataclass(frozen=True)
class Verification:
    """How far this plan is from having been run. `status` is the weakest of all that it is made of."""

    status: str
    said: tuple[str, ...]  # one line for each part of the plan


@dataclass(frozen=True)
class ReplicaPlan:
    """One of several equal engines: its nodes (names, its own head first) and its own endpoint."""

    number: int  # from 0
    nodes: tuple[str, ...]  # names, head first
    endpoint: str  # base URL
