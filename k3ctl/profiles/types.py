"""Frozen types of the profile files. Every number that came from somewhere carries its source beside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["verified", "published", "inferred", "unverified", "simulated"]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]


class Strict(BaseModel):
    """Unknown keys are errors, types are not converted, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Amount(Strict):
    """A whole number with its source. `status` says how far it can be trusted."""

    value: Annotated[int, Field(ge=0)]
    source: Annotated[str, Field(min_length=3)]
    status: Status


class Gpu(Strict):
    """One GPU type. `reported_name` is what the driver calls it; memory is what the driver reports, in bytes."""

    name: Name
    vendor: Literal["nvidia", "amd", "simulated"]
    reported_name: str
    memory_bytes: Amount


class SimulatedHardware(Strict):
    """Where a lab node keeps its simulated hardware."""

    sysfs_root: str
    nvml_library_path: str


class Platform(Strict):
    """One kind of server."""

    name: Name
    title: str
    gpu: Name
    gpus_per_node: Annotated[int, Field(ge=1)]
    hcas_per_node: Annotated[int, Field(ge=0)]
    memory_bytes: Amount
    reserve_bytes: Amount
    memlock: bool
    max_nodes: Annotated[int, Field(ge=1)]
    simulated: SimulatedHardware | None = None


class Draft(Strict):
    """A draft model that belongs to a model."""

    repo: str
    revision: Commit
    bytes: Amount


class Model(Strict):
    """One model repository at its pinned revision."""

    name: Name
    repo: str
    revision: Commit
    served_name: str
    bytes: Amount
    shards: Amount
    heads: Amount
    max_model_len: Amount
    drafts: Annotated[tuple[Draft, ...], Field(strict=False)] = ()


class BundleRuntime(Strict):
    """A serving environment as one archive; `record` is the file that names its digest, size and folder."""

    kind: Literal["bundle"]
    name: Name
    record: str
    url: Annotated[str, Field(description="where nodes fetch the archive; {hub} and {archive} are filled in")]
    unpacked_bytes: Amount


class Timeouts(Strict):
    """Seconds."""

    engine_ready: Amount
    canary: Amount
    gang_stop: Amount


class Layout(Strict):
    """How one engine runs one model on one platform: argv and environment of each rank as templates.

    Templates know {python}, {model}, {served_name}, {tp}, {pp}, {nnodes}, {node_rank}, {head}, {address},
    {interface}, {port}, {master_port}, {max_model_len}, {max_num_seqs}; anything else is an error.
    """

    platform: Name
    model: Name
    strategy: Literal["tp"]
    max_model_len: Annotated[int, Field(ge=16)]
    max_num_seqs: Annotated[int, Field(ge=1)]
    argv: Annotated[tuple[str, ...], Field(strict=False)]
    argv_head: Annotated[tuple[str, ...], Field(strict=False)]
    argv_worker: Annotated[tuple[str, ...], Field(strict=False)]
    env: dict[str, str]
    status: Status
    source: Annotated[str, Field(min_length=3)]


class Engine(Strict):
    """One serving engine at one version."""

    name: Name
    version: str
    runtime: BundleRuntime
    timeouts: Timeouts
    layouts: Annotated[tuple[Layout, ...], Field(strict=False)]


class RuntimeRecord(Strict):
    """What the builder of a bundle wrote beside it."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    build_id: str
    archive: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(gt=0)]
    unpacked_bytes: Annotated[int, Field(gt=0)]
    install_path: str


class Profiles(Strict):
    """Everything that is known, by kind and name."""

    gpus: dict[str, Gpu]
    platforms: dict[str, Platform]
    models: dict[str, Model]
    engines: dict[str, Engine]
