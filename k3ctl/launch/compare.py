"""Installed texts against rendered ones: what would change, and whether the engine must be restarted for it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.launch.render import NodeLaunch

RUNNING = ("active", "activating", "reloading")


@dataclass(frozen=True)
class Difference:
    """What differs on one node. `diff` is a unified diff of unit and launch.json; a secret file is only named."""

    node: str
    files: tuple[str, ...]
    diff: str


def difference(launch: NodeLaunch, status: Mapping[str, Any]) -> Difference:
    """Compare with a `status` reply that carries texts."""
    installed: Mapping[str, str] = status.get("texts") or {}
    digests: Mapping[str, str | None] = status.get("files") or {}
    wanted = {"unit": launch.unit_text, "launch": launch.launch_text, "env": launch.env_text.reveal()}
    names = {
        "unit": launch.unit,
        "launch": f"{launch.config_dir}/launch.json",
        "env": f"{launch.config_dir}/engine.env",
    }
    files, pieces = [], []
    for key, text in wanted.items():
        if digests.get(key) == hashlib.sha256(text.encode()).hexdigest():
            continue
        files.append(names[key])
        if key != "env":
            before = installed.get(key, "")
            lines = difflib.unified_diff(
                before.splitlines(),
                text.splitlines(),
                f"{names[key]} (installed)",
                f"{names[key]} (rendered)",
                lineterm="",
            )
            pieces.append("\n".join(lines))
        else:
            pieces.append(f"{names[key]}: differs (secret, not shown)")
    return Difference(launch.node, tuple(files), "\n".join(piece for piece in pieces if piece))


def needs_restart(launch_id: str, status: Mapping[str, Any]) -> bool:
    """True when what runs on the node is another launch. A mere newer agent file is no reason to restart."""
    gang = status.get("gang") or {}
    return bool(gang.get("launch_id") != launch_id)


def runs(status: Mapping[str, Any]) -> bool:
    """True while the unit runs, starts, or waits for its next start."""
    return (status.get("unit") or {}).get("active") in RUNNING
