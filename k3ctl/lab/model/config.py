"""config.json and generation_config.json of the lab's two models."""

from __future__ import annotations

import json
from typing import Any

from k3ctl.lab.model import shape as s


def served() -> bytes:
    """The served model. topk_method, scoring_func and num_nextn_predict_layers are what vLLM's loader asks for."""
    return _json(
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "dtype": "bfloat16",
            "vocab_size": s.VOCABULARY,
            "hidden_size": s.HIDDEN,
            "intermediate_size": s.DENSE,
            "moe_intermediate_size": s.EXPERT,
            "num_hidden_layers": s.LAYERS,
            "num_attention_heads": s.HEADS,
            "num_key_value_heads": s.HEADS,
            "n_shared_experts": 1,
            "n_routed_experts": s.EXPERTS,
            "num_experts_per_tok": s.EXPERTS_PER_TOKEN,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "num_nextn_predict_layers": 0,
            "kv_lora_rank": s.KV_RANK,
            "q_lora_rank": s.Q_RANK,
            "qk_rope_head_dim": s.ROPE,
            "qk_nope_head_dim": s.NOPE,
            "v_head_dim": s.VALUE,
            **_common(),
        }
    )


def draft(hidden: int, heads: int, width: int) -> bytes:
    """The draft model: one layer of the Llama kind with the same tokens."""
    return _json(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": s.VOCABULARY,
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            **_common(),
        }
    )


def generation() -> bytes:
    """generation_config.json."""
    return _json({"do_sample": True, "temperature": 1.0, "top_p": 0.95, "eos_token_id": [s.END, s.TURN_END]})


def _common() -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "max_position_embeddings": s.POSITIONS,
        "rms_norm_eps": s.EPSILON,
        "rope_theta": s.ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.ROPE_THETA},
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": s.TURN_END,
        "pad_token_id": s.PAD,
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
