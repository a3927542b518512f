"""Weight bytes per GPU, by part and pipeline stage.

The formulas reproduce the checkpoint's size to 0.005 % and published figures per GPU to 1.5 %
(tests/unit/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.memory.architecture import Architecture, Layout, up_to

BF16 = 2
FP32 = 4
MOE_FLOOR = 256  # vLLM's min_moe_intermediate_per_partition, without expert parallelism
MOE_ROUND = 128  # Marlin, TRT-LLM-gen, CUTLASS and DeepGEMM kernels


@dataclass(frozen=True)
class StageWeights:
    """One stage's weights on one GPU: part -> bytes."""

    first_layer: int
    last_layer: int
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes."""
        return sum(self.parts.values())


def per_gpu(
    arch: Architecture, layout: Layout, *, moe_floor: int = MOE_FLOOR, text_only: bool = False, drafting: bool = False
) -> tuple[StageWeights, ...]:
    """Weights on one GPU of every stage. `moe_floor` 0: experts are padded to the kernel's width only (SGLang)."""
    return tuple(
        _stage(arch, layout, bounds, moe_floor=moe_floor, text_only=text_only, drafting=drafting)
        for bounds in layout.stages(arch.layers)
    )


def worst(stages: tuple[StageWeights, ...]) -> StageWeights:
    """The stage with the most weights."""
    return max(stages, key=lambda stage: stage.total)


def checkpoint(arch: Architecture) -> float:
    """Bytes of the whole checkpoint by the same formulas, without what loading keeps twice."""
    one = per_gpu(arch, Layout(tp=1))[0].total
    return one - BF16 * _mla_kv_b(arch) * len(arch.mla_layers) - _kda_conv(arch, 1) * arch.kda_layers


def _stage(
    arch: Architecture, layout: Layout, bounds: tuple[int, int], *, moe_floor: int, text_only: bool, drafting: bool
) -> StageWeights:
    first, last = bounds
    count = last - first + 1
    mla = arch.mla_in(first, last)
    dense = max(0, min(last, arch.dense_layers) - first + 1)
    moe = count - dense
    spread = 1 if layout.sequence_parallel_moe else layout.tp
    embedding = BF16 * arch.vocab * arch.hidden / layout.tp
    parts = {
        "routed experts": moe * routed_experts(arch, layout, moe_floor=moe_floor),
        "KDA": (count - mla) * _kda(arch, layout.tp),
        "MLA": mla * _mla(arch, layout.tp),
        "router and latent projections": moe * _router_and_latent(arch),
        "shared experts": moe * arch.mlp_bits / 8 * 3 * arch.hidden * arch.shared_width / spread,
        "dense layers": dense * arch.mlp_bits / 8 * 3 * arch.hidden * arch.dense_width / spread,
        "embedding": embedding if first == 1 or (drafting and last == arch.layers) else 0.0,
        "output head": embedding if last == arch.layers else 0.0,
        "vision": 0.0 if text_only else float(arch.vision_bytes),
    }
    return StageWeights(first, last, {name: value for name, value in parts.items() if value})


def routed_experts(arch: Architecture, layout: Layout, *, moe_floor: int = MOE_FLOOR) -> float:
    """Bytes of one layer's routed experts on one GPU, padding included."""
    ranks = layout.tp * layout.dp
    if layout.ep:
        experts, width = arch.experts / ranks, arch.expert_width
    else:
        experts = arch.experts
        full = arch.expert_width if arch.expert_width / layout.tp >= moe_floor else moe_floor * layout.tp
        width = up_to(full / ranks, MOE_ROUND)
    return experts * 3 * width * arch.latent * arch.expert_bits / 8


def _router_and_latent(arch: Architecture) -> float:
    """One layer's router (bf16 in every checkpoint) and the projections around its routed experts."""
    return (BF16 * arch.experts + arch.latent_bits / 8 * 2 * arch.latent) * arch.hidden


def _kda(arch: Architecture, tp: int) -> float:
    """One KDA layer: fused projections (q, k, v, gates; one low-rank part replicated), output, convolution twice."""
    inner = arch.heads * arch.kda_head
    fused = up_to((4 * inner + arch.heads) / tp + arch.kda_gate_rank, 16)
    linear = arch.hidden * fused + arch.kda_gate_rank * inner / tp + inner / tp * arch.hidden
    return arch.attention_bits / 8 * linear + 2 * _kda_conv(arch, tp)


def _kda_conv(arch: Architecture, tp: int) -> float:
    return arch.kda_conv * 3 * arch.heads * arch.kda_head / tp * FP32


def _mla(arch: Architecture, tp: int) -> float:
    """One MLA layer: low-rank inputs replicated, gate, q_b, kv_b and output sharded; kv_b again as a bf16 copy."""
    inner = arch.heads * arch.mla_value
    replicated = (arch.mla_q_rank + arch.mla_kv_rank + arch.mla_rope) * arch.hidden
    q_b = arch.heads * (arch.mla_nope + arch.mla_rope) * arch.mla_q_rank
    stored = replicated + (2 * inner * arch.hidden + q_b + _mla_kv_b(arch)) / tp
    return arch.attention_bits / 8 * stored + BF16 * _mla_kv_b(arch) / tp


def _mla_kv_b(arch: Architecture) -> int:
    """Weights of the projection that loading keeps a second time, absorbed into the attention."""
    return arch.heads * (arch.mla_nope + arch.mla_value) * arch.mla_kv_rank
