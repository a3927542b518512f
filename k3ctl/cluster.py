"""The typed schema of cluster.yml: what k3ctl adds to an Ansible inventory. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network
from posixpath import normpath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from k3ctl.inventory import Inventory

Port = Annotated[int, Field(ge=1, le=65535)]
_SYSTEM = (
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "var",
)  # fmt: skip


def _network(value: Any) -> Any:
    """Text to a network; host bits must be zero, as `10.78.0.0/24`."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    try:
        network = ip_network(value if isinstance(value, str) else "", strict=False)
    except ValueError:
        raise ValueError("a network, as 10.78.0.0/24") from None
    if "/" not in value or ip_interface(value).ip != network.network_address:
        raise ValueError(f"the network itself, {network}")
    return network


def _plain_path(path: str) -> str:
    """No `..`, no `//`, no slash at the end, and no folder of the system itself."""
    if normpath(path) != path:
        raise ValueError("an absolute path without `..`, `//` and a slash at the end")
    if path.count("/") == 1 and path[1:] in _SYSTEM:
        raise ValueError(f"a folder below {path}, not {path} itself")
    return path


Subnet = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
ABSOLUTE_PATH = r"^/[A-Za-z0-9._/\-]+$"
AbsolutePath = Annotated[
    str,
    Field(pattern=ABSOLUTE_PATH, description="an absolute path without spaces"),
    AfterValidator(_plain_path),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Strategy(_Strict):
    """How the model is split. What is left out is chosen by the planner, which warns of worse choices."""

    layout: str | None = Field(default=None, description="a layout of the engine's profile by name")
    tensor_parallel: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="tensor parallel size; it must divide the model's attention heads"
    )
    pipeline_parallel: Annotated[int, Field(ge=1)] | None = Field(default=None, description="number of pipeline stages")
    data_parallel: Annotated[int, Field(ge=1)] | None = Field(default=None, description="data parallel size")
    decode_context_parallel: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="decode context parallel size"
    )
    expert_parallel: bool | None = Field(default=None, description="spread the experts over all ranks, or do not")
    draft: str | None = Field(
        default=None, description="a draft of the model's profile to speculate with, or `none` for no speculation"
    )
    kv_cache: Literal["fp8", "bf16"] | None = Field(default=None, description="format of the KV cache")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="the engine's own fraction of a GPU's memory"
    )
    max_model_len: Annotated[int, Field(ge=16)] | None = Field(
        default=None, description="tokens of the longest request, prompt and answer together"
    )
    max_num_seqs: Annotated[int, Field(ge=1)] | None = Field(default=None, description="sequences at once")
    replicas: int = Field(default=1, ge=1, description="equal engines side by side, each on its share of the nodes")


class Weights(_Strict):
    """Where the weights come from. `revision` is a commit; left out, the profile's pin is used."""

    endpoint: str = Field(
        default="https://huggingface.co",
        pattern=r"^https?://[^\s]+[^/\s]$",
        description="base URL of a hub, no slash at the end",
    )
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        default=None, description="commit of the model's repository, 40 hex digits"
    )
    token_file: str | None = Field(
        default=None, description="file on the controller that holds the hub token, mode 0600"
    )


class ModelFacts(_Strict):
    """What the model's profile has as unknown. What the profile knows cannot be changed here: two values conflict."""

    bytes: Annotated[int, Field(ge=1)] | None = Field(default=None, description="size of the whole repository")
    shards: Annotated[int, Field(ge=1)] | None = Field(default=None, description="number of weight files")
    heads: Annotated[int, Field(ge=1)] | None = Field(default=None, description="number of attention heads")
    max_model_len: Annotated[int, Field(ge=16)] | None = Field(
        default=None, description="tokens, the longest that the model allows"
    )
    architecture: str | None = Field(default=None, description="name of the model profile whose architecture it has")


class Paths(_Strict):
    """Folders on every node."""

    weights: AbsolutePath = Field(
        default="/srv/k3ctl/weights", description="weights, one folder for each repository and commit"
    )
    runtimes: AbsolutePath = Field(default="/opt/k3ctl/runtimes", description="serving environments")
    state: AbsolutePath = Field(
        default="/var/lib/k3ctl", description="what runs, attempts, locks; one folder for each cluster"
    )
    logs: AbsolutePath = Field(default="/var/log/k3ctl", description="logs of the ranks; one folder for each cluster")


class Fabric(_Strict):
    """The network between the nodes. Each node's own address is its host variable `k3ctl_fabric_address`."""

    subnet: Subnet | None = Field(default=None, description="its network; every fabric address must be in it")


class Endpoint(_Strict):
    """Where clients ask: a port on the head node; `address` empty = the head's SSH address."""

    port: Port = Field(default=8000, description="the port of the API")
    address: str = Field(default="", description="name or address for clients; empty: the head's SSH address")


class Security(_Strict):
    """`api_key: generated` makes one on the first `up`; a file path uses that file's content."""

    api_key: Literal["generated"] | AbsolutePath = Field(
        default="generated", description="`generated`, or a file on the controller that holds the key on one line"
    )


class Ports(_Strict):
    """Fixed ports between the nodes; the rest of the kernel's ephemeral range must be open between them too."""

    rendezvous: Port = Field(default=29400, description="torchrun's, on the head")
    engine_master: Port = Field(default=29501, description="the engine's process group, on the head")


class Waiver(_Strict):
    """Lets one preflight finding pass by name, with a reason, until a day."""

    check: Annotated[str, Field(min_length=1)] = Field(description="name of the preflight check")
    reason: Annotated[str, Field(min_length=8)] = Field(description="why it may pass, for whoever reads it later")
    until: date = Field(strict=False, description="last day on which it holds, as 2031-01-31")
    nodes: tuple[str, ...] = Field(default=(), strict=False, description="nodes that it is for; empty: all")


class ClusterSpec(_Strict):
    """cluster.yml."""

    platform: str = Field(description="kind of server: name of a platform profile")
    model: str = Field(description="name of a model profile")
    engine: str = Field(description="name of an engine profile")
    engine_version: str = Field(default="", description="a version of the engine's profile; empty: its default")
    launcher: Literal["torchrun"] = Field(default="torchrun", description="what makes the ranks of all nodes a gang")
    strategy: Strategy = Field(default=Strategy(), description="how the model is split")
    weights: Weights = Field(default=Weights(), description="where the weights come from")
    model_facts: ModelFacts = Field(default=ModelFacts(), description="facts that the model's profile has as unknown")
    paths: Paths = Field(default=Paths(), description="folders on every node")
    fabric: Fabric = Field(default=Fabric(), description="the network between the nodes")
    endpoint: Endpoint = Field(default=Endpoint(), description="where clients ask")
    ports: Ports = Field(default=Ports(), description="fixed ports between the nodes")
    security: Security = Field(default=Security(), description="the API key")
    waivers: tuple[Waiver, ...] = Field(
        default=(), strict=False, description="preflight findings that may pass until a day"
    )


@dataclass(frozen=True)
class Origin:
    """Where a resolved value came from; `file` and `line` for those of the inventory folder."""

    kind: Literal["default", "profile", "inventory", "flag"]
    file: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Cluster:
    """Inventory and cluster.yml together, both judged. `given` has the origin of every key that is not a default."""

    inventory: Inventory
    spec: ClusterSpec
    spec_file: str
    given: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The cluster's name: the inventory folder's name."""
        return self.inventory.name


def origins(cluster: Cluster) -> Mapping[str, Origin]:
    """Dotted key -> origin, for every value of the spec: `endpoint.port`, `waivers[0].check`."""
    return {key: cluster.given.get(key, Origin("default")) for key in _keys(cluster.spec)}


def _keys(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _keys(getattr(value, name), f"{key}.{name}".removeprefix("."))
    elif isinstance(value, tuple) and value:
        for index, item in enumerate(value):
            yield from _keys(item, f"{key}[{index}]")
    else:
        yield key
