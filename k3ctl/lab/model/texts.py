"""The words of the lab's model repositories."""

from __future__ import annotations

ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"

ARCHITECTURE = b"""# Architecture

DeepseekV3ForCausalLM: four layers with multi-head latent attention (KV rank 512, rotary part 64), the first with a
dense feed-forward part, the others with eight routed experts (two per token) and a shared one. The vocabulary is the
256 bytes, four special tokens and fourteen words.
"""


def readme(repo: str, version: str) -> bytes:
    """README.md of a repository."""
    return f"""---
library_name: transformers
license: apache-2.0
---

# {repo} {version}

A stand-in for a large model in k3ctl's lab: its architecture, its file layout and its names are those of a real
checkpoint, its numbers are random. It knows one sentence and gives it as its answer to everything.
""".encode()
