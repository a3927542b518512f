"""The weights: random, but for the embedding and the output layer, which make the model recite one sentence.

Every token has a direction in the residual stream. The output row of a word is the direction of the word before it,
and all other tokens share a part of their direction that leads to the first word. So the answer is known, at any
temperature, and shows that the weights of all ranks were loaded right; the layers between are real work with random
numbers, small enough (they add about 0.2 to a stream of size 1) not to disturb it.
"""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.lab.model import shape as s
from k3ctl.lab.model.safetensors import Tensor, bf16, constant, random, signs

_SPREAD = 0.02
_SHARE = 0.75  # of the common direction and of the token's own: both are +-1, the sum has size 1.06
_STRENGTH = 0.125  # of an output row: logits of about 25 against a noise of 2


def tensors() -> Iterator[Tensor]:
    """All tensors of the model, in the order of the layers, named as DeepseekV3ForCausalLM loads them."""
    yield _table("model.embed_tokens.weight", _embedding())
    for layer in range(s.LAYERS):
        prefix = f"model.layers.{layer}"
        yield constant(f"{prefix}.input_layernorm.weight", (s.HIDDEN,), 1.0)
        yield from _attention(f"{prefix}.self_attn")
        yield constant(f"{prefix}.post_attention_layernorm.weight", (s.HIDDEN,), 1.0)
        yield from _feed_forward(f"{prefix}.mlp", s.DENSE) if layer == 0 else _experts(f"{prefix}.mlp")
    yield constant("model.norm.weight", (s.HIDDEN,), 1.0)
    yield _table("lm_head.weight", _output())


def _attention(prefix: str) -> Iterator[Tensor]:
    yield random(f"{prefix}.q_a_proj.weight", (s.Q_RANK, s.HIDDEN), _SPREAD)
    yield constant(f"{prefix}.q_a_layernorm.weight", (s.Q_RANK,), 1.0)
    yield random(f"{prefix}.q_b_proj.weight", (s.HEADS * (s.NOPE + s.ROPE), s.Q_RANK), _SPREAD)
    yield random(f"{prefix}.kv_a_proj_with_mqa.weight", (s.KV_RANK + s.ROPE, s.HIDDEN), _SPREAD)
    yield constant(f"{prefix}.kv_a_layernorm.weight", (s.KV_RANK,), 1.0)
    yield random(f"{prefix}.kv_b_proj.weight", (s.HEADS * (s.NOPE + s.VALUE), s.KV_RANK), _SPREAD)
    yield random(f"{prefix}.o_proj.weight", (s.HIDDEN, s.HEADS * s.VALUE), _SPREAD)


def _feed_forward(prefix: str, width: int) -> Iterator[Tensor]:
    yield random(f"{prefix}.gate_proj.weight", (width, s.HIDDEN), _SPREAD)
    yield random(f"{prefix}.up_proj.weight", (width, s.HIDDEN), _SPREAD)
    yield random(f"{prefix}.down_proj.weight", (s.HIDDEN, width), _SPREAD)


def _experts(prefix: str) -> Iterator[Tensor]:
    yield random(f"{prefix}.gate.weight", (s.EXPERTS, s.HIDDEN), _SPREAD)
    yield Tensor(f"{prefix}.gate.e_score_correction_bias", "F32", (s.EXPERTS,), bytes(4 * s.EXPERTS))
    for expert in range(s.EXPERTS):
        yield from _feed_forward(f"{prefix}.experts.{expert}", s.EXPERT)
    yield from _feed_forward(f"{prefix}.shared_experts", s.EXPERT)


def _is_word(token: int) -> bool:
    return s.FIRST_WORD <= token < s.FIRST_WORD + len(s.WORDS)


def _embedding() -> list[list[float]]:
    common = signs("common", s.HIDDEN)
    rows = []
    for token in range(s.VOCABULARY):
        own = signs(f"token {token}", s.HIDDEN)
        rows.append(
            list(map(float, own)) if _is_word(token) else [_SHARE * (c + o) for c, o in zip(common, own, strict=True)]
        )
    return rows


def _output() -> list[list[float]]:
    """Row of the first word: the common direction; of each other word, and of the end: that of the word before."""
    leads_to = {s.FIRST_WORD: "common"}
    for place in range(len(s.WORDS)):
        following = s.FIRST_WORD + place + 1 if place + 1 < len(s.WORDS) else s.TURN_END
        leads_to[following] = f"token {s.FIRST_WORD + place}"
    rows = []
    for token in range(s.VOCABULARY):
        strength = _STRENGTH if token in leads_to else _STRENGTH / 8
        rows.append([strength * v for v in signs(leads_to.get(token, f"output {token}"), s.HIDDEN)])
    return rows


def _table(name: str, rows: list[list[float]]) -> Tensor:
    data = b"".join(bf16(value) for row in rows for value in row)
    return Tensor(name, "BF16", (len(rows), len(rows[0])), data)
