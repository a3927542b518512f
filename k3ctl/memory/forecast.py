"""Memory of one GPU of every stage under one engine's rules, and whether a request fits into what is left. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.memory import sglang, vllm, weights
from k3ctl.memory.architecture import Architecture, Layout
from k3ctl.plan.forecast import MemoryPlan, Part, StageMemory

GIB = 2**30
FAMILIES = ("vllm", "sglang")  # engines whose memory rules are known


@dataclass(frozen=True)
class Setup:
    """What a layout's flags and the GPU decide. Bytes of `draft_bytes` are the draft's whole file.

    `draft_tokens` is 0 without speculation; `replay` keeps a ring instead of one state per drafted token.
    """

    family: str  # vllm | sglang
    gpu_bytes: int
    utilization: float
    kv: str  # fp8 | bf16
    state: str  # fp32 | bf16
    prefix_caching: bool
    workspace_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_batched: int
    moe_floor: bool = True
    text_only: bool = False
    flashkda: bool = False
    flashinfer: bool = False
    state_ratio: float = 0.0
    cache_strategy: str = ""
    draft_bytes: int = 0
    draft_tokens: int = 0
    replay: bool = False

    @property
    def kv_bytes(self) -> int:
        """Bytes of one cache element."""
        return 1 if self.kv == "fp8" else 2

    @property
    def state_bytes(self) -> int:
        """Bytes of one element of a recurrent state."""
        return 4 if self.state == "fp32" else 2


@dataclass(frozen=True)
class Fit:
    """A forecast and its verdict. `missing_bytes` is 0 when one full-length request fits; `why` is the arithmetic."""

    memory: MemoryPlan
    missing_bytes: int
    why: str

    @property
    def fits(self) -> bool:
        """True when the engine starts and serves at least one request of the full length."""
        return self.missing_bytes == 0


def gib(count: float) -> str:
    """Bytes as GiB, as GPU tools show memory."""
    return f"{count / GIB:.1f} GiB"


def forecast(arch: Architecture, layout: Layout, setup: Setup) -> Fit:
    """Plan the memory. ValueError for a partition that does not split the layers, or an unknown family."""
    if setup.family == "vllm":
        return _vllm(arch, layout, setup)
    if setup.family == "sglang":
        return _sglang(arch, layout, setup)
    raise ValueError(f"no memory rules for engine family {setup.family}")


def _fixed(arch: Architecture, layout: Layout, setup: Setup) -> list[tuple[weights.StageWeights, list[Part]]]:
    """Weights of every stage, the draft's with the last one."""
    floor = weights.MOE_FLOOR if setup.moe_floor and setup.family == "vllm" else 0
    stages = weights.per_gpu(
        arch, layout, moe_floor=floor, text_only=setup.text_only, drafting=bool(setup.draft_tokens)
    )
    found = []
    for stage in stages:
        parts = [Part(name, "weights", round(value)) for name, value in stage.parts.items()]
        if setup.draft_bytes and stage.last_layer == arch.layers:
            parts.append(Part("draft model", "draft", round(setup.draft_bytes / layout.tp)))
        found.append((stage, parts))
    return found


def _vllm(arch: Architecture, layout: Layout, setup: Setup) -> Fit:
    checkpoints = 1 if not setup.prefix_caching else 3 if setup.flashkda else 2
    cache_settings = vllm.CacheSettings(
        kv_bytes=setup.kv_bytes,
        state_bytes=setup.state_bytes,
        checkpoints=checkpoints,
        draft_tokens=0 if setup.replay else setup.draft_tokens,
        drafting=bool(setup.draft_tokens and arch.draft_layers),
    )
    block = vllm.block_tokens(arch, layout.tp, cache_settings)
    sizes = vllm.Buffers(setup.max_batched, setup.max_num_seqs, setup.max_model_len, setup.flashkda, setup.flashinfer)
    usable = int(setup.utilization * setup.gpu_bytes)
    stages = []
    for stage, parts in _fixed(arch, layout, setup):
        named = vllm.workspaces(arch, layout.tp, stage.last_layer, block, sizes)
        parts.extend(_workspace(named, setup.workspace_bytes))
        stages.append((stage, parts, usable - sum(part.bytes for part in parts)))
    pool = min(free for _, _, free in stages)
    cache = vllm.cache(arch, layout, cache_settings, max(pool, 0), setup.max_model_len)
    state_share = 3 * (checkpoints + cache_settings.draft_tokens) / cache.per_request
    used = cache.blocks * cache.block_bytes
    memory = MemoryPlan(
        gpu_bytes=setup.gpu_bytes,
        utilization=setup.utilization,
        kv=setup.kv,
        state=setup.state,
        stages=tuple(
            _stage(number, stage, parts, (round(used * state_share), round(used * (1 - state_share))), setup.gpu_bytes)
            for number, (stage, parts, _) in enumerate(stages)
        ),
        pool_bytes=pool,
        tokens=cache.tokens,
        requests=cache.concurrency,
        block_tokens=cache.block_tokens,
        block_bytes=cache.block_bytes,
        blocks=cache.blocks,
        blocks_per_request=cache.per_request,
    )
    needed = cache.per_request * cache.block_bytes
    what = f"one request of {setup.max_model_len} tokens needs {cache.per_request} blocks = {gib(needed)}"
    return _judged(memory, stages, needed, what)


def _workspace(named: Mapping[str, float], total: int) -> list[Part]:
    """Buffers by name; what the layout's measured sum has beyond them is one more part."""
    parts = [Part(name, "workspace", round(value)) for name, value in named.items()]
    rest = total - sum(part.bytes for part in parts)
    if rest > 0:
        parts.append(Part("activations, graphs, libraries", "workspace", rest))
    return parts


def _sglang(arch: Architecture, layout: Layout, setup: Setup) -> Fit:
    before = setup.gpu_bytes - setup.workspace_bytes  # free memory when loading begins
    usable = int(setup.utilization * before)
    taken = [Part("contexts, communicators", "workspace", setup.workspace_bytes)]
    stages = []
    for stage, parts in _fixed(arch, layout, setup):
        stages.append((stage, parts + taken, usable - sum(part.bytes for part in parts)))
    pool = min(free for _, _, free in stages)
    strategy = setup.cache_strategy or ("extra_buffer" if setup.prefix_caching else "off")
    speculation = sglang.Speculation(setup.draft_tokens, setup.replay) if setup.draft_tokens else None
    pools = sglang.pools(
        arch,
        layout,
        max(pool, 0),
        ratio=setup.state_ratio,
        kv_bytes=setup.kv_bytes,
        state_bytes=setup.state_bytes,
        cache_strategy=strategy,
        speculation=speculation,
    )
    state = max(pool, 0) - pools.kv_bytes
    memory = MemoryPlan(
        gpu_bytes=setup.gpu_bytes,
        utilization=setup.utilization,
        kv=setup.kv,
        state=setup.state,
        stages=tuple(
            _stage(number, stage, parts, (round(state), round(pools.kv_bytes)), setup.gpu_bytes)
            for number, (stage, parts, _) in enumerate(stages)
        ),
        pool_bytes=pool,
        tokens=pools.tokens,
        requests=min(pools.tokens / setup.max_model_len, pools.slots / sglang.SLOTS_PER_REQUEST[strategy]),
        slots=pools.slots,
        slot_bytes=round(pools.slot_bytes),
    )
    return _judged(memory, stages, *_sglang_need(arch, layout, setup, pools, strategy))


def _sglang_need(
    arch: Architecture, layout: Layout, setup: Setup, pools: sglang.Pools, strategy: str
) -> tuple[int, str]:
    """Bytes that both pools together must have before one request of the full length fits, and the sentence."""
    mla = max(arch.mla_in(*bounds) for bounds in layout.stages(arch.layers))
    kv = setup.max_model_len / layout.dcp * mla * (arch.mla_kv_rank + arch.mla_rope) * setup.kv_bytes
    slots = sglang.SLOTS_PER_REQUEST[strategy]
    state = (slots + 1) * pools.slot_bytes
    ratio = setup.state_ratio
    needed = max(kv * (1 + ratio), state * (1 + ratio) / ratio if ratio else state)
    what = (
        f"one request of {setup.max_model_len} tokens needs {gib(kv)} of KV and {slots} state slots = {gib(state)}, "
        f"{gib(needed)} at a state to KV ratio of {ratio:g}"
    )
    return round(needed), what


def _stage(
    number: int, stage: weights.StageWeights, parts: list[Part], pools: tuple[int, int], gpu_bytes: int
) -> StageMemory:
    """All parts of one GPU; what nobody takes is the reserve."""
    state, kv = pools
    full = [*parts, Part("KDA state", "state", state), Part("MLA KV", "kv", kv)]
    full.append(Part("not used", "reserve", gpu_bytes - sum(part.bytes for part in full)))
    return StageMemory(number, stage.first_layer, stage.last_layer, tuple(full))


def _judged(
    memory: MemoryPlan, stages: list[tuple[weights.StageWeights, list[Part], int]], needed: int, what: str
) -> Fit:
    number = min(range(len(stages)), key=lambda index: stages[index][2])
    stage = memory.stages[number]
    fixed = stage.total("weights", "draft", "workspace")
    usable = fixed + stages[number][2]
    where = f" of stage {number}" if len(stages) > 1 else ""
    arithmetic = (
        f"each GPU{where} holds {gib(stage.total('weights', 'draft'))} of weights and "
        f"{gib(stage.total('workspace'))} beside them, and may use {gib(usable)} of {gib(memory.gpu_bytes)}"
    )
    left = memory.pool_bytes
    if left < 0:
        return Fit(memory, -left, f"{arithmetic}: {gib(-left)} too much")
    if left < needed or memory.requests < 1:
        missing = max(1, needed - left)
        return Fit(memory, missing, f"{arithmetic}; {gib(left)} are left and {what}: {gib(missing)} too little")
    return Fit(memory, 0, f"{arithmetic}; {gib(left)} are left, and {what}")
