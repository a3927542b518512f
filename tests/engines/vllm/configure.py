"""vLLM's full configuration of one argument list on the simulated platform, with a stand-in for the model's folder."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any


def configure(namespace: Any, question: dict[str, Any]) -> dict[str, Any]:
    """What the engine decides. Raises whatever it raises."""
    import vllm.config.vllm as deciding
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    deciding.HAS_TRITON = True  # as in the images; without it the older model runner is taken
    namespace.model = _folder(json.dumps(question["files"]))
    namespace.speculative_config = None  # it needs the draft's own config.json
    headless = bool(getattr(namespace, "headless", False))
    made = AsyncEngineArgs.from_cli_args(namespace).create_engine_config(
        UsageContext.OPENAI_API_SERVER, headless=headless
    )
    parallel, cache_config, model = made.parallel_config, made.cache_config, made.model_config
    return {
        "executor": str(parallel.distributed_executor_backend),
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
        "data_local": parallel.data_parallel_size_local,
        "data_rank": parallel.data_parallel_rank,
        "hybrid": bool(parallel.data_parallel_hybrid_lb),
        "external": bool(parallel.data_parallel_external_lb),
        "decode_context": parallel.decode_context_parallel_size,
        "experts": bool(parallel.enable_expert_parallel),
        "nnodes": parallel.nnodes,
        "prefix_caching": bool(cache_config.enable_prefix_caching),
        "cache_dtype": str(cache_config.cache_dtype),
        "max_model_len": model.max_model_len,
        "quantization": str(model.quantization),
        "max_num_seqs": made.scheduler_config.max_num_seqs,
        "max_batched": made.scheduler_config.max_num_batched_tokens,
        "attention_backend": str(made.attention_config.backend),
        "moe_backend": str(made.kernel_config.moe_backend),
    }


@cache
def _folder(files: str) -> str:
    """A folder with the model's small files: config.json and a tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="k3ctl-engines-"))
    for name, text in json.loads(files).items():
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder)
