"""launch.json: what one node's unit runs. Written by the controller, read by gang, rank, start, status and stop."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List

SCHEMA = 1
CRASH_LOOP_STATUS = 78  # the unit's RestartPreventExitStatus


class Launch:
    """One node's launch file. Plain attributes; `raw` is the JSON object. ValueError when it is not one of ours."""

    def __init__(self, raw: Dict[str, Any], path: str = "") -> None:
        if raw.get("schema") != SCHEMA:
            raise ValueError("launch file %s has schema %r, this agent reads %d" % (path, raw.get("schema"), SCHEMA))
        try:
            self.cluster: str = raw["cluster"]
            self.launch_id: str = raw["launch_id"]
            self.unit: str = raw["unit"]
            self.node: str = raw["node"]
            self.rank: int = raw["rank"]
            self.nnodes: int = raw["nnodes"]
            self.address: str = raw["address"]
            self.interface: str = raw["interface"]
            self.torchrun_argv: List[str] = raw["torchrun_argv"]
            self.torchrun_env: Dict[str, str] = raw["torchrun_env"]
            self.base_env: Dict[str, str] = raw["base_env"]
            self.engine_argv: List[str] = raw["engine_argv"]
            self.env_file: str = raw["env_file"]
            self.state_dir: str = raw["state_dir"]
            self.log_dir: str = raw["log_dir"]
            self.ports: List[int] = raw["ports"]
            self.drop_env: List[str] = raw["drop_env"]
            self.drop_env_prefixes: List[str] = raw["drop_env_prefixes"]
            self.interface_env: Dict[str, str] = raw["interface_env"]
            self.worker_titles: List[str] = raw["worker_titles"]
            self.crash_limit: int = raw["crash"]["limit"]
            self.crash_window_s: float = raw["crash"]["window_s"]
            self.healthy_after_s: float = raw["crash"]["healthy_after_s"]
            self.logs_keep: int = raw["logs"]["keep"]
            self.logs_max_bytes: int = raw["logs"]["max_bytes"]
            self.engine_grace_s: float = raw["stop"]["engine_grace_s"]
            self.gang_grace_s: float = raw["stop"]["gang_grace_s"]
        except KeyError as error:
            raise ValueError("launch file %s lacks %s" % (path, error)) from None
        self.raw = raw
        self.path = path

    @property
    def rank_dir(self) -> str:
        """Folder of this rank's attempt logs."""
        return os.path.join(self.log_dir, "rank%d" % self.rank)

    @property
    def home(self) -> str:
        """Home folder of torchrun and the engine: their caches go there, not to root's."""
        return os.path.join(self.state_dir, "home")

    def state(self, name: str) -> str:
        """Path of a file in the state folder."""
        return os.path.join(self.state_dir, name)


def load(path: str) -> Launch:
    """Read a launch file. OSError or ValueError with the reason."""
    with open(path, encoding="utf-8") as file:
        return Launch(json.load(file), path)


def write_atomically(path: str, value: Any) -> None:
    """Write JSON beside `path` and rename it, so that a reader sees the old or the new one, never a half."""
    beside = "%s.%d" % (path, os.getpid())
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)
    os.replace(beside, path)


def read_json(path: str) -> Any:
    """The JSON value of a state file, None when there is none or it is torn."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_env_file(path: str) -> Dict[str, str]:
    """KEY=VALUE lines; `#` lines and empty ones are skipped; values are taken as they stand, without quoting."""
    values: Dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip("\n")
            if not text.strip() or text.startswith("#"):
                continue
            key, sign, value = text.partition("=")
            if not sign or not key:
                raise ValueError("%s:%d is not KEY=VALUE" % (path, number))
            values[key] = value
    return values
