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
AbsolutePath = Annotated[
    str,
    Field(pattern=r"^/[A-Za-z0-9._/\-]+$", description="an absolute path without spaces"),
    AfterValidator(_plain_path),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Strategy(_Strict):
    """How the model is split. What is left out is chosen by the planner, which warns of worse choices."""

    layout: str | None = Field(default=None, description="a layout of the engine's profile by name")
    tensor_parallel: Annotated[int, Field(ge=1)] | None = None
    pipeline_parallel: Annotated[int, Field(ge=1)] | None = None
    data_parallel: Annotated[int, Field(ge=1)] | None = None
    decode_context_parallel: Annotated[int, Field(ge=1)] | None = None
    expert_parallel: bool | None = None
    draft: str | None = Field(
        default=None, description="a draft of the model's profile to speculate with, or `none` for no speculation"
    )
    kv_cache: Literal["fp8", "bf16"] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    replicas: int = Field(default=1, ge=1, description="equal engines side by side, each on its share of the nodes")


class Weights(_Strict):
    """Where the weights come from. `revision` is a commit; left out, the profile's pin is used."""

    endpoint: str = Field(
        default="https://huggingface.co",
        pattern=r"^https?://[^\s]+[^/\s]$",
        description="base URL of a hub, no slash at the end",
    )
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    token_file: str | None = Field(
        default=None, description="file on the controller that holds the hub token, mode 0600"
    )


class ModelFacts(_Strict):
    """What the model's profile has as unknown. What the profile knows cannot be changed here: two values conflict."""

    bytes: Annotated[int, Field(ge=1)] | None = None
    shards: Annotated[int, Field(ge=1)] | None = None
    heads: Annotated[int, Field(ge=1)] | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    architecture: str | None = Field(default=None, description="name of the model profile whose architecture it has")


class Paths(_Strict):
    """Folders on every node."""

    weights: AbsolutePath = "/srv/k3ctl/weights"
    runtimes: AbsolutePath = "/opt/k3ctl/runtimes"
    state: AbsolutePath = "/var/lib/k3ctl"
    logs: AbsolutePath = "/var/log/k3ctl"


class Fabric(_Strict):
    """The network between the nodes. Each node's own address is its host variable `k3ctl_fabric_address`."""

    subnet: Subnet | None = None


class Endpoint(_Strict):
    """Where clients ask: a port on the head node; `address` empty = the head's SSH address."""

    port: Port = 8000
    address: str = ""


class Security(_Strict):
    """`api_key: generated` makes one on the first `up`; a file path uses that file's content."""

    api_key: Literal["generated"] | AbsolutePath = "generated"


class Ports(_Strict):
    """Fixed ports between the nodes; the rest of the kernel's ephemeral range must be open between them too."""

    rendezvous: Port = 29400
    engine_master: Port = 29501


class Waiver(_Strict):
    """Lets one preflight finding pass by name, with a reason, until a day."""

    check: Annotated[str, Field(min_length=1)]
    reason: Annotated[str, Field(min_length=8)]
    until: date = Field(strict=False)
    nodes: tuple[str, ...] = Field(default=(), strict=False)


class ClusterSpec(_Strict):
    """cluster.yml."""

    platform: str
    model: str
    engine: str
    engine_version: str = Field(default="", description="a version of the engine's profile; empty: its default")
    launcher: Literal["torchrun"] = "torchrun"
    strategy: Strategy = Strategy()
    weights: Weights = Weights()
    model_facts: ModelFacts = ModelFacts()
    paths: Paths = Paths()
    fabric: Fabric = Fabric()
    endpoint: Endpoint = Endpoint()
    ports: Ports = Ports()
    security: Security = Security()
    waivers: tuple[Waiver, ...] = Field(default=(), strict=False)


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
