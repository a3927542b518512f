"""A machine description: which GPUs and RDMA devices a simulated host has, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from uuid import NAMESPACE_DNS, uuid5

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from k3ctl.errors import ConfigError, Problem

MACHINES = Path(__file__).parent / "machines"
Count = Annotated[int, Field(ge=0)]
# The stand-in library reads one line a value: a line break would begin another.
Line = Annotated[str, Field(pattern=r"^[^\r\n]*$", max_length=90)]


@dataclass(frozen=True)
class SimGpu:
    """One GPU as NVML reports it. `lost`: the driver still counts it and every call on it fails."""

    name: Line
    uuid: Line
    memory_bytes: Count
    serial: Line = ""
    bus_id: Line = "00000000:01:00.0"
    memory_used_bytes: Count = 0
    capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "9.0"
    ecc: Annotated[int, Field(ge=0, le=1)] = 1
    ecc_uncorrected: Count = 0
    temperature_c: Count = 32
    power_mw: Count = 75_000
    utilisation_percent: Count = 0
    lost: Annotated[int, Field(ge=0, le=1)] = 0


@dataclass(frozen=True)
class SimHca:
    """One RDMA device with one port, in the kernel's words."""

    name: Line
    netdev: Line
    state: Literal["ACTIVE", "INIT", "DOWN"] = "ACTIVE"
    physical: Literal["LinkUp", "Polling", "Disabled"] = "LinkUp"
    link_layer: Literal["InfiniBand", "Ethernet"] = "InfiniBand"
    rate: Line = "400 Gb/sec (4X NDR)"
    type: Line = "MT4129"
    firmware: Line = "28.43.2026"
    board: Line = "MT_0000000838"
    node_guid: Line = "0000:0000:0000:0001"


@dataclass(frozen=True)
class SimMachine:
    """A host's simulated hardware. `hang`: the NVML call that never returns."""

    driver: Line
    cuda: Count
    gpus: tuple[SimGpu, ...]
    hcas: tuple[SimHca, ...]
    hang: Literal["", "init", "device"] = ""

    def to_json(self) -> str:
        """For people and for `parse`."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def nvml_text(self) -> str:
        """What the stand-in library reads: lines of `key value`, see nvml.c."""
        lines = [f"driver {self.driver}", f"cuda {self.cuda}"]
        lines += [f"hang {self.hang}"] if self.hang else []
        for gpu in self.gpus:
            lines.append("gpu")
            lines += [f"{key} {value}" for key, value in asdict(gpu).items() if value != ""]
        return "\n".join(lines) + "\n"

    def on(self, host: str) -> SimMachine:
        """The same hardware with identities of that host's own: no two hosts share a UUID or a GUID."""
        gpus = tuple(
            replace(gpu, uuid=f"GPU-{uuid5(NAMESPACE_DNS, f'{host}/gpu{index}')}")
            for index, gpu in enumerate(self.gpus)
        )
        hcas = []
        for index, hca in enumerate(self.hcas):
            digits = uuid5(NAMESPACE_DNS, f"{host}/hca{index}").hex
            hcas.append(replace(hca, node_guid=":".join(digits[at : at + 4] for at in range(0, 16, 4))))
        return replace(self, gpus=gpus, hcas=tuple(hcas))

    def lose_gpu(self) -> SimMachine:
        """The last GPU falls off the bus."""
        return replace(self, gpus=(*self.gpus[:-1], replace(self.gpus[-1], lost=1))) if self.gpus else self

    def hca_down(self) -> SimMachine:
        """The first device's port loses its link."""
        if not self.hcas:
            return self
        return replace(self, hcas=(replace(self.hcas[0], state="DOWN", physical="Polling"), *self.hcas[1:]))


_ADAPTER = TypeAdapter(SimMachine)


def parse(text: str, origin: str) -> SimMachine:
    """A description in YAML (or JSON, which is YAML). Raises ConfigError that names the key."""
    try:
        return _ADAPTER.validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(Problem(what="the machine description is not YAML", found=str(error), file=origin)) from None
    except ValidationError as error:
        raise ConfigError(
            *(
                Problem(
                    what="the machine description is wrong",
                    found=f"{wrong['msg']}",
                    key=".".join(str(part) for part in wrong["loc"]),
                    file=origin,
                )
                for wrong in error.errors(include_url=False, include_input=False)
            )
        ) from None


def named(name: str) -> SimMachine:
    """One of the descriptions of machines/, by file name without .yml."""
    path = MACHINES / f"{name}.yml"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in MACHINES.glob("*.yml")))
        raise ConfigError(Problem(what="no machine description of that name", found=name, expected=there))
    return parse(path.read_text(), str(path))
