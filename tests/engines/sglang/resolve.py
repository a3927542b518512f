"""SGLang's whole resolution of one argument list, as on a GPU type that this machine does not have."""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ASKED = ("sglang.srt.utils.common", "sglang.srt.arg_groups.memory_hook", "sglang.srt.arg_groups.kv_shard_hook")
SHOWN = (
    "tp_size",
    "pp_size",
    "dp_size",
    "attn_dp_size",
    "ep_size",
    "dcp_size",
    "nnodes",
    "node_rank",
    "context_length",
    "mem_fraction_static",
    "kv_cache_dtype",
    "mamba_ssm_dtype",
    "mamba_radix_cache_strategy",
    "mamba_full_memory_ratio",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "chunked_prefill_size",
    "page_size",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "moe_runner_backend",
    "moe_a2a_backend",
    "max_running_requests",
)


def resolve(argv: list[str], simulate: dict[str, Any]) -> dict[str, Any]:
    """What the release decides. `simulate`: compute (as 10.3), memory_mib, config (the model's). Raises what it raises.

    Speculation is left out: it needs the draft's own config.json.
    """
    from sglang.srt.arg_groups.model_overrides import kimi_k3
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.runtime_context import override_platform
    from sglang.srt.server_args import prepare_server_args

    # It looks into a CUDA package for a kernel's signature.
    kimi_k3._require_kimi_k3_cutedsl_dcp_support = lambda: None
    for name in ASKED:
        with contextlib.suppress(ModuleNotFoundError):  # not every release has them all
            importlib.import_module(name).get_device_memory_capacity = lambda *_, **__: simulate["memory_mib"]
    words = [word for word in argv if not word.startswith(("--model-path", "--speculative-", "--enable-linear-replay"))]
    words += [f"--model-path={_folder(json.dumps(simulate['config']))}", "--device=cuda"]
    with override_platform(**_facts(simulate["compute"])):
        args = prepare_server_args(words)
        args.resolve_once()
        view = resolved_view(args)
    return {name: getattr(view, name, None) for name in SHOWN}


def _facts(compute: str) -> dict[str, Any]:
    major, minor = map(int, compute.split("."))
    return {
        "is_cuda": True,
        "is_sm90": major == 9,
        "is_hopper_with_cuda_12_3": major == 9,
        "is_sm100": major == 10,
        "is_sm100_or_sm110": major == 10,
        "is_blackwell": major >= 10,
        "device_sm": 10 * major + minor,
        "device_capability": (major, minor),
        "has_flashinfer": True,
    }


@cache
def _folder(config: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="k3ctl-engines-"))
    (folder / "config.json").write_text(config, encoding="utf-8")
    return str(folder)
