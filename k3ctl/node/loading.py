"""How far an engine has come, read from its own log lines."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

# vLLM: "Loading safetensors checkpoint shards:  42% Completed | 40/96 [00:10<00:12,  4.66it/s]"
SHARDS = re.compile(r"[Ll]oading .*?shards:?\s+\d+% Completed \| (\d+)/(\d+)")
MILESTONES = (
    (re.compile(r"Application startup complete"), "ready"),
    (re.compile(r"Starting vLLM (?:API )?server|Started server process"), "api"),
    (re.compile(r"init engine .* took|KV cache size|GiB for KV cache|# (?:CPU|GPU) blocks"), "warming up"),
    (re.compile(r"Loading weights took"), "loaded"),
    (re.compile(r"[Ll]oading (?:weights|safetensors|model)|Starting to load model"), "loading"),
    (re.compile(r"Initializing a V1 LLM engine|world_size=\d+"), "connecting"),
)


def progress(texts: List[str]) -> Dict[str, Any]:
    """{stage, shards_done, shards_total, last} of an attempt's lines, oldest first. Empty stage: nothing known."""
    shards: Optional[List[int]] = None
    stage, reached = "", len(MILESTONES)
    for text in texts:
        match = SHARDS.search(text)
        if match:
            shards = [int(match.group(1)), int(match.group(2))]
        for index, (pattern, name) in enumerate(MILESTONES):
            if index < reached and pattern.search(text):
                stage, reached = name, index
    last = next((text.strip() for text in reversed(texts) if text.strip()), "")
    done, total = shards or [0, 0]
    return {"stage": stage, "shards_done": done, "shards_total": total, "last": last[:200]}
