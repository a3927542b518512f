"""vLLM's hybrid KV cache: block sizes, bytes per block, blocks per request, reported tokens.

Formulas of vLLM 0.33's block planner; they reproduce published token counts exactly where bytes and tokens were both
published (tests/unit/test_memory.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3ctl.memory.architecture import Architecture, Layout

KERNEL_BLOCK = 128  # tokens


@dataclass(frozen=True)
class CacheSettings:
    """What the flags decide. `kv_bytes` per element: 1 (fp8) or 2 (bf16); `state_bytes`: 4 (fp32) or 2 (bf16).

    `checkpoints`: resident state blocks per KDA group beyond speculation: 1 without prefix caching, 2 with it,
    3 with it and FlashKDA prefill. `draft_tokens` is 0 without speculation or with replayed state.
    """

    kv_bytes: int
    state_bytes: int = 4
    checkpoints: int = 1
    draft_tokens: int = 0
    drafting: bool = False


@dataclass(frozen=True)
class Cache:
    """What a pool of bytes gives."""

    blocks: int
    block_tokens: int
    block_bytes: int
    per_request: int
    tokens: int  # as vLLM reports: blocks / blocks per request x max_model_len

    @property
    def sequences(self) -> int:
        """Full-length requests that fit at once."""
        return self.blocks // self.per_request if self.per_request else 0

    @property
    def concurrency(self) -> float:
        """Full-length requests, with the fraction that vLLM prints as '6.76x'."""
        return self.blocks / self.per_request if self.per_request else 0.0


def state_bytes(arch: Architecture, tp: int, settings: CacheSettings) -> float:
    """One sequence's recurrent state of one KDA layer on one GPU, in bytes."""
    heads = arch.heads / tp
    conv = (arch.kda_conv - 1 + settings.draft_tokens) * 3 * heads * arch.kda_head * 2
    return conv + heads * arch.kda_head * arch.kda_head * settings.state_bytes


def block_tokens(arch: Architecture, tp: int, settings: CacheSettings) -> int:
    """Tokens per block: the smallest multiple of the kernel's block whose page holds one state."""
    page = KERNEL_BLOCK * (arch.mla_kv_rank + arch.mla_rope) * settings.kv_bytes
    return KERNEL_BLOCK * math.ceil(state_bytes(arch, tp, settings) / page)


def groups(arch: Architecture, layout: Layout, *, drafting: bool) -> int:
    """Pages behind one block id: MLA layers in one group, KDA layers in three; the largest over all stages."""
    largest = 0
    for first, last in layout.stages(arch.layers):
        mla = arch.mla_in(first, last)
        kda = last - first + 1 - mla
        if drafting and last == arch.layers:
            mla += arch.draft_layers
        largest = max(largest, mla, math.ceil(kda / 3))
    return largest


def cache(arch: Architecture, layout: Layout, settings: CacheSettings, pool: float, max_len: int) -> Cache:
    """What `pool` bytes of KV memory on the smallest stage give at a model length of `max_len` tokens."""
    tokens = block_tokens(arch, layout.tp, settings)
    page = tokens * (arch.mla_kv_rank + arch.mla_rope) * settings.kv_bytes
    block = page * groups(arch, layout, drafting=settings.drafting)
    blocks = int(pool // block)
    per_request = math.ceil(math.ceil(max_len / layout.dcp) / tokens)
    per_request += 3 * (settings.checkpoints + settings.draft_tokens)
    return Cache(blocks, tokens, block, per_request, int(blocks / per_request * max_len))


@dataclass(frozen=True)
class Buffers:
    """What sizes vLLM's buffers. `batched` is --max-num-batched-tokens, `sequences` --max-num-seqs."""

    batched: int
    sequences: int
    max_len: int
    flashkda: bool  # prefill kernel of SM90, 10x and 12x
    flashinfer: bool  # SM10x attention back ends keep a workspace


FLASHINFER_WORKSPACE = 394 * 2**20  # VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE
CONTEXT_ROWS = 65_536


def workspaces(arch: Architecture, tp: int, last_layer: int, block: int, sizes: Buffers) -> dict[str, float]:
    """Buffers beside weights and cache on one GPU of a stage that ends with `last_layer`: name -> bytes.

    Source: vLLM 0.33 model and attention code. Kernel scratch, graphs and libraries are not among them.
    """
    heads = arch.heads / tp
    found = {"residual bank": sizes.batched * math.ceil(last_layer / arch.residual_block) * arch.hidden * 2.0}
    if sizes.flashkda:
        state = arch.kda_head * arch.kda_head * 4
        found["FlashKDA buffers"] = 2 * sizes.sequences * heads * state + sizes.batched * heads * arch.kda_head * 2
    rows = min(max(8 * sizes.max_len, 4 * sizes.sequences * block), CONTEXT_ROWS)
    up_projected = heads * 2 * (arch.mla_nope + arch.mla_value + arch.mla_rope)
    found["chunked context"] = rows * ((arch.mla_kv_rank + arch.mla_rope) * 2 + up_projected)
    if sizes.flashinfer:
        found["FlashInfer workspace"] = float(FLASHINFER_WORKSPACE)
    return found
