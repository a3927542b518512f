"""The JSON Schema of cluster.yml, for editors. `python -m k3ctl.cluster_schema` writes docs/schema/ of a checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k3ctl.cluster import ClusterSpec

FILE = Path(__file__).resolve().parents[1] / "docs" / "schema" / "cluster.schema.json"


def schema() -> dict[str, Any]:
    """The schema, generated from the model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ClusterSpec.model_json_schema(),
        "title": "k3ctl cluster.yml",
        "description": "What k3ctl adds to an Ansible inventory.",
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
