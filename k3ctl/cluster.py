"""The typed schema of cluster.yml: what k3ctl adds to an Ansible inventory. Unknown keys are errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from k3ctl.inventory import Inventory

Port = Annotated[int, Field(ge=1, le=65535)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/\-]+$", description="absolute path without spaces")]


def _network(value: Any) -> Any:
    """Text to a network; host bits must be zero. Anything else is left for pydantic to refuse."""
    return ip_network(value) if isinstance(value, str) else value


Subnet = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Strategy(_Strict):
    """How the model is split. What is left out is chosen by the planner."""

    tensor_parallel: Annotated[int, Field(ge=1)] | None = None
    pipeline_parallel: Annotated[int, Field(ge=1)] | None = None
    expert_parallel: bool | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None


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

    check: str
    reason: Annotated[str, Field(min_length=8)]
    until: date = Field(strict=False)
    nodes: tuple[str, ...] = Field(default=(), strict=False)


class ClusterSpec(_Strict):
    """cluster.yml."""

    platform: str
    model: str
    engine: str
    launcher: Literal["torchrun"] = "torchrun"
    strategy: Strategy = Strategy()
    weights: Weights = Weights()
    paths: Paths = Paths()
    fabric: Fabric = Fabric()
    endpoint: Endpoint = Endpoint()
    ports: Ports = Ports()
    security: Security = Security()
    waivers: tuple[Waiver, ...] = Field(default=(), strict=False)


@dataclass(frozen=True)
class Cluster:
    """Inventory and cluster.yml together, both judged."""

    inventory: Inventory
    spec: ClusterSpec
    spec_file: str

    @property
    def name(self) -> str:
        """The cluster's name: the inventory folder's name."""
        return self.inventory.name
