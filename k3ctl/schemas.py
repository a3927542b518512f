"""JSON Schemas of cluster.yml, the profiles and the plan. `python -m k3ctl.schemas` writes docs/schema/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from k3ctl.cluster import ClusterSpec
from k3ctl.plan import Plan
from k3ctl.profiles.types import Engine, Gpu, Model, Platform

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schema"
KINDS: Mapping[str, tuple[type, str, str]] = {  # file's first part -> type, title, description
    "cluster": (ClusterSpec, "k3ctl cluster.yml", "What k3ctl adds to an Ansible inventory."),
    "gpu": (Gpu, "k3ctl GPU profile", "One GPU type: what the driver reports, links, formats, power."),
    "platform": (Platform, "k3ctl platform profile", "One kind of server and what it needs beside its GPUs."),
    "model": (Model, "k3ctl model profile", "One model repository: revisions, sizes, architecture, drafts."),
    "engine": (Engine, "k3ctl engine profile", "One serving engine: versions, flags, layouts, ports, time limits."),
    "plan": (Plan, "k3ctl plan", "What `k3ctl plan INVENTORY -o json` prints: what will run on every node."),
}


def schema(kind: str) -> dict[str, Any]:
    """The schema of one kind, generated from its type."""
    model, title, description = KINDS[kind]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **(model.model_json_schema() if issubclass(model, BaseModel) else _printed(model)),
        "title": title,
        "description": description,
    }


def _printed(kind: type) -> dict[str, Any]:
    """The schema of a dataclass as it is printed: every field is there, and `percent` beside each distance."""
    made: dict[str, Any] = TypeAdapter(kind).json_schema(mode="serialization")
    distance = made["$defs"]["Distance"]["properties"]
    distance["percent"] = {"anyOf": [{"type": "number"}, {"type": "null"}], "title": "Percent"}
    for one in (made, *made["$defs"].values()):
        one["required"] = list(one["properties"])
        one["additionalProperties"] = False
    return made


def file_of(kind: str) -> Path:
    """Where the schema of one kind lies in a checkout."""
    return FOLDER / f"{kind}.schema.json"


def text(kind: str) -> str:
    """The schema as its file holds it."""
    return json.dumps(schema(kind), indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in KINDS:
        file_of(name).write_text(text(name), encoding="utf-8")
