"""What a lab has beside its machines: simulated hardware inside them, the hub and the serving environment."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from k3ctl import units
from k3ctl.errors import Problem
from k3ctl.lab.base import Base
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.layout import CACHE_ROOT
from k3ctl.lab.process import LabFailed, tail
from k3ctl.lab.services import Service, services

_BUILT_S = 5.0  # finding a serving environment takes milliseconds, building one minutes


def _module(name: str) -> ModuleType | None:
    """Import late: these modules are heavy, and a lab without them is still a lab of bare hosts."""
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


@dataclass(frozen=True)
class Hardware:
    """Simulated GPUs and HCAs under /opt/k3sim of a machine."""

    module: Any

    @classmethod
    def find(cls) -> Hardware | None:
        """The module that makes them, if this installation has it."""
        module = _module("k3ctl.lab.hardware")
        return cls(module) if module else None

    def install(self, lab: LabDefinition, host: LabHost) -> bool:
        """Put them into the machine's root; False when they were there."""
        return bool(self.module.install(lab.layout.machine(host.name) / "root"))

    def faults(self) -> dict[str, str]:
        """Hardware faults -> what they are."""
        return {name: fault.title for name, fault in self.module.FAULTS.items()}

    def fault(self, lab: LabDefinition, host: LabHost, name: str, *, active: bool) -> None:
        """Break or mend it in the machine's root."""
        change = self.module.inject if active else self.module.clear
        change(lab.layout.machine(host.name) / "root", name)


@dataclass(frozen=True)
class Hub:
    """The local hub: a supervised process on the gateway address."""

    lab: LabDefinition
    model: Any
    runtime: Any

    @classmethod
    def find(cls, lab: LabDefinition) -> Hub | None:
        """The hub, if the inventory wants one and this installation has it."""
        model = _module("k3ctl.lab.model")
        if not lab.hub_port or model is None or _module("k3ctl.lab.hub") is None:
            return None
        return cls(lab, model, _module("k3ctl.lab.runtime"))

    def service(self) -> Service:
        """The hub as a service; it is started again whenever it ends."""
        folder = self.lab.layout.hub
        return Service(
            unit=f"{self.lab.layout.prefix}-hub",
            argv=(
                *(sys.executable, "-m", "k3ctl.lab.hub"),
                *("--data", str(folder / "data")),
                *("--host", str(self.lab.gateway)),
                *("--port", str(self.lab.hub_port)),
                *("--faults", str(folder / "faults.json")),
                *("--log", str(folder / "requests.jsonl")),
            ),
            folder=folder / "service",
            log=folder / "hub.log",
            restart="always",
        )

    def ensure(self, base: Base, say: Callable[[str], None]) -> list[str]:
        """Make the model, serve it, then make the serving environment, which takes minutes; what was done."""
        did: list[str] = []
        data = self.lab.layout.hub / "data"
        if not data.is_dir():
            say("hub: making the small model")
            did.append("made the model")
        self.model.build(data)  # does nothing when it is whole
        if self.runtime is not None:
            self.runtime.publish(CACHE_ROOT, data)
        kind, service = services(), self.service()
        if kind.main_pid(service) is None:
            kind.kill(service)
            kind.start(service)
            did.append(f"serves on {self.lab.gateway}:{self.lab.hub_port}")
        self._wait(service)
        if self.runtime is not None:
            began = time.monotonic()
            bundle = self.runtime.ensure(CACHE_ROOT, base.root, say)
            if time.monotonic() - began > _BUILT_S:
                did.append(f"built {bundle.archive} ({units.size(bundle.bytes)})")
        return did

    def answers(self) -> bool:
        """Does it listen?"""
        try:
            with socket.create_connection((str(self.lab.gateway), self.lab.hub_port), timeout=0.5):
                return True
        except OSError:
            return False

    def _wait(self, service: Service, timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not self.answers():
            if time.monotonic() > end:
                raise LabFailed(
                    Problem(
                        what="the lab's hub does not answer",
                        found=f"nothing on {self.lab.gateway}:{self.lab.hub_port} after {timeout_s:.0f} s",
                        file=str(service.log),
                        evidence=tail(service.log.read_text(errors="replace")),
                    )
                )
            time.sleep(0.1)
