"""What the controller asks of the node agent: the payloads of its verbs `fetch` and `unpack`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from k3ctl.plan import ModelPlan, RuntimePlan
from k3ctl.secret import Secret
from k3ctl.staging.manifest import SCHEMA, Manifest, to_json

CONNECTIONS = 4
LEAST_RESERVE = 64 * 1024 * 1024
SELF_TEST_S = 300.0
SELF_TEST = "import torch, torch.distributed; print(torch.__version__)"


@dataclass(frozen=True)
class StageJob:
    """One repository at one commit, to be whole in `dest` on every node; `unit` does the work there."""

    manifest: Manifest
    dest: str
    unit: str

    @property
    def title(self) -> str:
        """As people name it: repo@commit8."""
        return f"{self.manifest.repo}@{self.manifest.commit[:8]}"

    @property
    def reuse_roots(self) -> list[str]:
        """Folders whose subfolders are other revisions that may share files."""
        return [posixpath.dirname(self.dest)]


def stage_of(cluster: str, model: ModelPlan, manifest: Manifest) -> StageJob:
    """The stage of one model of the plan."""
    return StageJob(manifest, model.path, f"k3ctl-{cluster}-stage-{manifest.id[:8]}.service")


def stage_units(cluster: str) -> str:
    """The pattern of all units that stage weights for a cluster, for systemctl and journalctl."""
    return f"k3ctl-{cluster}-stage-*.service"


def reserve(total: int) -> int:
    """Bytes that must stay free beside the files: 2 %, at least 64 MiB."""
    return max(total // 50, LEAST_RESERVE)


def inspect_request(stages: Iterable[StageJob]) -> dict[str, Any]:
    """Ask what is there of each stage."""
    asked = [
        {"manifest": to_json(s.manifest), "dest": s.dest, "unit": s.unit, "reuse_roots": s.reuse_roots} for s in stages
    ]
    return {"action": "inspect", "stages": asked}


def start_request(stages: Iterable[StageJob], agent: str, token: Secret | None) -> dict[str, Any]:
    """Start the units. The token goes to the node by stdin into a 0600 file, and from there to the hub only."""
    return {
        "action": "start",
        "agent": agent,
        "stages": [{"unit": s.unit, "job": _job(s, token)} for s in stages],
    }


def _job(stage: StageJob, token: Secret | None) -> dict[str, Any]:
    source = {"kind": "hub", "endpoint": stage.manifest.endpoint}
    if token is not None:
        source["token"] = token.reveal()
    return {
        "schema": SCHEMA,
        "id": stage.manifest.id,
        "dest": stage.dest,
        "manifest": to_json(stage.manifest),
        "sources": [source],
        "connections": CONNECTIONS,
        "reserve": reserve(stage.manifest.total),
        "reuse_roots": stage.reuse_roots,
    }


def status_request(stages: Iterable[StageJob]) -> dict[str, Any]:
    """Ask how far the units are."""
    asked = [{"id": s.manifest.id, "dest": s.dest, "unit": s.unit} for s in stages]
    return {"action": "status", "stages": asked}


def stop_request(stages: Iterable[StageJob]) -> dict[str, Any]:
    """End the units; what was fetched is kept."""
    return {"action": "stop", "units": [s.unit for s in stages]}


def runtime_unit(cluster: str) -> str:
    """The unit that puts the serving environment in place."""
    return f"k3ctl-{cluster}-runtime.service"


def runtime_request(
    action: str, cluster: str, runtime: RuntimePlan, need_bytes: int, agent: str = ""
) -> dict[str, Any]:
    """A request of the verb `unpack`. `need_bytes`: room for archive and content; 0 = five times the archive."""
    job = {
        "name": runtime.name,
        "digest": runtime.digest,
        "bytes": runtime.bytes,
        "url": runtime.url,
        "path": runtime.path,
        "program": posixpath.relpath(f"{runtime.bin}/python", runtime.path),
        "need_bytes": need_bytes or 5 * runtime.bytes,
        "self_test": {"argv": [f"{runtime.bin}/python", "-c", SELF_TEST], "timeout_s": SELF_TEST_S},
    }
    request: dict[str, Any] = {"action": action, "unit": runtime_unit(cluster), "job": job}
    return {**request, "agent": agent} if agent else request
