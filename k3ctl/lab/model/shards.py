"""Divides tensors over shards named as the real checkpoint names them: five digits of 96, six digits in the total."""

from __future__ import annotations

import json
from collections.abc import Sequence

from k3ctl.lab.model.safetensors import Tensor, pack


def shard_name(number: int, total: int) -> str:
    """The file name of shard `number` (from 1): model-00001-of-000096.safetensors."""
    return f"model-{number:05}-of-{total:06}.safetensors"


def divide(tensors: Sequence[Tensor], total: int) -> list[list[Tensor]]:
    """Exactly `total` groups in order, none empty, near one size. Raises ValueError for fewer tensors than groups."""
    if len(tensors) < total:
        raise ValueError(f"{len(tensors)} tensors cannot fill {total} shards")
    goal = sum(len(t.data) for t in tensors) / total
    groups: list[list[Tensor]] = [[]]
    for place, tensor in enumerate(tensors):
        full = sum(len(t.data) for t in groups[-1]) + len(tensor.data) / 2 > goal
        must = total - len(groups) == len(tensors) - place
        if groups[-1] and len(groups) < total and (full or must):
            groups.append([])
        groups[-1].append(tensor)
    return groups


def files(tensors: Sequence[Tensor], total: int) -> dict[str, bytes]:
    """The shards and model.safetensors.index.json."""
    groups = divide(tensors, total)
    names = [shard_name(i + 1, total) for i in range(total)]
    made = {name: pack(group) for name, group in zip(names, groups, strict=True)}
    index = {
        "metadata": {
            "total_parameters": sum(t.count for t in tensors),
            "total_size": sum(len(t.data) for t in tensors),
        },
        "weight_map": {t.name: name for name, group in zip(names, groups, strict=True) for t in group},
    }
    made["model.safetensors.index.json"] = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
    return made
