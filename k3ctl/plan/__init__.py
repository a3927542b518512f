"""The plan: what will run on every node, decided before any host is touched. Frozen and serialisable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from k3ctl.plan.forecast import (
    Alternative,
    Budget,
    Distance,
    MemoryPlan,
    PhaseTime,
    PortRange,
    ReplicaPlan,
    Verification,
)


@dataclass(frozen=True)
class ModelPlan:
    """One repository at one commit, and the folder it lies in on every node."""

    repo: str
    commit: str
    path: str
    endpoint: str
    served_name: str


@dataclass(frozen=True)
class RuntimePlan:
    """The serving environment. kind `bundle`: a tar archive with a venv, unpacked to `path`.

    `digest` is the sha256 of the archive (64 hex digits), `url` where nodes fetch it, `bytes` its size.
    `bin` is the folder of the environment's own programs (python, torchrun, vllm).

    kind `container`: `url` is the image as it is pulled (ref@sha256:... where a digest is known, which `digest` then
    holds), `bytes` its unpacked size, `options` what docker run gets beside mounts; `bin` is empty, because programs
    are found on the image's own PATH; `path` only marks on the host that the image is complete.
    """

    kind: str
    name: str
    url: str
    digest: str
    bytes: int
    path: str
    bin: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortPlan:
    """One listening port: on which node ranks, who must reach it, what for."""

    port: int
    ranks: tuple[int, ...]
    reached_by: str  # clients | nodes
    purpose: str


@dataclass(frozen=True)
class NodePlan:
    """One node's part. `address` is its cluster address, used everywhere between nodes."""

    name: str
    rank: int
    address: str
    interface: str  # empty: the interface that holds `address`, found on the node
    engine_argv: tuple[str, ...]
    engine_env: Mapping[str, str] = field(default_factory=dict)
    replica: int = 0
    engine_rank: int | None = None  # None: `rank`; with several replicas each counts its own nodes from 0


@dataclass(frozen=True)
class Expected:
    """What preflight holds each node against, from the platform profile."""

    gpus: int
    gpu_name: str
    hcas: int
    min_memory_bytes: int
    min_free_bytes: int  # on the file system of the weights: weights + drafts + reserve
    min_runtime_bytes: int
    memlock: bool
    sysfs_root: str
    nvml_library_path: str
    architecture: str = ""  # as `uname -m` says it, or any; empty: x86_64
    min_driver: int = 0  # major version that the serving environment needs; 0: nothing is known


@dataclass(frozen=True)
class Timeouts:
    """Seconds. Every wait of the run comes from here."""

    engine_ready: float
    canary: float
    gang_stop: float


@dataclass(frozen=True)
class Plan:
    """Everything that will run, on every node, and where each path is."""

    cluster: str
    platform: str
    engine: str
    engine_version: str
    launcher: str
    tensor_parallel: int
    pipeline_parallel: int
    models: tuple[ModelPlan, ...]  # the served one first, then drafts
    runtime: RuntimePlan
    nodes: tuple[NodePlan, ...]
    ports: tuple[PortPlan, ...]
    expected: Expected
    timeouts: Timeouts
    rendezvous_port: int
    master_port: int
    endpoint: str  # base URL for clients, http://host:port
    endpoint_port: int
    weights_dir: str
    state_dir: str
    log_dir: str
    config_dir: str = ""
    data_parallel: int = 1
    decode_context_parallel: int = 1
    expert_parallel: bool = False
    engine_family: str = ""  # dialect of the engine; empty: the first part of its name
    layout: str = ""  # name in the engine's profile
    why: str = ""  # why this layout
    draft: str = ""  # the draft it speculates with
    max_model_len: int = 0
    max_num_seqs: int = 0
    memory: MemoryPlan | None = None
    distances: tuple[Distance, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    budgets: tuple[Budget, ...] = ()
    times: tuple[PhaseTime, ...] = ()
    port_ranges: tuple[PortRange, ...] = ()
    verification: Verification | None = None
    replicas: tuple[ReplicaPlan, ...] = ()

    @property
    def head(self) -> NodePlan:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def model(self) -> ModelPlan:
        """The served model."""
        return self.models[0]

    def replica(self, number: int) -> Plan:
        """One replica as a plan of its own, its nodes, ranks and ports counted from 0; without replicas the plan."""
        if not self.replicas:
            return self
        part = self.replicas[number]
        nodes = [node for node in self.nodes if node.replica == number]
        ranks = {node.rank: index for index, node in enumerate(nodes)}
        ports = [replace(port, ranks=tuple(ranks[rank] for rank in port.ranks if rank in ranks)) for port in self.ports]
        return replace(
            self,
            nodes=tuple(replace(node, rank=ranks[node.rank], replica=0, engine_rank=None) for node in nodes),
            ports=tuple(port for port in ports if port.ranks),
            endpoint=part.endpoint,
            replicas=(),
        )
