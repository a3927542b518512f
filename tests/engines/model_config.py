"""config.json of a model as its profile's architecture says it, in the real size: what configurations are built for."""

from __future__ import annotations

import json
from typing import Any

from k3ctl.lab.model.tokenizer import tokenizer_config, tokenizer_json
from k3ctl.profiles.types import ArchitectureData, Model

IMAGES = {  # plausible, not the model's own: sizes of pictures change nothing that is asked here
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "temporal_merge_kernel_size": 4,
    "in_patch_limit": 16384,
    "in_patch_limit_each_frame": 4096,
    "in_patch_limit_video": 65536,
    "patch_limit_on_one_side": 512,
    "fixed_output_tokens": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def model_files(model: Model) -> dict[str, str]:
    """What a folder needs to pass for the model while an engine only configures itself: name -> text."""
    return {
        "config.json": json.dumps(model_config(model)),
        "tokenizer.json": tokenizer_json().decode(),
        "tokenizer_config.json": tokenizer_config().decode(),
        "preprocessor_config.json": json.dumps({"media_proc_cfg": IMAGES}),
    }


def model_config(model: Model) -> dict[str, Any]:
    """Keys as moonshotai/Kimi-K3 names them."""
    arch = model.architecture
    assert arch is not None
    assert not hasattr(model.max_model_len, "unknown")
    return {
        "model_type": "kimi_k3",
        "architectures": ["KimiK3ForConditionalGeneration"],
        "media_placeholder_token_id": 163605,
        "pad_token_id": 163839,
        "torch_dtype": "bfloat16",
        "vision_config": {"vt_num_attention_heads": 12, "vt_num_hidden_layers": 27, "vt_hidden_size": 1024},
        "text_config": _text(arch, model.max_model_len.value),  # type: ignore[union-attr]
    }


def _text(arch: ArchitectureData, length: int) -> dict[str, Any]:
    layers = range(1, arch.layers + 1)
    return {
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearForCausalLM"],
        "vocab_size": arch.vocab,
        "hidden_size": arch.hidden,
        "head_dim": arch.kda_head,
        "intermediate_size": arch.dense_width,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.heads,
        "moe_intermediate_size": arch.expert_width,
        "routed_expert_hidden_size": arch.latent,
        "num_experts": arch.experts,
        "num_experts_per_token": 16,
        "num_shared_experts": arch.shared_width // arch.expert_width,
        "first_k_dense_replace": arch.dense_layers,
        "q_lora_rank": arch.mla_q_rank,
        "kv_lora_rank": arch.mla_kv_rank,
        "qk_nope_head_dim": arch.mla_nope,
        "qk_rope_head_dim": arch.mla_rope,
        "v_head_dim": arch.mla_value,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "attn_res_block_size": arch.residual_block,
        "max_position_embeddings": length,
        "dtype": "bfloat16",
        "linear_attn_config": {
            "kda_layers": [layer for layer in layers if layer not in arch.mla_layers],
            "full_attn_layers": list(arch.mla_layers),
            "num_heads": arch.heads,
            "head_dim": arch.kda_head,
            "short_conv_kernel_size": arch.kda_conv,
        },
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4,
                        "type": "float",
                        "strategy": "group",
                        "group_size": 32,
                        "symmetric": True,
                        "dynamic": False,
                    },
                }
            },
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.*", "re:vision_tower.*"],
        },
    }
