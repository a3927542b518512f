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

    repo: str  # repository on the hub
    commit: str  # 40 hex digits
    path: str  # folder on every node
    endpoint: str  # base URL of the hub
    served_name: str  # what clients put into `model`; empty for a draft


@dataclass(frozen=True)
class RuntimePlan:
    """The serving environment. kind `bundle`: a tar archive with a venv, unpacked to `path`.

    `digest` is the sha256 of the archive (64 hex digits), `url` where nodes fetch it, `bytes` its size.
    `bin` is the folder of the environment's own programs (python, torchrun, vllm).

    kind `container`: `url` is the image as it is pulled (ref@sha256:... where a digest is known, which `digest` then
    holds), `bytes` its unpacked size, `options` what docker run gets beside mounts; `bin` is empty, because programs
    are found on the image's own PATH; `path` only marks on the host that the image is complete.
    """

    kind: str  # bundle or container
    name: str  # for people and paths
    url: str
    digest: str
    bytes: int
    path: str
    bin: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortPlan:
    """One listening port: on which node ranks, who must reach it, what for."""

    port: int  # number
    ranks: tuple[int, ...]  # node ranks, from 0
    reached_by: str  # clients | nodes
    purpose: str  # what listens


@dataclass(frozen=True)
class NodePlan:
    """One node's part. `address` is its cluster address, used everywhere between nodes."""

    name: str  # as the inventory calls it
    rank: int  # 0 is the head
    address: str
    interface: str  # empty: the interface that holds `address`, found on the node
    engine_argv: tuple[str, ...]  # what the rank runs
    engine_env: Mapping[str, str] = field(default_factory=dict)  # variables of it, without the API key
    replica: int = 0  # number of the engine that it belongs to, from 0
    engine_rank: int | None = None  # None: `rank`; with several replicas each counts its own nodes from 0


@dataclass(frozen=True)
class Expected:
    """What preflight holds each node against, from the platform profile."""

    gpus: int  # on each node
    gpu_name: str  # as the driver reports it
    hcas: int  # network adapters for RDMA, on each node
    min_memory_bytes: int  # host memory
    min_free_bytes: int  # on the file system of the weights: weights + drafts + reserve
    min_runtime_bytes: int  # on the file system of the serving environments
    memlock: bool  # locked memory must be unlimited
    sysfs_root: str  # /sys, or the lab's stand-in
    nvml_library_path: str  # empty: the driver's own
    architecture: str = ""  # as `uname -m` says it, or any; empty: x86_64
    min_driver: int = 0  # major version that the serving environment needs; 0: nothing is known


@dataclass(frozen=True)
class Timeouts:
    """Seconds. Every wait of the run comes from here."""

    engine_ready: float  # from the start until a completion came back
    canary: float  # for one completion when the API listens
    gang_stop: float  # for the end of a rank that is asked to stop


@dataclass(frozen=True)
class Plan:
    """Everything that will run, on every node, and where each path is."""

    cluster: str  # name of the inventory folder
    platform: str  # profile's name
    engine: str  # profile's name
    engine_version: str  # of that profile
    launcher: str  # what makes the ranks a gang
    tensor_parallel: int  # size
    pipeline_parallel: int  # size
    models: tuple[ModelPlan, ...]  # the served one first, then drafts
    runtime: RuntimePlan  # the serving environment
    nodes: tuple[NodePlan, ...]  # in rank order
    ports: tuple[PortPlan, ...]  # fixed ones
    expected: Expected  # what preflight wants
    timeouts: Timeouts  # limits of every wait
    rendezvous_port: int  # of torchrun, on the head
    master_port: int  # of the engine's process group, on the head
    endpoint: str  # base URL for clients, http://host:port
    endpoint_port: int  # of `endpoint`
    weights_dir: str  # on every node
    state_dir: str  # on every node, this cluster's own
    log_dir: str  # on every node, this cluster's own
    config_dir: str = ""  # on every node, this cluster's own
    data_parallel: int = 1  # size
    decode_context_parallel: int = 1  # size
    expert_parallel: bool = False  # experts are spread over tensor x data parallel ranks
    engine_family: str = ""  # dialect of the engine; empty: the first part of its name
    layout: str = ""  # name in the engine's profile
    why: str = ""  # why this layout
    draft: str = ""  # the draft it speculates with
    max_model_len: int = 0  # tokens of a request, prompt and answer
    max_num_seqs: int = 0  # sequences at once
    memory: MemoryPlan | None = None  # none when it could not be planned; `notes` says why
    distances: tuple[Distance, ...] = ()  # published figures of this layout beside the plan's
    alternatives: tuple[Alternative, ...] = ()  # layouts that were not taken
    warnings: tuple[str, ...] = ()  # what was given up, with numbers
    notes: tuple[str, ...] = ()  # what to know
    budgets: tuple[Budget, ...] = ()  # what the hosts need beside their GPUs
    times: tuple[PhaseTime, ...] = ()  # of long phases
    port_ranges: tuple[PortRange, ...] = ()  # ports that the engine picks at run time
    verification: Verification | None = None  # how far anybody has run this
    replicas: tuple[ReplicaPlan, ...] = ()  # empty: one engine

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
