"""The numbers of a hybrid MoE architecture (KDA + MLA layers, latent routed experts) that memory follows from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Sizes in elements unless said. Layers are counted from 1; `mla_layers` lists the full-attention ones.

    Source of the fields' meaning: the engines' model code (vLLM 0.33 kimi_k3, SGLang 0.5.23).
    """

    layers: int
    mla_layers: tuple[int, ...]
    dense_layers: int  # the first ones
    hidden: int
    latent: int  # routed experts work in this width
    experts: int
    expert_width: int
    expert_bits: float  # per weight, scales included
    shared_width: int
    dense_width: int
    heads: int
    kda_head: int
    kda_conv: int
    kda_gate_rank: int
    mla_q_rank: int
    mla_kv_rank: int
    mla_rope: int
    mla_nope: int
    mla_value: int
    vocab: int
    residual_block: int  # layers per attention-residual block
    vision_bytes: int
    draft_layers: int = 0  # dense MLA layers of the draft that share the target's cache
    attention_bits: float = 16.0  # per weight of KDA and MLA projections, scales included
    mlp_bits: float = 16.0  # of shared experts and dense layers
    latent_bits: float = 16.0  # of the projections into and out of the routed experts' width

    def mla_in(self, first: int, last: int) -> int:
        """MLA layers among layers first..last (counted from 1, both included)."""
        return sum(first <= layer <= last for layer in self.mla_layers)

    @property
    def kda_layers(self) -> int:
        """Linear-attention layers."""
        return self.layers - len(self.mla_layers)


@dataclass(frozen=True)
class Layout:
    """How ranks share the model. tp, pp, dp and dcp are sizes; `ep` spreads experts over tp x dp ranks.

    `partition` gives layers per pipeline stage; empty = the engine's own split. `mega_moe` switches sequence-parallel
    MoE on even without data parallelism (vLLM).
    """

    tp: int
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: bool = False
    mega_moe: bool = False
    partition: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """World size."""
        return self.tp * self.pp * self.dp

    def stages(self, layers: int) -> tuple[tuple[int, int], ...]:
        """(first, last) layer of each stage, counted from 1. vLLM's rule: what is left over goes to the stages
        before the last one (93 over 4 = 23, 23, 24, 23).
        """
        counts = list(self.partition)
        if not counts:
            counts = [layers // self.pp] * self.pp
            for i in range(layers % self.pp):
                counts[-2 - i] += 1
        if sum(counts) != layers or len(counts) != self.pp:
            raise ValueError(f"partition {counts} does not split {layers} layers over {self.pp} stages")
        bounds, first = [], 1
        for count in counts:
            bounds.append((first, first + count - 1))
            first += count
        return tuple(bounds)

    @property
    def sequence_parallel_moe(self) -> bool:
        """True when shared experts and dense layers are replicated instead of sharded (vLLM)."""
        return self.pp == 1 and self.ep and self.tp > 1 and (self.dp > 1 or self.mega_moe)


def up_to(value: float, multiple: int) -> int:
    """The next multiple at or above `value`."""
    return -(-int(-(-value // 1)) // multiple) * multiple
